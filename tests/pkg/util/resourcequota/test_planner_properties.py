"""What holds for every namespace, however strange: hypothesis draws it, the planner is asked."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kubeloop.api.core import ResourceQuota
from kubeloop.api.quantity import Quantity
from kubeloop.api.resource_list import total
from pkg.util.resourcequota.entries import entries, migrating_key
from pkg.util.resourcequota.facts import Facts, Plan
from pkg.util.resourcequota.managed import is_off
from pkg.util.resourcequota.planner import plan
from pkg.util.resourcequota.policy import Mode, Policy
from tests.decisions import after as settled
from tests.decisions import applied, by_value, drawn, observed, remembering
from tests.objects import COMPENSATION, ENTRY, LONG_NAME, OWNER, RESYNC, SKIP, by_name, by_uid, quota, vmi, vmim

VMS = ["vm1", "vm2", "db.prod", LONG_NAME]
SCALED = ("limits.cpu", "limits.memory")

cpu = st.sampled_from(["", "0", "1", "1500m", "3000m", "20"])
memory = st.sampled_from(["", "0", "1Gi", "5000Mi", "6e9", "64Gi"])
phases = st.sampled_from([None, "Pending", "Scheduling", "Running", "WaitingForSync", "Succeeded", "Failed"])
values = st.sampled_from([ENTRY, "{}", '{"limits.cpu":"1"}', '{"limits.memory":"1Gi","limits.cpu":"500m"}'])
garbage = st.sampled_from(["{nope", "[]", '{"limits.cpu":"x"}', ""])
keys = st.sampled_from([form(vm) for vm in [*VMS, "stranger"] for form in (by_uid, by_name, migrating_key)])
marks = st.sampled_from([{}, {RESYNC: "true"}, {RESYNC: "false"}, {SKIP: "true"}, {SKIP: "true", OWNER: "headroom"}])
bases = st.builds(
    lambda cpu, memory: json.dumps({"limit": {"limitsCpu": cpu, "limitsMemory": memory, "pods": "10"}}), cpu, memory
)
texts = st.one_of(bases, st.sampled_from(["", "{}", "{nope", '{"limit":{"limitsCpu":"x"}}']))
amounts = st.fixed_dictionaries(
    {},
    optional={
        "limits.cpu": st.sampled_from(["0", "3", "5", "12", "1500m"]),
        "limits.memory": st.sampled_from(["0", "5000Mi", "9980344313", "20Gi"]),
        "pods": st.just("10"),
    },
)
migrations = st.lists(
    st.builds(
        lambda vm, phase, refused, abort, n: vmim(phase, vm, refused=refused, abort=abort, name=f"m{n}-{vm}"),
        st.sampled_from(VMS),
        phases,
        st.booleans(),
        st.sampled_from([False, False, True]),
        st.integers(0, 2),
    ),
    max_size=6,
    unique_by=lambda migration: migration.name,
)
vms = st.lists(st.sampled_from(VMS), unique=True)
limits_of_vms = st.sampled_from([{"cpu": "2", "memory": "4Gi"}, {"memory": "1Gi"}, {"cpu": "1500m"}, {}])
ratios = st.sampled_from(["1.5", "4.5"])


@st.composite
def worlds(draw: st.DrawFn, garbled: bool = True) -> Facts:
    """A namespace in any state; without `garbled` nothing in it is unreadable."""
    value = values | garbage if garbled else values
    stands = draw(st.dictionaries(keys, value, max_size=4)) | draw(marks)
    if draw(st.booleans()):
        stands[COMPENSATION] = draw(
            st.sampled_from(
                ["{}", '{"limits.memory":"256Mi"}', '{"limits.memory":"9Gi"}', *(["{nope"] if garbled else [])]
            )
        )
    known = [vmi(name, limits=draw(limits_of_vms)) for name in draw(vms)]
    return observed(
        quota(draw(amounts), stands, used=draw(amounts)),
        draw(migrations),
        known,
        limits=draw(texts if garbled else bases),
        ratio=draw(ratios),
        now=1000.0,
    )


modes = pytest.mark.parametrize("mode", Mode)


def after(seen: Facts, policy: Policy) -> ResourceQuota:
    return applied(seen.quota, plan(seen, policy))


def said(plan: Plan) -> tuple[object, ...]:
    """A plan, with its problems by what they say."""
    return (plan.annotations, plan.hard, [str(problem) for problem in plan.problems], plan.timers, plan.recheck_after)


@modes
@given(worlds())
@drawn
def test_a_plan_applied_gives_an_empty_plan(mode: Mode, seen: Facts) -> None:
    settled(seen, Policy(mode), patches=2 if begins_broken(seen) else 1)


def begins_broken(seen: Facts) -> bool:
    """A quota without the memory limit, or whose compensation is garbage: that is repaired first, and only then
    it can be seen how much a refused pod lacks. One that has no base is marked, and rid of what cannot be read,
    before what we added is taken back. The second patch is the last one."""
    broken = not by_value(seen.quota.hard).get("limits.memory") or seen.quota.annotations.get(COMPENSATION) == "{nope"
    return broken or not seen.limits


@modes
@given(worlds())
@drawn
def test_the_same_observation_gives_the_same_plan_and_is_not_changed(mode: Mode, seen: Facts) -> None:
    before = msgspec.json.encode(seen.quota)
    assert said(plan(seen, Policy(mode))) == said(plan(seen, Policy(mode)))
    assert msgspec.json.encode(seen.quota) == before


@modes
@given(worlds(), st.sampled_from([0.0, 0.25, 59.0, 60.0]))
@drawn
def test_a_plan_that_was_not_written_is_made_again(mode: Mode, seen: Facts, passed: float) -> None:
    """The API server was away, or it waits for a better moment: what is remembered says since when something is seen,
    not what was decided."""
    policy = Policy(mode)
    seen = remembering(seen, plan(seen, policy).timers, seen.now + passed)
    made = plan(seen, policy)
    assert said(plan(remembering(seen, made.timers, seen.now), policy)) == said(made)


@modes
@given(worlds())
@drawn
def test_hard_is_never_written_below_the_base(mode: Mode, seen: Facts) -> None:
    written = plan(seen, Policy(mode)).hard
    granted = by_value(base_of(seen.limits))
    for name, amount in by_value({name: text for name, text in written.items() if text is not None}).items():
        if not seen.limits:  # the annotation is gone: what we had added is taken back, nothing is ever raised
            assert Quantity.of(0) <= amount < by_value(seen.quota.hard)[name]
            continue
        assert amount >= granted[name]
        assert granted[name] != Quantity.of(0)


@modes
@given(worlds(garbled=False))
@drawn
def test_hard_is_base_and_all_entries_and_the_compensation(mode: Mode, seen: Facts) -> None:
    policy = Policy(mode)
    quota_after = after(seen, policy)
    if is_off(seen.quota.annotations):
        assert quota_after.hard == seen.quota.hard
        return
    hard_before = by_value(seen.quota.hard)
    if all(not hard_before.get(name) for name in SCALED):
        assert quota_after.hard == seen.quota.hard
        return
    standing = [entry.resources for entry in entries(quota_after.annotations)]
    extra = json.loads(quota_after.annotations.get(COMPENSATION, "{}"))
    added = total([*standing, by_value(extra)])
    hard = by_value(quota_after.hard)
    for name, amount in by_value(base_of(seen.limits)).items():
        if amount:
            assert hard[name] == amount + added.get(name, Quantity.of(0))
        else:
            assert hard.get(name) == hard_before.get(name)


@modes
@given(worlds(garbled=False))
@drawn
def test_without_migrations_and_entries_hard_is_the_base(mode: Mode, seen: Facts) -> None:
    stands = {
        key: text
        for key, text in seen.quota.annotations.items()
        if not key.startswith(("harvesterhci.io/migrating-", "harvesterhci.io/migratingUID-", COMPENSATION))
    }
    quiet = observed(quota(seen.quota.hard, stands, used=seen.quota.used), limits=seen.limits)
    done = by_value(after(quiet, Policy(mode)).hard)
    scaled = any(by_value(seen.quota.hard).get(name) for name in SCALED)
    if scaled and not is_off(stands):
        for name, amount in by_value(base_of(seen.limits)).items():
            assert not amount or done[name] == amount
    else:
        assert done == by_value(seen.quota.hard)


@modes
@given(worlds(), st.randoms(use_true_random=False))
@drawn
def test_the_order_in_which_migrations_are_listed_does_not_matter(mode: Mode, seen: Facts, random: object) -> None:
    shuffled = list(seen.migrations)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    other = observed(seen.quota, shuffled, seen.instances.values(), limits=seen.limits, now=seen.now)
    same = observed(seen.quota, seen.migrations, seen.instances.values(), limits=seen.limits, now=seen.now)
    assert said(plan(other, Policy(mode))) == said(plan(same, Policy(mode)))


@modes
@given(worlds(), phases, st.booleans())
@drawn
def test_when_all_migrations_are_over_nothing_is_left(
    mode: Mode, seen: Facts, phase: str | None, refused: bool
) -> None:
    """From any state: after a migration's whole life the quota is what it was without it."""
    if is_off(seen.quota.annotations) or seen.limits in ("", "{}", "{nope", '{"limit":{"limitsCpu":"x"}}'):
        return
    policy = Policy(mode, foreign_grace=0.0)
    instance = vmi("vm1")
    state = seen.quota
    for step in (vmim(phase, refused=refused), vmim("Running"), vmim("Succeeded")):
        state = after(observed(state, [step], [instance], limits=seen.limits, now=seen.now), policy)
    assert not list(entries(state.annotations))
    assert COMPENSATION not in state.annotations or compensation_was_there_alone(seen)
    hard = by_value(state.hard)
    if any(by_value(seen.quota.hard).get(name) for name in SCALED) and COMPENSATION not in state.annotations:
        for name, amount in by_value(base_of(seen.limits)).items():
            assert not amount or hard[name] == amount


def compensation_was_there_alone(seen: Facts) -> bool:
    """Upstream removes the compensation with an entry; assist mode does as upstream."""
    return COMPENSATION in seen.quota.annotations


@modes
@given(
    st.binary(max_size=60).map(lambda raw: raw.decode("latin-1")), st.sampled_from([by_uid(), by_name(), COMPENSATION])
)
@drawn
def test_no_text_anywhere_makes_it_fail(mode: Mode, text: str, key: str) -> None:
    seen = observed(quota(None, {key: text, RESYNC: text}), [vmim(refused=True)], limits=text)
    plan(seen, Policy(mode))
    plan(observed(seen.quota, seen.migrations), Policy(mode))


def base_of(limits: str) -> dict[str, str]:
    """The two limits that headroom scales, as the annotation says them."""
    try:
        limit = json.loads(limits or "{}").get("limit", {})
    except ValueError:
        return {}
    names = {"limitsCpu": "limits.cpu", "limitsMemory": "limits.memory"}
    return {names[key]: text for key, text in limit.items() if key in names and text and text != "x"}


def test_the_worlds_that_are_drawn_are_worth_looking_at() -> None:
    """Of the drawn namespaces enough must lead to a change of spec.hard, or the properties above say little."""
    raised = 0

    @given(worlds(garbled=False))
    @settings(drawn, database=None, derandomize=True)
    def count(seen: Facts) -> None:
        nonlocal raised
        raised += bool(plan(seen, Policy(Mode.ASSIST)).hard)

    count()
    assert raised > 6
