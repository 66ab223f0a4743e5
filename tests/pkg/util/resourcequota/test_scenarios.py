"""The end of a namespace in assist mode: where Harvester's own controllers leave it, in 800 recorded scenarios.
Exceptions, as the record's README names them: a compensation that swings for ever upstream must settle here, a
running migration without an entry gets one here (nothing but that, and spec.hard with it), and the resync flag's
"false" may be missing. And quotas that commit 8ac1f0b left in the middle of its work, as quotas_of_8ac1f0b.json has
them: what its planner made of the same objects, stage by stage."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kubeloop.api.core import ResourceQuota
from kubeloop.api.quantity import Quantity
from kubeloop.api.resource_list import add, total
from pkg.api.kubevirt import VirtualMachineInstance, VirtualMachineInstanceMigration
from pkg.util import constants
from pkg.util.kubevirt.overhead import harvester_delta
from pkg.util.resourcequota.base import parse_base
from pkg.util.resourcequota.entries import entry_keys, migrating_uid_key, parse_resources
from pkg.util.resourcequota.facts import Facts, Plan
from pkg.util.resourcequota.planner import plan
from pkg.util.resourcequota.policy import Mode, Policy
from tests.decisions import EXACT, HARVESTER, after, applied, by_value, entries_by_value, namespace, observed
from tests.kinds import edited
from tests.objects import AT_1_5, AT_4_5, COMPENSATION, launcher, limits_text, quota, running_vmi, vmim

_LINES = (Path(__file__).parents[3] / "vectors" / "scenarios.jsonl").read_text().splitlines()
SCENARIOS = [json.loads(line) for line in _LINES]
CPU, MEMORY = "limits.cpu", "limits.memory"
ZERO = Quantity.of(0)


def observation(scenario: dict[str, Any]) -> Facts:
    return observed(
        msgspec.convert(scenario["resource_quota"], ResourceQuota),
        [msgspec.convert(scenario["vmim"], VirtualMachineInstanceMigration)],
        [msgspec.convert(scenario["vmi"], VirtualMachineInstance)],
        limits=scenario["namespace_annotation"],
    )


def end_of(scenario: dict[str, Any]) -> ResourceQuota:
    """The quota once nothing changes; `after` fails when it takes more patches than it should."""
    return after(observation(scenario), Policy(Mode.ASSIST), patches=2 if begins_broken(scenario) else 1)[0]


def begins_broken(scenario: dict[str, Any]) -> bool:
    """Reports whether spec.hard lacks the memory limit or the compensation is garbage: upstream repairs these first,
    and only what it reads afterwards tells how much is missing."""
    quota = scenario["resource_quota"]
    return (
        quota["spec"].get("hard", {}).get(MEMORY, "0") == "0"
        or (quota["metadata"].get("annotations") or {}).get(COMPENSATION) == "junk"
    )


def upstream_ends(scenario: dict[str, Any]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Returns the ends that Harvester's controllers reached: two where their order mattered."""
    ends = [scenario[key] for key in ("after", "after_rq_first") if key in scenario]
    return [(entries_by_value(end["annotations"] or {}), by_value(end["hard"] or {})) for end in ends]


def of_running_without_entry(scenario: dict[str, Any]) -> bool:
    """Reports whether upstream left a running migration without an entry."""
    phase = scenario["vmim"]["status"].get("phase")
    vmi = scenario["vmi"]["metadata"]
    keys = {migrating_uid_key(vmi["uid"]), f"harvesterhci.io/migrating-{vmi['name']}"}
    return phase == "Running" and not keys & set(scenario["resource_quota"]["metadata"].get("annotations") or {})


RUNNING = [n for n, scenario in enumerate(SCENARIOS) if of_running_without_entry(scenario)]
UNSTABLE = [n for n, scenario in enumerate(SCENARIOS) if not scenario["stable"]]
PLAIN = sorted(set(range(len(SCENARIOS))) - set(RUNNING) - set(UNSTABLE))


def test_the_record_is_whole() -> None:
    assert (len(SCENARIOS), len(UNSTABLE)) == (800, 5)
    assert len(PLAIN) > 700
    assert len(RUNNING) > 10


@pytest.mark.parametrize("index", PLAIN)
def test_a_namespace_ends_where_harvester_leaves_it(index: int) -> None:
    quota = end_of(SCENARIOS[index])
    assert (entries_by_value(quota.annotations), by_value(quota.hard)) in upstream_ends(SCENARIOS[index])


@pytest.mark.parametrize("index", RUNNING)
def test_a_running_migration_gets_its_own_entry_and_nothing_else(index: int) -> None:
    scenario = SCENARIOS[index]
    quota = end_of(scenario)
    end = (entries_by_value(quota.annotations), by_value(quota.hard))
    key = migrating_uid_key(scenario["vmi"]["metadata"]["uid"])
    if key not in quota.annotations:
        assert end in upstream_ends(scenario)
        return
    vmi = msgspec.convert(scenario["vmi"], VirtualMachineInstance)
    entry = harvester_delta(vmi.spec, observation(scenario).quota.hard, "1.5")
    assert entry is not None
    assert parse_resources(key, quota.annotations[key]) == entry
    assert end in [
        (annotations | {key: dict(entry)}, raised(scenario, hard, quota))
        for annotations, hard in upstream_ends(scenario)
    ]


def raised(scenario: dict[str, Any], upstream: dict[str, Any], quota: ResourceQuota) -> dict[str, Any]:
    """Upstream's spec.hard with the added entry in it: base + all entries + compensation where that is scaled."""
    try:
        values = [parse_resources(key, quota.annotations[key]) for key in entry_keys(quota.annotations)]
        compensation = parse_resources(COMPENSATION, quota.annotations.get(COMPENSATION) or "{}")
        base = parse_base(scenario["namespace_annotation"])
    except Exception:  # garbage: upstream leaves spec.hard alone, and so must we
        return upstream
    headroom = total([*values, compensation])
    return upstream | {n: add(base, headroom)[n] for n in (CPU, MEMORY) if not base.get(n, ZERO).is_zero()}


@pytest.mark.parametrize("index", UNSTABLE)
def test_where_upstream_swings_it_settles_with_enough_room(index: int) -> None:
    scenario = SCENARIOS[index]
    quota = end_of(scenario)
    vmi = msgspec.convert(scenario["vmi"], VirtualMachineInstance)
    need = (harvester_delta(vmi.spec, quota.hard, "1.5") or {})[MEMORY]
    used = Quantity.parse(scenario["resource_quota"]["status"]["used"][MEMORY])
    hard = by_value(quota.hard)
    assert hard[MEMORY] >= used + need
    values = [parse_resources(key, quota.annotations[key]) for key in entry_keys(quota.annotations)]
    compensation = parse_resources(COMPENSATION, quota.annotations[COMPENSATION])
    base = {name: q for name, q in parse_base(scenario["namespace_annotation"]).items() if q != ZERO}
    headroom = total([*values, compensation])
    assert {name: hard[name] for name in base if name in (CPU, MEMORY)} == {
        name: add(base, headroom)[name] for name in base if name in (CPU, MEMORY)
    }
    # Upstream's end differs from ours in nothing but the compensation and what follows from it.
    own_entries, upstream = entries_by_value(quota.annotations), upstream_ends(scenario)
    assert {key: value for key, value in own_entries.items() if key != COMPENSATION} in [
        {key: value for key, value in annotations.items() if key != COMPENSATION} for annotations, _hard in upstream
    ]


# ---- quotas that commit 8ac1f0b left in the middle of its work -----------------------------------------------

RECORDED = json.loads((Path(__file__).parent / "quotas_of_8ac1f0b.json").read_text("utf-8"))
LATER = "2026-01-01T00:00:30Z"

HOME, MOVED = running_vmi(), running_vmi(node="node-2")
SOURCE = launcher(HOME)
TARGET = launcher(HOME, node="node-2", migration=vmim("Running"), created=LATER)

STAGES: Mapping[str, tuple[Any, ...]] = {
    "before": ([], [SOURCE], [HOME]),
    "created": ([vmim(None)], [SOURCE], [HOME]),
    "refused": ([vmim(refused=True)], [SOURCE], [HOME]),
    "running": ([vmim("Running")], [SOURCE, TARGET], [HOME]),
    "arrived": ([vmim("Succeeded")], [SOURCE, TARGET], [MOVED]),
    "over": ([vmim("Succeeded")], [TARGET], [MOVED]),
}
"""Migrations, pods and VMIs; each follows the one before."""
GROWN = running_vmi("vm2")
GROWN_POD = launcher(GROWN, rendering=AT_4_5)
OF_BOTH = limits_text("4030m", "9594928626")
"""What both VMs counted before the second one outgrew it."""
KINDS: Mapping[str, tuple[Policy, dict[str, Any]]] = {
    "Rancher's": (EXACT, {}),
    "Rancher's, another VM has grown": (EXACT, {"rendering": AT_4_5, "limits": OF_BOTH, "beside": (GROWN, GROWN_POD)}),
    "Rancher's, Harvester's estimate": (HARVESTER, {}),
    "Rancher's, a raised ratio": (EXACT, {"rendering": AT_4_5}),
    "beside Harvester": (Policy(Mode.ASSIST), {}),
    "a quota without Rancher": (EXACT, {"limits": ""}),
}


cases = pytest.mark.parametrize(
    ("kind", "stage"), [pytest.param(kind, stage, id=f"{kind}: {stage}") for kind in KINDS for stage in STAGES]
)


def left_at(kind: str, stage: str) -> ResourceQuota:
    """The quota as the earlier release left it."""
    labels = {constants.LABEL_MANAGED: "true"} if kind == "a quota without Rancher" else None
    return quota(RECORDED[kind][stage]["hard"], RECORDED[kind][stage]["annotations"], labels=labels)


def decided(kind: str, stage: str, rq: ResourceQuota) -> Plan:
    """At that stage, a moment after the earlier release wrote last."""
    policy, fields = KINDS[kind]
    fields = {"rendering": AT_1_5, "now": 10.1, **fields}
    migrations, pods, instances = STAGES[stage]
    if neighbour := fields.pop("beside", None):
        instances, pods = [*instances, neighbour[0]], [*pods, neighbour[1]]
    rq = edited(rq, status={"used": None, "hard": rq.hard})
    return plan(namespace(rq, migrations, pods, instances, **fields), policy)


def state(rq: ResourceQuota) -> object:
    """All but when it was touched."""
    annotations = {k: v for k, v in rq.annotations.items() if k != constants.ANNOTATION_TOUCHED}
    return by_value(rq.hard), entries_by_value(annotations)


@cases
def test_it_stands_as_it_was_left(kind: str, stage: str) -> None:
    assert not decided(kind, stage, left_at(kind, stage))


@cases
def test_what_follows_is_as_the_earlier_release_wrote_it(kind: str, stage: str) -> None:
    """This release writes the same, so that the earlier one can take over again."""
    rq, names = left_at(kind, stage), list(STAGES)
    for later in names[names.index(stage) + 1 :]:
        rq = applied(rq, decided(kind, later, rq))
        assert state(rq) == state(left_at(kind, later)), later
    assert constants.ANNOTATION_TOUCHED not in rq.annotations
    assert by_value(rq.hard) == by_value(RECORDED[kind]["before"]["hard"])
