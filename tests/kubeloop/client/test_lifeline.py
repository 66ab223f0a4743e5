"""The lease, credentials, certificates and addresses wait for nothing that a program fills; a call has an end."""

import asyncio
import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kubeloop.api.core import LeaseSpec
from kubeloop.client import credentials, errors, tls
from kubeloop.client.client import Client
from kubeloop.client.config import ClientConfig
from kubeloop.client.transport import REQUEST_TIMEOUT
from kubeloop.leaderelection.lease_lock import LeaseLock
from kubeloop.testing.scripted_server import GET, PATCH, Reply, ScriptedServer, body, refuse, silent, status
from kubeloop.testing.virtual_time import now
from tests.decisions import sentences
from tests.kubeloop.client.kubeconfigs import data, kubeconfig, write
from tests.kubeloop.client.pki import Authority
from tests.kubeloop.client.rig import PATH, TransportRig, load

LEASE = "/apis/coordination.k8s.io/v1/namespaces/ns/leases/headroom"
OBJECT = {"metadata": {"name": "headroom", "namespace": "ns", "resourceVersion": "7"}, "spec": {}}
OK = body({"ok": True})


@contextlib.contextmanager
def busy_executor() -> Iterator[None]:
    """Every thread of the running loop's default executor blocks, and more work waits for one."""
    end, loop = threading.Event(), asyncio.get_running_loop()
    jobs = [loop.run_in_executor(None, end.wait) for _ in range(2 * (os.cpu_count() or 1) + 40)]
    try:
        yield
    finally:
        end.set()
        del jobs


async def test_blocking_jobs_hold_up_no_token_certificate_or_name(
    rig: TransportRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(credentials, "REREAD_SECONDS", 0.0)
    monkeypatch.setattr(tls, "REREAD_SECONDS", 0.0)
    authority = Authority()
    (tmp_path / "token").write_text("first")
    (tmp_path / "ca.crt").write_text(authority.pem)
    async with ScriptedServer(authority.server_context()) as server:
        server.always(PATCH, LEASE, body(OBJECT))
        cluster = {"certificate-authority": "ca.crt", "tls-server-name": "127.0.0.1"}
        address = server.url.replace("127.0.0.1", "localhost")
        config = load(write(tmp_path, kubeconfig({"tokenFile": "token"}, server=address, cluster=cluster)))
        async with Client(config) as client:
            lock = LeaseLock(client, "ns", "headroom")
            with busy_executor():
                for token in ("second", "third"):
                    (tmp_path / "token").write_text(token)
                    await asyncio.wait_for(lock.update(LeaseSpec(), "7"), 5)
        assert [request.headers["Authorization"] for request in server.requests] == ["Bearer second", "Bearer third"]


async def test_slow_reads_of_a_client_do_not_hold_up_its_lease() -> None:
    async with ScriptedServer() as server:
        server.always(GET, PATH, silent())
        server.always(PATCH, LEASE, body(OBJECT))
        async with Client(server.config()) as client:
            lock = LeaseLock(client, "ns", "headroom")
            reads = [asyncio.create_task(client.transport.request("GET", PATH)) for _ in range(250)]
            await server.wait_seen(GET, PATH, 100)
            await asyncio.wait_for(lock.update(LeaseSpec(), "7"), 2)
            for read in reads:
                read.cancel()
            await asyncio.gather(*reads, return_exceptions=True)


async def test_what_is_separate_ends_with_the_client() -> None:
    async with ScriptedServer() as server:
        server.always(PATCH, LEASE, body(OBJECT))
        async with Client(server.config()) as client:
            lock = LeaseLock(client, "ns", "headroom")
            await lock.update(LeaseSpec(), "7")
        with pytest.raises(errors.Unreachable, match="the client is closed"):
            await lock.update(LeaseSpec(), "7")


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="Linux has it")
async def test_a_vanished_peer_is_known_within_45_seconds(rig: TransportRig) -> None:
    rig.server.always(GET, PATH, OK)
    await rig.transport.request("GET", PATH)
    connector = rig.transport._sessions[False].connector
    assert connector is not None
    ((protocol, _),) = next(iter(connector._conns.values()))
    assert protocol.transport is not None
    opened = protocol.transport.get_extra_info("socket")

    def option(name: str) -> int:
        value: int = opened.getsockopt(socket.IPPROTO_TCP, getattr(socket, name))
        return value

    assert opened.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    assert option("TCP_KEEPIDLE") + option("TCP_KEEPINTVL") * option("TCP_KEEPCNT") <= 45
    assert option("TCP_USER_TIMEOUT") <= 45_000


ENDLESS: dict[str, tuple[list[Reply], str]] = {
    "never answers": ([silent()] * 9, "no answer within 30 s|timed out"),
    "resets, then never answers": ([refuse(), *[silent()] * 9], "no answer within 30 s|timed out"),
    "is not there, again and again": ([status(503, "ServiceUnavailable")] * 99, "ServiceUnavailable"),
}


@pytest.mark.virtual_time
@sentences(ENDLESS)
async def test_a_call_ends_within_its_time_where_the_server(case: tuple[list[Reply], str], rig: TransportRig) -> None:
    replies, message = case
    rig.server.script(GET, PATH, *replies)
    began = now()
    with pytest.raises(errors.ApiError, match=message):
        await rig.transport.request("GET", PATH)
    assert now() - began <= REQUEST_TIMEOUT + 0.1


@pytest.mark.virtual_time
async def test_a_list_that_is_never_answered_is_not_asked_for_again(rig: TransportRig) -> None:
    rig.server.always(GET, PATH, silent())
    began = now()
    with pytest.raises(errors.Unreachable):
        await rig.transport.request("GET", PATH, timeout=None, read_timeout=REQUEST_TIMEOUT)
    assert now() - began <= REQUEST_TIMEOUT + 0.1


def test_a_certificate_authority_is_read_as_go_reads_it(tmp_path: Path) -> None:
    authority = Authority()
    texts = {
        "with a comment in UTF-8": "# café ✓\n" + authority.pem,
        "after one that is not valid": "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n" + authority.pem,
    }
    for name, text in texts.items():
        path = tmp_path / "ca.crt"
        path.write_text(text)
        for cluster in ({"certificate-authority": str(path)}, {"certificate-authority-data": data(text)}):
            config: ClientConfig = load(write(tmp_path, kubeconfig(cluster=cluster)))
            context = config.ssl_context()
            assert context is not None
            assert len(context.get_ca_certs()) == 1, name
