"""`headroom status`: quotas, base, added, by which VM, since when, holds."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec
import pytest

from kubeloop.api.core import ResourceQuota
from pkg.api.kubevirt import VirtualMachineInstanceMigration
from pkg.api.mtq import VirtualMachineMigrationResourceQuota
from pkg.cmd.status import answer_of
from pkg.config.causes import Cause
from pkg.report.installation import Installed
from pkg.report.snapshot import Basis
from pkg.report.status import QuotaStatus, status
from pkg.util.resourcequota.policy import EstimateKind, Mode
from tests.decisions import sentences
from tests.kinds import edited
from tests.objects import (
    BASE,
    COMPENSATION,
    ENTRY,
    HARD,
    LONG_NAME,
    MARKS,
    SKIP,
    by_name,
    by_uid,
    launcher,
    quota,
    vmi,
    vmim,
)
from tests.pkg.util.resourcequota.snapshots import cluster, settled

HERE, THERE = vmi(nodeName="node-1"), vmi(nodeName="node-2")
SOURCE = launcher()
BEGUN, ENDED = "2026-01-01T11:58:00Z", "2026-01-01T11:59:30Z"
MOVE = vmim("Running", created=BEGUN)
TARGET = launcher(node="node-2", migration=MOVE, created="2026-01-01T11:58:01Z")
POD = {"limits.cpu": "2015m", "limits.memory": "4797464313"}


def only(statuses: Sequence[QuotaStatus]) -> QuotaStatus:
    (quota_status,) = statuses
    return quota_status


def ended_migration(time: str) -> VirtualMachineInstanceMigration:
    state = {"endTimestamp": time, "completed": True}
    return edited(vmim("Succeeded", created=BEGUN), status={"migrationState": state})


def test_a_quiet_quota() -> None:
    quota_status = only(status(settled(cluster([quota(HARD, MARKS)], [], [SOURCE], [HERE]))))
    assert quota_status.document() == {
        "namespace": "ns1",
        "name": "default-abc",
        "keptBy": "headroom",
        "resources": {
            "limits.cpu": {"base": "3", "added": "0", "hard": "3", "used": "2015m"},
            "limits.memory": {"base": "5000Mi", "added": "0", "hard": "5000Mi", "used": "4797464313"},
        },
        "additions": [],
        "compensation": {},
        "problems": [],
    }


def test_a_request_that_is_not_granted_is_a_line_and_no_base() -> None:
    big = '{"limit":{"limitsCpu":"60","limitsMemory":"5000Mi"}}'
    project = {"field.cattle.io/projectId": "c:p"}
    quota_status = only(status(cluster([quota(HARD, MARKS)], [], [SOURCE], [HERE], limits=big, annotations=project)))
    assert str(quota_status.resources["limits.cpu"].base) == "3"
    (line,) = quota_status.problems
    assert line == "namespace ns1 requests more than Rancher has granted: limits.cpu 60 of which 3 are granted"


def test_a_quota_whose_writes_are_refused_says_by_whom() -> None:
    snapshot = settled(cluster([quota(HARD, MARKS)], [], [SOURCE], [HERE]))
    cause = Cause("RBAC", 403, "may not", ["ResourceQuota ns1/default-abc"], 1)
    quota_status = only(status(replace(snapshot, installed=Installed(causes=[cause]))))
    assert quota_status.problems == ["RBAC refuses headroom's requests (403): may not"]


def test_a_migration_that_runs() -> None:
    quota_status = only(status(settled(cluster([quota(HARD, MARKS)], [MOVE], [SOURCE, TARGET], [HERE]))))
    document = quota_status.document()
    assert document["additions"] == [
        {"vm": "vm1", "annotation": by_name(), "state": "Running", "since": BEGUN, "resources": POD, "left": []}
    ]
    assert document["resources"]["limits.cpu"] == {"base": "3", "added": "2015m", "hard": "5015m", "used": "4030m"}
    assert not quota_status.problems


TWO = [vmim(created="2026-01-01T11:59:00Z", name="b"), vmim("Running", created=BEGUN, name="a")]
ENTERED: Mapping[str, tuple[Sequence[VirtualMachineInstanceMigration], str, str]] = {
    "pending, since it was made": ([vmim(created=BEGUN)], "Pending", BEGUN),
    "of two since the older": (TWO, "Running", BEGUN),
    "held, since its migration ended": ([ended_migration(ENDED)], "held", ENDED),
    "held, since a time without a zone": ([ended_migration(ENDED.removesuffix("Z"))], "held", ENDED.removesuffix("Z")),
    "held, KubeVirt does not say since when": ([vmim("Succeeded")], "held", ""),
    "held, its migration is gone": ([], "held", ""),
}


@sentences(ENTERED)
def test_states(case: tuple[Sequence[VirtualMachineInstanceMigration], str, str]) -> None:
    migrations, expected_state, since = case
    state = {"migrationUid": "gone", "sourcePod": SOURCE.name, "targetPod": TARGET.name}
    moved = vmi(nodeName="node-2", migrationState=state)
    pods, instance = ([SOURCE, TARGET], moved) if expected_state == "held" else ([SOURCE], HERE)
    snapshot = settled(cluster([quota(HARD, MARKS)], migrations, pods, [instance]))
    (addition,) = only(status(snapshot)).additions
    assert f"{expected_state} for " * bool(since) in "\n".join(map(str, answer_of(snapshot).parts))
    assert (addition.vm, addition.state, addition.since or "") == ("vm1", expected_state, since)


HOLDS = {
    "within a day": (90.0, "still counts, until 12:01:00 UTC at the latest"),
    "on a later day, which the time of day does not name": (86400.0, "still counts"),
    "without an end": (float("inf"), "still counts"),
}


@sentences(HOLDS)
def test_a_hold_ends_by_the_limit_of_the_controller_that_runs(case: tuple[float, str]) -> None:
    hold_limit, end = case
    snapshot = settled(cluster([quota(HARD, MARKS)], [ended_migration(ENDED)], [SOURCE, TARGET], [THERE]))
    snapshot = replace(snapshot, basis=Basis(Mode.TAKEOVER, EstimateKind.HARVESTER, hold_limit=hold_limit))
    lines = "\n".join(map(str, answer_of(snapshot).parts)).splitlines()
    assert [line.endswith(end) for line in lines if "still counts" in line] == [True]


def test_a_long_name_is_shown_whole() -> None:
    instance = vmi(LONG_NAME, nodeName="node-1")
    snapshot = cluster([quota(HARD, MARKS)], [vmim(vm=LONG_NAME)], [launcher(instance)], [instance])
    assert only(status(settled(snapshot))).additions[0].vm == LONG_NAME


def test_an_entry_that_no_migration_explains() -> None:
    quota_status = only(status(cluster([quota(HARD, {**MARKS, by_uid("gone"): ENTRY})])))
    (addition,) = quota_status.additions
    assert (addition.vm, addition.state) == ("uid-gone", "unexplained")


def test_a_compensation_is_added_too() -> None:
    raised = quota({"limits.cpu": "3", "limits.memory": "5001Mi"}, {**MARKS, COMPENSATION: '{"limits.memory":"1Mi"}'})
    document = only(status(cluster([raised]))).document()
    assert document["compensation"] == {"limits.memory": "1Mi"}
    assert document["resources"]["limits.memory"]["added"] == "1Mi"
    assert document["problems"] == []


MANAGED = {"headroom.harvesterhci.io/managed": "true"}
KEPT: Mapping[str, tuple[ResourceQuota, str]] = {
    "ours by mark": (quota(HARD, MARKS), "headroom"),
    "Rancher's default without our mark": (quota(HARD), "harvester"),
    "switched off by a person": (quota(HARD, {SKIP: "true"}), "none: it is switched off"),
    "managed by label": (quota(HARD, labels=MANAGED), "headroom"),
    "not managed, but something was added to it": (
        quota(HARD, {by_name(): ENTRY}, labels={"a": "b"}),
        "none: it is not managed",
    ),
}


@sentences(KEPT)
def test_who_keeps_it(case: tuple[ResourceQuota, str]) -> None:
    rq, keeper = case
    assert only(status(cluster([rq]))).kept_by == keeper


def test_nobody_keeps_a_default_quota_without_an_annotation() -> None:
    keeper = only(status(cluster([quota(HARD)], limits=""))).kept_by
    assert keeper == "none: its namespace has no quota annotation"


def test_a_namespace_with_a_budget_is_managed_tenant_quotas() -> None:
    budget = msgspec.convert({"metadata": {"name": "b", "namespace": "ns1"}}, VirtualMachineMigrationResourceQuota)
    assert only(status(cluster([quota(HARD, MARKS)], budgets=[budget]))).kept_by == "managed-tenant-quota"


def test_a_quota_that_is_not_managed_is_left_out() -> None:
    assert status(cluster([quota(HARD, labels={"a": "b"})])) == []


def test_resources_that_pods_do_not_use_up_are_left_out() -> None:
    quota_status = only(status(cluster([quota({**HARD, "services": "3", "pods": "9"}, MARKS)])))
    assert list(quota_status.resources) == ["limits.cpu", "limits.memory", "pods"]
    assert quota_status.document()["resources"]["pods"]["base"] is None


@pytest.mark.parametrize(("mode", "base"), [(Mode.TAKEOVER, "9"), (Mode.ASSIST, None)])
def test_beside_harvester_the_base_is_of_what_it_adds_to(mode: Mode, base: str | None) -> None:
    limits = '{"limit":{"limitsCpu":"3000m","limitsMemory":"5000Mi","pods":"9"}}'
    snapshot = cluster([quota({**HARD, "pods": "9"})], limits=limits)
    basis = Basis(mode, EstimateKind.EXACT, "flags")
    resources = only(status(replace(snapshot, basis=basis))).document()["resources"]
    assert (resources["limits.cpu"]["base"], resources["pods"]["base"]) == ("3", base)


PROBLEMS: Mapping[str, tuple[ResourceQuota, str, str]] = {
    "spec.hard is not what it should be": (
        quota({**HARD, "limits.cpu": "9"}, MARKS), BASE, "limits.cpu is 9, base and additions give 3",
    ),
    "an entry is garbage": (quota(HARD, {**MARKS, by_uid("x"): "{nope"}), BASE, "is not a resource list"),
    "the compensation is garbage": (quota(HARD, {**MARKS, COMPENSATION: "{nope"}), BASE, "is not a resource list"),
    "the namespace's annotation is garbage": (quota(HARD, MARKS), "{nope", "is not JSON"),
}  # fmt: skip


@sentences(PROBLEMS)
def test_problems(case: tuple[ResourceQuota, str, str]) -> None:
    rq, limits, message = case
    problems = only(status(cluster([rq], limits=limits))).problems
    assert any(message in problem for problem in problems)
    assert len(set(problems)) == len(problems)


@pytest.mark.parametrize("capped", [True, False])
def test_a_migration_that_waits_for_a_cap_is_a_problem(capped: bool) -> None:
    caps = {"headroom.harvesterhci.io/max-extra": '{"limits.memory":"1Gi"}'} if capped else {}
    quota_status = only(status(settled(cluster([quota(HARD, MARKS)], [vmim()], [SOURCE], [HERE], annotations=caps))))
    assert any("VM vm1 waits" in problem for problem in quota_status.problems) is capped


@sentences({"it runs": "Running", "it has succeeded": "Succeeded"})
def test_a_migration_whose_target_is_there_waits_for_no_cap(case: str) -> None:
    caps = {"headroom.harvesterhci.io/max-extra": '{"limits.memory":"1Gi"}'}
    snapshot = cluster([quota(HARD, MARKS)], [vmim(case)], [SOURCE, TARGET], [HERE], annotations=caps)
    assert not any("waits" in problem for problem in only(status(settled(snapshot))).problems)


LAGGING = {
    "the quota controller has not copied the limits": (
        {"limits.cpu": "3", "limits.memory": "5000Mi"},
        "quota admission goes by status.hard, which is not spec.hard: limits.cpu 3 of 5015m, "
        "limits.memory 4.9Gi of 9.4Gi: kube-controller-manager has not copied it",
    ),
    "it has": ({"limits.cpu": "5015m", "limits.memory": "10040344313"}, ""),
    "it has never seen the quota": ({}, ""),
}


@sentences(LAGGING)
def test_limits_that_are_not_enforced_are_a_problem(case: tuple[dict[str, str], str]) -> None:
    enforced, problem = case
    (raised,) = settled(cluster([quota(HARD, MARKS)], [vmim()], [SOURCE], [HERE])).quotas
    raised = edited(raised, status={"hard": enforced})
    problems = only(status(cluster([raised], [vmim()], [SOURCE], [HERE]))).problems
    assert [text[: len(problem)] for text in problems] == [problem] * bool(problem)


def test_quotas_are_in_order() -> None:
    statuses = status(cluster([quota(HARD, MARKS), quota(HARD, MARKS, name="another")]))
    assert [quota_status.name for quota_status in statuses] == ["another", "default-abc"]


def test_a_quota_whose_use_is_above_its_limit_is_pointed_out() -> None:
    """Kubernetes lets running pods be when a limit falls, and admits no further one."""
    overused = quota({"limits.cpu": "1"}, MARKS, used={"limits.cpu": "2015m"})
    (quota_status,) = status(cluster([overused], limits='{"limit":{"limitsCpu":"1"}}'))
    assert "limits.cpu: 2015m is used, more than hard 1" in quota_status.problems
