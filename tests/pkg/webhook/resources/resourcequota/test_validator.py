"""Who is corrected, who is denied, who passes, and when the API server is asked."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from msgspec.structs import replace

from kubeloop.api.core import ResourceQuota
from pkg.util.constants import ANNOTATION_BASE as BASE
from pkg.util.constants import ANNOTATION_OWNER as OWNER
from pkg.util.constants import ANNOTATION_SKIP_AUTO_SCALING as SKIP
from pkg.util.constants import LABEL_MANAGED
from pkg.util.resourcequota.policy import EstimateKind, Mode, Policy
from pkg.webhook.configurations import NAMESPACE_CONTROLLER
from pkg.webhook.options import Options, QuotaGuard
from pkg.webhook.resources.resourcequota.validator import Guard
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


def guard(view: FakeView, mode: QuotaGuard = QuotaGuard.CORRECT, own: str = "") -> Guard:
    return Guard(view, POLICY, Options(quota_guard=mode, own_user=own), lambda *_: None)


async def test_a_person_is_denied_and_told_what_is_allowed() -> None:
    decision = await guard(FakeView(RUNNING, RUNNING)).validate(request(LOWERED, STANDING))
    assert (decision.allowed, decision.message) == (False, DENIAL)


async def test_rancher_is_corrected_and_then_allowed() -> None:
    view = FakeView(RUNNING, RUNNING)
    decision = await guard(view).mutate(request(LOWERED, STANDING, user=RANCHER))
    assert decision.allowed
    assert list(decision.patch) == CORRECTION
    assert decision.audit["corrected"].startswith("limits.cpu=5,")
    (warning,) = decision.warnings
    assert "holds headroom for migrating VMs (vm1), corrected: limits.cpu 3 -> 5" in warning
    assert (await guard(view).validate(request(STANDING, STANDING, user=RANCHER))).allowed


@pytest.mark.parametrize(("authenticated", "dry_run", "told"), [(True, False, 1), (True, True, 0), (False, False, 0)])
async def test_a_correction_is_told_if_the_api_server_asked(authenticated: bool, dry_run: bool, told: int) -> None:
    """Always in the same words, so that they are counted in one event."""
    events: list[tuple[str, str]] = []
    guarded = Guard(FakeView(RUNNING, RUNNING), POLICY, Options(), lambda _quota, _type, *said: events.append(said))
    for wanted in (LOWERED, quota({**HARD, "limits.cpu": "4"}, ONE)):
        await guarded.mutate(request(wanted, STANDING, user=RANCHER, dry_run=dry_run, authenticated=authenticated))
    what = f"a write of {RANCHER} that lowered limits below what migrating VMs need was corrected"
    assert events == [("ResourceQuotaCorrected", what)] * 2 * told


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
    ],
)
async def test_who_may_do_what(mode: QuotaGuard, user: str, patched: bool, allowed: bool) -> None:
    asked = request(LOWERED, STANDING, user=user)
    guarded = guard(FakeView(RUNNING, RUNNING), mode, OWN)
    assert bool((await guarded.mutate(asked)).patch) is patched
    assert (await guarded.validate(asked)).allowed is allowed


def enforced(hard: Mapping[str, str]) -> ResourceQuota:
    """The quota as it stands, with these limits in its status."""
    return replace(STANDING, status=replace(STANDING.status, hard=dict(hard)))


@pytest.mark.parametrize(
    ("then", "now", "user", "allowed"),
    [
        (RAISED, HARD, ALICE, False),
        (RAISED, HARD, RANCHER, False),
        (HARD, RAISED, ALICE, True),
        (HARD, HARD, ALICE, True),
        (RAISED, HARD, "system:serviceaccount:kube-system:resourcequota-controller", True),
        (RAISED, HARD, "system:kube-controller-manager", True),
        (RAISED, HARD, "system:apiserver", True),
    ],
)
async def test_the_limits_in_the_status_are_kept_as_well(
    then: Mapping[str, str], now: Mapping[str, str], user: str, allowed: bool
) -> None:
    """Quota admission goes by them: kept low they refuse every target, whatever spec.hard says."""
    asked = request(enforced(now), enforced(then), user=user, sub_resource="status")
    assert (await guard(FakeView(RUNNING, RUNNING)).validate(asked)).allowed is allowed


async def test_a_person_whose_account_runs_headroom_is_a_person() -> None:
    guarded = guard(FakeView(RUNNING, RUNNING), own="kubernetes-admin")
    assert not (await guarded.validate(request(LOWERED, STANDING, user="kubernetes-admin"))).allowed


async def test_one_look_at_the_namespace_precedes_a_denial() -> None:
    view = FakeView(RUNNING, State(STANDING))
    assert not (await guard(view).validate(request(LOWERED, STANDING))).allowed
    assert not (await guard(view).validate(request(old=STANDING))).allowed
    assert view.looked == ["namespace"] * 2


async def test_a_new_base_is_found_before_a_request_is_refused_by_it() -> None:
    smaller = '{"limit":{"limitsCpu":"1","limitsMemory":"5000Mi"}}'
    live = State(STANDING, migrations=[vmim("Running")], limits=smaller)
    new = quota({**RAISED, "limits.cpu": "3"}, ONE)
    assert (await guard(FakeView(RUNNING, live)).validate(request(new, STANDING))).allowed


async def test_a_write_that_ends_an_entry_may_lower_the_limit_whatever_a_cache_knows() -> None:
    view = FakeView(RUNNING, State(STANDING, migrations=[vmim("Succeeded")]))
    asked = request(quota(dict(HARD), MARKS), STANDING, user="kubernetes-admin")
    assert (await guard(view).validate(asked)).allowed
    assert not view.looked


async def test_when_the_api_server_does_not_answer_the_cache_decides() -> None:
    assert not (await guard(FakeView(RUNNING, None)).validate(request(LOWERED, STANDING))).allowed


@pytest.mark.parametrize("hard", [RAISED, {"limits.cpu": "9", "limits.memory": "1Ti"}])
async def test_what_is_not_lowered_costs_no_look(hard: dict[str, str]) -> None:
    view = FakeView(RUNNING, RUNNING)
    assert (await guard(view).validate(request(quota(dict(hard), ONE), STANDING))).allowed
    assert not view.looked


async def test_the_label_is_not_taken_off_to_lower_the_limit() -> None:
    decision = await guard(FakeView(RUNNING, RUNNING)).validate(request(quota(dict(HARD), ONE, labels={}), STANDING))
    assert decision.message == DENIAL


@pytest.mark.parametrize(
    ("left", "state", "allowed"),
    [
        ({SKIP}, RUNNING, False),
        ({SKIP}, State(quota(dict(RAISED), MARKS)), True),
        (set(), RUNNING, True),
        ({SKIP, OWNER}, RUNNING, True),
    ],
    ids=["under a migration", "where nothing migrates", "with the skip", "neither"],
)
async def test_the_mark_that_makes_the_skip_ours_is_not_removed(left: set[str], state: State, allowed: bool) -> None:
    old = quota(dict(RAISED), ONE if state is RUNNING else MARKS)
    annotations = {key: old.annotations[key] for key in old.annotations if key in left or key not in MARKS}
    new = quota(dict(RAISED), annotations)
    decision = await guard(FakeView(state, state)).validate(request(new, old))
    assert decision.allowed is allowed
    assert allowed or decision.message.endswith(f"{OWNER} can be removed when they are done")


@pytest.mark.parametrize("migrates", [True, False])
@pytest.mark.parametrize("base", [{}, {BASE: '{"limits.cpu":"1"}'}], ids=["removed", "changed"])
async def test_the_recorded_base_is_left_alone_under_a_migration(base: dict[str, str], migrates: bool) -> None:
    entries = {by_name(): ENTRY} if migrates else {}
    old = quota(dict(RAISED), {BASE: "{}", **entries}, labels={LABEL_MANAGED: "true"})
    state = State(old, migrations=[vmim("Running")] if migrates else [])
    new = quota(dict(RAISED), {**base, **entries}, labels={LABEL_MANAGED: "true"})
    decision = await guard(FakeView(state, state)).validate(request(new, old))
    assert decision.allowed is not migrates
    assert decision.allowed or decision.message.endswith(f"{BASE} can be changed when they are done")


async def test_a_quota_that_is_not_managed_is_left_alone() -> None:
    other = quota(dict(RAISED), ONE, labels={})
    assert (await guard(FakeView(RUNNING, RUNNING)).validate(request(quota({}, labels={}), other))).allowed


async def test_a_quota_is_not_deleted_under_a_migration() -> None:
    decision = await guard(FakeView(RUNNING, RUNNING)).validate(request(old=STANDING))
    assert decision.message == (
        "resource quota ns1/default-abc holds headroom for migrating VMs (vm1): it can be deleted when they are done"
    )


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
    assert decision.allowed is allowed


async def test_many_vms_are_not_all_named() -> None:
    annotations = {**MARKS, **{by_name(f"vm{number:02}"): ENTRY for number in range(13)}}
    hard = {"limits.cpu": "29", "limits.memory": "1Ti"}
    standing = quota(hard, annotations)
    state = State(standing)
    decision = await guard(FakeView(state, state)).validate(request(quota(dict(HARD), annotations), standing))
    assert "(vm00, vm01, vm02, vm03, vm04, vm05, vm06, vm07, vm08, vm09 and 3 more)" in decision.message


async def test_who_switches_a_quota_off_is_admitted_and_told_whose_room_goes() -> None:
    """Also where the same write lowers it, and for every user."""
    off = quota(dict(HARD), {**ONE, LABEL_MANAGED: "false"})
    for user in (ALICE, RANCHER):
        decision = await guard(FakeView(RUNNING, RUNNING)).validate(request(off, STANDING, user=user))
        assert decision.allowed
        assert [warning.split("; ")[1] for warning in decision.warnings] == [
            "the migrations of vm1 lose the headroom that was added for them"
        ]
    mutated = await guard(FakeView(RUNNING, RUNNING)).mutate(request(off, STANDING, user=RANCHER))
    assert (mutated.allowed, mutated.patch) == (True, ())


async def test_what_is_switched_off_may_be_lowered_and_deleted_without_a_word() -> None:
    off = quota(dict(RAISED), {**ONE, LABEL_MANAGED: "false"})
    lowered = quota(dict(HARD), {**ONE, LABEL_MANAGED: "false"})
    for asked in (request(lowered, off), request(None, off)):
        decision = await guard(FakeView(RUNNING, RUNNING)).validate(asked)
        assert (decision.allowed, decision.warnings) == (True, ())


async def test_switching_off_where_nothing_migrates_says_nothing() -> None:
    quiet = State(quota(dict(HARD), MARKS))
    off = quota(dict(HARD), {**MARKS, LABEL_MANAGED: "false"})
    decision = await guard(FakeView(quiet, quiet)).validate(request(off, quota(dict(HARD), MARKS)))
    assert (decision.allowed, decision.warnings) == (True, ())
