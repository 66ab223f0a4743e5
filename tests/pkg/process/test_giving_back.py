"""The end of an installation: every lock goes, and what was raised under it; every quota that is ours is given back."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kubeloop.api.quantity import Quantity
from kubeloop.api.registry import NAMESPACES, RESOURCE_QUOTAS
from kubeloop.api.resource_list import parse_resource_list
from kubeloop.client.client import Client
from kubeloop.client.connections import ServerClock
from kubeloop.client.errors import Conflict, Forbidden, NotFound
from kubeloop.controllers.events import EventRecorder
from kubeloop.testing.virtual_time import now
from kubeloop.workqueue.queue import loop_time
from pkg.api.kubevirt import VIRTUAL_MACHINE_INSTANCE_MIGRATIONS, VIRTUAL_MACHINE_INSTANCES
from pkg.config.rancher_quotas import RancherWrites
from pkg.process.giving_back import close_all, release_all
from pkg.util.constants import ANNOTATION_REQUEST
from pkg.util.managedtenantquota.lock import lock_body, lock_webhook
from pkg.util.resourcequota.base import with_limits
from pkg.util.resourcequota.policy import RancherQuotas
from pkg.util.resourcequota.rancher import SILENCE, Request, format_request
from pkg.util.resourcequota.timing import UNTIL_COUNTED, UNTIL_TRIED
from tests.decisions import by_value
from tests.kinds import Kind, Server
from tests.objects import BASE, DEFAULT_LABELS, ENTRY, HARD, MARKS, RAISED, RESYNC, SKIP, by_name, by_uid, vmi, vmim
from tests.pkg.controller.managedtenantquota.server import KEY, Process, WindowCluster
from tests.pkg.util.managedtenantquota.objects import FULL, GRANTED, quota

pytestmark = pytest.mark.virtual_time

REFUSED = Forbidden("another policy says no", status=403, reason="Forbidden")


@pytest.fixture
async def cluster() -> WindowCluster:
    """Returns a cluster in the middle of a window."""
    api = WindowCluster()
    api.refuse()
    await Process(api).settle()
    assert by_value(api.hard) == by_value(GRANTED)
    api.enforce()
    return api


async def release(client: Client, choice: RancherQuotas = RancherQuotas.AUTO) -> dict[str, str]:
    async with recorder(client) as events:
        return await release_all(client, RancherWrites(client, choice=choice), events)


async def close(cluster: WindowCluster) -> list[str]:
    client = cluster.server.client()
    async with recorder(client) as events:
        return await close_all(client, RancherWrites(client), events)


@asynccontextmanager
async def recorder(client: Client) -> AsyncIterator[EventRecorder]:
    events = EventRecorder(client, "headroom")
    try:
        yield events
    finally:
        await events.stop()


async def test_the_window_is_closed(cluster: WindowCluster) -> None:
    assert await close(cluster) == ["ns1"]
    assert cluster.at_rest


async def test_every_write_of_a_lock_is_logged(cluster: WindowCluster, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "pkg.config.metrics")
    await close(cluster)
    cluster.refuse()
    await Process(cluster).settle()
    messages = [record.getMessage() for record in caplog.records]
    lock = "ValidatingWebhookConfiguration lock.ns1.com"
    assert messages[:2] == [f"{lock} removed", f"{lock} created"]


@pytest.mark.parametrize("edit", [{"labels": {}}, {"finalizers": ["example.com/stays"]}], ids=str)
async def test_a_lock_that_was_edited_is_ended_too(cluster: WindowCluster, edit: dict[str, Any]) -> None:
    raw = cluster.locks.objects["lock.ns1.com"]
    cluster.locks.given({**raw, "metadata": {**raw["metadata"], **edit}})
    assert await close(cluster) == ["ns1"]
    assert not cluster.locked


@pytest.mark.parametrize("gone", [["budgets/ns1/budget"], ["budgets/ns1/budget", "locks/lock.ns1.com"]], ids=len)
async def test_a_record_is_restored_without_budget_and_lock(cluster: WindowCluster, gone: list[str]) -> None:
    for obj in gone:
        kind, _, key = obj.partition("/")
        getattr(cluster, kind).gone(key)
    assert await close(cluster) == ["ns1"]
    assert by_value(cluster.hard) == by_value(FULL)
    assert await close(cluster) == []


async def test_a_quota_that_changes_meanwhile_is_looked_at_again(cluster: WindowCluster) -> None:
    cluster.quotas.errors["patch"] = [Conflict("changed", status=409)]
    await close(cluster)
    assert by_value(cluster.hard) == by_value(FULL)


async def test_a_failed_restore_does_not_keep_other_namespaces_from_it(cluster: WindowCluster) -> None:
    for kind in (cluster.budgets, cluster.quotas):
        for raw in list(kind.objects.values()):
            kind.given({**raw, "metadata": {**raw["metadata"], "namespace": "ns2"}})
    cluster.quotas.errors["patch"] = [REFUSED]
    with pytest.raises(Forbidden, match="another policy says no"):
        await close(cluster)
    assert not cluster.locked
    assert by_value(cluster.hard) == by_value(GRANTED)
    assert by_value(cluster.quotas.now("ns2/quota").hard) == by_value(FULL)
    assert await close(cluster) == ["ns1"]
    assert by_value(cluster.hard) == by_value(FULL)


async def test_a_lock_that_cannot_be_deleted_keeps_no_other_from_it(cluster: WindowCluster) -> None:
    hook = lock_webhook("ns0", {}, owners=[], virt_controllers=[])
    cluster.locks.given(lock_body("ns0", hook, now=0.0, owner="", reason=""))
    cluster.locks.errors["delete"] = [REFUSED]
    with pytest.raises(Forbidden, match="another policy says no"):
        await close(cluster)
    assert cluster.locked == ["lock.ns0.com"]
    assert by_value(cluster.hard) == by_value(FULL)


async def test_a_lock_ends_also_where_no_quota_can_be_read(cluster: WindowCluster) -> None:
    cluster.quotas.errors["list"] = [REFUSED]
    with pytest.raises(Forbidden, match="another policy says no"):
        await close(cluster)
    assert not cluster.locked


async def test_what_a_person_wrote_after_an_unlock_stays(cluster: WindowCluster) -> None:
    cluster.locks.gone("lock.ns1.com")
    cluster.quotas.edited(KEY, {"spec": {"hard": {"limits.cpu": "77"}}})
    cluster.enforce()
    await close(cluster)
    assert by_value(cluster.hard) == by_value({**FULL, "limits.cpu": "77"})


async def test_nothing_to_do_is_fine() -> None:
    cluster = WindowCluster()
    assert await close(cluster) == []
    cluster.server.install(cluster.budgets.resource, installed=False)
    assert await close(cluster) == []
    assert cluster.server.made == []


async def test_a_lock_without_a_budget_goes_too() -> None:
    cluster = WindowCluster()
    cluster.refuse()
    await Process(cluster).look()
    cluster.budgets.gone("ns1/budget")
    cluster.quotas.given(quota())
    assert await close(cluster) == ["ns1"]
    assert not cluster.locked


class QuotaServer(Server):
    """Namespaces with a quota each."""

    def __init__(self) -> None:
        super().__init__()
        kinds = (NAMESPACES, RESOURCE_QUOTAS, VIRTUAL_MACHINE_INSTANCE_MIGRATIONS, VIRTUAL_MACHINE_INSTANCES)
        self.kinds: dict[str, Kind[Any]] = {kind.plural: self.kind(kind) for kind in kinds}
        self.quotas = self.kinds["resourcequotas"]
        self.namespaces = self.kinds["namespaces"]

    def quota(self, namespace: str, annotations: dict[str, str], hard: dict[str, str] | None = None) -> None:
        annotation = {"field.cattle.io/resourceQuota": BASE}
        self.namespaces.given({"metadata": {"name": namespace, "uid": namespace, "annotations": annotation}})
        metadata = {"name": "q", "namespace": namespace, "uid": f"q-{namespace}", "labels": DEFAULT_LABELS}
        self.quotas.given({"metadata": metadata | {"annotations": annotations}, "spec": {"hard": hard or dict(HARD)}})


@pytest.fixture
def server() -> QuotaServer:
    return QuotaServer()


async def test_a_migration_under_way_goes_over_in_one_patch(server: QuotaServer) -> None:
    server.quota("ns1", {**MARKS, by_name(): ENTRY}, RAISED)
    server.kinds["virtualmachineinstances"].given(vmi())
    server.kinds["virtualmachineinstancemigrations"].given(vmim("Running"))
    await release(server.client())
    patched = server.quotas.now("ns1/q")
    assert patched.annotations == {by_uid(): ENTRY, RESYNC: "true"}
    assert by_value(patched.hard) == by_value(RAISED)


async def test_a_migration_that_is_about_to_be_tried_is_waited_for_a_moment_only(server: QuotaServer) -> None:
    """An entry that nothing needs is left, and the next pass knows since when the quota may be lowered."""
    server.quota("ns1", {**MARKS, by_name("gone"): ENTRY}, RAISED)
    server.kinds["virtualmachineinstances"].given(vmi())
    server.kinds["virtualmachineinstancemigrations"].given(vmim("Pending"))
    client = server.client()
    client.transport.server_clock = ServerClock(loop_time)
    assert await release(client) == {"ns1/q": ""}
    assert UNTIL_TRIED <= now() < UNTIL_COUNTED
    assert by_value(server.quotas.now("ns1/q").hard) == by_value(HARD)


async def test_a_silent_rancher_is_waited_for_as_the_message_says(server: QuotaServer) -> None:
    """The person asks for more than was granted: the grant is requested first, and nobody writes it."""
    server.quota("ns1", {}, RAISED)
    person = BASE.replace('"3000m"', '"60"')
    assert person != BASE
    asked, granted = parse_resource_list(RAISED), parse_resource_list(HARD)
    record = Request(person, {**asked, "limits.cpu": Quantity.parse("62")}, {}, granted, {by_name(): ENTRY})
    annotations = {
        "field.cattle.io/resourceQuota": with_limits(person, {"limits.cpu": "62"}),
        "field.cattle.io/projectId": "c:p",
        ANNOTATION_REQUEST: format_request(record),
    }
    server.namespaces.edited("ns1", {"metadata": {"annotations": annotations}})
    client, began = server.client(), now()
    given_back = await release(client, RancherQuotas.ANNOTATION)
    assert given_back == {"ns1/q": "Rancher has not written the base within 10 s: its server has to run"}
    assert now() - began >= SILENCE


async def test_a_quota_that_another_process_released_stays_as_it_is(server: QuotaServer) -> None:
    server.quota("ns1", dict(MARKS))
    server.quotas.before = [lambda: server.quotas.edited("ns1/q", {"metadata": {"annotations": dict.fromkeys(MARKS)}})]
    await release(server.client())
    assert server.quotas.now("ns1/q").annotations == {}


async def test_a_quota_or_namespace_that_is_deleted_stops_no_others(server: QuotaServer) -> None:
    for name in ("a", "b", "c"):
        server.quota(name, dict(MARKS))
    server.namespaces.gone("a")
    server.quotas.before = [lambda: server.quotas.gone("b/q")]
    server.quotas.errors["patch"] = [NotFound("gone", status=404)]
    outcome = await release(server.client())
    assert (outcome["c/q"], any(outcome.values())) == ("", False)


async def test_a_refused_quota_is_named_and_stops_no_others(server: QuotaServer) -> None:
    for name in ("a", "b", "c"):
        server.quota(name, dict(MARKS))
    server.quotas.errors["patch"] = [Forbidden("no", status=403), None, Forbidden("nor this", status=403)]
    outcome = await release(server.client())
    assert outcome == {"a/q": "no", "b/q": "", "c/q": "nor this"}
    marked = [key for key in ("a/q", "b/q", "c/q") if SKIP in server.quotas.now(key).annotations]
    assert marked == ["a/q", "c/q"]
