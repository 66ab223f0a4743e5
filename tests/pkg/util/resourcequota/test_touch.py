"""A migration that stays refused although its room is there has its quota touched; the delay of the next patch."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import pytest

from kubeloop.api.core import ResourceQuota
from pkg.api.kubevirt import VirtualMachineInstanceMigration
from pkg.util.constants import ANNOTATION_SKIP_AUTO_SCALING, ANNOTATION_TOUCHED, LABEL_MANAGED
from pkg.util.resourcequota.facts import Plan, Timers
from pkg.util.resourcequota.observe import Listed
from pkg.util.resourcequota.planner import plan
from pkg.util.resourcequota.policy import EstimateKind, Mode, Policy
from pkg.util.resourcequota.timing import (
    LONGEST,
    MOMENT,
    UNTIL_COUNTED,
    UNTIL_TRIED,
    batch_until,
    is_urgent,
    last_touch,
    may_lower_after,
)
from tests.decisions import applied, observed, sentences
from tests.objects import (
    COMPENSATION,
    DEFAULT_LABELS,
    ENTRY,
    HARD,
    RAISED,
    RESYNC,
    SKIP,
    Resources,
    by_name,
    by_uid,
    quota,
    vmi,
    vmim,
)

START = 1_700_000_000.0
DELAYS = [0.25, 0.5, 1, 2, 4, 8, 16, 30, 30]


def with_enforced(rq: ResourceQuota, hard: Resources | None = None) -> ResourceQuota:
    """The quota controller has copied spec.hard, or what that was, to status.hard."""
    return msgspec.structs.replace(rq, status=msgspec.structs.replace(rq.status, hard=dict(hard or rq.hard)))


@dataclass
class Controller:
    """Plans whenever it is asked to, applies what it planned and remembers what is to be remembered."""

    quota: ResourceQuota
    mode: Mode = Mode.TAKEOVER
    timers: Timers = field(default_factory=Timers)
    touches: list[float] = field(default_factory=list)

    def look(self, now: float, migrations: Sequence[VirtualMachineInstanceMigration]) -> Plan:
        facts = observed(self.quota, migrations, now=START + now, timers=self.timers)
        new_plan = plan(facts, Policy(self.mode, EstimateKind.HARVESTER))
        if new_plan.annotations.get(ANNOTATION_TOUCHED):
            self.touches.append(now)
        self.timers, self.quota = new_plan.timers, applied(self.quota, new_plan)
        return new_plan

    def run(self, seconds: float, migrations: Sequence[VirtualMachineInstanceMigration]) -> None:
        """Look again whenever a plan asks for it."""
        now = 0.0
        while now <= seconds:
            pause = self.look(now, migrations).recheck_after
            if pause is None:
                return
            now += pause


@pytest.fixture(params=Mode)
def raised(request: pytest.FixtureRequest) -> Controller:
    """A quota that is raised for a migration that turned Pending."""
    controller = Controller(quota(), request.param)
    controller.look(0.0, [vmim()])
    controller.quota = with_enforced(controller.quota)
    return controller


def test_touches_come_with_growing_pauses_until_it_moves(raised: Controller) -> None:
    raised.run(100.0, [vmim(refused=True)])
    pauses = [later - earlier for earlier, later in zip([0.0, *raised.touches], raised.touches, strict=False)]
    assert pauses == pytest.approx(DELAYS[: len(pauses)])
    assert len(pauses) > 8
    raised.look(100.0, [vmim("Scheduling")])
    touches_before = list(raised.touches)
    raised.run(100.0, [vmim("Scheduling")])
    assert raised.touches == touches_before


@pytest.mark.parametrize(
    "migrations",
    [
        pytest.param([], id="no migration"),
        pytest.param([vmim()], id="Pending without the condition: KubeVirt has not tried"),
        pytest.param([vmim("Scheduling", refused=True)], id="it has moved"),
        pytest.param([vmim("Running")], id="it runs"),
        pytest.param([vmim("Succeeded")], id="it is over"),
        pytest.param([vmim(refused=True, abort=True)], id="it is being aborted"),
        pytest.param([vmim(refused=True, deleting=True)], id="it is being deleted"),
    ],
)
def test_nothing_is_touched(raised: Controller, migrations: list[VirtualMachineInstanceMigration]) -> None:
    raised.run(100.0, migrations)
    raised.quota = with_enforced(raised.quota, HARD)
    raised.run(100.0, [vmim(refused=True)])  # not before status.hard shows the room
    assert raised.touches == []


def test_none_comes_before_quota_admission_can_know(raised: Controller) -> None:
    """Rancher reverts it again and again: each time it is raised is an event too."""
    refused = [vmim(refused=True)]
    for tenth in range(20):
        raised.quota = with_enforced(raised.quota, HARD if tenth % 2 == 0 else None)
        raised.look(tenth / 10, refused)
    raised.look(2.1, refused)
    assert raised.touches == []
    raised.look(2.2, refused)
    assert raised.touches == [2.2]


def test_a_change_of_the_quota_does_not_restart_the_pauses(raised: Controller) -> None:
    refused = [vmim(refused=True)]
    raised.run(3.0, refused)
    touches_before = list(raised.touches)
    raised.quota = with_enforced(raised.quota, HARD)
    raised.look(3.1, refused)
    raised.quota = with_enforced(raised.quota)
    raised.look(3.7, refused)
    assert raised.touches == touches_before
    raised.look(3.8, refused)
    assert raised.touches == [*touches_before, 3.8]


def test_one_touch_serves_all_that_wait() -> None:
    controller = Controller(quota())
    names = [f"vm{number}" for number in range(5)]
    controller.look(0.0, [vmim(vm=name) for name in names])
    controller.quota = with_enforced(controller.quota)
    controller.run(0.3, [vmim(vm=name, refused=True) for name in names])
    assert controller.touches == [0.25]


def test_one_that_is_refused_later_is_touched_for_itself(raised: Controller) -> None:
    both = [vmim(), vmim(vm="vm2")]
    raised.look(0.0, both)
    raised.quota = with_enforced(raised.quota)
    raised.run(20.0, [vmim(refused=True), both[1]])
    raised.touches.clear()
    raised.look(20.0, [vmim(refused=True), vmim(vm="vm2", refused=True)])
    raised.look(20.25, [vmim(refused=True), vmim(vm="vm2", refused=True)])
    assert raised.touches == [20.25]


def test_a_touch_changes_the_annotation_and_has_a_next(raised: Controller) -> None:
    raised.look(0.0, [vmim(refused=True)])
    raised.look(0.25, [vmim(refused=True)])
    text = raised.quota.annotations[ANNOTATION_TOUCHED]
    assert json.loads(text) == {"at": "2023-11-14T22:13:20.250Z", "next": "2023-11-14T22:13:20.750Z"}
    assert last_touch(raised.quota.annotations, START + 1) == (START + 0.25, 0.5)
    raised.look(0.75, [vmim(refused=True)])
    assert raised.quota.annotations[ANNOTATION_TOUCHED] != text


def test_the_annotation_goes_with_the_last_entry(raised: Controller) -> None:
    raised.look(0.0, [vmim(refused=True)])
    raised.look(0.25, [vmim(refused=True)])
    assert ANNOTATION_TOUCHED in raised.quota.annotations
    raised.look(1.0, [vmim("Running")])
    assert ANNOTATION_TOUCHED in raised.quota.annotations
    raised.look(2.0, [vmim("Succeeded")])
    assert ANNOTATION_TOUCHED not in raised.quota.annotations


REFUSED_IN = {
    "is switched off": ({"labels": {**DEFAULT_LABELS, LABEL_MANAGED: "false"}}, {}),
    "is in a namespace that is switched off": ({}, {"namespace_off": True}),
    "is left to a migration budget": ({}, {"mtq": True}),
    "is skipped by a person": ({"annotations": {ANNOTATION_SKIP_AUTO_SCALING: "true"}}, {}),
    "is not managed": ({"labels": {}}, {}),
    "is being deleted": ({"deleting": True}, {}),
}


@pytest.mark.parametrize("mode", Mode)
@sentences(REFUSED_IN, "fields, around")
def test_a_quota_is_not_touched_that(fields: dict[str, Any], around: dict[str, Any], mode: Mode) -> None:
    annotations = {by_uid(): ENTRY, **fields.get("annotations", {})}
    rq = with_enforced(quota(RAISED, **{**fields, "annotations": annotations}))
    memory = Timers()
    for now in (0.0, 0.25, 0.5, 0.75):
        facts = observed(rq, [vmim(refused=True)], now=START + now, timers=memory)
        new_plan = plan(replace(facts, **around), Policy(mode))
        assert not new_plan.annotations.get(ANNOTATION_TOUCHED)
        memory = new_plan.timers


@pytest.mark.parametrize("text", ["", "{", "[]", "1", '{"at":1}', "[" * 100_000])
def test_an_annotation_that_is_not_ours_says_nothing(text: str) -> None:
    assert last_touch({ANNOTATION_TOUCHED: text}, START) is None


# ---- the delay of the next patch -----------------------------------------------------------------------------


NO_ENTRIES = {COMPENSATION: "{}", RESYNC: "true", SKIP: "true", "example.com/other": "x"}


@pytest.mark.parametrize(
    ("entries", "wait", "urgent"),
    [(0, 0.0, 0.0), (1, 0.0, 0.0), (2, 0.1, MOMENT), (3, 0.2, MOMENT), (4, LONGEST, MOMENT), (500, LONGEST, MOMENT)],
)
def test_the_more_are_under_way_the_longer(entries: int, wait: float, urgent: float) -> None:
    """The first write waits for nothing, and what is urgent for a moment only."""
    for form in (by_uid, by_name):
        annotations = {form(f"vm{n}"): ENTRY for n in range(entries)} | NO_ENTRIES
        assert batch_until(annotations, 100.0) == pytest.approx(100.0 + wait)
        assert batch_until(annotations, 100.0, urgent=True) == pytest.approx(100.0 + urgent)
        assert batch_until(annotations, float("-inf")) == float("-inf")


@sentences(
    {
        "nothing migrates": ([], False),
        "just created, and has no entry": ([vmim(None, vm="new")], True),
        "just created, with an entry, perhaps for an old side": ([vmim(None, vm="vm1")], True),
        "Pending, and has no entry": ([vmim(vm="new")], True),
        "Pending, of a VM that is not known yet": ([vmim(vm="unknown")], True),
        "Pending with an entry by uid": ([vmim(vm="vm1")], False),
        "Pending with an entry by name": ([vmim(vm="vm2")], False),
        "refused although it has an entry": ([vmim(vm="vm1", refused=True)], True),
        "all have their target": ([vmim("Scheduling", vm="new"), vmim("Running", vm="vm1")], False),
        "all are over": ([vmim("Succeeded", vm="new")], False),
    },
    "migrations, urgent",
)
def test_who_is_in_a_hurry(migrations: list[VirtualMachineInstanceMigration], urgent: bool) -> None:
    instances = Listed([vmi(name) for name in ("new", "vm1", "vm2")])
    raised = quota(annotations={by_uid("vm1"): ENTRY, by_name("vm2"): ENTRY})
    assert is_urgent(raised, migrations, instances) is urgent


@sentences(
    {
        "nothing migrates": ([], 0.0),
        "just created": ([vmim(None)], UNTIL_TRIED),
        "Pending": ([vmim(), vmim("Running", vm="other")], UNTIL_TRIED),
        "refused: the patch has it tried again": ([vmim(refused=True)], 0.0),
        "being deleted": ([vmim(deleting=True)], 0.0),
        "all have their target": ([vmim("Scheduling"), vmim("Running", vm="other")], 0.0),
        "all are over": ([vmim("Succeeded"), vmim("Failed", vm="other")], 0.0),
    },
    "migrations, wait",
)
def test_giving_back_waits_for_who_is_about_to_be_tried(
    migrations: list[VirtualMachineInstanceMigration], wait: float
) -> None:
    assert may_lower_after(100.0, 100.0, migrations) == wait
    assert may_lower_after(100.0, 100.0, migrations, still_counted=True) == UNTIL_COUNTED


@pytest.mark.parametrize(("now", "wait"), [(100.2, 0.05), (100.25, 0.0), (200.0, 0.0), (50.0, 0.0)])
def test_giving_back_waits_a_moment_only_and_not_for_a_clock(now: float, wait: float) -> None:
    assert may_lower_after(100.0, now, [vmim()]) == pytest.approx(wait)
