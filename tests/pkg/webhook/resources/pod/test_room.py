"""used − what the migrations take + the pod ≤ base."""

from __future__ import annotations

from dataclasses import replace

from pkg.util.quantity import Quantity
from pkg.util.resource_list import ResourceList, format_resource_list, parse_resource_list
from pkg.util.resourcequota.policy import EstimateKind, Mode, Policy
from pkg.webhook.resources.pod.room import Room, room
from pkg.webhook.resources.pod.tally import Sums
from tests.decisions import named, observed, sentences
from tests.objects import plain_launcher, pod, quota, vmi, vmim

POLICY = Policy(Mode.TAKEOVER, EstimateKind.EXACT)
UID = "uid-migration-of-vm1"
NOTHING = Sums({}, {})


def cpu(**amounts: str) -> ResourceList:
    return {name.replace("_", "."): Quantity.parse(value) for name, value in amounts.items()}


def of(base: str = "3", hard: str = "5", counted: str = "2", migrations: str = "0", used: str = "") -> Room:
    lists = (cpu(limits_cpu=value) for value in (base, hard, used or counted, counted, migrations))
    by_base, by_hard, by_used, by_pods, by_migrations = lists
    return Room(by_base, by_hard, by_used, by_pods, by_migrations)


FITS = {
    "what is left of the base": (of(counted="2"), "1", True),
    "a thousandth more": (of(counted="2"), "1001m", False),
    "the target is there and takes its room": (of(counted="4", migrations="2"), "1", True),
    "nothing is left beside the target": (of(counted="5", migrations="2"), "1m", False),
    "a target larger than what was added takes of the base": (of(counted="5", hard="4", migrations="3"), "1m", False),
    "room that is not taken yet stays free": (of(counted="3"), "1m", False),
    "above the base already": (of(counted="4"), "1m", False),
    "no room was added": (of(hard="3", counted="2", migrations="1"), "1", True),
    "no room was added, and none is left": (of(hard="3", counted="3", migrations="1"), "1m", False),
    "the limit is below the base for a moment": (of(hard="2", counted="2"), "1", True),
    "a pod that wants nothing": (of(counted="9"), "0", True),
}


@sentences(FITS)
def test_whether_a_pod_fits(case: tuple[Room, str, bool]) -> None:
    found, wanted, fits = case
    assert (not found.by_count([]).short(cpu(limits_cpu=wanted))) is fits


def test_beside_what_is_there_all_that_migrations_take_is_theirs() -> None:
    lowered = of(hard="3", counted="4", migrations="2")
    assert not lowered.beside().short(cpu(limits_cpu="1"))
    assert lowered.by_count([]).short(cpu(limits_cpu="1"))
    assert format_resource_list(lowered.beside().short(cpu(limits_cpu="1001m"))) == {"limits.cpu": "1"}


def test_what_was_let_through_is_taken() -> None:
    pending = [cpu(limits_cpu="400m"), cpu(limits_cpu="500m")]
    assert not of().by_count(pending).short(cpu(limits_cpu="100m"))
    assert format_resource_list(of().by_count(pending).short(cpu(limits_cpu="101m"))) == {"limits.cpu": "100m"}


def test_status_has_its_own_say() -> None:
    found = of(counted="2", used="3")
    assert not found.by_count([]).short(cpu(limits_cpu="1"))
    assert found.by_status([]).short(cpu(limits_cpu="1"))


def test_status_may_still_count_what_has_just_ended() -> None:
    found = replace(of(counted="2", used="3"), ended=cpu(limits_cpu="1"))
    assert not found.by_status([]).short(cpu(limits_cpu="1"))
    assert found.by_status([]).short(cpu(limits_cpu="1001m"))


def test_a_resource_that_is_not_scaled_is_quotas_affair() -> None:
    assert not of(counted="9").by_count([]).short(cpu(limits_memory="1Gi"))


def test_what_migrations_take_is_the_target_beside_the_source() -> None:
    source, target = plain_launcher(node="node1"), plain_launcher(node="node2", target_of=UID)
    view = observed(quota(), [vmim("Running")], [vmi("vm1", nodeName="node1")])
    found = room(replace(view, pods=[source, target, pod("500m")]), POLICY, NOTHING)
    assert found is not None
    assert format_resource_list({n: q for n, q in found.migrations.items() if n == "limits.cpu"}) == {"limits.cpu": "2"}


def test_a_source_that_is_left_over_is_taken_off_too() -> None:
    source, main = plain_launcher(node="node1"), plain_launcher(node="node2", target_of=UID)
    here = vmi("vm1", nodeName="node2")
    view = observed(quota(), [named(vmim("Succeeded"), [source, main], [here])], [here])
    found = room(replace(view, pods=[source, main]), POLICY, NOTHING)
    assert found is not None
    assert found.migrations["limits.cpu"] == Quantity.parse("2")
    ended = replace(view, pods=[plain_launcher(node="node1", phase="Succeeded"), main])
    found = room(ended, POLICY, NOTHING)
    assert found is not None
    assert not found.migrations


def test_without_a_readable_base_nothing_is_shared_out() -> None:
    assert room(observed(quota(), limits="garbage"), POLICY, NOTHING) is None
    unlimited = room(observed(quota(), limits=""), POLICY, NOTHING)
    assert unlimited is not None
    assert not unlimited.by_count([]).short(parse_resource_list({"limits.cpu": "99"}))


def test_a_vm_that_is_not_there_is_left_nothing() -> None:
    source = plain_launcher(node="node1")
    view = observed(quota(), [vmim("Pending")], [vmi("vm1", nodeName="node1")])
    found = room(replace(view, pods=[source]), POLICY, NOTHING)
    assert found is not None
    assert found.left_for_target("vm1")["limits.cpu"] == Quantity.parse("2")
    assert found.left_for_target("vm2") == {}
