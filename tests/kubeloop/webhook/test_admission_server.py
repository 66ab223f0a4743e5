"""The order of things while a replica serves."""

import asyncio
import ssl
import time
from typing import Any, cast

import pytest

from kubeloop.client.errors import ApiError, ConfigError, ServiceUnavailable
from kubeloop.controllers.errors import BindError
from kubeloop.webhook.admission import ALLOW, AdmissionRequest, Decision
from kubeloop.webhook.admission_server import POLL_SECONDS, RETRY_SECONDS, AdmissionServer
from kubeloop.webhook.certificates import issue
from kubeloop.webhook.registration import Endpoint, NotReached
from kubeloop.webhook.serving_certificate import ServingCertificate, server_context
from pkg.webhook.registration import Registrar
from tests.kubeloop.webhook.listening import HEAD, KEY, REVIEW, RecordedMetrics, allow

pytestmark = pytest.mark.virtual_time

ENSURE = "ensure b'ca'"


class RecordingCertificate(ServingCertificate):
    """A certificate and a registrar that write down what is asked of them."""

    def __init__(self) -> None:
        super().__init__(server_context())
        self.calls_made: list[str] = []
        self.failures: dict[str, list[Exception]] = {}
        self.material = issue(["127.0.0.1"], time.time())
        self.endpoint = Endpoint(key=KEY)
        self.recorded = RecordedMetrics()

    async def refresh(self) -> None:
        self._note("refresh")
        self.bundle = b"ca"
        self.serve(self.material.serving)

    async def knows(self, key: str) -> bool:
        return key == self.endpoint.key

    async def adopt(self) -> None:
        self._note("adopt")

    async def ensure(self, bundle: bytes | None) -> None:
        self._note(f"ensure {bundle!r}")

    def _note(self, call: str) -> None:
        self.calls_made.append(call)
        if self.failures.get(call):
            raise self.failures[call].pop(0)


def server(calls: RecordingCertificate, synced: asyncio.Event, *, registers: bool = True) -> AdmissionServer:
    registrar = cast("Registrar", calls) if registers else None
    return AdmissionServer({"/allow": allow}, calls, registrar, synced=synced.wait, metrics=calls.recorded)


@pytest.fixture
def calls() -> RecordingCertificate:
    return RecordingCertificate()


@pytest.fixture
def synced() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


async def test_ready_with_caches_certificate_and_registration(calls: RecordingCertificate) -> None:
    synced = asyncio.Event()
    served = server(calls, synced)
    assert served.unready() == ["webhook certificate", "webhook registration: the caches have not synced yet"]
    await served.start("127.0.0.1:0")
    await asyncio.sleep(0.05)
    assert served.unready() == ["webhook registration: the caches have not synced yet"]
    assert calls.calls_made == ["refresh", "adopt"]
    synced.set()
    await asyncio.sleep(2.5 * POLL_SECONDS)
    assert (served.unready(), served.healthy()) == ([], [])
    assert calls.calls_made == ["refresh", "adopt", *["refresh", ENSURE] * 3]
    await served.stop()
    assert calls.calls_made[8:] == [], "the registration stays: other replicas live by it"


async def test_without_a_registrar_another_program_registers_it(
    calls: RecordingCertificate, synced: asyncio.Event
) -> None:
    served = server(calls, synced, registers=False)
    await served.start("127.0.0.1:0")
    await asyncio.sleep(0.05)
    assert (calls.calls_made, served.unready()) == (["refresh"] * 2, [])
    await served.stop()


@pytest.mark.parametrize("call", ["refresh", ENSURE])
@pytest.mark.parametrize("failure", [ServiceUnavailable("busy"), ConfigError("bad"), KeyError("bug"), OSError("disk")])
async def test_what_fails_is_tried_again_soon(
    call: str, failure: Exception, calls: RecordingCertificate, synced: asyncio.Event
) -> None:
    served = server(calls, synced)
    await served.start("127.0.0.1:0")
    calls.failures[call] = [failure]
    await asyncio.sleep(0.1)
    assert served.unready()
    await asyncio.sleep(0.5)
    assert served.unready() == []
    calls.failures[call] = [failure] * 20
    await asyncio.sleep(POLL_SECONDS + 9 * RETRY_SECONDS)
    assert 10 <= len(calls.calls_made) - calls.calls_made.index(ENSURE) <= 40
    assert served.unready() == [], "an API server that is away says nothing of webhooks that are registered"
    await served.stop()


async def test_a_review_waits_for_the_caches(calls: RecordingCertificate) -> None:
    """A replica that starts is asked at once if the webhooks are registered already."""
    synced = asyncio.Event()
    served = server(calls, synced, registers=False)
    await served.start("127.0.0.1:0")
    tls = ssl.create_default_context(cadata=calls.material.bundle.decode())
    reader, writer = await asyncio.open_connection(*served.address, ssl=tls)
    writer.write(HEAD + b"Content-Length: %d\r\n\r\n" % len(REVIEW) + REVIEW)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 0.2)
    synced.set()
    assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
    writer.close()
    await served.stop()


async def test_a_registration_that_fails_is_tried_again_and_shows(
    calls: RecordingCertificate, synced: asyncio.Event, caplog: pytest.LogCaptureFixture
) -> None:
    calls.failures[ENSURE] = [NotReached("connection refused") for _ in range(3)]
    served = server(calls, synced)
    await served.start("127.0.0.1:0")
    await asyncio.sleep(0.1)
    assert served.unready() == ["webhook registration: connection refused"]
    await asyncio.sleep(5.0)
    assert served.unready() == []
    assert caplog.messages.count("webhooks are not registered: connection refused") == 1
    await served.stop()


@pytest.mark.parametrize(
    ("issued", "unready", "note"),
    [
        (4_000_000_000.0, [], "webhook certificate: valid until 2097-10-02T07:06:40Z"),
        (1_700_000_000.0, ["webhook certificate: expired"], "webhook certificate: valid until 2024-11-13T22:13:20Z"),
    ],
)
async def test_when_the_certificate_expires_is_said(
    issued: float, unready: list[str], note: str, calls: RecordingCertificate, synced: asyncio.Event
) -> None:
    calls.material = issue(["127.0.0.1"], issued)
    served = server(calls, synced)
    assert served.notes() == []
    await served.start("127.0.0.1:0")
    await asyncio.sleep(0.1)
    assert [line[: len("webhook certificate: expired")] for line in served.unready()] == unready
    assert served.notes() == [note]
    assert calls.recorded.expires == calls.expires
    await served.stop()


@pytest.mark.parametrize("failure", [ConfigError("no secret"), ApiError("forbidden")])
async def test_without_a_certificate_nothing_is_served(failure: Exception, calls: RecordingCertificate) -> None:
    calls.failures["refresh"] = [failure]
    with pytest.raises(type(failure)):
        await server(calls, asyncio.Event()).start("127.0.0.1:0")


async def test_an_address_that_is_none_is_one_clear_line(calls: RecordingCertificate) -> None:
    with pytest.raises(BindError):
        await server(calls, asyncio.Event()).start("nowhere")


def test_a_hook_that_is_a_plain_function_is_refused(calls: RecordingCertificate, synced: asyncio.Event) -> None:
    def plain(request: AdmissionRequest) -> Decision:
        return ALLOW

    hooks: dict[str, Any] = {"/allow": allow, "/plain": plain}
    with pytest.raises(TypeError, match="plain is a plain function"):
        AdmissionServer(hooks, calls, None, synced=synced.wait)
