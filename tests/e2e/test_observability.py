"""A real Prometheus watches a real run: nothing fires while all is well, each alert fires on its real fault, and every
panel of the dashboard has had data. `make observability`."""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from kubeloop.client.errors import Forbidden
from kubeloop.testing.cluster.cluster import Cluster
from kubeloop.testing.cluster.paths import free_ports
from kubeloop.testing.polling import until
from kubeloop.webhook.certificates import DAY, SERVING_LIFE, issue
from pkg.util.constants import ANNOTATION_SINCE, LOCK_LABELS
from tests.e2e.accounts import ADMISSION, RBAC
from tests.e2e.api import Api
from tests.e2e.conftest import frozen
from tests.e2e.headroom.amounts import ONE
from tests.e2e.headroom.environment import Environment, environment
from tests.e2e.headroom.shapes import start
from tests.e2e.hostile_tenant import VIRT_CONTROLLER, applied_policy
from tests.monitoring.prometheus import Prometheus, severities
from tests.monitoring.queries import panels
from tests.program import Program

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(not os.environ.get("HEADROOM_OBSERVABILITY"), reason="needs Prometheus: make observability"),
]

QUIET = 12.0
"""Seconds without an alert: longer than any of the alerts, at the test's pace, takes."""
PATIENCE = 60.0


class ObservedRun:
    """The programs of a story, one after the other on the ports that Prometheus scrapes."""

    def __init__(self, kubeconfig: Path, folder: Path) -> None:
        self._kubeconfig = kubeconfig
        self._folder = folder
        self.controller_port, self.webhook_port, self._serving, self.nowhere = free_ports(4)
        self._running: list[Program] = []

    def controller(self, *arguments: str) -> Program:
        return self._start("controller", self.controller_port, "--leader-elect", *arguments)

    def webhook(self, *arguments: str, ready: bool = True) -> Program:
        return self._start("webhook", self.webhook_port, *self.served(), *arguments, ready=ready)

    def served(self) -> tuple[str, ...]:
        address = f"127.0.0.1:{self._serving}"
        return "--bind-address", address, "--webhook-url", f"https://{address}"

    def _start(self, command: str, port: int, *arguments: str, ready: bool = True) -> Program:
        words = (command, "--kubeconfig", str(self._kubeconfig), *arguments)
        program = Program(self._folder / f"{command}-{len(self._running)}.log", *words, port=port)
        self._running.append(program)
        return program.start(ready=ready)

    def end(self) -> None:
        for program in self._running:
            program.kill()


@pytest.fixture
def run(own_kubeconfig: Path, tmp_path: Path) -> Iterator[ObservedRun]:
    running = ObservedRun(own_kubeconfig, tmp_path)
    yield running
    running.end()


@pytest.fixture
def prometheus(run: ObservedRun, tmp_path: Path) -> Iterator[Prometheus]:
    started = Prometheus(tmp_path, {"controller": run.controller_port, "webhook": run.webhook_port})
    yield started
    started.stop()


@pytest.fixture
async def on(cluster: Cluster) -> AsyncIterator[Environment]:
    def none(*_: object) -> Program:
        raise AssertionError("the test starts its programs itself")

    async with environment(cluster, none) as env:
        yield env


@contextlib.asynccontextmanager
async def firing(prometheus: Prometheus, *alerts: str) -> AsyncIterator[None]:
    """The fault is made in the block; these alerts fire then, and no other."""
    firing_before = prometheus.firing()
    yield
    await until(
        lambda: set(alerts) <= prometheus.firing(),
        lambda: f"firing: {prometheus.firing()}, not {alerts}",
        seconds=PATIENCE,
    )
    assert prometheus.firing() <= firing_before | set(alerts)


async def test_every_alert_fires_on_its_fault_and_every_panel_has_data(
    on: Environment, cluster: Cluster, api: Api, run: ObservedRun, prometheus: Prometheus, tmp_path: Path
) -> None:
    with applied_policy(api):
        account = "--kubevirt-user", VIRT_CONTROLLER
        controller, webhook = run.controller(*account), run.webhook(*account)
        prometheus.start()
        await all_is_well(on, prometheus)
        await migrations(on, prometheus)
        await limits_are_not_enforced(on, cluster, prometheus)
        async with firing(prometheus, "HeadroomNoLeader"):
            controller.stop()
    async with firing(prometheus, "HeadroomPolicyMissing", "HeadroomWebhookDown"):
        webhook.kill()
        run.controller("--lock-limit", "1")
    await rights_are_missing(on, api, prometheus)
    async with firing(prometheus, "HeadroomWebhookUnreachable", "HeadroomCertificateExpires"):
        run.webhook(*certificate(tmp_path), "--webhook-url", f"https://127.0.0.1:{run.nowhere}", ready=False)
    assert prometheus.fired() == severities().keys()
    missing = {title: [q for q in queries if not prometheus.has_data(q)] for title, queries in panels().items()}
    assert {title: empty for title, empty in missing.items() if empty} == {}


async def all_is_well(on: Environment, prometheus: Prometheus) -> None:
    """A VM moves; nothing fires."""
    namespace = await on.running("vm1", limits=ONE)
    began = time.monotonic()
    await namespace.succeed(await namespace.migrate())
    await namespace.settle(ONE)
    await asyncio.sleep(began + QUIET - time.monotonic())
    assert prometheus.fired() == set()


async def migrations(on: Environment, prometheus: Prometheus) -> None:
    """A quota that is not managed refuses one, the source of another one stays, and a request is denied."""
    refusing, holding = await on.admin.namespace(), await on.running("vm1", limits=ONE)
    await refusing.make_quota("small", ONE)
    await start(refusing, "vm1")
    async with firing(prometheus, "HeadroomMigrationRefused", "HeadroomQuotaRaised"):
        refused, migrated = await refusing.migrate(), await holding.migrate(linger=600)
        await refusing.stays_refused(refused)
        await holding.succeed(migrated)
        with pytest.raises(Forbidden, match="can't"):
            await holding.annotate("garbage")
    await refusing.abort(refused)
    state = (await holding.migration(migrated)).status.migration_state
    assert state is not None
    await holding.end(state.source_pod or "")
    await holding.settle(ONE)
    await until(lambda: not prometheus.firing(), lambda: f"firing: {prometheus.firing()}", seconds=PATIENCE)


async def limits_are_not_enforced(on: Environment, cluster: Cluster, prometheus: Prometheus) -> None:
    """kube-controller-manager stands still: a raise does not reach status.hard, and the target is refused: the
    quota stays raised, past the test's day."""
    namespace = await on.running("vm1", limits=ONE)
    refused = "HeadroomMigrationRefused", "HeadroomQuotaRaised"
    with frozen(cluster, "kube-controller-manager"):
        async with firing(prometheus, "HeadroomQuotaNotEnforced", *refused):
            migration = await namespace.migrate()
    await namespace.abort(migration)
    await namespace.settle(ONE)
    await until(lambda: not prometheus.firing(), lambda: f"firing: {prometheus.firing()}", seconds=PATIENCE)


def certificate(folder: Path) -> tuple[str, ...]:
    """Flags for one that ends in two days."""
    pair = issue(["127.0.0.1"], time.time() + 2 * DAY - SERVING_LIFE)
    (folder / "tls.crt").write_bytes(pair.serving.certificate)
    (folder / "tls.key").write_bytes(pair.serving.key)
    (folder / "ca.crt").write_bytes(pair.bundle)
    return "--tls-cert-file", f"{folder}/tls.crt", "--tls-key-file", f"{folder}/tls.key"


async def rights_are_missing(on: Environment, api: Api, prometheus: Prometheus) -> None:
    """The account may only read: a quota is not raised, so that a migration waits, and a lock is not deleted."""
    namespace = await on.running("vm1", limits=ONE)
    role = f"{RBAC}/clusterroles/headroom"
    rules = api.get(role)["rules"]
    read = [{**rule, "verbs": ["get", "list", "watch"]} for rule in rules]
    refused = "HeadroomRequestsRefused", "HeadroomWriteErrors"
    async with firing(prometheus, *refused, "HeadroomLockPastLimit", "HeadroomMigrationRefused"):
        api.patch(role, {"rules": read})
        lock(api, namespace.name)
        await namespace.migrate()
    api.patch(role, {"rules": rules})


def lock(api: Api, namespace: str) -> None:
    """Makes a lock that should have ended after a second: its age is by the API server's clock, whatever it says
    itself."""
    metadata = {
        "name": f"lock.{namespace}.com",
        "labels": dict(LOCK_LABELS),
        "annotations": {ANNOTATION_SINCE: "2026-01-01T00:00:00Z"},
    }
    api.create(f"{ADMISSION}/validatingwebhookconfigurations", {"metadata": metadata, "webhooks": []})
