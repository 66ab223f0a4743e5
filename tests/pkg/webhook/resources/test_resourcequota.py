"""The guard's answers: correction, denial, admission, and the live reads before them."""

from collections.abc import Mapping

import pytest

from kubeloop.api.core import ResourceQuota
from pkg.config.settings import QuotaGuard, Settings
from pkg.util.constants import ANNOTATION_BASE as BASE
from pkg.util.constants import ANNOTATION_OWNER as OWNER
from pkg.util.constants import ANNOTATION_SKIP_AUTO_SCALING as SKIP
from pkg.util.constants import LABEL_MANAGED, RANCHER_SUDO_USER
from pkg.util.resourcequota.policy import EstimateKind, Mode, Policy
from pkg.webhook.configurations import NAMESPACE_CONTROLLER
from pkg.webhook.resources.resourcequota import Guard
from tests.decisions import sentences
from tests.kinds import edited
from tests.objects import ENTRY, HARD, MARKS, RAISED, by_name, quota, vmim
from tests.pkg.webhook.fake_view import ALICE, RANCHER, FakeView, State, request

pytestmark = pytest.mark.virtual_time

ONE = {**MARKS, by_name(): ENTRY}
LOWERED = quota(dict(HARD), ONE)
STANDING = quota(dict(RAISED), ONE)
OWN = "system:serviceaccount:harvester-system:headroom"
POLICY = Policy(Mode.TAKEOVER, EstimateKind.HARVESTER)
RUNNING = State(STANDING, migrations=[vmim("Running")])
DENIAL = (
    "resource quota ns1/default-abc holds headroom for migrating VMs (vm1): limits.cpu can't be 3, the lowest allowed "
    "value is 5, limits.memory can't be 5000Mi, the lowest allowed value is 9980344313 until they are done"
)
CORRECTION = [
    {"op": "replace", "path": "/spec/hard/limits.cpu", "value": "5"},
    {"op": "replace", "path": "/spec/hard/limits.memory", "value": "9980344313"},
]


def guard(view: FakeView, mode: QuotaGuard = QuotaGuard.CORRECT) -> Guard:
    options = Settings(policy=POLICY, quota_guard=mode, own_user=OWN, controller_users=["kubernetes-admin"])
    return Guard(view, options, lambda *_: None)


def labelled(base: dict[str, str], *, migrates: bool = True) -> ResourceQuota:
    """Without Rancher."""
    entries = {by_name(): ENTRY} if migrates else {}
    return quota(dict(RAISED), {**base, **entries}, labels={LABEL_MANAGED: "true"})


def without(*marks: str, kind: Mapping[str, str] = ONE) -> ResourceQuota:
    return quota(dict(RAISED), {key: text for key, text in kind.items() if key not in marks})


def switched_off_since() -> State:
    state = State(STANDING)
    state.namespace = edited(state.namespace, metadata={"annotations": {LABEL_MANAGED: "false"}})
    return state


AT_REST = State(quota(dict(RAISED), MARKS))
SMALLER = State(STANDING, limits='{"limit":{"limitsCpu":"1","limitsMemory":"5000Mi"}}')
KEPT = "resource quota ns1/default-abc holds headroom for migrating VMs (vm1): {} when they are done"
UPDATES: dict[str, tuple[ResourceQuota, ResourceQuota, State, State | None, str, list[str]]] = {
    "one look precedes a denial, which says what is allowed": (
        STANDING, LOWERED, RUNNING, State(STANDING), DENIAL, ["namespace"]
    ),
    "without an answer the cache decides": (STANDING, LOWERED, RUNNING, None, DENIAL, ["namespace"]),
    "the label is not taken off to lower the limit": (
        STANDING, quota(dict(HARD), ONE, labels={}), RUNNING, RUNNING, DENIAL, ["namespace"]
    ),
    "a new base is found before a write is refused by it": (
        STANDING, quota({**RAISED, "limits.cpu": "3"}, ONE), RUNNING, SMALLER, "", ["namespace"]
    ),
    "a namespace that was switched off since lets it be lowered": (
        STANDING, LOWERED, RUNNING, switched_off_since(), "", ["namespace"]
    ),
    "a write that ends an entry may lower the limit": (
        STANDING, quota(dict(HARD), MARKS), RUNNING, RUNNING, "", []
    ),
    "what is not lowered costs no look": (STANDING, STANDING, RUNNING, RUNNING, "", []),
    "nor what is raised": (STANDING, quota({"limits.cpu": "9", "limits.memory": "1Ti"}, ONE), RUNNING, RUNNING, "", []),
    "what is not managed is left alone": (
        quota(dict(RAISED), ONE, labels={}), quota({}, labels={}), RUNNING, RUNNING, "", []
    ),
    "the mark that makes the skip headroom's stays": (
        STANDING, without(OWNER), RUNNING, RUNNING, KEPT.format(f"{OWNER} can be removed"), ["namespace"]
    ),
    "where none does it may go": (AT_REST.quotas[0], without(OWNER, kind=MARKS), AT_REST, AT_REST, "", []),
    "and with the skip": (STANDING, without(OWNER, SKIP), RUNNING, RUNNING, "", []),
    "the skip alone may go": (STANDING, without(SKIP), RUNNING, RUNNING, "", []),
    "the recorded base is not removed while VMs migrate": (
        labelled({BASE: "{}"}), labelled({}), RUNNING, RUNNING, KEPT.format(f"{BASE} can be changed"), ["namespace"]
    ),
    "nor changed": (
        labelled({BASE: "{}"}), labelled({BASE: '{"limits.cpu":"1"}'}), RUNNING, RUNNING,
        KEPT.format(f"{BASE} can be changed"), ["namespace"],
    ),
    "where none does it is": (
        labelled({BASE: "{}"}, migrates=False), labelled({}, migrates=False), AT_REST, AT_REST, "", []
    ),
}  # fmt: skip


@sentences(UPDATES, "old, new, cached, live, denial, looked")
async def test_an_update(
    old: ResourceQuota, new: ResourceQuota, cached: State, live: State | None, denial: str, looked: list[str]
) -> None:
    view = FakeView(cached, live)
    decision = await guard(view).validate(request(new, old))
    assert (decision.allowed, decision.message) == (not denial, denial)
    assert view.looked == looked


RECORDED = {BASE: '{"limits.cpu":"3"}', **ONE}
UNDER_RANCHERS_NAME = {
    "headroom records what Rancher has granted": (RECORDED | {BASE: '{"limits.cpu":"2"}'}, True),
    "headroom ends an entry and the record with it": (MARKS, True),
    "Rancher leaves the annotations as they are": (RECORDED, False),
}


@sentences(UNDER_RANCHERS_NAME, "annotations, own_entries")
async def test_headroom_may_write_under_the_name_of_rancher(annotations: dict[str, str], own_entries: bool) -> None:
    view, old, new = FakeView(RUNNING, RUNNING), quota(dict(RAISED), RECORDED), quota(dict(HARD), annotations)
    decision = await guard(view).validate(request(new, old, user=RANCHER_SUDO_USER))
    assert (decision.allowed, decision.message) == (own_entries, "" if own_entries else DENIAL)


async def test_rancher_is_corrected_and_then_allowed() -> None:
    view = FakeView(RUNNING, RUNNING)
    decision = await guard(view).mutate(request(LOWERED, STANDING, user=RANCHER))
    assert decision.allowed
    assert list(decision.patch) == CORRECTION
    assert decision.audit["corrected"].startswith("limits.cpu=5,")
    (warning,) = decision.warnings
    assert "holds headroom for migrating VMs (vm1), corrected: limits.cpu 3 -> 5" in warning
    assert (await guard(view).validate(request(STANDING, STANDING, user=RANCHER))).allowed


@pytest.mark.parametrize(("dry_run", "told"), [(False, 1), (True, 0)])
async def test_a_correction_is_told_unless_it_is_a_dry_run(dry_run: bool, told: int) -> None:
    """Always in the same words, so that they are counted in one event."""
    events: list[tuple[str, str]] = []
    guarded = Guard(
        FakeView(RUNNING, RUNNING), Settings(policy=POLICY), lambda _quota, _type, *event: events.append(event)
    )
    for lowered in (LOWERED, quota({**HARD, "limits.cpu": "4"}, ONE)):
        await guarded.mutate(request(lowered, STANDING, user=RANCHER, dry_run=dry_run))
    message = f"a write of {RANCHER} that lowered limits below what migrating VMs need was corrected"
    assert events == [("ResourceQuotaCorrected", message)] * 2 * told


async def test_only_what_is_too_low_is_corrected() -> None:
    new = quota({"limits.cpu": "3", "limits.memory": "1Ti"}, ONE)
    decision = await guard(FakeView(RUNNING, RUNNING)).mutate(request(new, STANDING, user=RANCHER))
    assert list(decision.patch) == CORRECTION[:1]


@pytest.mark.parametrize(
    ("mode", "user", "patched", "allowed"),
    [
        (QuotaGuard.CORRECT, RANCHER, True, False),
        (QuotaGuard.CORRECT, "system:serviceaccount:cattle-fleet-system:fleet-agent", True, False),
        (QuotaGuard.CORRECT, "cattle-cluster-agent", True, False),
        (QuotaGuard.CORRECT, ALICE, False, False),
        (QuotaGuard.CORRECT, "system:serviceaccount:cattle-systems:rancher", False, False),
        (QuotaGuard.CORRECT, "u-x7k2p", False, False),
        (QuotaGuard.DENY, RANCHER, False, False),
        (QuotaGuard.DENY, ALICE, False, False),
        (QuotaGuard.OFF, RANCHER, False, True),
        (QuotaGuard.OFF, ALICE, False, True),
        (QuotaGuard.CORRECT, OWN, False, True),
        (QuotaGuard.DENY, OWN, False, True),
        (QuotaGuard.CORRECT, NAMESPACE_CONTROLLER, False, True),
        # The account of a person who runs headroom is a person's.
        (QuotaGuard.CORRECT, "kubernetes-admin", False, False),
    ],
)
async def test_who_may_do_what(mode: QuotaGuard, user: str, patched: bool, allowed: bool) -> None:
    review = request(LOWERED, STANDING, user=user)
    guarded = guard(FakeView(RUNNING, RUNNING), mode)
    assert bool((await guarded.mutate(review)).patch) is patched
    assert (await guarded.validate(review)).allowed is allowed


def enforced(hard: Mapping[str, str]) -> ResourceQuota:
    """The quota as it stands, with these limits in its status."""
    return edited(STANDING, status={"hard": hard})


HIGHER = {"limits.cpu": "9", "limits.memory": "1Ti"}
BETWEEN = {**HIGHER, "limits.cpu": "7"}
KEPT_IN_STATUS: Mapping[str, tuple[ResourceQuota, Mapping[str, str], Mapping[str, str], str, str]] = {
    "below spec.hard": (STANDING, RAISED, HARD, ALICE, "limits.cpu can't be 3, the lowest allowed value is 5"),
    "below spec.hard, by Rancher": (STANDING, RAISED, HARD, RANCHER, "limits.cpu can't be 3, the lowest allowed"),
    "down to spec.hard": (STANDING, HIGHER, RAISED, ALICE, ""),
    "down, and above spec.hard": (STANDING, HIGHER, BETWEEN, ALICE, ""),
    "up to spec.hard": (STANDING, HARD, RAISED, ALICE, ""),
    "as it was before the raise": (STANDING, HARD, HARD, ALICE, ""),
    "below what it was before the raise": (
        STANDING, HARD, {**HARD, "limits.cpu": "2"}, ALICE, "limits.cpu can't be 2, the lowest allowed value is 3",
    ),
    "to a spec.hard that is below base and headroom": (LOWERED, RAISED, HARD, ALICE, ""),
    "nothing migrates": (quota(dict(RAISED), MARKS), RAISED, HARD, ALICE, ""),
    "a quota that takes no part": (quota(dict(RAISED), ONE, labels={}), RAISED, HARD, ALICE, ""),
    "a limit without headroom": (quota({**RAISED, "pods": "9"}, ONE), {"pods": "9"}, {"pods": "1"}, ALICE, ""),
    "by the quota controller": (
        STANDING, RAISED, HARD, "system:serviceaccount:kube-system:resourcequota-controller", "",
    ),
    "by a controller manager": (STANDING, RAISED, HARD, "system:kube-controller-manager", ""),
    "by the API server": (STANDING, RAISED, HARD, "system:apiserver", ""),
}  # fmt: skip


@sentences(KEPT_IN_STATUS, "kind, old_status, new_status, user, denial")
async def test_the_limits_in_the_status_are_kept_at_those_of_the_spec(
    kind: ResourceQuota, old_status: Mapping[str, str], new_status: Mapping[str, str], user: str, denial: str
) -> None:
    """Quota admission goes by them: kept low they refuse every target, whatever spec.hard says."""
    old, new = (edited(kind, status={"hard": limits}) for limits in (old_status, new_status))
    decision = await guard(FakeView(State(kind), State(kind))).validate(
        request(new, old, user=user, sub_resource="status")
    )
    assert (decision.allowed, denial in decision.message) == (not denial, True)


async def test_a_write_of_the_status_takes_no_records_off() -> None:
    new = edited(quota(dict(RAISED), MARKS), status={"hard": RAISED})
    old = edited(labelled({BASE: "{}"}), status={"hard": RAISED})
    state = State(old)
    review = request(new, old, sub_resource="status")
    assert not (await guard(FakeView(state, state)).validate(review)).allowed


@pytest.mark.parametrize(
    ("old", "cached", "live", "user", "allowed"),
    [
        (quota(dict(HARD), MARKS), State(), State(), ALICE, True),
        (STANDING, RUNNING, State(STANDING, deleting=True), ALICE, True),
        (STANDING, RUNNING, RUNNING, NAMESPACE_CONTROLLER, True),
        (STANDING, RUNNING, None, ALICE, False),
        (STANDING, State(), State(STANDING), ALICE, False),
        (quota(dict(HARD), MARKS), State(migrations=[vmim("Pending")]), RUNNING, ALICE, True),
        (STANDING, RUNNING, RUNNING, RANCHER, False),
        (quota(dict(RAISED), ONE, labels={}), RUNNING, RUNNING, ALICE, True),
        (quota(dict(RAISED), ONE, deleting=True), RUNNING, RUNNING, ALICE, True),
    ],
    ids=[
        "nothing migrates",
        "its namespace is on its way out",
        "the namespace controller cleans up",
        "whether its namespace still exists is unknown",
        "an entry that no migration explains yet",
        "a migration without an entry yet",
        "Rancher",
        "a quota that takes no part",
        "one on its way out already",
    ],
)
async def test_deleting(old: object, cached: State, live: State | None, user: str, allowed: bool) -> None:
    decision = await guard(FakeView(cached, live)).validate(request(old=old, user=user))  # type: ignore[arg-type]
    assert (decision.allowed, decision.message) == (allowed, "" if allowed else KEPT.format("it can be deleted"))


async def test_many_vms_are_not_all_named() -> None:
    annotations = {**MARKS, **{by_name(f"vm{number:02}"): ENTRY for number in range(13)}}
    hard = {"limits.cpu": "29", "limits.memory": "1Ti"}
    present = quota(hard, annotations)
    state = State(present)
    decision = await guard(FakeView(state, state)).validate(request(quota(dict(HARD), annotations), present))
    assert "(vm00, vm01, vm02, vm03, vm04, vm05, vm06, vm07, vm08, vm09 and 3 more)" in decision.message


OFF = {LABEL_MANAGED: "false"}
LOST = "the migrations of vm1 lose the headroom that was added for them"
SWITCHED_OFF = {
    "whose room goes is told, though it is lowered too": (STANDING, quota(dict(HARD), {**ONE, **OFF}), [LOST]),
    "where nothing migrates nothing is": (quota(dict(HARD), MARKS), quota(dict(HARD), {**MARKS, **OFF}), []),
    "what is off already may be lowered": (without(kind={**ONE, **OFF}), quota(dict(HARD), {**ONE, **OFF}), []),
    "and deleted": (without(kind={**ONE, **OFF}), None, []),
}


@sentences(SWITCHED_OFF, "old, new, told")
@pytest.mark.parametrize("user", [ALICE, RANCHER])
async def test_switching_off_is_admitted(
    old: ResourceQuota, new: ResourceQuota | None, told: list[str], user: str
) -> None:
    state = RUNNING if by_name() in old.annotations else State(quota(dict(HARD), MARKS))
    guarded, review = guard(FakeView(state, state)), request(new, old, user=user)
    decision = await guarded.validate(review)
    assert decision.allowed
    assert [warning.split("; ")[1] for warning in decision.warnings] == told
    if new is not None:
        mutated = await guarded.mutate(review)
        assert (mutated.allowed, mutated.patch) == (True, ())
