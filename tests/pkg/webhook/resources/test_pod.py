"""Pods in a namespace that holds room, one after the other and all at once; targets of migrations."""

import asyncio
import copy
from collections.abc import Sequence
from typing import Any

import pytest

from kubeloop.api.core import Pod, ResourceQuota
from kubeloop.api.meta import from_rfc3339
from kubeloop.api.resource_list import format_resource_list, total
from kubeloop.testing.virtual_time import now
from kubeloop.webhook.admission import REVIEW_SECONDS, BadReview, deadline
from pkg.config.settings import Settings
from pkg.util import constants
from pkg.util.quotacount.releases import releases_of
from pkg.util.quotacount.usage import pod_usage
from pkg.util.resourcequota.observe import Source
from pkg.util.resourcequota.policy import EstimateKind, Mode, Policy
from pkg.util.resourcequota.room import Pods
from pkg.webhook.resources.lock import Accounts
from pkg.webhook.resources.pod import EXPIRY, PATIENCE, PodValidator
from pkg.webhook.view import NoAnswer
from tests.decisions import sentences
from tests.kinds import edited
from tests.objects import (
    DEFAULT_LABELS,
    ENTRY,
    MARKS,
    by_name,
    controlled_by,
    plain_launcher,
    pod,
    quota,
    uid_of,
    vmi,
    vmim,
)
from tests.pkg.webhook.fake_view import KUBEVIRT, FakeView, State, request

pytestmark = pytest.mark.virtual_time

ACCOUNTS = Accounts([], lambda: [KUBEVIRT])
POLICY = Policy(Mode.TAKEOVER, EstimateKind.EXACT)
UID = "uid-migration-of-vm1"
HARD = {"limits.cpu": "5", "limits.memory": "100Gi"}
LIMITS = '{"limit":{"limitsCpu":"3","limitsMemory":"90Gi"}}'
REFUSAL = (
    "exceeded quota: resource quota ns1/default-abc is used up: limits.cpu 1001m is requested and 1 is left; "
    "what headroom added to it is reserved for migrating VMs (vm1)"
)
OF_MIGRATION = {constants.LABEL_APP: constants.APP_VIRT_LAUNCHER, constants.LABEL_MIGRATION_JOB_UID: UID}


def state(*tenants: Pod, used: str = "2", target: bool = False, phase: str = "Pending", hard: str = "5") -> State:
    """A VM of 2 CPU that migrates, in a base of 3 CPU."""
    pods = [plain_launcher(node="node1"), *([plain_launcher(node="node2", target_of=UID)] if target else []), *tenants]
    rq = quota({**HARD, "limits.cpu": hard}, {**MARKS, by_name(): ENTRY}, used={"limits.cpu": used})
    return State(rq, migrations=[vmim(phase)], instances=[vmi("vm1", nodeName="node1")], pods=pods, limits=LIMITS)


def validator(view: FakeView, *, reserve: bool = True, policy: Policy = POLICY) -> PodValidator:
    return PodValidator(view, Settings(policy=policy, reserve=reserve), ACCOUNTS.makes_targets)


def resting(used: str) -> State:
    """Nothing migrates, and nothing was added."""
    rq = quota({**HARD, "limits.cpu": "3"}, MARKS, used={"limits.cpu": used})
    return State(settled(rq), instances=[vmi("vm1", nodeName="node1")], pods=[plain_launcher()], limits=LIMITS)


def settled(rq: ResourceQuota, **status: str) -> ResourceQuota:
    return edited(rq, status={"hard": {**rq.hard, **status}})


async def allowed(checked: PodValidator, *pods: Pod) -> list[bool]:
    """Pods that never arrive."""
    return [(await checked.validate(request(candidate))).allowed for candidate in pods]


async def created(checked: PodValidator, view: FakeView, pod: Pod) -> bool:
    """Reports whether the pod is allowed; then it exists."""
    decision = await checked.validate(request(pod))
    if decision.allowed:
        for state in (view.cached, view.live):
            assert state is not None
            state.pods.append(pod)
    return decision.allowed


@pytest.fixture
def view() -> FakeView:
    return FakeView(state(), state())


async def test_what_fits_into_the_base_passes_else_it_is_told_why(view: FakeView) -> None:
    assert await allowed(validator(view), pod("1")) == [True]
    checked = validator(view)
    decision = await checked.validate(request(pod("1001m")))
    assert (decision.allowed, decision.message) == (False, REFUSAL)
    assert await allowed(checked, pod("1")) == [True]
    assert now() == 0.0, "what is refused holds no place"


async def test_admitted_pods_count_before_a_watch_shows_them(view: FakeView) -> None:
    checked = validator(view)
    assert await allowed(checked, pod("300m"), pod("300m")) == [True, True]
    # What does not fit beside them waits until they are there, or are known not to come.
    waiting = asyncio.create_task(checked.validate(request(pod("401m"))))
    await asyncio.sleep(1.0)
    assert not waiting.done()
    view.cached = view.live = state(pod("300m", name="a"), pod("300m", name="b"))
    assert not (await waiting).allowed
    assert now() < EXPIRY


async def test_two_replicas_exceed_the_base_by_one_pod_at_most() -> None:
    """A replica sees only later what the other one admits."""
    let_through = 0
    for checked in (validator(FakeView(state(), state())) for _ in range(2)):
        fifty = [asyncio.create_task(checked.validate(request(pod("100m")))) for _ in range(50)]
        for _ in range(50):
            await asyncio.sleep(0)
        let_through += sum(task.done() and task.result().allowed for task in fifty)
        for task in fifty:
            task.cancel()
    assert 10 <= let_through <= 11


async def test_all_at_once_is_no_better_than_one_after_the_other(view: FakeView) -> None:
    checked = validator(view)
    fifty = (created(checked, view, pod("100m", name=f"p{number}")) for number in range(50))
    assert sum(await asyncio.gather(*fifty)) == 10


async def test_a_pod_that_never_came_delays_others_and_denies_none() -> None:
    """Quota, or another webhook, refused it after us."""
    checked = validator(FakeView(state(), state()))
    assert await allowed(checked, pod("1")) == [True]
    assert await allowed(checked, pod("1")) == [True]
    assert EXPIRY <= now() < PATIENCE


async def test_a_dry_run_takes_no_place() -> None:
    checked = validator(FakeView(state(), state()))
    assert (await checked.validate(request(pod("1"), dry_run=True))).allowed
    assert await allowed(checked, pod("1")) == [True]
    assert now() == 0.0


async def test_the_targets_own_room_is_for_no_other_pod() -> None:
    view = FakeView(*[state(target=True, used="4", phase="Running")] * 2)
    checked = validator(view)
    assert await created(checked, view, pod("1"))
    assert not await created(checked, view, pod("1m"))


def holding(used: str, **given: Any) -> State:
    """Another quota instead, or the same with other marks."""
    fields: dict[str, Any] = {"hard": HARD, "annotations": {**MARKS, by_name(): ENTRY}, **given}
    snapshot = state()
    snapshot.quotas = [quota(**fields, used={"limits.cpu": used})]
    return snapshot


def beside(used: str) -> State:
    """A second quota, which headroom leaves alone, of 2 CPU."""
    snapshot = state()
    snapshot.quotas.append(settled(quota({"limits.cpu": "2"}, name="second", labels={}, used={"limits.cpu": used})))
    return snapshot


def switched_off(snapshot: State) -> State:
    snapshot.off = True
    return snapshot


def of_other_pods(used: str) -> State:
    snapshot = holding(used)
    snapshot.quotas = [edited(snapshot.quotas[0], spec={"scopes": ["Terminating"]})]
    return snapshot


def without_migrations(snapshot: State) -> State:
    rq = copy.copy(snapshot)
    rq.migrations = []
    return rq


FULL, UNANSWERED = state(used="4"), None
BOTH = {
    "status.used that misses pods does not share them out again": (state(pod("1"), used="2"), "1m", False),
    "the base counts also before the limit is raised": (state(pod("1"), used="3", hard="3"), "1m", False),
    "the whole namespace is switched off": (switched_off(state()), "9", True),
    "a scope that does not match is no limit": (of_other_pods("5"), "9", True),
}
CACHED_AND_LIVE = {name: (there, there, cpu, passes) for name, (there, cpu, passes) in BOTH.items()} | {
    "switched off since": (FULL, holding("4", labels={**DEFAULT_LABELS, constants.LABEL_MANAGED: "false"}), "1", True),
    "skipped by a person since": (
        FULL, holding("4", annotations={constants.ANNOTATION_SKIP_AUTO_SCALING: "true"}), "1", True
    ),
    "not managed any more": (FULL, holding("4", labels={}), "1", True),
    "being deleted": (FULL, holding("4", deleting=True), "1", True),
    "without an answer the cache decides": (state(), UNANSWERED, "1001m", False),
    "without an answer it fits by the cache": (state(), UNANSWERED, "1", True),
    "no answer is needed where it does not fit anyhow": (
        state(pod("1"), used="2"), UNANSWERED, "1m", False
    ),
    "a quota that no cache knows yet has a base": (State(limits=LIMITS), state(), "1001m", False),
    "and it fits into that": (State(limits=LIMITS), state(), "1", True),
    "no cache knows yet what its namespace says": (State(*state().quotas, limits=""), state(), "1001m", False),
    "a cache has nothing readable of what it says": (
        State(*state().quotas, limits="garbage"), state(), "1001m", False
    ),
    "and it fits into what it says": (State(*state().quotas, limits=""), state(), "1", True),
    "a raise that the cache does not show is not rest": (resting("2"), state(pod("900m"), used="2900m"), "900m", False),
    "another quota that a cache has as full is asked for": (beside("2"), beside("0"), "100m", True),
}  # fmt: skip


@sentences(CACHED_AND_LIVE, "cached, live, cpu, passes")
async def test_a_pod_by_the_cache_and_by_the_api_server(
    cached: State, live: State | None, cpu: str, passes: bool
) -> None:
    assert await allowed(validator(FakeView(cached, live)), pod(cpu)) == [passes]


MIGRATIONS_PODS = {
    "the target, by KubeVirt": (OF_MIGRATION, KUBEVIRT, (), True),
    "the target, by an administrator": (OF_MIGRATION, "kubernetes-admin", ("system:masters",), True),
    "an attachment pod": ({**OF_MIGRATION, constants.LABEL_APP: constants.APP_HOTPLUG_DISK}, KUBEVIRT, (), True),
    "labels that a tenant wrote": (OF_MIGRATION, "alice", (), False),
    "an unknown migration": ({**OF_MIGRATION, constants.LABEL_MIGRATION_JOB_UID: "x"}, KUBEVIRT, (), False),
    "KubeVirt's pod for a VM that starts": ({constants.LABEL_APP: constants.APP_VIRT_LAUNCHER}, KUBEVIRT, (), False),
    "another pod with a migration's label": ({**OF_MIGRATION, constants.LABEL_APP: "web"}, KUBEVIRT, (), False),
}


@sentences(MIGRATIONS_PODS, "labels, user, groups, passes")
async def test_whose_the_room_is(
    labels: dict[str, str], user: str, groups: Sequence[str], passes: bool, view: FakeView
) -> None:
    review = request(pod("2", labels=labels), user=user, groups=groups)
    assert (await validator(view).validate(review)).allowed is passes
    unknown = FakeView(without_migrations(state()), state())
    assert (await validator(unknown).validate(review)).allowed is passes, "as the API server has it"
    finished = FakeView(*[state(phase="Succeeded")] * 2)
    assert not (await validator(finished).validate(review)).allowed


TARGET_RUNS = state(used="4", target=True, phase="Running")
LOWERED = state(used="2", target=True, hard="3", phase="Running")
Seen = tuple[State, State | None]
"""By the cache, and by the API server."""
WAITS: dict[str, tuple[Seen, Seen, bool]] = {
    "a pod has just gone, and status.used has it still": (
        (state(), state(used="3")), (state(), state(used="2")), True
    ),
    "also where only a watch still shows it": (
        (state(pod("1", name="gone"), used="3"), state(used="3")), (state(), state(used="2")), True
    ),
    "there is no answer any more": ((state(), state(used="3")), (state(), UNANSWERED), False),
    "the quota was read before the raise, its target after": (
        (LOWERED, LOWERED), (TARGET_RUNS, TARGET_RUNS), True
    ),
    "a target made between the lists of a live look": (
        (TARGET_RUNS, without_migrations(TARGET_RUNS)), (TARGET_RUNS, TARGET_RUNS), True
    ),
}  # fmt: skip


@sentences(WAITS, "pods_before, pods_after, passes")
async def test_it_is_waited_for_another_look(pods_before: Seen, pods_after: Seen, passes: bool) -> None:
    view = FakeView(*pods_before)
    task = asyncio.create_task(validator(view).validate(request(pod("1"))))
    await asyncio.sleep(1.0)
    assert not task.done()
    view.cached, view.live = pods_after
    assert (await task).allowed is passes


SMALL, ONE, OLD, NEW, REST = (
    pod(cpu, name=name) for cpu, name in (("600m", "small"), ("1", "one"), ("1", "old"), ("1", "new"), ("1m", "rest"))
)
THEN: dict[str, tuple[Seen, Pod, bool, Seen, Sequence[Pod], dict[str, bool]]] = {
    "a pod that is seen is counted once": (
        (state(), state()), SMALL, True, (state(SMALL, used="2600m"),) * 2, [], {"401m": False, "400m": True}
    ),
    "a pod that came and went holds up none": ((state(), state()), ONE, True, (state(), state()), [ONE], {"1": True}),
    # status.used follows a second later; the place is free.
    "what has just ended is not waited for": (
        (state(OLD, used="3"),) * 2, REST, False, (state(used="3"),) * 2, [OLD], {"1": True}
    ),
    # It shows that a pod has ended, and not yet the one that took its place: which has not ended too.
    "a watch that is behind lets nothing into the added headroom": (
        (state(OLD, used="3"), state(NEW, used="3")), REST, False, (state(used="3"), state(NEW, used="3")), [OLD],
        {"1m": False},
    ),
}  # fmt: skip


@sentences(THEN, "pods_before, first_pod, admitted, pods_after, finished, later_pod")
async def test_one_pod_after_another(
    pods_before: Seen,
    first_pod: Pod,
    admitted: bool,
    pods_after: Seen,
    finished: Sequence[Pod],
    later_pod: dict[str, bool],
) -> None:
    view = FakeView(*pods_before)
    checked = validator(view)
    assert await allowed(checked, first_pod) == [admitted]
    view.cached, view.live = pods_after
    view.ended = {gone.uid: gone for gone in finished}
    assert await allowed(checked, *map(pod, later_pod)) == list(later_pod.values())
    assert now() == 0.0 or not all(later_pod.values())


async def test_what_is_let_through_without_an_answer_is_counted_too() -> None:
    checked = validator(FakeView(state(), UNANSWERED))
    assert await allowed(checked, pod("1"), pod("1m")) == [True, False]


LATE: dict[str, Seen] = {
    "a pod that is gone": (state(pod("1", name="gone"), used="2"), state(used="2")),
    "no migration of a target": (without_migrations(TARGET_RUNS), TARGET_RUNS),
}


@sentences(LATE)
async def test_a_watch_that_is_behind_refuses_nothing(case: Seen) -> None:
    """The watch shows a pod or does not: neither refuses one."""
    view = FakeView(*case)
    assert await allowed(validator(view), pod("1001m"), pod("1")) == [False, True]
    assert now() == 0.0


async def test_a_status_with_another_replicas_pods_is_trusted() -> None:
    view = FakeView(state(), state(used="3"))
    assert await allowed(validator(view), pod("1")) == [False]
    assert now() == pytest.approx(PATIENCE, abs=0.1)
    assert "pods" in view.looked, "nothing is refused without a live look"


class Slow(FakeView):
    """The view of an API server whose every answer takes so many seconds."""

    takes = 0.6

    async def quota_live(self, quota: ResourceQuota) -> ResourceQuota:
        await asyncio.sleep(self.takes)
        return await super().quota_live(quota)

    async def pods_live(self, namespace: str) -> Pods:
        await asyncio.sleep(self.takes)
        return await super().pods_live(namespace)

    async def source_live(self, namespace: str) -> Source | None:
        await asyncio.sleep(self.takes)
        return await super().source_live(namespace)


async def test_beside_a_slow_api_server_a_second_look_is_in_time() -> None:
    """A look was late by 0.2 s: a look took 1.2 to 2 s, and of 45 pods that had room 2 were refused."""
    view = Slow(state(), state(used="3"))
    with deadline(REVIEW_SECONDS):
        task = asyncio.create_task(validator(view).validate(request(pod("1"))))
    await asyncio.sleep(1.25)
    assert view.looked.count("pods") == 1
    view.live = state(used="2")
    assert (await task).allowed
    assert now() < REVIEW_SECONDS


async def test_what_stood_in_its_way_before_denies_nothing() -> None:
    """The last one found room, but not all of it was answered."""

    class Mute(FakeView):
        mute = False

        async def pods_live(self, namespace: str) -> Pods:
            if self.mute:
                raise NoAnswer("the API server does not answer: timed out")
            return await super().pods_live(namespace)

    view = Mute(state(), state(used="3"))
    task = asyncio.create_task(validator(view).validate(request(pod("1"))))
    await asyncio.sleep(1.0)
    assert not task.done()
    view.live, view.mute = state(), True
    assert (await task).allowed


async def test_a_pod_does_not_grow_into_the_room() -> None:
    snapshot = state(pod("500m", name="grows"), used="2500m")
    checked = validator(FakeView(snapshot, snapshot))

    def resize(cpu: str) -> object:
        return request(pod(cpu, name="grows"), pod("500m", name="grows"))

    assert not (await checked.validate(resize("1001m"))).allowed  # type: ignore[arg-type]
    assert (await checked.validate(resize("1"))).allowed  # type: ignore[arg-type]
    snapshot.pods = [snapshot.pods[0], pod("1", name="grows")]
    assert not (await checked.validate(request(pod("1m")))).allowed
    assert (await checked.validate(resize("400m"))).allowed, "it shrinks"  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("runs", "admitted"),
    [(["1.32"], True), (["1.37"], False), (["1.32", "1.37"], False), (["1.99"], False)],
    ids=["pod-level resources do not count", "they do", "servers that differ", "a release that is not known"],
)
async def test_a_pod_counts_by_the_releases_that_run(runs: list[str], admitted: bool) -> None:
    snapshot = state(used="2500m")
    view = FakeView(snapshot, snapshot)
    view.runs = releases_of(runs)
    review = edited(pod("100m"), spec={"resources": {"limits": {"cpu": "1001m"}}})
    assert await allowed(validator(view), review) == [admitted]


async def test_before_1_32_no_resize_is_checked_against_quota() -> None:
    snapshot = state(pod("500m", name="grows"), used="2500m")
    view = FakeView(snapshot, snapshot)
    resize = request(pod("9", name="grows"), pod("500m", name="grows"))
    for runs, admitted in (("1.31", True), ("1.32", False)):
        view.runs = releases_of([runs])
        assert (await validator(view).validate(resize)).allowed is admitted


async def test_switched_off_nothing_is_looked_at(view: FakeView) -> None:
    assert (await validator(view, reserve=False).validate(request(pod("9")))).allowed
    snapshot = State(quota(HARD, {constants.ANNOTATION_SKIP_AUTO_SCALING: "true"}), limits=LIMITS)
    assert await allowed(validator(FakeView(snapshot, snapshot)), pod("9")) == [True]
    assert not view.looked


async def test_pods_that_add_up_to_status_are_not_asked_for() -> None:
    snapshot = state()
    used = format_resource_list(total(map(pod_usage, snapshot.pods)))
    snapshot.quotas = [quota(HARD, {**MARKS, by_name(): ENTRY}, used=used)]
    view = FakeView(snapshot, snapshot)
    assert await allowed(validator(view), pod("1")) == [True]
    assert set(view.looked) == {"quota"}


async def test_until_the_pods_are_watched_they_are_listed() -> None:
    """A webhook that had just started waited for the watch, and had no time left for a live look."""
    view = FakeView(state(used="2900m"), state(pod("1"), used="2900m"))
    view.watched = False
    assert await allowed(validator(view), pod("1m")) == [False]
    assert "pods" in view.looked


async def test_a_target_that_is_made_between_two_lists_refuses_nothing() -> None:
    live = state(used="4", phase="Running")
    migrations, live.migrations = live.migrations, []

    class View(FakeView):
        async def pods_live(self, namespace: str) -> Pods:
            live.migrations, live.pods = migrations, state(target=True).pods
            return await super().pods_live(namespace)

    cached = state(target=True, used="4", phase="Running")
    cached.migrations = []
    assert await allowed(validator(View(cached, live)), pod("1")) == [True]
    assert now() == 0.0


@pytest.mark.parametrize(
    ("used", "age", "admitted"),
    [("2", 31, True), ("3", 31, True), ("3", 29, False)],
    ids=["nor by status", "but by status still", "until then it is, whatever this machine's clock says"],
)
async def test_a_pod_that_is_terminating_past_its_grace_is_not_counted(used: str, age: float, admitted: bool) -> None:
    """The quota controller notices only when something else changes, or after five minutes."""
    going = {"deletionTimestamp": "2020-01-01T00:00:00Z", "deletionGracePeriodSeconds": 30}
    snapshot = state(edited(pod("1", name="stuck"), metadata=going), used=used)
    snapshot.now = from_rfc3339("2020-01-01T00:00:00Z") + age
    assert await allowed(validator(FakeView(snapshot, snapshot)), pod("1")) == [admitted]
    assert now() == 0.0


async def test_a_growth_is_counted_once() -> None:
    def grown(cpu: str, version: str) -> Pod:
        return edited(pod(cpu, name="grows"), metadata={"resourceVersion": version})

    pods_before = state(grown("500m", "7"), used="2500m")
    view = FakeView(pods_before, pods_before)
    checked = validator(view)
    assert (await checked.validate(request(grown("700m", "7"), grown("500m", "7")))).allowed
    view.cached = view.live = state(grown("700m", "8"), used="2700m")
    assert await allowed(checked, pod("301m"), pod("300m")) == [False, True]


async def test_without_a_served_quota_nothing_is_watched_or_kept() -> None:
    view = FakeView(State(), State())
    checked = validator(view)
    for number in range(100):
        assert (await checked.validate(request(pod("9"), namespace=f"ns-{number}"))).allowed
    assert (set(view.looked), view.asked_of) == ({"quotas"}, set())
    assert not checked._ledger._entries


async def test_what_is_no_quantity_is_no_review() -> None:
    with pytest.raises(BadReview, match="cpu: 'banana' is not a quantity"):
        await validator(FakeView(state(), state())).validate(request(pod("banana")))


async def test_at_rest_a_pod_that_fits_costs_one_request() -> None:
    view = FakeView(resting("2"), resting("2"))
    checked = validator(view)
    assert await allowed(checked, pod("300m")) == [True]
    assert view.looked == ["quota"]
    assert not view.asked_of
    # It is remembered, twice: the next one is looked at more closely.
    await allowed(checked, pod("401m"))
    assert "pods" in view.looked


@pytest.mark.parametrize("by", ["an entry", "a limit that quota admission still goes by"])
async def test_a_cached_count_is_not_enough_while_anything_is_added(by: str) -> None:
    snapshot = state(used="2") if by == "an entry" else resting("2")
    snapshot.quotas = [settled(snapshot.quotas[0], **{"limits.cpu": "5"})]
    view = FakeView(snapshot, snapshot)
    assert await allowed(validator(view), pod("300m")) == [True]
    assert view.looked


@pytest.mark.parametrize("pause", [1.0, 2 * EXPIRY])
async def test_while_nothing_can_be_read_what_was_let_in_is_remembered(pause: float) -> None:
    """etcd is silent: requests that were let in may all be stored when it is back."""
    view = FakeView(state(), None)
    checked = validator(view)
    passed = []
    for _ in range(20):
        passed += await allowed(checked, pod("250m"))
        await asyncio.sleep(pause)
    assert sum(passed) * 250 <= 1000
    view.live = view.cached
    answered = now()
    assert await allowed(checked, pod("1")) == [True]  # none of them came
    assert now() >= answered + EXPIRY


USED_UP = "exceeded quota: resource quota ns1/{} is used up: {} is requested and {} is left"
NO_DEVICE = {"requests.example.com/device": "0"}
DEVICE = "requests.example.com/device 1"
OF_QUOTA_ITSELF: dict[str, tuple[dict[str, str | None], dict[str, str], dict[str, str], str]] = {
    "a limit of zero, to which nothing is ever added": (
        {"example.com/device": "1"}, NO_DEVICE, {}, USED_UP.format("default-abc", DEVICE, "0")
    ),
    "in a quota that headroom leaves alone": (
        {"example.com/device": "1"}, {}, NO_DEVICE, USED_UP.format("second", DEVICE, "0")
    ),
    "a limit that the base does not have": (
        {"memory": "1Gi"}, {"requests.memory": "1Mi"}, {},
        USED_UP.format("default-abc", "requests.memory 1.0Gi", "1.0Mi"),
    ),
    "a container that does not name what is limited": (
        {"memory": None}, {}, {},
        "failed quota: resource quota ns1/default-abc: must specify limits.memory in every container",
    ),
}  # fmt: skip


@sentences(OF_QUOTA_ITSELF, "asks, own_hard, other_hard, reason")
async def test_pods_that_quota_refuses_by_itself_hold_up_none(
    asks: dict[str, str | None], own_hard: dict[str, str], other_hard: dict[str, str], reason: str
) -> None:
    """Fourteen clients that try again and again, and an honest pod."""
    limits = {name: amount for name, amount in {"cpu": "100m", "memory": "10Mi", **asks}.items() if amount}
    container = {"name": "main", "resources": {"limits": limits, "requests": limits}}
    refused = edited(pod("100m"), spec={"containers": [container]})
    snapshot = holding("2", hard={**HARD, **own_hard})
    snapshot.quotas = [settled(rq) for rq in (*snapshot.quotas, quota(other_hard, name="second", labels={}))]
    checked = validator(FakeView(snapshot, snapshot))
    assert (await checked.validate(request(refused))).message == reason
    assert await allowed(checked, *[refused] * 14, pod("1")) == [False] * 14 + [True]
    assert now() == 0.0


# ---- a target: up to what its own VM was granted; the rest is the base's -------------------------------------

SIX_CPU = '{"limit":{"limitsCpu":"6","limitsMemory":"90Gi"}}'
GRANTED = '{"limits.cpu":"2","limits.memory":"4Gi"}'
MIGRATION = "uid-migration-of-{}"


def target_of(vm: str, cpu: str = "2", *, app: str = constants.APP_VIRT_LAUNCHER, owner: str = "") -> Pod:
    labels = {constants.LABEL_APP: app, constants.LABEL_MIGRATION_JOB_UID: MIGRATION.format(vm)}
    owners = controlled_by("VirtualMachineInstance", owner or vm, uid_of(owner or vm))
    return pod(cpu, "1Gi", name=f"virt-launcher-{vm}-target", labels=labels, ownerReferences=owners)


def two_vms(
    *other_pods: Pod, entries: tuple[str, ...] = ("vm1", "vm2"), phase: str | None = "Running", granted: str = GRANTED
) -> State:
    """Two VMs of 2 CPU that migrate in a base of 6 CPU; `phase` is vm2's."""
    annotations = {**MARKS, **{by_name(vm): granted for vm in entries}}
    hard = {"limits.cpu": str(6 + 2 * len(entries)), "limits.memory": "100Gi"}
    sources = [plain_launcher(vm) for vm in ("vm1", *(["vm2"] if phase == "Running" else []))]
    used = 2 * len(sources) + (1.9 if other_pods else 0)
    instances = [vmi("vm1", nodeName="node1"), vmi("vm2", nodeName="node1", phase=phase)]
    return State(
        quota(hard, annotations, used={"limits.cpu": str(used)}),
        migrations=[vmim("Pending", vm) for vm in ("vm1", "vm2")],
        instances=instances,
        pods=[*sources, *other_pods],
        limits=SIX_CPU,
    )


FILLER = pod("1.9", name="filler")
TARGETS = {
    "as large as its source": (two_vms(FILLER), target_of("vm2"), True),
    "enlarged by a live update": (two_vms(FILLER), target_of("vm2", "4"), False),
    "enlarged, and the base covers it": (two_vms(), target_of("vm2", "4"), True),
    "enlarged by more than the base covers": (two_vms(), target_of("vm2", "4100m"), False),
    "nothing was added for it yet: quota decides": (two_vms(FILLER, entries=("vm1",)), target_of("vm2"), True),
    "the entry holds less, by a cap": (two_vms(FILLER, granted='{"limits.cpu":"1"}'), target_of("vm2"), False),
    "the receiver of a decentralized migration": (
        two_vms(FILLER, pod("2", name="more"), phase="WaitingForSync"),
        target_of("vm2", "3"),
        False,
    ),
    "a launcher with a copied label, of a VM that never ran": (
        two_vms(FILLER, pod("2", name="more"), phase=None),
        target_of("vm2"),
        False,
    ),
    "another VM's launcher with the label of a migration": (
        two_vms(FILLER),
        target_of("vm2", owner="vm3"),
        False,
    ),
    "an attachment pod within what was granted": (
        two_vms(FILLER), target_of("vm2", "100m", app=constants.APP_HOTPLUG_DISK), True
    ),
}  # fmt: skip


@sentences(TARGETS, "state, candidate, admitted")
async def test_a_target_is(state: State, candidate: Pod, admitted: bool) -> None:
    decision = await validator(FakeView(state, state)).validate(request(candidate, user=KUBEVIRT))
    assert decision.allowed is admitted, decision.message
    assert admitted or decision.message.startswith("exceeded quota: resource quota")  # KubeVirt looks for these words


async def test_harvesters_number_for_a_grown_vm_is_not_granted() -> None:
    """Its formula is of the VM's specification, which a tenant has enlarged since."""
    state = two_vms(FILLER, granted='{"limits.cpu":"4","limits.memory":"9Gi"}')
    assert state.instances is not None
    state.instances = [vmi("vm1", nodeName="node1"), vmi("vm2", nodeName="node1", limits={"cpu": "4", "memory": "4Gi"})]
    policy = Policy(Mode.TAKEOVER, EstimateKind.HARVESTER)
    view = FakeView(state, state)
    checked = validator(view, policy=policy)
    assert not (await checked.validate(request(target_of("vm2", "4"), user=KUBEVIRT))).allowed
    assert (await checked.validate(request(target_of("vm2", "2"), user=KUBEVIRT))).allowed


async def test_within_the_grant_nothing_is_read_or_kept_waiting() -> None:
    view = FakeView(two_vms(FILLER), None)
    assert (await validator(view).validate(request(target_of("vm2"), user=KUBEVIRT))).allowed
    assert (view.looked, now()) == ([], 0.0)


async def test_what_a_target_takes_of_the_base_is_remembered() -> None:
    """Until it is seen, no other pod is given the same."""
    view = FakeView(two_vms(), two_vms())
    checked = validator(view)
    assert (await checked.validate(request(target_of("vm2", "3"), user=KUBEVIRT))).allowed
    assert (await checked.validate(request(pod("100m")))).allowed
    assert now() > 0.0
