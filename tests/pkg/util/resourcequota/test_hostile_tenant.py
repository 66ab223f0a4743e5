"""A tenant who may write anything in the own namespace except its quota gains nothing.

One VM, a quota that is full as soon as anything is added, and a tenant who forges, relabels, annotates, deletes behind
finalizers, creates VMIs with any status, cancels and repeats migrations and takes room the moment it appears; the
shipped default policy, takeover and exact. The promise is an invariant: spec.hard, and so whatever is ever admitted, is
never more than base + min(source, target) of what really migrates, or really still ends.
HEADROOM_HOSTILE=N runs N other random examples.
"""

import os

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kubeloop.api.core import Pod
from kubeloop.api.quantity import ZERO, Quantity
from kubeloop.api.resource_list import parse_resource_list
from pkg.api.kubevirt import VirtualMachineInstance, VirtualMachineInstanceMigration
from pkg.util.quotacount.usage import pod_usage
from pkg.util.resourcequota.facts import Timers
from pkg.util.resourcequota.planner import plan
from tests.decisions import EXACT, applied, namespace
from tests.kinds import edited
from tests.objects import HARD, MARKS, build, launcher, pod, quota, uid_of, vmi, vmim
from tests.pkg.util.resourcequota.test_interleavings import drawn

EXAMPLES = int(os.environ.get("HEADROOM_HOSTILE", "0"))
START = 1767225600.0  # 2026-01-01T00:00:00Z
SIDE = {name: amount for name, amount in pod_usage(launcher(vmi())).items() if name in HARD}
BASE = parse_resource_list(HARD)
ANNOTATION = "kubevirt.io/memory-overhead-bytes"
NUMBERS = ["0", "1", "315969537", "1" + "0" * 15, "9" * 5000, "²", "x"]
SIZES = [("1", "1Gi"), ("3", "5Gi"), ("100m", "100Mi"), ("12", "60Gi")]
PHASES = ["Pending", "Running", "Succeeded", "Failed", "Scheduling"]
VMS = ["vm1", "ghost"]


def stamp(seconds: float) -> str:
    minutes, seconds_left = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"2026-01-01T{hours % 24:02}:{minutes:02}:{seconds_left:02}Z"


class HostileTenant(RuleBasedStateMachine):
    """KubeVirt's part is honest and slow; everything else is the tenant's."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = 60.0
        self.number = 0
        self.quota, self.timers = quota(HARD, MARKS), Timers()
        self.home = launcher(vmi(), created=stamp(0))
        self.pods: dict[str, Pod] = {self.home.name: self.home}
        self.instances: dict[str, VirtualMachineInstance] = {"vm1": vmi(nodeName="node-1")}
        self.move: VirtualMachineInstanceMigration | None = None
        self.target: Pod | None = None
        self.stuck: list[VirtualMachineInstanceMigration] = []
        """VMIMs whose VMI never ran, or that hang behind a finalizer."""

    # ---- KubeVirt --------------------------------------------------------------------------------------------

    @precondition(lambda self: self.move is None)
    @rule()
    def a_migration_begins(self) -> None:
        """KubeVirt lets no second one in while one is under way."""
        self.number += 1
        self.stuck = [migration for migration in self.stuck if migration.spec.vmi_name != "vm1"]
        move = vmim("Pending", name=f"move-{self.number}", created=stamp(self.clock))
        self.move = edited(move, status={"migrationState": {"sourcePod": self.home.name}})

    @precondition(lambda self: self.move is not None and self.target is None)
    @rule()
    def the_target_is_created(self) -> None:
        assert self.move is not None
        target = launcher(vmi(), node=f"node-{self.number + 1}", migration=self.move, created=stamp(self.clock))
        if self._fits(target):
            self.target = target
            self.pods[target.name] = target
            self.move = edited(self.move, status={"phase": "Scheduling"})
        else:
            conditions = msgspec.to_builtins(vmim(refused=True).status.conditions)
            self.move = edited(self.move, status={"conditions": conditions})

    @precondition(lambda self: self.target is not None)
    @rule(succeeds=st.booleans(), hangs=st.booleans())
    def the_migration_ends(self, succeeds: bool, hangs: bool) -> None:
        """The side that the VM is not in ends with it. KubeVirt may keep the migration Running for long."""
        assert self.move is not None
        assert self.target is not None
        gone = self.home if succeeds else self.target
        self.pods.pop(gone.name, None)
        if succeeds:
            state = {"migrationUid": self.move.uid, "sourcePod": self.home.name, "targetPod": self.target.name}
            self.home = self.target
            status = {"nodeName": self.home.spec.node_name, "migrationState": state}
            self.instances["vm1"] = edited(self.instances["vm1"], status=status)
        if succeeds and hangs:
            self.stuck = [edited(self.move, status={"phase": "Running"})]
        self.move = self.target = None

    @precondition(lambda self: self.move is not None and self.target is None)
    @rule()
    def the_tenant_cancels(self) -> None:
        self.move = None

    # ---- the tenant ------------------------------------------------------------------------------------------

    @rule(
        size=st.sampled_from(SIZES),
        vm=st.sampled_from(VMS),
        controlled=st.booleans(),
        labelled=st.booleans(),
        old=st.booleans(),
        here=st.booleans(),
        number=st.sampled_from(NUMBERS),
    )
    def forges(
        self, size: tuple[str, str], vm: str, controlled: bool, labelled: bool, old: bool, here: bool, number: str
    ) -> None:
        """A pod that looks as much like a side as a tenant likes, if quota lets it in."""
        self.number += 1
        labels = {"kubevirt.io": "virt-launcher", "vm.kubevirt.io/name": vm, "kubevirt.io/created-by": uid_of(vm)}
        if labelled and self.move is not None:
            labels["kubevirt.io/migrationJobUID"] = self.move.uid
        resources = {"cpu": size[0], "memory": size[1]}
        container = {"name": "compute", "resources": {"limits": resources, "requests": resources}}
        owner = {"kind": "VirtualMachineInstance", "name": vm, "uid": uid_of(vm), "controller": controlled}
        pod = build(
            Pod,
            f"forged-{self.number}",
            {"containers": [container], "nodeName": self.home.spec.node_name if here else "node-9"},
            {"phase": "Running"},
            labels=labels,
            annotations={ANNOTATION: number},
            creationTimestamp=stamp(self.clock if not old else 30),
            ownerReferences=[owner],
        )
        if self._fits(pod):
            self.pods[pod.name] = pod

    @precondition(lambda self: any(name.startswith("forged") for name in self.pods))
    @rule(data=st.data(), how=st.sampled_from(["gone", "behind a finalizer"]))
    def deletes(self, data: st.DataObject, how: str) -> None:
        name = data.draw(st.sampled_from(sorted(n for n in self.pods if n.startswith("forged"))))
        pod = self.pods.pop(name)
        if how != "gone":
            going = {"deletionTimestamp": stamp(self.clock), "deletionGracePeriodSeconds": 0}
            self.pods[name] = edited(pod, metadata=going)

    @rule(number=st.sampled_from(NUMBERS))
    def annotates_the_vms_own_pod(self, number: str) -> None:
        self.home = self.pods[self.home.name] = edited(self.home, metadata={"annotations": {ANNOTATION: number}})

    @rule(phase=st.sampled_from(["", "Pending"]), cpu=st.sampled_from(["2", "500", "9" * 5000]))
    def creates_a_vmi_that_never_runs(self, phase: str, cpu: str) -> None:
        """Creates a VMI with whatever status the tenant likes: virt-api sets its phase to Pending."""
        state = {"migrationUid": "x", "sourcePod": f"forged-{self.number}", "targetPod": "forged-1"}
        self.instances["ghost"] = vmi(
            "ghost",
            limits={"cpu": cpu, "memory": "2Ti"},
            phase="Pending",
            nodeName=self.home.spec.node_name,
            migrationState=state,
            conditions=[{"type": "HotMemoryChange", "status": "True"}],
        )
        self.stuck.append(vmim(phase, "ghost", name=f"of-ghost-{self.number}", created=stamp(self.clock)))
        self.stuck = self.stuck[-2:]

    @rule()
    def leaves_a_migration_of_a_vm_that_is_gone(self) -> None:
        self.instances.pop("ghost", None)
        self.stuck = [vmim("Pending", "ghost", name="hangs", created=stamp(self.clock), deleting=True)]

    @rule(share=st.sampled_from([1, 2]))
    def takes_the_room_that_is_there(self, share: int) -> None:
        self.number += 1
        remainders = {n: (Quantity.parse(self.quota.hard[n]) - self._used(n)) for n in HARD}
        if any(amount <= ZERO for amount in remainders.values()):
            return
        cpu = f"{max(remainders['limits.cpu'].milli_value() // share, 1)}m"
        memory = str(max(remainders["limits.memory"].value() // share, 1))
        other = pod(cpu, memory, name=f"other-{self.number}")
        self.pods[other.name] = other

    @rule(seconds=st.sampled_from([0.3, 2.0, 61.0, 700.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock += seconds

    # ---- the promise -----------------------------------------------------------------------------------------

    @invariant()
    def it_gains_nothing(self) -> None:
        for _ in range(2):
            self._reconcile()
        allowed = {n: BASE[n] + (SIDE[n] if self.move is not None else ZERO) for n in HARD}
        for name in HARD:
            hard = Quantity.parse(self.quota.hard[name])
            assert hard <= allowed[name], f"{name} is {hard}, {allowed[name]} is right"

    @invariant()
    def it_harms_no_honest_migration(self) -> None:
        """Honest migrations have their room as long as no forged pod could be meant."""
        forged = any(name.startswith("forged") for name in self.pods)
        if self.move is not None and not forged:
            for name in HARD:
                assert Quantity.parse(self.quota.hard[name]) == BASE[name] + SIDE[name]

    def _reconcile(self) -> None:
        migrations = [*self.stuck, *([self.move] if self.move is not None else [])]
        used = {name: str(self._used(name)) for name in HARD}
        facts = namespace(
            edited(self.quota, status={"used": used}),
            migrations,
            [pod for pod in self.pods.values() if "kubevirt.io" in pod.labels],
            list(self.instances.values()),
            now=START + self.clock,
            timers=self.timers,
        )
        new_plan = plan(facts, EXACT)
        self.timers = new_plan.timers
        self.quota = applied(self.quota, new_plan)

    def _used(self, name: str) -> Quantity:
        now = START + self.clock
        amounts = (pod_usage(pod, now).get(name, ZERO) for pod in self.pods.values())
        return sum(amounts, ZERO)

    def _fits(self, pod: Pod) -> bool:
        need = pod_usage(pod)
        return all(self._used(n) + need.get(n, ZERO) <= Quantity.parse(self.quota.hard[n]) for n in HARD)


TestHostileTenant = HostileTenant.TestCase
TestHostileTenant.settings = drawn(EXAMPLES, usual=40, steps=30)
