"""Quotas that commit 8ac1f0b left in the middle of its work, as quotas_of_8ac1f0b.json has them: what its planner made
of the same objects, stage by stage."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from kubeloop.api.core import ResourceQuota
from pkg.util import constants
from pkg.util.resourcequota.facts import Plan
from pkg.util.resourcequota.planner import plan
from pkg.util.resourcequota.policy import Mode, Policy
from tests.decisions import EXACT, HARVESTER, applied, by_value, entries_by_value, namespace
from tests.kinds import edited
from tests.objects import AT_1_5, AT_4_5, launcher, limits_text, quota, running_vmi, vmim

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
