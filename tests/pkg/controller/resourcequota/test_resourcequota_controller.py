"""The single writer of ResourceQuotas: conflicts, its own writes, company, and what it says to people."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from kubeloop.api.core import Event, ObjectReference, ResourceQuota
from kubeloop.api.meta import Status
from kubeloop.api.registry import EVENTS, LIMIT_RANGES, NAMESPACES, PODS, RESOURCE_QUOTAS
from kubeloop.client.errors import ApiError, PatchConflict, ServiceUnavailable, error_from_status
from kubeloop.client.retry import CONFLICT_TRIES
from kubeloop.controllers.errors import RetryAfter
from pkg.api.harvesterhci import SETTINGS
from pkg.api.kubevirt import KUBEVIRTS, VIRTUAL_MACHINE_INSTANCE_MIGRATIONS, VIRTUAL_MACHINE_INSTANCES
from pkg.config.causes import LOWERS, MANY, WINDOW, Cause
from pkg.config.settings import Settings
from pkg.controller.resourcequota.register import register
from pkg.controller.resourcequota.resourcequota_controller import as_read
from pkg.util.constants import (
    ANNOTATION_APPLIED,
    ANNOTATION_BASE,
    ANNOTATION_MAX_EXTRA,
    ANNOTATION_MIGRATING_COMPENSATION,
    ANNOTATION_TOUCHED,
    LABEL_MANAGED,
)
from pkg.util.resourcequota.policy import EstimateKind, Mode, Policy
from pkg.util.resourcequota.timing import UNTIL_COUNTED
from tests.decisions import by_value, sentences
from tests.kinds import Clock, Events, Server, edited
from tests.objects import BASE, ENTRY, HARD, MARKS, RAISED, by_uid, launcher, limits_text, quota, vmi, vmim
from tests.pkg.controller.wired import Wired

KEY = "ns1/default-abc"
ANNOTATION = "field.cattle.io/resourceQuota"


class QuotaCluster:
    """A namespace with its quota, and the handler over it; the clock stands still unless a test moves it."""

    def __init__(self, mode: Mode = Mode.ASSIST, *, dry_run: bool = False, **policy: Any) -> None:
        self.clock, self.events, server = Clock(), Events(), Server()
        self._management = Wired(server, clock=self.clock)
        options = Settings(Policy(mode, EstimateKind.HARVESTER, **policy), dry_run=dry_run)
        register(self._management, self.events.recorder, options, self.ready)
        self.quotas, self.namespaces = server.kind(RESOURCE_QUOTAS), server.kind(NAMESPACES)
        self.migrations = server.kind(VIRTUAL_MACHINE_INSTANCE_MIGRATIONS)
        self.instances, self.pods = server.kind(VIRTUAL_MACHINE_INSTANCES), server.kind(PODS)
        self.settings, self.kubevirts = server.kind(SETTINGS), server.kind(KUBEVIRTS)
        self.limit_ranges, self.failures = server.kind(LIMIT_RANGES), server.kind(EVENTS)
        self.readied: list[str] = []
        self.not_yet: list[RetryAfter] = []
        self.base(BASE)
        self.quotas.given(quota())

    async def ready(self, namespace: str) -> None:
        """Notes the call that comes before headroom is added."""
        self.readied.append(namespace)
        if self.not_yet:
            raise self.not_yet.pop()

    def base(self, annotation: str) -> None:
        metadata = {"name": "ns1", "uid": "uid-ns1", "annotations": {ANNOTATION: annotation}}
        self.namespaces.given({"metadata": metadata})

    def migrate(self, *vms: str, phase: str = "Pending", refused: bool = False) -> None:
        for vm in vms:
            self.instances.given(vmi(vm))
            self.migrations.given(vmim(phase, vm, refused=refused))

    async def look(self, key: str = KEY) -> float | None:
        """A quota's key is worked off; in how many seconds it wants to be re-checked."""
        return await self._management.handle(RESOURCE_QUOTAS, key)

    @property
    def now(self) -> ResourceQuota:
        return self.quotas.now(KEY)

    @property
    def causes(self) -> Sequence[Cause]:
        """Returns the other writers that the reports name."""
        return self._management.reverts.causes()

    @property
    def patches(self) -> int:
        return len(self.quotas.asked("patch"))


@pytest.fixture
def cluster() -> QuotaCluster:
    return QuotaCluster()


async def test_a_ui_shows_each_entry_and_when_it_is_given_back() -> None:
    cluster = QuotaCluster(Mode.TAKEOVER)
    cluster.migrate("vm1")
    await cluster.look()
    summary = "limits.cpu 3 + 2, limits.memory 4.9Gi + 4.4Gi for vm1 until its old pod ends"
    assert cluster.now.annotations["headroom.harvesterhci.io/summary"] == summary
    cluster.migrate("vm1", phase="Failed")
    for _ in range(2):
        cluster.clock.now += 3.0
        await cluster.look()
    assert by_value(cluster.now.hard) == by_value(HARD)
    assert "headroom.harvesterhci.io/summary" not in cluster.now.annotations
    assert cluster.events.told == [
        (
            "ns1/vm1",
            "ResourceQuotaRaised",
            "quota default-abc is raised by limits.cpu 2, limits.memory 4.4Gi for its migration",
        ),
        (
            "ns1/vm1",
            "ResourceQuotaGivenBack",
            "quota default-abc: what was added for its migration has been given back",
        ),
    ]
    assert cluster.patches == 2, "in the same patches"


async def test_a_migration_is_served_with_one_patch(cluster: QuotaCluster) -> None:
    cluster.migrate("vm1")
    assert await cluster.look() is None
    assert cluster.now.hard == RAISED
    ((verb, key, ops),) = cluster.quotas.calls
    assert (verb, key) == ("patch", KEY)
    assert [op["path"] for op in ops if op["op"] == "test"] == [
        "/metadata/uid",
        "/metadata/labels",
        "/metadata/annotations",
        "/spec/hard",
    ]
    assert {op["path"]: op["value"] for op in ops if op["op"] == "add"} == {
        "/metadata/annotations/" + by_uid().replace("/", "~1"): ENTRY,
        "/spec/hard/limits.cpu": RAISED["limits.cpu"],
        "/spec/hard/limits.memory": RAISED["limits.memory"],
    }


@pytest.mark.parametrize("there", [True, False], ids=["let in since", "refused"])
async def test_a_target_counted_before_it_is_cached_is_not_compensated(there: bool, cluster: QuotaCluster) -> None:
    """Its migration says for a moment longer that it was refused."""
    cluster.migrate("vm1", refused=True)
    instance = vmi(nodeName="node-1")
    cluster.instances.given(instance)
    cluster.pods.given(launcher(instance))
    await cluster.look()
    cluster.pods.lagging = True
    if there:
        cluster.pods.given(launcher(instance, node="node-2", migration=vmim(refused=True)))
    both = {"limits.cpu": "4", "limits.memory": "9474928626"}
    cluster.quotas.edited(KEY, {"status": {"hard": RAISED, "used": both}})
    await cluster.look()
    assert (ANNOTATION_MIGRATING_COMPENSATION in cluster.now.annotations) is not there


async def test_any_number_that_turn_pending_together_cost_one_patch(cluster: QuotaCluster) -> None:
    cluster.migrate(*(f"vm{n}" for n in range(100)))
    await cluster.look()
    assert cluster.patches == 1
    assert by_value(cluster.now.hard)["limits.cpu"].value() == 203


async def test_of_a_quota_that_we_render_every_limit_is_kept() -> None:
    cluster = QuotaCluster(Mode.TAKEOVER, render=True)
    cluster.base(limits_text("4", "5000Mi", pods="20"))
    cluster.quotas.given(quota(HARD | {"pods": "10"}))
    await cluster.look()
    assert by_value(cluster.now.hard) == by_value({"limits.cpu": "4", "limits.memory": "5000Mi", "pods": "20"})


async def test_a_quota_that_is_gone_is_forgotten(cluster: QuotaCluster) -> None:
    cluster.migrate("vm1")
    await cluster.look()
    cluster.quotas.gone(KEY)
    assert await cluster.look() is None
    cluster.quotas.given(quota())
    await cluster.look()
    assert by_value(cluster.now.hard) == by_value(RAISED)


ROOM = ["/spec/hard/limits.cpu", "/spec/hard/limits.memory"]
OF_ENTRY = "/metadata/annotations/" + by_uid().replace("/", "~1")
FOREIGN: dict[str, tuple[dict[str, Any], list[str], list[str]]] = {
    "a foreign annotation is read, and gone again at once": (
        {"metadata": {"annotations": {"example.com/other": "new"}}},
        ["patch", "get", "patch"],
        [OF_ENTRY, *ROOM],
    ),
    "our entry is there already: only spec.hard is left to write": (
        {"metadata": {"annotations": {by_uid(): ENTRY}}},
        ["patch", "get", "patch"],
        ROOM,
    ),
    "the quota controller counts a pod meanwhile: no conflict": (
        {"status": {"used": {"limits.cpu": "1"}}},
        ["patch"],
        [OF_ENTRY, *ROOM],
    ),
}


DENIED = 'admission webhook "q.example.org" denied the request: not by you'
POLICY = """resourcequotas "q" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: hands off"""
REFUSALS: dict[str, ApiError] = {
    "a webhook's 400": error_from_status(Status(message=DENIED, code=400, reason="BadRequest")),
    "a webhook's 422": error_from_status(Status(message=DENIED, code=422, reason="Invalid")),
    "a webhook's 409": error_from_status(Status(message=DENIED, code=409, reason="Conflict")),
    "a webhook's 404, which says nothing about the quota": error_from_status(
        Status(message=DENIED, code=404, reason="NotFound")
    ),
    "a policy's 422": error_from_status(Status(message=POLICY, code=422, reason="Invalid")),
}


class TestConflicts:
    @sentences(FOREIGN, "edit, verbs, written")
    async def test_what_another_client_wrote_in_between(
        self, edit: dict[str, Any], verbs: list[str], written: list[str], cluster: QuotaCluster
    ) -> None:
        cluster.migrate("vm1")
        cluster.quotas.lagging = True
        there = cluster.quotas.edited(KEY, edit).annotations
        assert await cluster.look() is None
        assert [verb for verb, *_ in cluster.quotas.calls] == verbs
        assert [op["path"] for op in cluster.quotas.asked("patch")[-1] if op["op"] != "test"] == written
        assert by_value(cluster.now.hard) == by_value(RAISED)
        assert cluster.now.annotations == {**there, by_uid(): ENTRY}

    async def test_without_end_the_queue_has_to_wait(self, cluster: QuotaCluster) -> None:
        cluster.migrate("vm1")
        annotate = iter(range(100))
        cluster.quotas.before = [
            lambda: cluster.quotas.edited(KEY, {"metadata": {"annotations": {"n": str(next(annotate))}}})
        ] * 100
        with pytest.raises(PatchConflict):
            await cluster.look()
        assert cluster.patches == CONFLICT_TRIES

    @pytest.mark.parametrize("error", REFUSALS.values(), ids=list(REFUSALS))
    async def test_a_refusal_is_no_conflict_and_asked_for_once(self, error: ApiError, cluster: QuotaCluster) -> None:
        cluster.migrate("vm1")
        cluster.quotas.errors["patch"] = [error] * 10
        with pytest.raises(type(error)):
            await cluster.look()
        assert cluster.patches == 1

    async def test_a_quota_that_was_deleted_meanwhile_is_nothing_to_do(self, cluster: QuotaCluster) -> None:
        cluster.migrate("vm1")
        cluster.quotas.lagging = True
        cluster.quotas.gone(KEY)
        assert await cluster.look() is None


class TestOurOwnWrites:
    async def test_a_patch_before_the_watch_catches_up_does_not_conflict(self, cluster: QuotaCluster) -> None:
        cluster.quotas.lagging = True
        for n in range(10):
            cluster.migrate(f"vm{n}")
            cluster.clock.now += 1.0
            assert await cluster.look() is None
        assert [verb for verb, *_ in cluster.quotas.calls] == ["patch"] * 10
        assert by_value(cluster.now.hard)["limits.cpu"].value() == 23

    async def test_what_the_watch_brings_later_counts_again(self, cluster: QuotaCluster) -> None:
        cluster.migrate("vm1")
        cluster.quotas.lagging = True
        await cluster.look()
        cluster.quotas.catch_up()
        cluster.quotas.edited(KEY, {"spec": {"hard": dict(HARD)}})  # Rancher
        await cluster.look()
        assert by_value(cluster.now.hard) == by_value(RAISED)
        assert [verb for verb, *_ in cluster.quotas.calls] == ["patch"] * 2

    async def test_an_older_watch_event_does_not_undo_its_own_write(self, cluster: QuotaCluster) -> None:
        cluster.migrate("vm1")
        old = cluster.now
        await cluster.look()
        cluster.quotas.indexer.add(old)
        assert await cluster.look() is None
        assert cluster.patches == 1

    async def test_a_new_quota_of_the_same_name_is_read_as_it_is(self, cluster: QuotaCluster) -> None:
        cluster.migrate("vm1")
        await cluster.look()
        fresh = {"metadata": {"uid": "uid-of-the-next", "annotations": None}, "spec": {"hard": dict(HARD)}}
        cluster.quotas.edited(KEY, fresh)
        cluster.clock.now += 1
        await cluster.look()
        assert by_value(cluster.now.hard) == by_value(RAISED)

    @pytest.mark.parametrize("edit", [{}, {"labels": {LABEL_MANAGED: None}}], ids=["alone", "with the label"])
    async def test_records_that_another_client_removes_are_remembered(self, edit: dict[str, object]) -> None:
        """Without them the raised limits would be the base."""
        cluster = QuotaCluster(Mode.TAKEOVER)
        cluster.quotas.given(quota(HARD, labels={LABEL_MANAGED: "true"}))
        cluster.migrate("vm1")
        await cluster.look()
        assert by_value(cluster.now.hard) == by_value(RAISED)
        removed = {"annotations": {ANNOTATION_BASE: None, ANNOTATION_APPLIED: None}}
        cluster.quotas.edited(KEY, {"metadata": {**removed, **edit}})
        for _ in range(2):  # giving room back waits a moment
            cluster.clock.now += 1
            await cluster.look()
        is_managed = not edit
        assert by_value(cluster.now.hard) == by_value(RAISED if is_managed else HARD)
        assert (ANNOTATION_BASE in cluster.now.annotations) is is_managed
        cluster.migrate("vm1", phase="Succeeded")
        cluster.clock.now += 1
        await cluster.look()
        assert by_value(cluster.now.hard) == by_value(HARD)
        assert ANNOTATION_APPLIED not in cluster.now.annotations

    async def test_versions_that_are_no_numbers_are_left_to_the_cache(self, cluster: QuotaCluster) -> None:
        cluster.migrate("vm1")
        await cluster.look()
        cluster.quotas.indexer.add(edited(cluster.now, metadata={"resourceVersion": "abc"}))
        assert await cluster.look() is None
        assert cluster.patches == 1


P, SCHEDULING, RUNNING, SUCCEEDED = "Pending", "Scheduling", "Running", "Succeeded"
AMONG_MANY = [(0.0, {"vm1": RUNNING, "vm2": P}, None, 1), (1.0, {"vm1": SUCCEEDED}, 0.25, 1)]
"""One is over; one was just given room, and KubeVirt is about to create its target pod."""
Looks = list[tuple[float, dict[str, str], float | None, int]]
"""Seconds later, migrations turn to these phases: when it wants to be re-checked, how many patches there were."""
COMPANY: dict[str, tuple[Looks, set[str]]] = {
    "a single migration does not wait": (
        [(0.0, {"vm1": phase}, None, number) for number, phase in enumerate([P, SUCCEEDED, P, SUCCEEDED], 1)],
        set(),
    ),
    "with many under way the next patch waits a little": (
        [
            (0.0, dict.fromkeys(["vm1", "vm2", "vm3"], RUNNING), None, 1),
            (0.0, {"vm1": SUCCEEDED}, 0.2, 1),
            (0.2, {}, None, 2),
        ],
        {"vm2", "vm3"},
    ),
    "an empty decision is waited after, but not if it is urgent": (
        [
            (0.0, {"vm1": P, "vm2": P}, None, 1),
            (1.0, {"vm1": SCHEDULING}, None, 1),
            (0.0, {"vm1": RUNNING}, 0.1, 1),
            (0.0, {"vm3": P}, None, 2),
        ],
        {"vm1", "vm2", "vm3"},
    ),
    "giving back waits for who is about to be tried": (
        [*AMONG_MANY, (0.1, {}, 0.15, 1), (0.0, {"vm2": SCHEDULING}, 0.1, 1), (0.1, {}, None, 2)],
        {"vm2"},
    ),
    "who needs room takes it along": ([*AMONG_MANY, (0.0, {"vm3": P}, None, 2)], {"vm2", "vm3"}),
    "the next time it waits anew, where the watch was behind": (
        [*AMONG_MANY, (0.1, {"vm1": RUNNING}, None, 1), (10.0, {"vm1": SUCCEEDED}, 0.25, 1)],
        {"vm1", "vm2"},
    ),
}


class TestCompany:
    @sentences(COMPANY, "looks, entries")
    async def test_a_patch_waits_for_others(self, looks: Looks, entries: set[str], cluster: QuotaCluster) -> None:
        """A patch in the moment in which quota admission counts a target pod can get it refused with a conflict."""
        for seconds, phases, again, patches in looks:
            cluster.clock.now += seconds
            for vm, phase in phases.items():
                cluster.migrate(vm, phase=phase)
            assert await cluster.look() == (again and pytest.approx(again))
            assert cluster.patches == patches
        assert cluster.now.annotations.keys() == {by_uid(vm) for vm in entries}
        assert by_value(cluster.now.hard)["limits.cpu"].value() == 3 + 2 * len(entries)

    @pytest.mark.parametrize(("vm", "refused"), [("late", False), ("vm1", True)])
    async def test_who_is_about_to_be_tried_waits_a_moment_only(
        self, vm: str, refused: bool, cluster: QuotaCluster
    ) -> None:
        cluster.migrate(*(f"vm{n}" for n in range(50)))
        await cluster.look()
        cluster.migrate(vm, refused=refused)
        assert await cluster.look() == pytest.approx(0.04)

    async def test_who_comes_meanwhile_is_in_the_same_patch(self, cluster: QuotaCluster) -> None:
        cluster.migrate("vm1", "vm2")
        await cluster.look()
        for n in range(20):
            cluster.migrate(f"late{n}")
            cluster.clock.now += 0.001
            assert await cluster.look() is not None
        cluster.clock.now += 0.25
        await cluster.look()
        assert cluster.patches == 2
        assert by_value(cluster.now.hard)["limits.cpu"].value() == 3 + 2 * 22

    async def test_a_repair_does_not_wait(self, cluster: QuotaCluster) -> None:
        cluster.migrate(*(f"vm{n}" for n in range(50)))
        await cluster.look()
        cluster.quotas.edited(KEY, {"spec": {"hard": dict(HARD)}})  # Rancher
        assert await cluster.look() is None
        assert by_value(cluster.now.hard)["limits.cpu"].value() == 103


OWNED: dict[str, Any] = {"f:spec": {"f:hard": {f"f:{limit}": {} for limit in HARD}}}
MANAGED: list[dict[str, Any]] = [
    {"manager": "kubectl-edit", "time": "2026-01-01T00:00:02Z", "fieldsV1": OWNED},
    {"manager": "earlier", "time": "2026-01-01T00:00:01Z", "fieldsV1": OWNED},
    {"manager": "later", "time": "2026-01-01T00:00:03Z", "fieldsV1": {"f:status": {"f:used": {}}}},
]
"""An edit's entry in managedFields, as the API server keeps it, between others."""
NAMELESS = {"manager": None, "time": None, "fieldsV1": OWNED}


class TestAnotherWriterLowersTheQuota:
    SENTENCE = f"field manager kubectl-edit {LOWERS}"

    async def war(
        self, cluster: QuotaCluster, times: int, *, every: float = 1.0, managed: list[dict[str, Any]] | None = MANAGED
    ) -> None:
        for _ in range(times):
            cluster.quotas.edited(KEY, {"metadata": {"managedFields": managed}, "spec": {"hard": dict(HARD)}})
            cluster.clock.now += every
            await cluster.look()
            assert cluster.now.hard == RAISED, "it is repaired each time"

    async def test_who_does_it_again_and_again_is_named_once_and_as_long(self, cluster: QuotaCluster) -> None:
        cluster.migrate("vm1")
        await cluster.look()
        await self.war(cluster, MANY - 1)
        assert (cluster.causes, cluster.events.warnings) == ([], [])
        await self.war(cluster, 5)
        assert cluster.causes == [Cause("field manager kubectl-edit", 0, LOWERS, [f"ResourceQuota {KEY}"], 1)]
        assert cluster.causes[0].line() == f"field manager kubectl-edit: {LOWERS}: ResourceQuota {KEY}"
        assert cluster.events.warnings == [(KEY, "ResourceQuotaReverted", self.SENTENCE)]
        cluster.clock.now += WINDOW + 1
        assert cluster.causes == []

    async def test_a_sync_now_and_then_is_no_war(self, cluster: QuotaCluster) -> None:
        cluster.migrate("vm1")
        await cluster.look()
        await self.war(cluster, 2 * MANY, every=WINDOW / (MANY - 2))
        assert (cluster.causes, cluster.events.warnings) == ([], [])

    async def test_migrations_that_come_and_go_are_none_either(self, cluster: QuotaCluster) -> None:
        for _ in range(2 * MANY):
            cluster.migrate("vm1")
            await cluster.look()
            assert cluster.now.hard == RAISED
            cluster.migrate("vm1", phase="Failed")
            for _ in range(2):
                cluster.clock.now += 3.0
                await cluster.look()
            assert by_value(cluster.now.hard) == by_value(HARD)
        assert (cluster.causes, cluster.events.warnings) == ([], [])

    async def test_a_revert_by_unreadable_managers_is_reported_unnamed(self, cluster: QuotaCluster) -> None:
        cluster.migrate("vm1")
        await cluster.look()
        cluster.quotas.errors["get"] = [ServiceUnavailable("no")]
        await self.war(cluster, MANY)
        assert [cause.by for cause in cluster.causes] == ["field manager unknown"]

    @sentences(
        {
            "an entry without manager and time is older than one with them": ([NAMELESS, *MANAGED], "kubectl-edit"),
            "an entry without a manager alone names nobody": ([NAMELESS], "unknown"),
            "one without these keys neither": ([{"fieldsV1": OWNED}], "unknown"),
            "entries of nothing own nothing": ([{"fieldsV1": None}, {"fieldsV1": {"f:spec": None}}], "unknown"),
            "there is none": (None, "unknown"),
        },
        "managed, name",
    )
    async def test_managed_fields_that_lack_something(
        self, cluster: QuotaCluster, managed: list[dict[str, Any]] | None, name: str
    ) -> None:
        cluster.migrate("vm1")
        await cluster.look()
        await self.war(cluster, MANY, managed=managed)
        assert [cause.by for cause in cluster.causes] == [f"field manager {name}"]


Happens = Callable[[QuotaCluster], object] | None


def uses(cpu: str, **more: Any) -> Callable[[QuotaCluster], object]:
    """Sets how much of limits.cpu is counted."""
    return lambda cluster: cluster.quotas.edited(KEY, {"status": {"used": {"limits.cpu": cpu}}, **more})


def unseen(cpu: str) -> Callable[[QuotaCluster], None]:
    """A pod was admitted or ended, and the cache does not show it yet."""

    def change(cluster: QuotaCluster) -> None:
        cluster.quotas.lagging = True
        uses(cpu)(cluster)

    return change


WITH_ROOM, AT_BASE = RAISED["limits.cpu"], HARD["limits.cpu"]
ADDED_BY_OTHERS = {"hard": {**HARD, "limits.cpu": "50"}}
COUNTED: dict[str, tuple[str, list[tuple[float, Happens, float | None]], dict[str, str]]] = {
    "what has ended and is still counted is waited for": (
        WITH_ROOM,
        [(0.0, None, 1.0), (0.0, uses(AT_BASE), None)],
        HARD,
    ),
    "a VM that has grown is waited for a second": (WITH_ROOM, [(0.0, None, 1.0), (1.0, None, None)], HARD),
    "a pod that was admitted since is waited for": (AT_BASE, [(0.0, unseen(WITH_ROOM), 1.0)], RAISED),
    "a pod that is admitted just then is waited for": (
        AT_BASE,
        [(0.0, lambda cluster: cluster.quotas.before.append(lambda: unseen(WITH_ROOM)(cluster)), 1.0)],
        RAISED,
    ),
    "pods that come and go all the time keep no headroom": (
        AT_BASE,
        [(0.0, unseen(WITH_ROOM), 1.0), (1.0, unseen("1m"), None)],
        HARD,
    ),
    "what another client added is taken back at once": (
        WITH_ROOM,
        [(0.0, uses(WITH_ROOM, spec=ADDED_BY_OTHERS), None)],
        HARD,
    ),
}


@sentences(COUNTED, "counted, looks, hard")
async def test_room_of_a_migration_that_is_over(
    counted: str, looks: list[tuple[float, Happens, float | None]], hard: dict[str, str], cluster: QuotaCluster
) -> None:
    cluster.migrate("vm1", phase=RUNNING)
    await cluster.look()
    cluster.migrate("vm1", phase=SUCCEEDED)
    cluster.clock.now += 1
    uses(counted)(cluster)
    for seconds, happens, again in looks:
        cluster.clock.now += seconds
        if happens is not None:
            happens(cluster)
        assert await cluster.look() == (again and pytest.approx(again))
    assert by_value(cluster.now.hard) == by_value(hard)


@pytest.mark.parametrize(
    ("phase", "used", "waits"),
    [("Pending", "5", True), ("Pending", "3", False), ("Running", "5", False), ("Running", "6", True)],
    ids=[
        "a target that is about to be tried would not fit",
        "it fits beside what is counted",
        "no target is to come",
        "more is counted than would be left",
    ],
)
async def test_nothing_is_given_back_under_a_target_just_tried(phase: str, used: str, waits: bool) -> None:
    """vm1 has moved, and its old pod has ended: base 3 and vm2's 2 are to be left, of base and both."""
    cluster = QuotaCluster(Mode.TAKEOVER)
    cluster.migrate("vm1", "vm2", phase="Running")
    await cluster.look()
    assert by_value(cluster.now.hard)["limits.cpu"].value() == 7
    cluster.migrate("vm1", phase="Failed")
    cluster.migrate("vm2", phase=phase, refused=True)
    uses(used)(cluster)
    cluster.clock.now += 3
    again = await cluster.look()
    assert (by_value(cluster.now.hard)["limits.cpu"].value() == 7) is waits
    if waits:
        assert again == pytest.approx(UNTIL_COUNTED)
        uses("3" if phase == "Pending" else "5")(cluster)
        cluster.clock.now += 0.5
        await cluster.look()
        assert by_value(cluster.now.hard)["limits.cpu"].value() == 5


class TestBeforeRoomIsAdded:
    async def test_the_namespace_is_readied_first(self, cluster: QuotaCluster) -> None:
        cluster.migrate("vm1")
        cluster.not_yet = [RetryAfter(0.1, "labelled just now")]
        assert await cluster.look() == pytest.approx(0.1)
        assert not cluster.patches
        await cluster.look()
        assert cluster.readied == ["ns1", "ns1"]
        assert by_value(cluster.now.hard) == by_value(RAISED)

    async def test_lowering_needs_nothing(self, cluster: QuotaCluster) -> None:
        cluster.quotas.given(quota(RAISED, {by_uid(): ENTRY}))
        cluster.migrate("vm1", phase="Succeeded")
        await cluster.look()
        assert by_value(cluster.now.hard) == by_value(HARD)
        assert cluster.readied == []

    async def test_marks_and_flags_need_nothing(self) -> None:
        cluster = QuotaCluster(Mode.TAKEOVER)
        await cluster.look()
        assert cluster.patches == 1
        assert cluster.readied == []

    async def test_a_foreign_writer_in_between_has_it_asked_again(self, cluster: QuotaCluster) -> None:
        cluster.migrate("vm1")
        cluster.quotas.lagging = True
        cluster.quotas.edited(KEY, {"metadata": {"annotations": {"x": "y"}}})
        await cluster.look()
        assert cluster.readied == ["ns1", "ns1"]


class TestWhatPeopleAreTold:
    async def test_a_mistake_of_ours_is_logged_once_with_where_it_happened(
        self, caplog: pytest.LogCaptureFixture, cluster: QuotaCluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(*_: object, **__: object) -> object:
            raise KeyError("limits.cpu")

        monkeypatch.setattr("pkg.util.resourcequota.vm.assess", broken)
        cluster.migrate("vm1")
        for _ in range(5):
            await cluster.look()
        ((_, _, reason, message),) = cluster.events.recorded
        assert (reason, message) == ("MigrationNotScaled", "VM vm1: KeyError: 'limits.cpu'")
        (record,) = [item for item in caplog.records if item.levelname == "WARNING"]
        assert record.exc_info is not None
        assert isinstance(record.exc_info[1], KeyError)
        assert "in broken" in caplog.text

    async def test_a_problem_is_a_warning_event_on_the_quota_once(
        self, caplog: pytest.LogCaptureFixture, cluster: QuotaCluster
    ) -> None:
        cluster.base("{nope")
        for _ in range(5):
            await cluster.look()
        ((key, kind, reason, message),) = cluster.events.recorded
        assert (key, kind, reason) == (KEY, "Warning", "InvalidResourceQuotaAnnotation")
        assert "field.cattle.io/resourceQuota is not JSON" in message
        assert len([r for r in caplog.records if r.levelname == "WARNING"]) == 1
        assert not cluster.patches

    @pytest.mark.parametrize(
        ("then", "pause", "told"),
        [
            pytest.param('{"limit":{"limitsCpu":"x"}}', 0.0, 2, id="one that changes is told anew"),
            pytest.param(BASE, 1.0, 1, id="one that comes back at once is not"),
            pytest.param(BASE, 61.0, 2, id="after a minute it is"),
        ],
    )
    async def test_a_problem_is_told_again(self, then: str, pause: float, told: int, cluster: QuotaCluster) -> None:
        for annotation in ("{nope", then, "{nope"):
            cluster.base(annotation)
            await cluster.look()
            cluster.clock.now += pause
        assert len(cluster.events.recorded) == told

    async def test_a_problem_of_a_quota_that_was_created_anew_is_told_again(self, cluster: QuotaCluster) -> None:
        cluster.base("{nope")
        await cluster.look()
        cluster.quotas.gone(KEY)
        await cluster.look()
        cluster.quotas.given(edited(quota(), metadata={"uid": "uid-of-the-next"}))
        await cluster.look()
        assert len(cluster.events.recorded) == 2

    async def test_amounts_that_change_are_no_news(self, caplog: pytest.LogCaptureFixture) -> None:
        """The amount that a waiting migration would add changes with the overhead ratio."""
        cluster = QuotaCluster(Mode.TAKEOVER)
        cluster.quotas.given(quota(None, {ANNOTATION_MAX_EXTRA: '{"limits.memory":"1"}'}))
        cluster.migrate("vm1")
        for ratio in ("1.5", "2.5", "3.5", "4.5"):
            cluster.settings.given({"metadata": {"name": "additional-guest-memory-overhead-ratio"}, "value": ratio})
            await cluster.look()
            cluster.clock.now += 5.0
        assert cluster.events.reasons == ["MaxExtraReached"]
        assert len([r for r in caplog.records if r.levelname == "WARNING"]) == 1


class TestTime:
    async def test_a_foreign_entry_is_decided_again_after_its_grace(self) -> None:
        cluster = QuotaCluster(foreign_grace=60.0)
        cluster.quotas.given(quota(RAISED, {by_uid("gone"): ENTRY}))
        assert await cluster.look() == pytest.approx(60.0)
        cluster.clock.now += 59.0
        assert await cluster.look() == pytest.approx(1.0)
        assert not cluster.patches
        cluster.clock.now += 1.0
        assert await cluster.look() is None
        assert by_value(cluster.now.hard) == by_value(HARD)
        assert by_uid("gone") not in cluster.now.annotations

    @pytest.mark.parametrize("mode", Mode)
    async def test_an_entry_whose_removal_waits_is_not_forgotten(self, mode: Mode) -> None:
        """Each time a migration is about to be tried."""
        cluster = QuotaCluster(mode, foreign_grace=60.0)
        cluster.quotas.given(quota(RAISED, {by_uid("gone"): ENTRY, **(MARKS if mode is Mode.TAKEOVER else {})}))
        cluster.migrate("vm1")
        began = cluster.clock.now
        while cluster.clock.now < began + 61.0:
            cluster.clock.now += min(await cluster.look() or 1.0, 1.0)
        assert by_uid("gone") not in cluster.now.annotations
        assert by_value(cluster.now.hard) == by_value(RAISED)

    async def test_a_touch_that_was_not_written_is_made_by_the_next_look(self, cluster: QuotaCluster) -> None:
        cluster.quotas.given(quota(RAISED, {by_uid(): ENTRY}))
        cluster.quotas.edited(KEY, {"status": {"hard": dict(RAISED)}})
        cluster.migrate("vm1", refused=True)
        cluster.clock.now += await cluster.look() or 0.0
        cluster.quotas.errors["patch"] = [ServiceUnavailable("later", status=503)]
        with pytest.raises(ServiceUnavailable):
            await cluster.look()
        assert ANNOTATION_TOUCHED not in cluster.now.annotations
        await cluster.look()
        assert ANNOTATION_TOUCHED in cluster.now.annotations

    async def test_a_device_that_the_base_lacks_is_named_once(self) -> None:
        """Only the target has it: the quota is raised, and the target is refused all the same."""
        cluster = QuotaCluster(Mode.TAKEOVER)
        cluster.base(BASE[:-2] + ',"extended":{"requests.intel.com/nic":"1"}}}')
        cluster.quotas.given(quota(HARD | {"requests.intel.com/nic": "1"}, MARKS))
        cluster.migrate("vm1", refused=True)
        instance = vmi(nodeName="node-1")
        cluster.instances.given(instance)
        cluster.pods.given(launcher(instance))
        amounts = "requested: limits.cpu=2,requests.intel.com/nic=1, used: limits.cpu=2"
        cluster.failures.given(
            {
                "metadata": {"name": "failed", "namespace": "ns1"},
                "involvedObject": {"kind": "VirtualMachineInstance", "namespace": "ns1", "name": "vm1"},
                "reason": "FailedCreate",
                "message": f'pods "x" is forbidden: exceeded quota: default-abc, {amounts}, limited: limits.cpu=5',
                "lastTimestamp": "2026-01-01T00:01:00Z",
            }
        )
        for _ in range(8):
            cluster.quotas.edited(KEY, {"status": {"hard": dict(cluster.now.hard)}})
            cluster.clock.now += await cluster.look() or 0.0
        ((subject, reason, message),) = cluster.events.warnings
        assert (subject, reason) == ("ns1/vm1", "DeviceNotInBase")
        assert "its target asks for requests.intel.com/nic, which its source does not have" in message


def test_of_a_tenants_event_little_is_held() -> None:
    """Of reason FailedCreate a namespace may have thousands, which are read where a target is refused again and
    again."""
    text = "x" * 1_400_000
    event = Event(involved_object=ObjectReference(name=text), reason=text, message=text)
    assert len(msgspec.json.encode(as_read(event))) < 5000


async def test_a_dry_run_writes_nothing_and_says_once_what_it_would(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    cluster = QuotaCluster(dry_run=True)
    cluster.migrate("vm1")
    for _ in range(3):
        await cluster.look()
    assert cluster.quotas.calls == []
    assert [r.message for r in caplog.records] == [
        f"{KEY}: would write: limits.cpu 3 -> 5, limits.memory 5000Mi -> 9980344313"
    ]


@pytest.mark.parametrize("mode", Mode)
async def test_a_namespace_that_is_not_cached_yet_changes_no_limit(mode: Mode) -> None:
    cluster = QuotaCluster(mode)
    cluster.namespaces.gone("ns1")
    cluster.migrate("vm1")
    await cluster.look()
    assert by_value(cluster.now.hard) == by_value(HARD)
