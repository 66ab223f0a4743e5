"""The rules beside a Rancher that validates, and one that lets nobody else write: what is granted, requested, given
back, in a namespace of a project in memory, with Rancher's sync as its code has it (resource_quota_sync.go): it
validates what the namespaces of the project request, then writes spec.hard or leaves it."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace as replaced

import pytest
from msgspec.structs import replace

from kubeloop.api.core import Namespace, Pod
from kubeloop.api.quantity import ZERO, Quantity
from pkg.api.kubevirt import VirtualMachineInstance, VirtualMachineInstanceMigration
from pkg.util import constants
from pkg.util.problems import EVENT_NO_ANSWER, EVENT_NOT_GRANTED, EVENT_PROJECT_FULL
from pkg.util.resourcequota.base import base_of, parse_limits, with_limits
from pkg.util.resourcequota.entries import MAX_LENGTH
from pkg.util.resourcequota.facts import Facts, Plan, Timers
from pkg.util.resourcequota.observe import Listed, Source
from pkg.util.resourcequota.planner import plan
from pkg.util.resourcequota.policy import EstimateKind, Mode, Policy
from pkg.util.resourcequota.rancher import annotation_of, parse_request, request_of, validation_of, with_request
from pkg.util.resourcequota.rancher_request import PAUSE
from tests.decisions import HARVESTER, by_value, sentences
from tests.kinds import edited
from tests.objects import BASE, ENTRY, HARD, MARKS, RAISED, Resources, build, by_name, limits_text, quota, vmi, vmim

KEY, STATUS = constants.ANNOTATION_RANCHER_RESOURCE_QUOTA, constants.ANNOTATION_RANCHER_STATUS
PROJECT = {"limits.cpu": "100", "limits.memory": "100Gi"}


class RancherNamespace:
    """The namespace `ns1`, and what others of its project request. Nothing happens unless a test says so."""

    def __init__(
        self,
        annotation: str = BASE,
        hard: Resources = HARD,
        *,
        asks: bool = True,
        project: Resources = PROJECT,
        others: Resources | None = None,
        policy: Policy = HARVESTER,
        in_project: bool = True,
        annotations: dict[str, str] | None = None,
    ) -> None:
        marks = {constants.ANNOTATION_PROJECT: "c-1:p-1"} if in_project else {}
        self.namespace = build(Namespace, "ns1", namespace="", annotations={KEY: annotation, **marks})
        self.quota = quota(hard, annotations)
        self.sibling: Namespace | None = None
        self.asks, self.project, self.others, self.policy = asks, project, dict(others or {}), policy
        self.migrations: list[VirtualMachineInstanceMigration] = []
        self.instances: list[VirtualMachineInstance] = []
        self.pods: list[Pod] = []
        self.timers, self.now, self.clock = Timers(), 1000.0, 0
        self.writes = 0
        """Of the namespace, by headroom."""

    # ---- others ----------------------------------------------------------------------------------------------

    def migrate(self, *names: str, phase: str = "Pending") -> None:
        """VMs of the seed migrate, or their migrations are in another phase now."""
        for name in names:
            self.migrations = [m for m in self.migrations if m.spec.vmi_name != name] + [vmim(phase, name)]
            self.instances = [v for v in self.instances if v.name != name] + [vmi(name)]

    def edit(self, **limits: str) -> None:
        """A person changes limits of the annotation as it is now."""
        document = json.loads(self.annotation)
        document["limit"] |= limits
        self.annotate({KEY: json.dumps(document)})

    def annotate(self, changes: dict[str, str | None]) -> None:
        merged = {**self.namespace.annotations, **changes}
        annotations = {key: text for key, text in merged.items() if text is not None}
        self.namespace = replace(self.namespace, metadata=replace(self.namespace.metadata, annotations=annotations))

    def sync(self) -> None:
        """Rancher works off an event of the namespace. It spells the annotation anew."""
        requested = {name: Quantity.parse(text) for name, text in parse_limits(self.annotation).items()}
        if by_value(self.quota.hard) == requested:
            return
        exceeded = {n: q + Quantity.parse(self.others.get(n, "0")) for n, q in requested.items() if n in self.project}
        exceeded = {name: amount for name, amount in exceeded.items() if amount > Quantity.parse(self.project[name])}
        self.annotate({KEY: json.dumps(json.loads(self.annotation), sort_keys=True)})
        self._condition("; ".join(f"Oversubscribed resource quota [{n}={q}]" for n, q in exceeded.items()))
        if not exceeded:
            self.quota = replace(
                self.quota, spec=replace(self.quota.spec, hard={n: str(q) for n, q in requested.items()})
            )

    def _condition(self, message: str) -> None:
        self.clock += 1
        condition = {
            "Type": "ResourceQuotaValidated",
            "Status": "False" if message else "True",
            "Message": message,
            "LastUpdateTime": f"2026-01-01T00:00:{self.clock:02}Z",
        }
        self.annotate({STATUS: json.dumps({"Conditions": [condition]})})

    # ---- headroom --------------------------------------------------------------------------------------------

    def observe(self) -> Facts:
        source = Source(
            namespaces=Listed([self.namespace, *([self.sibling] if self.sibling else [])]),
            quotas=Listed([self.quota]),
            migrations=Listed(self.migrations),
            instances=Listed(self.instances),
            pods=Listed(self.pods),
            asks=lambda _: self.asks,
        )
        facts = source.observe(self.quota, self.now, self.timers)
        return replaced(facts, rendering=replaced(facts.rendering, ratio="1.5", harvester_ratio="1.5"))

    def look(self) -> Plan:
        """Makes one decision and applies it; the plan for the result is empty."""
        decision = plan(self.observe(), self.policy)
        self._apply(decision)
        repetition = plan(self.observe(), self.policy)
        assert not repetition, f"a plan applied gives another plan: {repetition}"
        return decision

    def _apply(self, decision: Plan) -> None:
        self.timers = decision.timers
        if decision.namespace:
            self.writes += 1
            self.annotate(dict(decision.namespace))
        if not decision.asks:
            annotations = decision.annotations_of(self.quota)
            hard = {**self.quota.hard, **decision.hard}
            self.quota = replace(
                self.quota,
                metadata=replace(self.quota.metadata, annotations=annotations),
                spec=replace(self.quota.spec, hard=hard),
            )

    def settle(self, rounds: int = 6) -> None:
        """Both in turn until nothing changes."""
        for _ in range(rounds):
            state = self.requested, self.record, self.quota
            self.look()
            self.sync()
            if (self.requested, self.record, self.quota) == state and not plan(self.observe(), self.policy):
                return
        raise AssertionError(f"it does not settle: {self.annotation}, {self.quota.hard}")

    # ---- what there is ---------------------------------------------------------------------------------------

    @property
    def annotation(self) -> str:
        return self.namespace.annotations.get(KEY, "")

    @property
    def requested(self) -> dict[str, Quantity]:
        return {name: Quantity.parse(text) for name, text in parse_limits(self.annotation).items()}

    @property
    def record(self) -> str | None:
        return self.namespace.annotations.get(constants.ANNOTATION_REQUEST)

    @property
    def hard(self) -> dict[str, Quantity]:
        return {name: Quantity.parse(limit) for name, limit in self.quota.hard.items()}


def amounts(limits: Resources, additions: Sequence[Resources] = ()) -> dict[str, Quantity]:
    """Limits, and what is added to them, as quantities."""
    total = {name: Quantity.parse(limit) for name, limit in limits.items()}
    for addition in additions:
        total = {name: limit + Quantity.parse(addition.get(name, "0")) for name, limit in total.items()}
    return {name: limit for name, limit in total.items() if limit != ZERO}


ADDED = {"limits.cpu": "2", "limits.memory": "4737464313"}
BIG = '{"limit":{"limitsCpu":"60","limitsMemory":"500Gi"}}'
ASSIST = Policy(Mode.ASSIST, EstimateKind.HARVESTER)


def reasons(new_plan: Plan) -> list[str]:
    return [problem.reason for problem in new_plan.problems]


# ---- what Rancher has not granted is no base (headroom writes the quota itself) --------------------------------


@pytest.mark.parametrize("policy", [HARVESTER, ASSIST], ids=["takeover", "beside Harvester"])
@pytest.mark.parametrize(
    ("annotation", "hard", "base"),
    [
        pytest.param(BIG, HARD, HARD, id="a request beyond the project is no base"),
        pytest.param(
            BIG, {"limits.cpu": "0", "limits.memory": "5000Mi"}, {"limits.memory": "5000Mi"}, id="a zero stays"
        ),
        pytest.param(BIG, {"limits.cpu": "0", "limits.memory": "0"}, {}, id="zeros stay"),
        pytest.param(BASE, HARD, HARD, id="a granted request is the base"),
        pytest.param(
            '{"limit":{"limitsCpu":"1","limitsMemory":"5000Mi"}}', HARD, HARD | {"limits.cpu": "1"}, id="lower"
        ),
    ],
)
def test_the_grant_bounds_the_base(annotation: str, hard: dict[str, str], base: dict[str, str], policy: Policy) -> None:
    ns1 = RancherNamespace(annotation, hard, asks=False, policy=policy)
    ns1.look()
    assert by_value(ns1.quota.hard) == by_value({**hard, **base})
    ns1.migrate("vm1")
    ns1.look()
    assert {n: q for n, q in ns1.hard.items() if n in base} == amounts(base, [ADDED])
    for _ in range(3):  # what was added does not become the base of what is added next
        ns1.look()
    ns1.migrate("vm1", phase="Succeeded")
    ns1.look()
    assert {n: q for n, q in ns1.hard.items() if n in base} == amounts(base)


@pytest.mark.parametrize("validated", [True, False])
def test_without_project_and_condition_the_request_is_the_base(validated: bool) -> None:
    ns1 = RancherNamespace(BIG, HARD, asks=False, in_project=False)
    status = '{"Conditions":[{"Type":"ResourceQuotaValidated","Status":"True"}]}' if validated else None
    ns1.annotate({constants.ANNOTATION_RANCHER_STATUS: status})
    ns1.look()
    assert ns1.hard == amounts(HARD if validated else {"limits.cpu": "60", "limits.memory": "500Gi"})


@pytest.mark.parametrize("migrates", [False, True])
def test_a_grant_of_a_later_moment_is_the_base_at_once(migrates: bool) -> None:
    ns1 = RancherNamespace(BASE, HARD, asks=False)
    if migrates:
        ns1.migrate("vm1")
    ns1.look()
    ns1.edit(limitsCpu="60")
    ns1.look()
    assert ns1.hard == amounts(HARD, [ADDED] if migrates else [])
    ns1.sync()
    ns1.look()
    assert ns1.hard == amounts(HARD | {"limits.cpu": "60"}, [ADDED] if migrates else [])


def test_ranchers_revert_is_repaired_and_grants_nothing() -> None:
    ns1 = RancherNamespace(BIG, HARD, asks=False, project={"limits.cpu": "10", "limits.memory": "10Gi"})
    ns1.migrate("vm1")
    ns1.look()
    ns1.quota = quota(HARD, ns1.quota.annotations)
    ns1.look()
    assert ns1.hard == amounts(HARD, [ADDED])


GARBAGE = {
    "no JSON": "{",
    "a quantity that is none": '{"limit":{"limitsCpu":"x","limitsMemory":"5000Mi"}}',
    "a text without an end": '{"limit":{"limitsCpu":"3"}}' + " " * MAX_LENGTH,
}


@sentences({**GARBAGE, "an annotation without limits": '{"limit":{}}', "none": None})
def test_what_is_written_under_a_migration_keeps_nothing_raised(case: str | None) -> None:
    ns1 = RancherNamespace(asks=False)
    ns1.migrate("vm1")
    ns1.look()
    ns1.annotate({KEY: case})
    ns1.look()
    assert ns1.hard == amounts(HARD, [ADDED])
    ns1.migrate("vm1", phase="Succeeded")
    ns1.look()
    assert ns1.hard == amounts(HARD)


def test_a_denied_request_is_told_once_rancher_answered() -> None:
    ns1 = RancherNamespace(BIG, HARD, asks=False, project={"limits.cpu": "10"})
    assert reasons(ns1.look()) == []
    ns1.sync()
    new_plan = ns1.look()
    assert reasons(new_plan) == [EVENT_NOT_GRANTED]
    assert "limits.cpu 60 of which 3 are granted" in str(new_plan.problems[0])
    assert "Oversubscribed resource quota [limits.cpu=60]" in str(new_plan.problems[0])


# ---- a quota that only Rancher may write -----------------------------------------------------------------------


def test_a_migration_is_raised_and_given_back_by_rancher() -> None:
    ns1 = RancherNamespace()
    assert not ns1.look()
    ns1.migrate("vm1")
    ns1.look()
    assert ns1.requested == amounts(HARD, [ADDED])
    assert ns1.quota == quota(HARD)  # headroom writes the namespace alone
    for _ in range(3):  # Rancher's agent reverts nothing
        ns1.sync()
        assert by_value(ns1.quota.hard) == by_value(RAISED)
    ns1.settle()
    facts = ns1.observe()
    assert facts.limits == BASE  # the base is the person's number while it is raised
    assert base_of(facts.quota, facts.limits, HARVESTER, facts.rancher.granted).limits == amounts(HARD)
    ns1.migrate("vm1", phase="Succeeded")
    ns1.settle()
    assert (ns1.requested, ns1.record, ns1.hard) == (amounts(HARD), None, amounts(HARD))
    assert ns1.writes == 2


def test_the_record_names_the_request_and_the_vm() -> None:
    ns1 = RancherNamespace()
    ns1.migrate("vm1")
    ns1.look()
    record = json.loads(ns1.record or "")
    assert record["annotation"] == BASE
    assert record["entries"] == {"migrating-vm1": json.loads(ENTRY)}
    request = request_of(ns1.namespace)
    assert request is not None
    assert request.entries == {by_name(): ENTRY}


@pytest.mark.parametrize(
    ("edit", "cpu"),
    [
        pytest.param(
            lambda ns1: ns1.edit(limitsCpu="20"), "20", id="a larger number is the base once Rancher has granted it"
        ),
        pytest.param(lambda ns1: ns1.edit(limitsCpu="2500m"), "2500m", id="a smaller number is the base at once"),
        pytest.param(
            lambda ns1: ns1.annotate({KEY: json.dumps(json.loads(ns1.annotation), indent=1)}),
            "3",
            id="a form that saves the raised numbers changes nothing",
        ),
    ],
)
@pytest.mark.parametrize("synced", [False, True], ids=["before Rancher has seen it", "after Rancher has written it"])
def test_a_persons_edit_under_a_migration(edit: Callable[[RancherNamespace], object], cpu: str, synced: bool) -> None:
    ns1 = RancherNamespace()
    ns1.migrate("vm1")
    ns1.settle()
    edit(ns1)
    if synced:
        ns1.sync()
    ns1.settle()
    assert ns1.hard == amounts(HARD | {"limits.cpu": cpu}, [ADDED])
    ns1.migrate("vm1", phase="Succeeded")
    ns1.settle()
    assert ns1.hard == amounts(HARD | {"limits.cpu": cpu})
    assert ns1.record is None
    assert ns1.requested == ns1.hard


@sentences(GARBAGE)
def test_garbage_under_a_request_is_no_request(case: str) -> None:
    ns1 = RancherNamespace()
    ns1.migrate("vm1")
    ns1.settle()
    ns1.annotate({KEY: case})
    ns1.migrate("vm1", phase="Succeeded")
    ns1.look()
    ns1.settle()
    assert (ns1.requested, ns1.record, ns1.hard) == (amounts(HARD), None, amounts(HARD))


@sentences({**GARBAGE, "less than nothing": '{"limit":{"limitsCpu":"-3","limitsMemory":"1"}}'})
def test_nothing_is_requested_on_top_of_garbage(case: str) -> None:
    ns1 = RancherNamespace(case)
    ns1.migrate("vm1")
    ns1.look()
    assert (ns1.annotation, ns1.record, ns1.hard) == (case, None, amounts(HARD))


def test_without_an_annotation_nothing_is_requested_and_nothing_reported() -> None:
    ns1 = RancherNamespace()
    ns1.annotate({KEY: None})
    ns1.migrate("vm1")
    assert ns1.look().problems == []
    assert (ns1.annotation, ns1.record, ns1.hard) == ("", None, amounts(HARD))


def test_an_annotation_that_is_written_beside_a_record_of_none_is_the_persons() -> None:
    ns1 = RancherNamespace(hard=RAISED, annotations={**MARKS, by_name(): ENTRY})
    ns1.annotate({KEY: None})
    assert ns1.look().namespace.keys() == {constants.ANNOTATION_REQUEST}  # its entry is stuck
    ns1.annotate({KEY: BASE})
    assert ns1.observe().limits == BASE


def test_a_full_project_leaves_everything_as_it_was() -> None:
    ns1 = RancherNamespace(project={"limits.cpu": "10"}, others={"limits.cpu": "6"})
    ns1.migrate("vm1")
    ns1.settle()
    assert (ns1.annotation, ns1.record, ns1.hard) == (BASE, None, amounts(HARD))
    new_plan = ns1.look()
    assert reasons(new_plan) == [EVENT_PROJECT_FULL]
    message = str(new_plan.problems[0])
    assert "c-1:p-1" in message
    assert "2 of limits.cpu" in message
    assert "limits.cpu=11" in message
    assert ns1.writes == 2
    ns1.now += 20.0
    ns1.settle()
    assert ns1.writes == 2  # not in a loop


@pytest.mark.parametrize("is_told", [True, False])
def test_a_full_project_is_asked_again_after_a_change(is_told: bool) -> None:
    ns1 = RancherNamespace(project={"limits.cpu": "10"}, others={"limits.cpu": "6"})
    marks = {constants.ANNOTATION_PROJECT: "c-1:p-1"}
    ns1.sibling = build(Namespace, "ns2", namespace="", annotations={**marks, KEY: limits_text("6")})
    ns1.migrate("vm1")
    ns1.settle()
    ns1.others = {"limits.cpu": "1"}
    ns1.settle()
    assert ns1.writes == 2
    if is_told:
        ns1.sibling = build(Namespace, "ns2", namespace="", annotations={**marks, KEY: limits_text("1")})
    else:
        ns1.now += 31.0
    ns1.settle()
    assert by_value(ns1.quota.hard) == by_value(RAISED)


@pytest.mark.parametrize("together", [True, False])
def test_the_first_in_line_gets_the_room_that_there_is(together: bool) -> None:
    ns1 = RancherNamespace(project={"limits.cpu": "10"}, others={"limits.cpu": "4"})
    for names in [("vm1", "vm2")] if together else [("vm1",), ("vm2",)]:
        ns1.migrate(*names)
        ns1.settle()
    assert ns1.hard == ns1.requested == amounts(HARD, [ADDED])
    request = request_of(ns1.namespace)
    assert request is not None
    assert list(request.entries) == [by_name("vm1")]
    assert reasons(ns1.look()) == [EVENT_PROJECT_FULL]


def test_a_denied_request_costs_a_migration_nothing() -> None:
    ns1 = RancherNamespace(BIG, HARD, project={"limits.cpu": "10", "limits.memory": "20Gi"})
    ns1.sync()
    ns1.settle()
    assert ns1.hard == amounts(HARD)
    ns1.migrate("vm1")
    ns1.settle()
    assert ns1.hard == amounts(HARD, [ADDED])
    ns1.migrate("vm1", phase="Succeeded")
    ns1.settle()
    assert ns1.hard == amounts(HARD)  # Rancher was asked for the grant first: it leaves what does not fit
    assert json.loads(ns1.annotation) == json.loads(BIG)
    assert ns1.record is None


@pytest.mark.parametrize("is_granted", [True, False])
@pytest.mark.parametrize("denied_before", [True, False])
def test_what_was_denied_is_requested_again_under_a_migration(is_granted: bool, denied_before: bool) -> None:
    ns1 = RancherNamespace(BIG, HARD, project={"limits.cpu": "10", "limits.memory": "20Gi"})
    if denied_before:
        ns1.sync()
    ns1.migrate("vm1")
    ns1.settle()
    assert ns1.hard == amounts(HARD, [ADDED])
    if is_granted:
        ns1.project = {"limits.cpu": "100", "limits.memory": "1000Gi"}
    writes, base = ns1.writes, {"limits.cpu": "60", "limits.memory": "500Gi"} if is_granted else HARD
    ns1.now += 29.0
    assert ns1.look().recheck_after == pytest.approx(1.0)
    ns1.now += 1.0
    ns1.settle()
    assert ns1.hard == amounts(base, [ADDED])
    assert ns1.writes == writes + 2  # not in a loop
    ns1.migrate("vm1", phase="Succeeded")
    ns1.settle()
    assert (ns1.hard, ns1.record) == (amounts(base), None)
    assert json.loads(ns1.annotation) == json.loads(BIG)


def test_a_clock_that_is_set_back_by_hours_keeps_nothing_from_being_requested_again() -> None:
    ns1 = RancherNamespace(BIG, HARD, project={"limits.cpu": "10", "limits.memory": "20Gi"})
    ns1.migrate("vm1")
    ns1.settle()
    ns1.project, ns1.now = {"limits.cpu": "100", "limits.memory": "1000Gi"}, ns1.now - 7200.0
    ns1.settle()
    assert ns1.hard == amounts({"limits.cpu": "60", "limits.memory": "500Gi"}, [ADDED])


def lower_the_cap(ns1: RancherNamespace) -> None:
    ns1.annotate({constants.ANNOTATION_MAX_EXTRA: '{"limits.cpu":"1"}'})


def delete_the_vmi(ns1: RancherNamespace) -> None:
    ns1.instances = [edited(ns1.instances[0], metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})]


@pytest.mark.parametrize(
    ("policy", "happens"), [(HARVESTER, lower_the_cap), (ASSIST, delete_the_vmi)], ids=["a cap", "Harvester's entry"]
)
def test_what_was_added_stays_when_what_was_denied_is_denied_again(
    policy: Policy, happens: Callable[[RancherNamespace], None]
) -> None:
    """For a new entry there would be no room, or no reason."""
    ns1 = RancherNamespace(BIG, HARD, project={"limits.cpu": "10", "limits.memory": "20Gi"}, policy=policy)
    ns1.migrate("vm1")
    ns1.settle()
    writes = ns1.writes
    happens(ns1)
    ns1.now += PAUSE
    ns1.settle()
    assert ns1.writes == writes + 2
    assert ns1.hard == amounts(HARD, [ADDED])


def test_a_limit_beyond_all_that_is_read_is_requested_once() -> None:
    ns1 = RancherNamespace('{"limit":{"limitsCpu":"1e400","limitsMemory":"5000Mi"}}')
    ns1.migrate("vm1")
    assert ns1.look().namespace
    ns1.now += 1.0
    assert not ns1.look().namespace


def test_a_rancher_that_does_not_run_is_said_by_name() -> None:
    ns1 = RancherNamespace()
    ns1.migrate("vm1")
    ns1.look()
    new_plan = ns1.look()
    assert (bool(new_plan), new_plan.recheck_after) == (False, 10.0)
    ns1.now += 10.0
    new_plan = ns1.look()
    assert reasons(new_plan) == [EVENT_NO_ANSWER]
    assert "Rancher has not written resource quota default-abc within 10 s" in str(new_plan.problems[0])
    ns1.sync()
    assert reasons(ns1.look()) == []


def test_stuck_entries_are_ignored_until_the_last_is_gone() -> None:
    ns1 = RancherNamespace(hard=RAISED, annotations={**MARKS, by_name(): ENTRY})
    ns1.migrate("vm1")
    ns1.settle()
    assert ns1.hard == amounts(RAISED)
    assert ns1.requested == amounts(RAISED)
    ns1.migrate("vm1", phase="Succeeded")
    ns1.settle()
    assert (ns1.requested, ns1.hard) == (amounts(HARD), amounts(HARD))
    request = request_of(ns1.namespace)
    assert request is not None
    assert not request.entries
    assert by_name() not in with_request(ns1.quota, ns1.namespace).annotations


def test_the_way_back_to_own_writes_ends_the_request() -> None:
    ns1 = RancherNamespace()
    ns1.migrate("vm1")
    ns1.settle()
    ns1.asks = False
    ns1.look()
    assert (ns1.annotation, ns1.record) == (BASE, None)
    assert by_value(ns1.quota.hard) == by_value(RAISED)
    assert by_name() in ns1.quota.annotations


def test_a_kill_after_each_write_is_repaired() -> None:
    def story(stop: int) -> RancherNamespace:
        ns1 = RancherNamespace(BIG, HARD, project={"limits.cpu": "10", "limits.memory": "20Gi"})
        steps = [
            lambda: ns1.migrate("vm1"),
            ns1.look,
            ns1.sync,
            lambda: ns1.edit(limitsCpu="4"),
            ns1.look,
            ns1.sync,
            lambda: ns1.migrate("vm1", phase="Failed"),
            ns1.look,
            ns1.sync,
            ns1.look,
        ]
        for step in steps[:stop]:
            step()
        return ns1

    for stop in range(11):
        ns1 = story(stop)
        ns1.timers = type(ns1.timers)()
        ns1.migrate("vm1", phase="Succeeded")
        ns1.settle()
        assert ns1.record is None
        assert ns1.hard["limits.cpu"] in (amounts(HARD)["limits.cpu"], amounts({"limits.cpu": "4"})["limits.cpu"])
        assert ns1.hard["limits.memory"] == amounts(HARD)["limits.memory"]


# ---- the record ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no JSON",
        "[]",
        "{}",
        '{"annotation":1,"asked":{}}',
        '{"annotation":"","asked":{"a":"x"}}',
        '{"annotation":"","asked":{"a":[]}}',
        f'{{"annotation":"{"x" * (MAX_LENGTH + 1)}","asked":{{}}}}',
    ],
    ids=lambda text: text[:60],
)
def test_what_is_no_record_is_none(text: str) -> None:
    assert parse_request(text) is None
    assert annotation_of(RancherNamespace().namespace) == BASE, "the annotation is the person's"


@pytest.mark.parametrize("more", ["", " " * MAX_LENGTH], ids=["as Rancher writes it", "longer than is read"])
def test_ranchers_condition_is_read_as_far_as_an_annotation_is(more: str) -> None:
    ns1 = RancherNamespace(BIG, HARD, project={"limits.cpu": "1"})
    ns1.sync()
    ns1.annotate({STATUS: ns1.namespace.annotations[STATUS] + more})
    assert (validation_of(ns1.namespace) is None) is bool(more)


def test_limits_are_replaced_where_they_are() -> None:
    text = '{"limit":{"limitsCpu":"3","extended":{"requests.nvidia.com/gpu":"1"},"secrets":"9"},"other":true}'
    changed = with_limits(text, {"limits.cpu": "5", "requests.nvidia.com/gpu": "2", "limits.memory": "1Gi"})
    assert json.loads(changed) == {
        "limit": {"limitsCpu": "5", "extended": {"requests.nvidia.com/gpu": "2"}, "secrets": "9"},
        "other": True,
    }
