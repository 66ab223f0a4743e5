"""Counts the requests that headroom makes, and how often its handlers are called, and measures how long migrations
wait for quota: its whole process, or its controllers beside KubeVirt's stand-in, on the API server in process, in
virtual time, so that no figure depends on how busy the machine is."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest

from kubeloop.api.registry import MUTATING_WEBHOOK_CONFIGURATIONS, VALIDATING_WEBHOOK_CONFIGURATIONS
from kubeloop.client.client import Client
from kubeloop.client.config import ClientConfig
from kubeloop.controllers.reconcile import RECONCILE_TOTAL
from kubeloop.testing.fake.server import FakeCluster, FakeTransport
from kubeloop.testing.virtual_time import now, run
from kubeloop.webhook.registration import Endpoint, Webhook
from kubeloop.webhook.serving_certificate import server_context
from lab.kubevirt import options as stand_in
from lab.questions import first_version, has_entry, needed, reverts, rooms
from lab.record import Amounts, Record, Track
from pkg.api.kubevirt import VIRTUAL_MACHINE_INSTANCE_MIGRATIONS, VIRTUAL_MACHINE_INSTANCES
from pkg.api.mtq import VIRTUAL_MACHINE_MIGRATION_RESOURCE_QUOTAS
from pkg.config.settings import WEBHOOKS as ALL
from pkg.config.settings import Settings
from pkg.controller.managedtenantquota.managedtenantquota_controller import MANAGED_TENANT_QUOTA_CONTROLLER
from pkg.process import replica
from pkg.process.replica import Replica
from pkg.selfcheck.api_server import PROBE_CONFIGURATION, PROBE_MARK
from pkg.util.constants import LIMITS_CPU, VMI_STATE_ANNOTATIONS, WEBHOOK_CONFIGURATION_NAME
from pkg.util.resourcequota.policy import EstimateKind, Mode, Policy
from pkg.webhook.configurations import fingerprint, validating
from pkg.webhook.register import Webhooks
from tests.pkg.controller.simulated_cluster import LAG, SimulatedCluster

POLICY = Policy(Mode.TAKEOVER, EstimateKind.EXACT)
WEBHOOKS = Settings(policy=POLICY, namespace="default", secret_name="headroom-webhook-tls")
STRICT = Settings(strict=ALL)
BY_SERVICE, BY_URL = Endpoint(service_name="headroom"), Endpoint(url="https://127.0.0.1:9443")


class Connection(FakeTransport):
    """Counts what is sent, and answers what the API server in process does not: its version, and the probe."""

    def __init__(self, cluster: FakeCluster, endpoint: Endpoint) -> None:
        super().__init__(cluster)
        self.sent: list[tuple[float, str, str]] = []
        self._mark = fingerprint(endpoint, WEBHOOKS)

    async def request(
        self, method: str, path: str, *, params: Mapping[str, str] | None = None, **options: Any
    ) -> bytes:
        self.sent.append((now(), method, path))
        if path == "/version":
            return b'{"gitVersion": "v1.34.0"}'
        if params and "dryRun" in params:
            return msgspec.json.encode({"metadata": {"annotations": {PROBE_MARK: self._mark}}})
        return await super().request(method, path, params=params, **options)


async def at_rest(endpoint: Endpoint, seconds: float, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts the requests of a process in so many seconds once it has run for ten minutes. Watches are left out: the
    API server in process sends no bookmarks, so that they end early."""
    connection = Connection(FakeCluster(), endpoint)
    monkeypatch.setattr(replica, "Client", lambda *_, **__: Client(connection))
    process = Replica(
        config=ClientConfig("http://fake.invalid"),
        settings=WEBHOOKS,
        workers=2,
        health_bind_address="127.0.0.1:0",
        webhooks=Webhooks(endpoint, server_context()),
        webhook_address="127.0.0.1:0",
    )
    stop = asyncio.Event()
    serving = asyncio.create_task(process.serve(stop))
    await asyncio.sleep(600.0)
    began = now()
    await asyncio.sleep(seconds)
    stop.set()
    await serving
    return Counter(f"{method} {path}" for instant, method, path in connection.sent if instant >= began)


@pytest.mark.parametrize("endpoint", [BY_SERVICE, BY_URL], ids=["by Service", "by URL"])
def test_at_rest_it_asks_eight_times_a_minute(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = run(at_rest(endpoint, 1200.0, monkeypatch))
    assert counts["POST /api/v1/namespaces/default/events"] >= 19, "the webhook is not looked after"
    assert counts.total() <= 160, counts


async def migrated(
    together: int, phase_seconds: float, *, webhooks: Sequence[Webhook] = (), budget: Mapping[str, str] | None = None
) -> tuple[Connection, float, Counter[str]]:
    """Counts the requests of the controllers while VMs of one namespace migrate, and until nothing is left of it; when
    the migrations were created; and how often each handler was called for them."""
    cluster = SimulatedCluster(seed=1, namespaces=1, machines=together)
    cluster.build()
    connection = Connection(cluster.server, BY_SERVICE)
    if webhooks:
        registered = {"metadata": {"name": WEBHOOK_CONFIGURATION_NAME}, "webhooks": webhooks}
        cluster.server.put(VALIDATING_WEBHOOK_CONFIGURATIONS, registered)
    if budget:
        probe = {"clientConfig": {"url": f"{BY_URL.url}/probe", "caBundle": "Q0E="}}
        registered = {"metadata": {"name": WEBHOOK_CONFIGURATION_NAME}, "webhooks": [probe]}
        cluster.server.put(VALIDATING_WEBHOOK_CONFIGURATIONS, registered)
        cluster.server.put(MUTATING_WEBHOOK_CONFIGURATIONS, {**registered, "metadata": {"name": PROBE_CONFIGURATION}})
        spec = {"additionalMigrationResources": budget}
        vmmrq = {"metadata": {"name": "budget", "namespace": "ns0"}, "spec": spec}
        cluster.server.put(VIRTUAL_MACHINE_MIGRATION_RESOURCE_QUOTAS, vmmrq)
    kubevirt = stand_in.StandInOptions(
        source_linger=2.0, phase_delay=phase_seconds, parallel_migrations=100, parallel_outbound=100
    )
    settings = Settings(POLICY, reserve=True, controller_users=["headroom"])
    async with cluster.running(Client(connection), settings, kubevirt):
        await asyncio.sleep(10.0)
        connection.sent.clear()
        created, earlier_calls = now(), calls()
        await asyncio.gather(*(cluster.migrate_once(*machine, machine[1]) for machine in cluster.machines))
        await asyncio.sleep(10.0)
        vmis = cluster.server.all(VIRTUAL_MACHINE_INSTANCES)
        assert [set(VMI_STATE_ANNOTATIONS) & vmi.annotations.keys() for vmi in vmis] == [set()] * together
        called = calls() - earlier_calls
    return connection, created, called


def calls() -> Counter[str]:
    """Counts calls by handler; handlers of KubeVirt's stand-in have other names than ours, which end in Controller."""
    samples = [sample for family in RECONCILE_TOTAL.collect() for sample in family.samples]
    counted = [
        sample
        for sample in samples
        if sample.name.endswith("_total") and sample.labels["controller"].endswith("Controller")
    ]
    return sum((Counter({sample.labels["controller"]: int(sample.value)}) for sample in counted), Counter[str]())


QUOTA, VMI, VM = "resourcequotas", "virtualmachineinstances", "virtualmachines"


@pytest.mark.parametrize(
    ("together", "phase_seconds", "most", "most_calls"),
    [
        pytest.param(1, 2.0, {QUOTA: 3, VMI: 2, VM: 2}, 20, id="alone, its first try refused"),
        pytest.param(1, 0.02, {QUOTA: 3}, 20, id="alone, over before a person sees its state"),
        pytest.param(8, 2.0, {QUOTA: 3, VMI: 16, VM: 16}, 11, id="with others: fewer than five writes each"),
    ],
)
def test_writes_of_a_migration_and_calls_of_handlers(
    together: int, phase_seconds: float, most: Mapping[str, int], most_calls: int, caplog: pytest.LogCaptureFixture
) -> None:
    """`most_calls`: for each of them."""
    caplog.set_level("DEBUG", "kubeloop.controllers.reconcile")
    connection, _, called = run(migrated(together, phase_seconds))
    sent = connection.sent
    assert called.keys() == {"resourceQuotaController", "virtualMachineInstanceController"}
    assert called.total() <= most_calls * together, called
    written = [path.split("/")[-2:] for _, method, path in sent if method != "GET"]
    events = sum(plural_part == "events" for _, plural_part in written)
    assert (Counter(plural for plural, plural_part in written if plural_part != "events"), events) == (
        most,
        2 * together,
    )
    for vm in (f"vm{number}" for number in range(together)):
        # The UI watches VMs: what a VMI shows last, it is told after that.
        writes = [plural for plural, name in written if name == vm]
        assert writes == [VMI, VM] * (len(writes) // 2)
    requeued = sum(message.startswith("resourceQuotaController: ns0/q requeued") for message in caplog.messages)
    assert 0 < requeued <= 10 * together


def test_requests_and_calls_of_a_budgets_windows() -> None:
    """Twelve migrations, and room for six at a time."""
    connection, _, called = run(migrated(12, 0.1, budget={LIMITS_CPU: "3090m"}))
    counts = Counter((method, path.split("/")[-2 if method == "PATCH" else -1]) for _, method, path in connection.sent)
    assert counts["POST", "validatingwebhookconfigurations"] == 2
    assert counts["GET", QUOTA] == 2
    assert counts.total() <= 10 * 12, counts
    assert called[MANAGED_TENANT_QUOTA_CONTROLLER] <= 5 * 12, called


@pytest.mark.parametrize(
    ("options", "least", "most"),
    [(None, 0.0, 0.01), (WEBHOOKS, 0.0, 0.01), (STRICT, 0.25, 0.3)],
    ids=["no webhook", "labelled when its VM came", "an outage would stop its pods: labelled only now"],
)
def test_the_first_migration_of_a_namespace_is_raised_at_once(
    options: Settings | None, least: float, most: float
) -> None:
    registered = validating(BY_SERVICE, options, None) if options else ()
    connection, created, _ = run(migrated(1, 2.0, webhooks=registered))
    raised = next(instant for instant, method, path in connection.sent if method == "PATCH" and QUOTA in path)
    assert least <= raised - created <= most


# ---- no migration waits for quota ----------------------------------------------------------------------------

TAKEOVER = Policy(Mode.TAKEOVER, EstimateKind.EXACT)
SEEN_LATE = 0.1
"""Seconds from a refusal to its condition in the watch, at most."""


async def simulate(seed: int, goal: int) -> SimulatedCluster:
    """Everything together, until so many migrations are done."""
    cluster = SimulatedCluster(seed)
    cluster.build()
    teeth = stand_in.StandInOptions(
        source_linger=0.3,
        phase_delay=0.05,
        parallel_migrations=100,
        parallel_outbound=100,
        finished_linger=5.0,
        drained_bucket=True,
    )
    watch = cluster.follow(VIRTUAL_MACHINE_INSTANCE_MIGRATIONS, cluster.see_migration)
    async with cluster.running(cluster.server.client(), Settings(TAKEOVER), teeth, cluster.rancher(), watch):
        await asyncio.gather(*(cluster.migrate(*machine, goal) for machine in cluster.machines))
    return cluster


def got_on(track: Track) -> float | None:
    """Returns the time at which the migration had its target."""
    return next((each.at for each in track.phases if each.phase not in ("", "Pending")), None)


def to_the_raise(record: Record, track: Track, base: Amounts) -> float:
    """Seconds until the migration's room was first seen in spec.hard."""
    raised = first_version(
        record, track.began.at, lambda each: has_entry(record, each, track) and each.hard.covers(needed(each, base))
    )
    return raised.at - track.began.at if raised else 0.0


def test_none_is_refused_once_raised_or_waits_half_a_second() -> None:
    cluster = run(simulate(0, 40))
    base = Amounts.within(cluster.base)
    assert sum(len(reverts(record, base)) for record in cluster.seen.values()) >= 3
    moved = [
        (record, track) for record in cluster.seen.values() for track in record.migrations.values() if got_on(track)
    ]
    refused = [(record, track, track.refused) for record, track in moved if track.refused is not None]
    assert refused, "admission never lagged"
    for record, track, instant in refused:
        known_since = rooms(record, base, instant).get(track.vm, instant)
        assert instant - known_since <= LAG + SEEN_LATE, (track, "was refused although its room was known")
        assert (got_on(track) or 0.0) - instant <= 0.5, (track, "waits for quota")
    assert 0 < max(to_the_raise(record, track, base) for record, track in moved) < 0.1
