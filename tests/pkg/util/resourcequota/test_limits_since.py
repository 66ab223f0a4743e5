"""A quota gets limits after its VMs have started: KubeVirt gives the next launcher limits that the running one lacks.
The base pays for what that is more, at the first migration as at each later one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kubeloop.api.core import Pod
from kubeloop.api.resource_list import minimum
from pkg.api.kubevirt import VirtualMachineInstance, VirtualMachineInstanceMigration
from pkg.util.kubevirt.rendering import Rendering
from pkg.util.quotacount.usage import pod_usage
from tests.decisions import after, by_value, entry, namespace, sentences
from tests.objects import AT_1_5, AT_4_5, MARKS, by_name, launcher, limits_text, machine, quota, vmim

HARD = {"requests.memory": "30Gi", "limits.cpu": "20", "limits.memory": "40Gi"}
BASE = limits_text("20", "40Gi", requestsMemory="30Gi")
SHAPE = {"cpu": {"cores": 2}, "memory": {"guest": "2Gi"}}
HOME, MOVED = machine(SHAPE), machine(SHAPE, node="node-2")
MOVE = vmim("Running")
BEFORE, SINCE = launcher(HOME, limited=()), launcher(HOME)
TARGET = launcher(HOME, migration=MOVE, node="node-2", created="2026-01-01T00:01:00Z")
THEN = launcher(HOME, limited=(), rendering=AT_4_5)


@dataclass(frozen=True)
class SinceCase:
    """The entry is what these two pods count both."""

    pods: Sequence[Pod]
    counts: tuple[Pod, Pod]
    migration: VirtualMachineInstanceMigration = vmim()  # noqa: RUF009
    instance: VirtualMachineInstance = HOME
    rendering: Rendering = AT_1_5


CASES = {
    "before the first migration": SinceCase([BEFORE], (BEFORE, TARGET)),
    "while its target is there": SinceCase([BEFORE, TARGET], (BEFORE, TARGET), MOVE),
    "while its source is left": SinceCase([BEFORE, TARGET], (BEFORE, TARGET), vmim("Succeeded"), MOVED),
    "before the second migration": SinceCase([SINCE], (SINCE, TARGET)),
    "the overhead has grown too, but no missing limit": SinceCase(
        [BEFORE], (THEN, launcher(HOME, rendering=AT_4_5)), rendering=AT_4_5
    ),
}


@sentences(CASES)
def test_an_entry_has_no_limit_that_the_source_lacks(case: SinceCase) -> None:
    facts = namespace(
        quota(HARD, MARKS), [case.migration], case.pods, [case.instance], limits=BASE, rendering=case.rendering
    )
    result, _plan = after(facts)
    both = minimum(*map(pod_usage, case.counts))
    assert by_value(entry(result.annotations[by_name()])) == {name: both[name] for name in HARD}
