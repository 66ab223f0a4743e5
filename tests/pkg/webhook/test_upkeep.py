"""The order of things while a replica serves."""

from __future__ import annotations

import asyncio
import ssl
import time
from typing import cast

import pytest

from kubeloop.client.errors import ApiError, ConfigError, ServiceUnavailable
from kubeloop.controllers.errors import BindError
from pkg.config.probe import NotReached
from pkg.webhook.admission import ALLOW, AdmissionRequest, Decision
from pkg.webhook.admission_server import AdmissionServer
from pkg.webhook.certificates import Policy, issue
from pkg.webhook.registration import Registrar
from pkg.webhook.tls_context import load, server_context
from pkg.webhook.upkeep import Upkeep
from tests.pkg.webhook.listening import REVIEW

pytestmark = pytest.mark.virtual_time


class Calls:
    """Certificates and a registrar that write down what is asked of them."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.bundle: bytes | None = b"ca"
        self.expires: float | None = None
        self.failures: dict[str, list[Exception]] = {}

    async def refresh(self) -> None:
        self._note("refresh")
        self.expires = float("inf")

    async def adopt(self) -> None:
        self._note("adopt")

    async def ensure(self, bundle: bytes | None) -> None:
        self._note(f"ensure {bundle!r}")

    def _note(self, what: str) -> None:
        self.made.append(what)
        if self.failures.get(what):
            raise self.failures[what].pop(0)


def registrar(calls: Calls) -> Registrar:
    return cast("Registrar", calls)


async def poll(calls: Calls, count: int, upkeep: Upkeep) -> None:
    """Let it poll so many times."""
    task = asyncio.create_task(upkeep.run())
    while calls.made.count("refresh") < count:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.wait([task])


async def test_a_bundle_is_registered_once_there_is_a_certificate_of_its() -> None:
    calls = Calls()
    upkeep = Upkeep(calls, registrar(calls), poll=0.01)
    await upkeep.load()
    await upkeep.register()
    assert calls.made == ["refresh", "adopt", "ensure b'ca'"]


async def test_without_a_registrar_another_program_registers_it() -> None:
    calls = Calls()
    upkeep = Upkeep(calls, None)
    await upkeep.register()
    assert (calls.made, upkeep.not_registered) == ([], "")


@pytest.mark.parametrize("what", ["refresh", "ensure b'ca'"])
@pytest.mark.parametrize("failure", [ServiceUnavailable("busy"), ConfigError("bad"), KeyError("bug"), OSError("disk")])
async def test_what_fails_is_tried_again(what: str, failure: Exception) -> None:
    calls = Calls()
    calls.failures[what] = [failure]
    await poll(calls, 3, Upkeep(calls, registrar(calls), poll=0.01))
    assert calls.made[-2:] == ["refresh", "ensure b'ca'"]


async def test_a_bundle_that_could_not_be_registered_is_not() -> None:
    calls = Calls()
    calls.failures["ensure b'ca'"] = [ApiError("no")]
    upkeep = Upkeep(calls, registrar(calls))
    await upkeep.register()
    assert upkeep.not_registered == "no"


async def allow(_: AdmissionRequest) -> Decision:
    return ALLOW


def server(calls: Calls, synced: asyncio.Event) -> AdmissionServer:
    return AdmissionServer({"/x": allow}, calls, server_context(), registrar(calls), synced=synced.wait, poll=0.01)


async def test_ready_when_caches_have_synced_the_certificate_is_loaded_and_the_api_server_knows() -> None:
    calls, synced = Calls(), asyncio.Event()
    served = server(calls, synced)
    assert served.unready() == ["webhook certificate", "webhook registration: the caches have not synced yet"]
    await served.start("127.0.0.1:0")
    assert served.unready() == ["webhook registration: the caches have not synced yet"]
    await asyncio.sleep(0.05)
    assert "ensure b'ca'" not in calls.made
    synced.set()
    for _ in range(100):
        await asyncio.sleep(0.01)
        if not served.unready():
            break
    assert served.unready() == []
    assert served.healthy() == []
    await served.stop()
    assert "ensure None" not in calls.made, "the registration stays: other replicas live by it"


async def test_a_review_waits_for_the_caches() -> None:
    """Where the webhooks are registered already, a replica that starts is asked at once."""
    material = issue(["127.0.0.1"], Policy(), time.time())
    context, synced = server_context(), asyncio.Event()
    load(context, material.serving.certificate, material.serving.key)
    served = AdmissionServer({"/x": allow}, Calls(), context, None, synced=synced.wait)
    await served.start("127.0.0.1:0")
    tls = ssl.create_default_context(cadata=material.bundle.decode())
    reader, writer = await asyncio.open_connection(*served.address, ssl=tls)
    head = b"POST /x HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    writer.write(head % len(REVIEW) + REVIEW)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 0.2)
    synced.set()
    assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
    writer.close()
    await served.stop()


async def test_a_registration_that_fails_is_tried_again_and_shows(caplog: pytest.LogCaptureFixture) -> None:
    calls, synced = Calls(), asyncio.Event()
    synced.set()
    calls.failures["ensure b'ca'"] = [NotReached("connection refused") for _ in range(3)]
    served = server(calls, synced)
    await served.start("127.0.0.1:0")
    await asyncio.sleep(0.1)
    assert served.unready() == ["webhook registration: connection refused"]
    calls.expires = time.time() - 60
    assert served.unready()[0].startswith("webhook certificate: expired 6")
    calls.expires = 4_000_000_000.0
    assert served.notes() == ["webhook certificate: valid until 2096-10-02T07:06:40Z"]
    await asyncio.sleep(5.0)
    assert served.unready() == []
    assert caplog.messages.count("webhooks are not registered: connection refused") == 1
    await served.stop()


@pytest.mark.parametrize("failure", [ConfigError("no secret"), ApiError("forbidden")])
async def test_without_a_certificate_nothing_is_served(failure: Exception) -> None:
    calls = Calls()
    calls.failures["refresh"] = [failure]
    with pytest.raises(type(failure)):
        await server(calls, asyncio.Event()).start("127.0.0.1:0")


async def test_an_address_that_is_none_is_one_clear_line() -> None:
    with pytest.raises(BindError):
        await server(Calls(), asyncio.Event()).start("nowhere")
