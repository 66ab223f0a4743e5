"""Causes that `headroom explain` names beside the quotas that headroom manages, each with the part of the page of
limits."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kubeloop.api.core import Event, LimitRange, Pod
from pkg.api.kubevirt import VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceMigration
from pkg.report.explain import ADMISSION, MIGRATIONS, PLACEMENT, STORAGE, Verdict, explain, halted_reason, not_running
from pkg.report.plan import NodeCapacity, plan_evacuations, plan_migrations
from pkg.util import constants
from tests.decisions import charged, sentences
from tests.kinds import edited
from tests.objects import HARD, MARKS, build, launcher, quota, running_vmi, vm, vmim
from tests.pkg.report.test_explain import GRANTS_MUCH, ROOMY, failed
from tests.pkg.util.resourcequota.snapshots import cluster

HERE, SOURCE = running_vmi(), launcher()
PAGE = Path(__file__).parents[3] / "docs" / "limits.md"


def blocked(kind: str, message: str = "") -> VirtualMachineInstanceMigration:
    condition = {"type": kind, "status": "True", "message": message}
    return edited(vmim(), status={"conditions": [condition]})


def target(migration: VirtualMachineInstanceMigration, **parts: Any) -> Pod:
    pod = launcher(node="", migration=migration, phase="Pending", created="2026-01-01T00:01:00Z")
    return edited(pod, **parts)


def error(message: str) -> Event:
    return failed(f'Error creating pod: pods "x" is forbidden: {message}')


PENDING, REFUSED, SCHEDULING = vmim(), vmim(refused=True), vmim("Scheduling")
CLAIMS = {"name": "gpu", "resourceClaimTemplateName": "one-gpu"}
UNFIT = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
MOVED = {
    "volumeName": "root",
    "sourcePVCInfo": {"claimName": "old", "requests": {"storage": "20Gi"}},
    "destinationPVCInfo": {"claimName": "new", "requests": {"storage": "20Gi"}},
}
KEPT = {"type": "LiveMigratable", "status": "False", "reason": "HostDeviceNotLiveMigratable"}


@dataclass(frozen=True)
class NamedCause:
    """A migration that quota lets through, and the cause that is named."""

    sentence: str
    part: str
    migration: VirtualMachineInstanceMigration = PENDING
    instance: VirtualMachineInstance = HERE
    pods: Sequence[Pod] = ()
    failures: Sequence[Event] = ()
    verdict: Verdict = Verdict.WAITS_FOR_KUBEVIRT
    notes: tuple[tuple[str, str], ...] = ()
    """Further limits of the quota."""


def refused(sentence: str, message: str, **more: Any) -> NamedCause:
    """Admission refused the target pod with this message."""
    return NamedCause(sentence, ADMISSION, failures=[error(message)], **more)


def waiting(sentence: str, part: str, **parts: Any) -> NamedCause:
    """The target pod exists, with these parts, and is not scheduled."""
    pods = [target(SCHEDULING, **parts)]
    return NamedCause(sentence, part, SCHEDULING, pods=pods, verdict=Verdict.UNDER_WAY)


def gate(name: str) -> dict[str, Any]:
    return {"schedulingGates": [{"name": name}]}


BACKUP, UTILITY = "migrationBlockedByBackup", "migrationBlockedByUtilityVolumes"
NIC = "requests.intel.com/nic"
CASES = {
    "a backup": NamedCause("KubeVirt waits for a backup of the VM: of b", "", blocked(BACKUP, "of b")),
    "utility volumes": NamedCause("waits until utility volumes are detached", "", blocked(UTILITY)),
    "to another cluster": NamedCause(
        "it is decentralized", MIGRATIONS, edited(vmim(), spec={"sendTo": {"migrationID": "m"}})
    ),
    "a LimitRange's maximum": refused(
        "a LimitRange refuses its target pod", "maximum memory usage per Container is 2Gi, but limit is 4Gi"
    ),
    "its minimum": refused(
        "a LimitRange refuses its target pod", "minimum cpu usage per Container is 1, but request is 125m"
    ),
    "its ratio": refused(
        "a LimitRange refuses its target pod",
        "cpu max limit to request ratio per Container is 2, but provided ratio is 16.0",
    ),
    "a quota that limits what it does not name": refused(
        "does not name what it limits", "failed quota: default-abc: must specify limits.cpu"
    ),
    "a ClusterResourceQuota": refused(
        "all-of-shop is not a ResourceQuota of the namespace, perhaps a ClusterResourceQuota",
        "exceeded quota: all-of-shop, requested: pods=1, used: pods=2, limited: pods=2",
        migration=REFUSED,
    ),
    "a device that only the target has": NamedCause(
        f"its target asks for {NIC}, which its source does not have: the base of default-abc",
        MIGRATIONS,
        REFUSED,
        failures=[error(f"exceeded quota: default-abc, requested: {NIC}=1, used: {NIC}=0, limited: {NIC}=0")],
        verdict=Verdict.WAITS_FOR_QUOTA,
        notes=((NIC, "0"),),
    ),
    "AAQ": waiting(
        "an ApplicationAwareResourceQuota (AAQ) holds its target pod back",
        ADMISSION,
        spec=gate("ApplicationAwareQuotaGate"),
    ),
    "Kueue": waiting("Kueue holds its target pod back", ADMISSION, spec=gate("kueue.x-k8s.io/admission")),
    "a ResourceClaim that quota refuses": waiting(
        "ResourceClaims for its devices are not created: gpu: ", PLACEMENT, spec={"resourceClaims": [CLAIMS]}
    ),
    "no node": waiting("no node fits its target pod: 0/3 nodes", PLACEMENT, status={"conditions": [UNFIT]}),
    "a scheduler that does not run": waiting("kube-scheduler has not placed pod ", ""),
    "an image or a volume": waiting(
        "its containers have not started on node-2: the events of pod ", "", spec={"nodeName": "node-2"}
    ),
    "a VM that cannot migrate": NamedCause(
        "KubeVirt does not migrate it: HostDeviceNotLiveMigratable",
        PLACEMENT,
        instance=edited(HERE, status={"conditions": [KEPT]}),
    ),
    "a volume migration": NamedCause(
        "default-abc lacks 10.0Gi of requests.storage; its volumes root move, so that 20.0Gi count twice",
        STORAGE,
        instance=edited(HERE, status={"migratedVolumes": [MOVED]}),
        verdict=Verdict.WAITS_FOR_QUOTA,
        notes=(("requests.storage", "10Gi"),),
    ),
}


@sentences(CASES)
def test_the_cause_is_named(case: NamedCause) -> None:
    pods = [SOURCE, *case.pods]
    full = charged(quota({**ROOMY, **dict(case.notes)}, MARKS), pods)
    snapshot = replace(
        cluster([full], [case.migration], pods, [case.instance], limits=GRANTS_MUCH), failures=case.failures
    )
    explanation = explain(snapshot, case.instance)
    assert explanation.verdict is case.verdict
    assert case.sentence in explanation.summary
    assert case.part in explanation.summary


def test_plan_says_what_else_is_known() -> None:
    instance = edited(HERE, status={"migratedVolumes": [MOVED]})
    snapshot = cluster([charged(quota(ROOMY, MARKS), [SOURCE])], [], [SOURCE], [instance], limits=GRANTS_MUCH)
    (vm,) = plan_migrations(snapshot).vms
    assert "its volumes root move, so that 20.0Gi count twice" in vm.notes[0]


@sentences({"below": ("1", True), "above": ("2", False)})
def test_the_maximum_of_a_limit_range_that_came_after_the_vm(case: tuple[str, bool]) -> None:
    most, refuses = case
    limits = {"limits": [{"type": "Container", "max": {"cpu": most}}]}
    snapshot = cluster([quota(HARD, MARKS)], [], [SOURCE], [HERE], limit_ranges=[build(LimitRange, "small", limits)])
    sentence = f"LimitRange small refuses a target pod: a container may have cpu {most}, compute has cpu 2: "
    assert (sentence in explain(snapshot, HERE).summary) is refuses
    assert bool(plan_evacuations(snapshot, ["node-1"], NodeCapacity())[0].vms[0].notes) is refuses


HALTED = {
    "nothing is known": (vm(), ""),
    "its volumes": (
        vm(status="WaitingForVolumeBinding"),
        "quota may refuse an import's pods or scratch space: docs/limits.md#storage",
    ),
    "quota": (
        vm(annotations={constants.ANNOTATION_INSUFFICIENT_RESOURCE_QUOTA: "cpu insufficient resources"}),
        "it was halted: 'cpu insufficient resources': headroom adds nothing for a start: enlarge the quota",
    ),
}


@sentences(HALTED)
def test_what_keeps_a_vm_without_a_vmi_from_running(case: tuple[VirtualMachine, str]) -> None:
    machine, reason = case
    explanation = not_running("ns1", "vm1", halted_reason(machine))
    assert (explanation.verdict, explanation.document()["migration"]) == (Verdict.NOT_RUNNING, None)
    assert explanation.summary.endswith(reason or "there is nothing to migrate")


UNSTARTED: dict[str, tuple[VirtualMachineInstance, Sequence[Event], str]] = {
    "its pod was refused by quota": (
        edited(HERE, status={"phase": "Pending"}),
        [error("exceeded quota: default-abc, requested: limits.cpu=1, used: limits.cpu=3, limited: limits.cpu=3")],
        "headroom adds nothing for a start: enlarge the quota",
    ),
    "it has failed": (edited(HERE, status={"phase": "Failed"}), [], "its VMI is in phase Failed"),
    "it is being deleted": (
        edited(HERE, metadata={"deletionTimestamp": "2026-01-01T00:01:00Z"}),
        [],
        "its VMI is being deleted",
    ),
}


@sentences(UNSTARTED)
def test_a_vmi_that_kubevirt_does_not_migrate_is_not_said_to_fit(
    case: tuple[VirtualMachineInstance, Sequence[Event], str],
) -> None:
    instance, failures, reason = case
    snapshot = replace(cluster([quota(HARD, MARKS)], [], [SOURCE], [instance]), failures=failures)
    explanation = explain(snapshot, instance)
    assert (explanation.verdict, explanation.summary.endswith(reason)) == (Verdict.NOT_RUNNING, True)
    assert not plan_migrations(snapshot).vms


def test_nothing_is_named_that_is_not_there() -> None:
    snapshot = cluster([quota(HARD, MARKS)], [REFUSED], [SOURCE], [HERE])
    assert "docs/limits.md" not in explain(snapshot, HERE).summary


def test_every_part_is_a_heading_of_the_page() -> None:
    headings = re.findall(r"^## (.*)$", PAGE.read_text(), re.MULTILINE)
    anchors = {re.sub(r"[^a-z0-9-]", "", heading.lower().replace(" ", "-")) for heading in headings}
    parts = (STORAGE, MIGRATIONS, ADMISSION, PLACEMENT)
    assert {part.partition("#")[2] for part in parts} <= anchors
