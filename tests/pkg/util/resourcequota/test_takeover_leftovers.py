"""Nothing left behind, and nothing beyond the caps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pytest

from kubeloop.api.core import Pod
from pkg.api.kubevirt import VirtualMachineInstance, VirtualMachineInstanceMigration
from pkg.util.resourcequota.entries import entries, migrating_key
from pkg.util.resourcequota.planner import plan
from tests.decisions import EXACT, after, by_value, namespace, remembering, sentences
from tests.objects import (
    COMPENSATION,
    ENTRY,
    HARD,
    LONG_NAME,
    MARKS,
    POD_ENTRY,
    TWO_MORE,
    by_name,
    by_uid,
    launcher,
    quota,
    vmi,
    vmim,
)

HERE = vmi(nodeName="node-1")
SOURCE = launcher()


# ---- entries that no migration needs - ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Left:
    """What is found when headroom starts, and whether the entry goes `at_once` or after the grace of 60 s, or
    `stays`."""

    annotations: Mapping[str, str]
    then: str
    migrations: Sequence[VirtualMachineInstanceMigration] = ()
    instances: Sequence[VirtualMachineInstance] = (HERE,)
    pods: Sequence[Pod] = (SOURCE,)


OURS = {**MARKS, by_name(): POD_ENTRY}
LEFT = {
    "our entry of a VM without migration": Left(OURS, "at once"),
    "our entry of a VM that no longer exists": Left(OURS, "at once", instances=(), pods=()),
    "our entry whose migration succeeded while we were down": Left(OURS, "at once", [vmim("Succeeded")]),
    "our entry of a VM with a long name": Left({**MARKS, migrating_key(LONG_NAME): POD_ENTRY}, "at once"),
    "our entry that is garbage": Left({**MARKS, by_name(): "{nope"}, "at once"),
    "an entry by uid that no migration explains": Left({**MARKS, by_uid("gone"): ENTRY}, "after the grace"),
    "an entry by uid whose migration is over": Left({**MARKS, by_uid(): ENTRY}, "at once", [vmim("Succeeded")]),
    "an entry by uid while some migration's VMI is gone": Left(
        {**MARKS, by_uid("x"): ENTRY}, "after the grace", [vmim(vm="x")], instances=(), pods=()
    ),
    "our entry of a migration whose VM is gone": Left(OURS, "at once", [vmim()], instances=(), pods=()),
}


@sentences(LEFT)
def test_an_entry_that_is_not_needed_goes(case: Left) -> None:
    seen = namespace(quota(HARD, dict(case.annotations)), case.migrations, case.pods, case.instances, now=1000.0)
    (key,) = [entry.key for entry in entries(case.annotations)]
    first = plan(seen, EXACT)
    assert (key in first.annotations) is (case.then == "at once")
    if case.then == "at once":
        assert first.annotations[key] is None
        return
    almost = plan(remembering(seen, first.timers, 1059.0), EXACT)
    assert key not in almost.annotations
    late = plan(remembering(seen, almost.timers, 1060.0), EXACT)
    assert (late.annotations.get(key, "there") is None) is (case.then == "after the grace")
    if case.then == "after the grace":
        assert first.recheck_after == pytest.approx(60.0)
        assert almost.recheck_after == pytest.approx(1.0)


# ---- the quota is made again, the namespace loses its annotation ---------------------------------------------


def test_a_namespace_that_loses_its_annotation_loses_what_was_added() -> None:
    before = quota(TWO_MORE, {**OURS, by_name("vm2"): POD_ENTRY, COMPENSATION: '{"limits.memory":"1Mi"}'})
    before = quota(TWO_MORE | {"limits.memory": str(5001 * 1024**2 + 2 * 4797464313)}, dict(before.annotations))
    found, _made = after(namespace(before, [vmim("Running")], [SOURCE], [HERE], limits=""))
    assert found.annotations == MARKS
    assert by_value(found.hard) == by_value(HARD)


def test_nothing_is_taken_below_zero() -> None:
    """Another client has lowered spec.hard already."""
    before = quota({"limits.cpu": "1", "limits.memory": "1Gi"}, OURS)
    found, _made = after(namespace(before, [], [SOURCE], [HERE], limits=""))
    assert found.annotations == MARKS
    assert found.hard == before.hard
