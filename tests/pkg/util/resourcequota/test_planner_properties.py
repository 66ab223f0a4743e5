"""Properties of the planner for every namespace, however strange; an observation's values are used only while
nothing that they depend on has changed."""

import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kubeloop.api.core import LimitRange, Namespace, ResourceQuota
from kubeloop.api.quantity import Quantity
from kubeloop.api.resource_list import total
from pkg.api.harvesterhci import Setting
from pkg.api.kubevirt import KubeVirt
from pkg.util.constants import ANNOTATION_STORAGE_MIGRATION, SETTING_OVERHEAD_RATIO
from pkg.util.kubevirt.rendering import Rendering
from pkg.util.quotacount.releases import releases_of
from pkg.util.resourcequota.entries import entry_keys, migrating_key, parse_resources
from pkg.util.resourcequota.facts import Facts, Plan
from pkg.util.resourcequota.managed import is_off
from pkg.util.resourcequota.observe import Listed, Source
from pkg.util.resourcequota.planner import plan
from pkg.util.resourcequota.policy import Mode, Policy
from tests.decisions import after as settled
from tests.decisions import applied, by_value, drawn, observed, remembering
from tests.kinds import edited
from tests.objects import COMPENSATION, ENTRY, LONG_NAME, OWNER, RESYNC, SKIP, by_name, by_uid, pod, quota, vmi, vmim

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
    annotations = draw(st.dictionaries(keys, value, max_size=4)) | draw(marks)
    if draw(st.booleans()):
        annotations[COMPENSATION] = draw(
            st.sampled_from(
                ["{}", '{"limits.memory":"256Mi"}', '{"limits.memory":"9Gi"}', *(["{nope"] if garbled else [])]
            )
        )
    instances = [vmi(name, limits=draw(limits_of_vms)) for name in draw(vms)]
    return observed(
        quota(draw(amounts), annotations, used=draw(amounts)),
        draw(migrations),
        instances,
        limits=draw(texts if garbled else bases),
        ratio=draw(ratios),
        now=1000.0,
    )


modes = pytest.mark.parametrize("mode", Mode)


def next_quota(facts: Facts, policy: Policy) -> ResourceQuota:
    return applied(facts.quota, plan(facts, policy))


def content(plan: Plan) -> tuple[object, ...]:
    """Returns a plan's content, with its problems as texts."""
    return (plan.annotations, plan.hard, [str(problem) for problem in plan.problems], plan.timers, plan.recheck_after)


@modes
@given(worlds())
@drawn
def test_a_plan_applied_gives_an_empty_plan(mode: Mode, facts: Facts) -> None:
    settled(facts, Policy(mode), patches=2 if begins_broken(facts) else 1)


def begins_broken(facts: Facts) -> bool:
    """A quota without the memory limit, or whose compensation is garbage: that is repaired first, and only then
    it can be seen how much a refused pod lacks. The second patch is the last one."""
    return not by_value(facts.quota.hard).get("limits.memory") or facts.quota.annotations.get(COMPENSATION) == "{nope"


@modes
@given(worlds())
@drawn
def test_the_same_observation_gives_the_same_plan(mode: Mode, facts: Facts) -> None:
    original = msgspec.json.encode(facts.quota)
    assert content(plan(facts, Policy(mode))) == content(plan(facts, Policy(mode)))
    assert msgspec.json.encode(facts.quota) == original


@modes
@given(worlds(), st.sampled_from([0.0, 0.25, 59.0, 60.0]))
@drawn
def test_a_plan_that_was_not_written_is_made_again(mode: Mode, facts: Facts, passed: float) -> None:
    """The API server was away, or it waits for a better moment: what is remembered says since when something is seen,
    not what was decided."""
    policy = Policy(mode)
    facts = remembering(facts, plan(facts, policy).timers, facts.now + passed)
    new_plan = plan(facts, policy)
    assert content(plan(remembering(facts, new_plan.timers, facts.now), policy)) == content(new_plan)


@modes
@given(worlds())
@drawn
def test_hard_is_never_written_below_the_base(mode: Mode, facts: Facts) -> None:
    written = plan(facts, Policy(mode)).hard
    granted = by_value(base_of(facts.limits))
    for name, amount in by_value({name: text for name, text in written.items() if text is not None}).items():
        if not facts.limits:  # the annotation is gone: what we had added is taken back, nothing is ever raised
            assert Quantity.of(0) <= amount < by_value(facts.quota.hard)[name]
            continue
        assert amount >= granted[name]
        assert granted[name] != Quantity.of(0)


@modes
@given(worlds(garbled=False))
@drawn
def test_hard_is_base_and_all_entries_and_the_compensation(mode: Mode, facts: Facts) -> None:
    policy = Policy(mode)
    quota_after = next_quota(facts, policy)
    if is_off(facts.quota.annotations):
        assert quota_after.hard == facts.quota.hard
        return
    hard_before = by_value(facts.quota.hard)
    if all(not hard_before.get(name) for name in SCALED):
        assert quota_after.hard == facts.quota.hard
        return
    entry_values = [parse_resources(key, quota_after.annotations[key]) for key in entry_keys(quota_after.annotations)]
    extra = json.loads(quota_after.annotations.get(COMPENSATION, "{}"))
    headroom = total([*entry_values, by_value(extra)])
    hard = by_value(quota_after.hard)
    for name, amount in by_value(base_of(facts.limits)).items():
        if amount:
            assert hard[name] == amount + headroom.get(name, Quantity.of(0))
        else:
            assert hard.get(name) == hard_before.get(name)


@modes
@given(worlds(garbled=False))
@drawn
def test_without_migrations_and_entries_hard_is_the_base(mode: Mode, facts: Facts) -> None:
    annotations = {
        key: text
        for key, text in facts.quota.annotations.items()
        if not key.startswith(("harvesterhci.io/migrating-", "harvesterhci.io/migratingUID-", COMPENSATION))
    }
    quiet = observed(quota(facts.quota.hard, annotations, used=facts.quota.used), limits=facts.limits)
    hard_after = by_value(next_quota(quiet, Policy(mode)).hard)
    scaled = any(by_value(facts.quota.hard).get(name) for name in SCALED)
    if scaled and not is_off(annotations):
        for name, amount in by_value(base_of(facts.limits)).items():
            assert not amount or hard_after[name] == amount
    else:
        assert hard_after == by_value(facts.quota.hard)


@modes
@given(worlds(), st.randoms(use_true_random=False))
@drawn
def test_the_order_of_migrations_does_not_matter(mode: Mode, facts: Facts, random: object) -> None:
    shuffled = list(facts.migrations)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    reordered = observed(facts.quota, shuffled, facts.instances.values(), limits=facts.limits, now=facts.now)
    original = observed(facts.quota, facts.migrations, facts.instances.values(), limits=facts.limits, now=facts.now)
    assert content(plan(reordered, Policy(mode))) == content(plan(original, Policy(mode)))


@modes
@given(worlds(), phases, st.booleans())
@drawn
def test_when_all_migrations_are_over_nothing_is_left(
    mode: Mode, facts: Facts, phase: str | None, refused: bool
) -> None:
    """After a migration's whole life the quota is as it was without it, from any state."""
    if is_off(facts.quota.annotations) or facts.limits in ("", "{}", "{nope", '{"limit":{"limitsCpu":"x"}}'):
        return
    policy = Policy(mode, foreign_grace=0.0)
    instance = vmi("vm1")
    state = facts.quota
    for step in (vmim(phase, refused=refused), vmim("Running"), vmim("Succeeded")):
        state = next_quota(observed(state, [step], [instance], limits=facts.limits, now=facts.now), policy)
    assert not entry_keys(state.annotations)
    # Upstream removes the compensation with an entry; assist mode does as upstream.
    assert COMPENSATION not in state.annotations or COMPENSATION in facts.quota.annotations
    hard = by_value(state.hard)
    if any(by_value(facts.quota.hard).get(name) for name in SCALED) and COMPENSATION not in state.annotations:
        for name, amount in by_value(base_of(facts.limits)).items():
            assert not amount or hard[name] == amount


@modes
@given(
    st.binary(max_size=60).map(lambda raw: raw.decode("latin-1")), st.sampled_from([by_uid(), by_name(), COMPENSATION])
)
@drawn
def test_no_text_anywhere_makes_it_fail(mode: Mode, text: str, key: str) -> None:
    facts = observed(quota(None, {key: text, RESYNC: text}), [vmim(refused=True)], limits=text)
    plan(facts, Policy(mode))
    plan(observed(facts.quota, facts.migrations), Policy(mode))


def base_of(limits: str) -> dict[str, str]:
    """The two limits that headroom scales, as the annotation says them."""
    try:
        limit = json.loads(limits or "{}").get("limit", {})
    except ValueError:
        return {}
    names = {"limitsCpu": "limits.cpu", "limitsMemory": "limits.memory"}
    return {names[key]: text for key, text in limit.items() if key in names and text and text != "x"}


def test_the_worlds_that_are_drawn_are_worth_looking_at() -> None:
    """Enough of the drawn namespaces must lead to a change of spec.hard, or the properties above say little."""
    raised = 0

    @given(worlds(garbled=False))
    @settings(drawn, database=None, derandomize=True)
    def count(facts: Facts) -> None:
        nonlocal raised
        raised += bool(plan(facts, Policy(Mode.ASSIST)).hard)

    count()
    assert raised > 6


# ---- observation ---------------------------------------------------------------------------------------------

Objects = dict[str, list[dict[str, Any]]]


def meta(name: str, version: int, namespace: str = "") -> dict[str, Any]:
    return {"name": name, "namespace": namespace, "uid": f"uid-{name}", "resourceVersion": str(version)}


def cluster(version: int) -> Objects:
    """Everything that a rendering is made of; the value of each field is the version."""
    limits = {"type": "Container", "default": {"memory": f"{version}Mi"}}
    configuration = {
        "additionalGuestMemoryOverheadRatio": f"{version}.25",
        "autoCPULimitNamespaceLabelSelector": {"matchLabels": {"version": "2"}},
    }
    return {
        "kubevirts": [
            {
                "metadata": meta("kubevirt", version, "kubevirt"),
                "spec": {"configuration": configuration},
                "status": {"phase": "Deployed"},
            }
        ],
        "settings": [{"metadata": meta(SETTING_OVERHEAD_RATIO, version), "default": f"{version}.5"}],
        "limit_ranges": [{"metadata": meta("limits", version, "ns1"), "spec": {"limits": [limits]}}],
        "namespaces": [{"metadata": {**meta("ns1", version), "labels": {"version": str(version)}}}],
    }


def source(objects: Objects) -> Source:
    kinds = {"kubevirts": KubeVirt, "settings": Setting, "limit_ranges": LimitRange, "namespaces": Namespace}
    readers: dict[str, Any] = {
        name: Listed([msgspec.convert(raw, kinds[name]) for raw in raws]) for name, raws in objects.items()
    }
    return Source(**readers)


@pytest.mark.parametrize("kind", cluster(1))
def test_a_change_is_rendered_anew(kind: str) -> None:
    before = source(cluster(1))
    old = before.observe(quota(), 0.0).rendering
    assert before.observe(quota(), 1.0).rendering is old, "nothing has changed"
    now = source({**cluster(1), kind: cluster(2)[kind]})
    result = replace(now, cache=before.cache).observe(quota(), 2.0).rendering
    assert result == now.rendering("ns1") != old


def test_an_upgrade_of_kubernetes_is_rendered_anew() -> None:
    runs = ["v1.36.3"]
    upgraded = replace(source(cluster(1)), kubernetes=lambda: releases_of(runs))
    old = upgraded.observe(quota(), 0.0).rendering
    runs[:] = ["v1.37.2"]
    result = upgraded.observe(quota(), 1.0).rendering
    assert (old.kubernetes, result.kubernetes) == (releases_of(["1.36"]), releases_of(["1.37"]))


@pytest.mark.parametrize(("said", "allowed"), [("true", True), ("false", False), ("", False)])
def test_an_annotation_allows_storage_migrations(said: str, allowed: bool) -> None:
    objects = cluster(1)
    objects["namespaces"][0]["metadata"]["annotations"] = {ANNOTATION_STORAGE_MIGRATION: said}
    assert source(objects).observe(quota(), 0.0).storage_migration is allowed


def test_a_pods_usage_is_cached_by_its_version() -> None:
    facts = Facts(quota({"limits.cpu": "9"}))

    def counted(cpu: str, version: str) -> str:
        return str(facts.charge(pod(cpu, name="p", resourceVersion=version), 0.0)["limits.cpu"])

    assert [counted("1", "7"), counted("2", "7"), counted("2", "8")] == ["1", "1", "2"]
    assert [counted("1", ""), counted("2", "")] == ["1", "2"]


def test_what_a_pod_counts_is_remembered_by_release() -> None:
    facts = Facts(quota({}))
    status = {"name": "main", "resources": {"limits": {"cpu": "5"}}}
    resized = edited(pod("1", name="p"), status={"containerStatuses": [status]})

    def counted(release: str) -> str:
        of_release = replace(facts, rendering=Rendering(kubernetes=releases_of([release])))
        return str(of_release.charge(resized, 0.0)["limits.cpu"])

    assert [counted("1.32"), counted("1.37"), counted("1.32")] == ["1", "5", "1"]
