"""The listener: what is no review gets a 4xx, and costs the others nothing."""

import asyncio
import gzip
import logging
import ssl
from pathlib import Path

import aiohttp
import msgspec
import pytest
from prometheus_client import REGISTRY

from kubeloop.controllers.listener import Limits
from kubeloop.webhook.admission import ALLOW, AdmissionRequest, BadReview, Decision, deny
from tests.decisions import sentences
from tests.kubeloop.client.pki import Authority
from tests.kubeloop.webhook.listening import HEAD, JSON, KEY, QUICK, REVIEW, allow, knows_key, listening

pytestmark = pytest.mark.virtual_time

LARGEST = 3 * 2**20
"""Bytes of a review."""


async def refuse(_: AdmissionRequest) -> Decision:
    return deny("no")


async def patch(_: AdmissionRequest) -> Decision:
    return Decision(patch=[{"op": "remove", "path": "/x"}])


async def fail(_: AdmissionRequest) -> Decision:
    raise KeyError("a bug")


async def forgets(_: AdmissionRequest) -> Decision:
    return None  # type: ignore[return-value]


async def unreadable(_: AdmissionRequest) -> Decision:
    raise BadReview("object: no pod")


async def think(_: AdmissionRequest) -> Decision:
    await thought.wait()
    return ALLOW


thought = asyncio.Event()
HOOKS = {
    "/allow": allow,
    "/patch": patch,
    "/deny": refuse,
    "/fail": fail,
    "/unreadable": unreadable,
    "/think": think,
    "/forgets": forgets,
}


def counted(path: str, code: int) -> float:
    labels = {"webhook": path, "code": str(code)}
    return REGISTRY.get_sample_value("controller_runtime_webhook_requests_total", labels) or 0.0


async def test_decisions_come_back_as_reviews() -> None:
    async with listening(HOOKS) as peer:
        status, body = await peer.post("/allow")
        assert (status, msgspec.json.decode(body)["response"]) == (200, {"uid": "u-1", "allowed": True})
        status, body = await peer.post("/deny")
        assert msgspec.json.decode(body)["response"]["status"]["message"] == "no"
        # As the API server sends them: a query that it adds, and a charset.
        status, _ = await peer.post("/allow?timeout=5s", headers={"Content-Type": "application/json; charset=utf-8"})
        assert status == 200


REFUSED = {
    "a wrong path": ("/nothing", REVIEW, JSON, "POST", 404),
    "the root": ("/", REVIEW, JSON, "POST", 404),
    "another method": ("/allow", REVIEW, JSON, "GET", 405),
    "no body": ("/allow", b"", JSON, "POST", 400),
    "no review": ("/allow", b"{}", JSON, "POST", 400),
    "a uid without end": ("/allow", REVIEW.replace(b"u-1", b"u" * 10_000), JSON, "POST", 400),
    "too large": ("/allow", b" " * (LARGEST + 1), JSON, "POST", 413),
    "a compressed one": ("/allow", gzip.compress(REVIEW), JSON | {"Content-Encoding": "gzip"}, "POST", 400),
    "a bug of ours": ("/fail", REVIEW, JSON, "POST", 500),
}


@pytest.mark.parametrize("case", list(REFUSED.values()), ids=list(REFUSED))
async def test_refused(case: tuple[str, bytes, dict[str, str], str, int]) -> None:
    path, body, headers, method, expected = case
    async with listening(HOOKS) as peer:
        status, text = await peer.post(path, body, headers, method)
        assert status == expected
        assert text.decode().count("\n") == 1, "one line"
        assert b"Traceback" not in text
        assert (await peer.post("/allow"))[0] == 200


async def test_a_hooks_own_exception_is_logged_with_the_object(caplog: pytest.LogCaptureFixture) -> None:
    operation = b'"operation":"UPDATE","namespace":"ns","name":"a\\nb","resource":{"resource":"pods"}'
    async with listening(HOOKS) as peer:
        status, text = await peer.post("/fail", REVIEW.replace(b'"operation":"UPDATE"', operation))
        assert (await peer.post("/forgets", REVIEW))[0] == 500
    assert (status, text) == (500, b"no decision: KeyError\n")
    assert "/fail: no decision on UPDATE pods ns/a b: KeyError: 'a bug'" in caplog.messages
    assert any(line.endswith("TypeError: a hook returns a Decision, not None") for line in caplog.messages)


async def test_a_client_that_asks_whether_to_go_on_is_told() -> None:
    async with listening(HOOKS) as peer:
        reader, writer = await peer.connect()
        writer.write(HEAD + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(REVIEW))
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(REVIEW)
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        writer.close()


async def test_the_largest_review_is_taken() -> None:
    filler = REVIEW[:-1] + b" " * (LARGEST - len(REVIEW)) + b"}"
    async with listening(HOOKS, limits=Limits()) as peer:
        assert (await peer.post("/allow", filler))[0] == 200


async def test_a_review_is_denied_where_it_cannot_be_read(caplog: pytest.LogCaptureFixture) -> None:
    """Without an answer the failure policy would decide, and let a pod take what is reserved."""
    caplog.set_level(logging.INFO, "kubeloop.webhook.server")
    filler = REVIEW[:-1] + b" " * LARGEST + b"}"
    async with listening(HOOKS, limits=Limits()) as peer:
        for path, review, problem in (("/allow", filler, "too large"), ("/unreadable", REVIEW, "no pod")):
            status, body = await peer.post(path, review)
            answer = msgspec.json.decode(body)["response"]
            assert (status, answer["uid"], answer["allowed"]) == (200, "u-1", False)
            assert problem in answer["status"]["message"]
        assert (await peer.post("/allow", filler * 8))[0] == 413
        assert (await peer.post("/allow", b" " * len(filler)))[0] == 413
        assert (await peer.post("/allow"))[0] == 200
    denied = [line for line in caplog.messages if ": denied to " in line]
    assert denied == ["/unreadable: denied to : the request cannot be checked: object: no pod"]


async def test_who_hangs_up_is_not_missed() -> None:
    async with listening(HOOKS) as peer:
        for content in (b"", HEAD, HEAD + b"Content-Length: 100\r\n\r\n{"):
            await peer.send(content, then_close=True)
        assert await peer.send(b"GET / HTTP/1.1\r\n\r\n", tls=False) == b""
        assert (await peer.post("/allow"))[0] == 200


async def test_slow_decisions_do_not_hold_up_others() -> None:
    thought.clear()
    async with listening(HOOKS, limits=Limits()) as peer:
        slow = [asyncio.create_task(peer.post("/think")) for _ in range(20)]
        await asyncio.sleep(0.05)
        assert (await peer.post("/allow"))[0] == 200
        assert not any(task.done() for task in slow)
        thought.set()
        assert {status for status, _ in await asyncio.gather(*slow)} == {200}


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
async def test_old_tls_is_refused() -> None:
    async with listening(HOOKS) as peer:
        peer.tls.maximum_version = ssl.TLSVersion.TLSv1_2
        assert (await peer.post("/allow"))[0] == 200
        old = ssl.create_default_context()
        old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
        old.minimum_version = ssl.TLSVersion.TLSv1
        old.maximum_version = ssl.TLSVersion.TLSv1_1
        old.set_ciphers("ALL:@SECLEVEL=0")
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await asyncio.open_connection("127.0.0.1", peer.server.address[1], ssl=old)


async def test_what_is_served_is_counted_under_known_names_only() -> None:
    counts_before = counted("/allow", 200), counted("unknown", 404), counted("denials", 200)
    async with listening(HOOKS) as peer:
        for path in ("/allow", "/patch", "/deny", "/x", "/y"):
            await peer.post(path)
    decisions = [
        (name, decision.allowed, bool(decision.patch), decision.reason) for name, decision in peer.recorded.decisions
    ]
    assert decisions == [("/allow", True, False, ""), ("/patch", True, True, ""), ("denials", False, False, "invalid")]
    assert (
        REGISTRY.get_sample_value("controller_runtime_webhook_requests_total", {"webhook": "/patch", "code": "500"})
        == 0
    ), "as dashboards expect"
    counts_after = counted("/allow", 200), counted("unknown", 404), counted("denials", 200)
    assert [new - old for new, old in zip(counts_after, counts_before, strict=True)] == [1, 2, 1]
    assert REGISTRY.get_sample_value("controller_runtime_webhook_requests_in_flight", {"webhook": "/allow"}) == 0
    count, seconds = (
        REGISTRY.get_sample_value(f"controller_runtime_webhook_latency_seconds_{suffix}", {"webhook": "/patch"}) or 0.0
        for suffix in ("count", "sum")
    )
    assert 0 < seconds < 60 * count


SENDERS: dict[str, tuple[str, tuple[str, ...] | None, int]] = {
    "with the registered key": (f"/allow/{KEY}", None, 200),
    "without a key": ("/allow", None, 403),
    "with another key": (f"/allow/{'0' * 32}", None, 403),
    "with a part of it": (f"/allow/{KEY[1:]}", None, 403),
    "with the key on a path that is not served": (f"/nothing/{KEY}", None, 404),
    "without a key on one": ("/nothing", None, 403),
    "with a certificate": ("/allow", (), 200),
    "with a certificate of that name": ("/allow", ("kube-apiserver",), 200),
    "with one of another name": ("/allow", ("another-client",), 403),
    "with one of another name and the key": (f"/allow/{KEY}", ("another-client",), 403),
}
"""Path, the names of clients that are answered where there is a CA for them, and the status of the answer."""


class TestClients:
    """Only the API server is answered where there is a key or a CA for clients."""

    @sentences(SENDERS)
    async def test_who_is_refused(self, tmp_path: Path, case: tuple[str, tuple[str, ...] | None, int]) -> None:
        path, names, expected = case
        ca, pair = _authority(tmp_path)
        client_ca = ca if names is not None else None
        async with listening(HOOKS, knows_key=knows_key, client_ca=client_ca, client_names=names or ()) as peer:
            peer.tls.load_cert_chain(*pair)
            reader, writer = await peer.connect()
            # Nothing of a stranger's body is waited for, and its connection ends.
            writer.write(HEAD.replace(b"/allow", path.encode()) + b"Content-Length: %d\r\n\r\n" % len(REVIEW))
            if expected == 200:
                writer.write(REVIEW)
            assert (await reader.readline()).split()[1] == b"%d" % expected
            await asyncio.sleep(1.5 * QUICK.head)
            await reader.read(10_000)
            assert reader.at_eof() is (expected != 200)
            writer.close()

    @pytest.mark.parametrize("issued_by_another", [False, True], ids=["none", "another CA's"])
    async def test_none(self, tmp_path: Path, issued_by_another: bool) -> None:
        async with listening(HOOKS, client_ca=_authority(tmp_path)[0]) as peer:
            if issued_by_another:
                peer.tls.load_cert_chain(*_authority(tmp_path)[1])
            with pytest.raises((aiohttp.ClientError, OSError)):
                await peer.post("/allow")


def _authority(folder: Path) -> tuple[Path, tuple[Path, Path]]:
    """A CA's file, and the files of a certificate that it has issued."""
    authority = Authority()
    (folder / "ca.crt").write_text(authority.pem)
    return folder / "ca.crt", authority.issue("kube-apiserver").write(folder, "client")
