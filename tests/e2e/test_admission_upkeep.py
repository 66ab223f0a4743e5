"""The life of a webhook: certificates renewed under load, replicas that agree, one that dies and comes back."""

import asyncio
import base64
import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import msgspec
import pytest
from cryptography import x509

from kubeloop.api import registry
from kubeloop.api.core import ValidatingWebhookConfiguration
from kubeloop.api.quantity import Quantity
from kubeloop.client.client import Client
from kubeloop.testing.cluster.cluster import Cluster
from kubeloop.testing.cluster.paths import free_ports
from kubeloop.testing.polling import until
from kubeloop.webhook import admission_server, certificates
from kubeloop.webhook.admission import ALLOW, AdmissionRequest, Decision
from kubeloop.webhook.admission_server import AdmissionServer
from kubeloop.webhook.registration import Endpoint
from kubeloop.webhook.serving_certificate import SharedCertificates, server_context
from lab import bodies
from lab.bodies import quota_text
from lab.namespace import PODS, Namespace, becomes
from pkg.config.settings import WEBHOOKS, Settings
from pkg.selfcheck.api_server import PROBE_PATH
from pkg.util.constants import WEBHOOK_CONFIGURATION_NAME
from pkg.webhook.configurations import VALIDATE_NAMESPACE
from pkg.webhook.register import answer_probe
from pkg.webhook.registration import Registrar, unregister
from tests.bench.webhook import Line, post
from tests.e2e.admin import HARD, LIMITS, Admin, admin_of
from tests.program import headroom, of_a_soak, program

pytestmark = pytest.mark.cluster

RENEWALS = of_a_soak(20)
RATE = 200
"""Requests a second, at most so many CALLS at once."""
CALLS = 32
RAISED = {"limits.cpu": "5015m"}
REVIEW = {
    "apiVersion": "admission.k8s.io/v1",
    "kind": "AdmissionReview",
    "request": {"uid": "1", "operation": "UPDATE", "object": {}, "oldObject": {}},
}


@pytest.fixture
async def admin(cluster: Cluster) -> AsyncIterator[Admin]:
    async with admin_of(cluster) as administrator:
        await unregister(administrator.client)
        try:
            yield administrator
        finally:
            await unregister(administrator.client)


@dataclass
class Callers:
    """API servers, as far as a webhook sees them: they trust what the configuration says, and keep connections."""

    client: Client
    url: str
    key: str
    failures: Counter[str] = field(default_factory=Counter)
    answered: int = 0
    served: set[int] = field(default_factory=set)
    """Serial numbers of the certificates that were shown."""
    _bundle: bytes = b""
    _context: ssl.SSLContext | None = None

    async def follow_the_bundle(self) -> None:
        """Follows it by a watch, as an API server does."""
        configurations = self.client.resource(registry.VALIDATING_WEBHOOK_CONFIGURATIONS)
        async with configurations.watch(field_selector=f"metadata.name={WEBHOOK_CONFIGURATION_NAME}") as versions:
            async for version in versions:
                bundle = bundle_of(version.object)
                if bundle and bundle != self._bundle:
                    self._bundle, self._context = bundle, ssl.create_default_context(cadata=bundle.decode())

    @property
    def ready(self) -> bool:
        return self._context is not None

    async def call_for_ever(self) -> None:
        """At the rate, whatever becomes of each call; every eighth over a new connection."""
        calls: set[asyncio.Task[None]] = set()
        idle: list[Line] = []
        began, number = time.monotonic(), 0
        try:
            while True:
                number += 1
                line = idle.pop() if idle and number % 8 else None
                calls.add(asyncio.create_task(self._call(line, idle)))
                calls = {call for call in calls if not call.done()}
                if len(calls) >= CALLS:
                    await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
                await asyncio.sleep(max(0.0, began + number / RATE - time.monotonic()))
        finally:
            if calls:
                await asyncio.wait(calls)
            for line in idle:
                line.close()

    async def _call(self, line: Line | None, idle: list[Line]) -> None:
        try:
            async with asyncio.timeout(5):
                if line is None:
                    assert self._context is not None
                    line = await Line.open(int(self.url.rpartition(":")[2]), self._context)
                    self.served.add(x509.load_der_x509_certificate(line.certificate).serial_number)
                assert msgspec.json.decode(await line.ask(post(f"{VALIDATE_NAMESPACE}/{self.key}", REVIEW)))[
                    "response"
                ]["allowed"]
            self.answered += 1
        except (OSError, EOFError, AssertionError, RuntimeError, TimeoutError) as exc:
            self.failures[f"{type(exc).__name__}: {exc}"] += 1
        else:
            if len(idle) < 8:
                idle.append(line)
                return
        if line is not None:
            line.close()


async def test_certificates_are_renewed_under_load_and_no_call_fails(
    cluster: Cluster, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock by which certificates age is pushed on; what they are valid for is always now."""
    monkeypatch.setattr(certificates, "SERVING_LIFE", 120.0)
    monkeypatch.setattr(certificates, "BACKDATED", 7200.0)
    monkeypatch.setattr(admission_server, "POLL_SECONDS", 0.1)
    ahead = 0.0
    (port,) = free_ports(1)
    url = f"https://127.0.0.1:{port}"
    secrets = admin.client.resource(registry.SECRETS)
    hosts, clock = ["127.0.0.1"], lambda: time.time() + ahead
    certificate = SharedCertificates(server_context(), secrets, "default", "e2e-renewed", hosts, clock)
    options = Settings(strict=WEBHOOKS)

    async def allow(_: AdmissionRequest) -> Decision:
        return ALLOW

    async def nothing() -> None:
        return None

    registrar = Registrar(admin.client, Endpoint(url=url), options)
    served = {VALIDATE_NAMESPACE: allow, PROBE_PATH: lambda review: answer_probe(review, registrar.mark)}
    server = AdmissionServer(served, certificate, registrar, synced=nothing)
    namespace = await admin.namespace(HARD)
    await server.start(f"127.0.0.1:{port}")
    tasks: list[asyncio.Task[None]] = []
    try:
        await until(lambda: not server.unready(), "the webhook")
        callers = Callers(admin.client, url, registrar.endpoint.key)
        tasks.append(asyncio.create_task(callers.follow_the_bundle()))
        await until(lambda: callers.ready, "the bundle")
        tasks.append(asyncio.create_task(callers.call_for_ever()))
        await until(lambda: callers.served, "the first call")
        began = time.monotonic()
        for number in range(RENEWALS):
            reviews, calls = len(callers.served), callers.answered + RATE // 4
            ahead += 81.0

            def renewed(reviews: int = reviews, calls: int = calls) -> bool:
                return len(callers.served) > reviews and callers.answered >= calls

            await until(renewed, f"renewal {number}", seconds=10)
            # And one through the API server, which must not let the write pass without an answer (failurePolicy Fail).
            await namespace.annotate(quota_text({**LIMITS, "limitsCpu": f"{number + 4}"}))
        took = time.monotonic() - began
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await server.stop()
        await unregister(admin.client)
        await admin.client.resource(registry.SECRETS).delete(name="e2e-renewed", namespace="default")
    print(f"{callers.answered} calls in {took:.1f} s, {len(callers.served)} certificates, {callers.failures}")
    assert not callers.failures
    assert len(callers.served) > RENEWALS


async def test_a_webhook_that_is_down_blocks_nothing(cluster: Cluster, admin: Admin) -> None:
    repaired = Quantity.parse("5515m")
    with headroom(cluster, "controller"):
        webhook = program(cluster, "webhook")
        webhook.start()
        namespace = await admin.namespace(HARD)
        await namespace.migrating()
        alice = namespace.by(admin.by("alice"))
        webhook.kill()
        await alice.create(PODS, bodies.pod(cpu="1m"))
        await alice.annotate(quota_text({**LIMITS, "limitsCpu": "3500m"}))
        await alice.set_hard({"limits.cpu": "1"})
        await alice.create_machine("vm2", strategy="Halted")
        await becomes(lambda: cpu_of(namespace), repaired)
    # No webhook runs: a quota that is lowered stays low.
    await namespace.set_hard({"limits.cpu": "1"})
    assert await cpu_of(namespace) == Quantity.parse("1")
    with headroom(cluster, "controller", "--webhook"):
        await becomes(lambda: cpu_of(namespace), repaired)


async def cpu_of(namespace: Namespace) -> Quantity:
    return (await namespace.hard())["limits.cpu"]


def bundle_of(configuration: ValidatingWebhookConfiguration | None) -> bytes:
    webhooks = configuration.webhooks if configuration is not None else None
    return base64.b64decode(webhooks[0]["clientConfig"]["caBundle"]) if webhooks else b""
