"""A namespace in memory: quota admission, KubeVirt as seen from outside, and a planner with watches that may lag.

What KubeVirt and the API server do is modelled here by itself; of the product only the planner
runs, and `pod_usage` says what a pod counts.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, TypeVar

import msgspec

from kubeloop.api.core import Pod, ResourceQuota
from kubeloop.api.meta import Object
from kubeloop.api.quantity import ZERO
from kubeloop.api.resource_list import ResourceList, parse_resource_list, total
from pkg.api.kubevirt import MigrationState, VirtualMachineInstance, VirtualMachineInstanceMigration
from pkg.util.constants import ANNOTATION_TOUCHED
from pkg.util.kubevirt.rendering import Rendering
from pkg.util.quotacount.usage import pod_usage
from pkg.util.resourcequota.facts import Cache, Facts, Plan, Timers
from pkg.util.resourcequota.planner import plan
from tests.decisions import EXACT, applied
from tests.objects import BOTH, attachment, launcher, machine, quota, vmim

PHASES = ("", "Pending", "Scheduling", "Scheduled", "PreparingTarget", "TargetReady", "Running", "Succeeded")
KINDS = ("namespace", "rendering", "migrations", "instances", "pods", "quotas")
"""What is watched, each by a watch of its own."""
MANAGED = {"headroom.harvesterhci.io/managed": "true"}
_SEED = {"cpu": {"cores": 2}, "resources": {"limits": {"cpu": "2", "memory": "4Gi"}, "requests": {"memory": "2730Mi"}}}
_BARE = {"cpu": {"cores": 1}, "resources": {"requests": {"memory": "1Gi"}}}
_DISK = [{"name": "disk", "persistentVolumeClaim": {"claimName": "disk", "hotpluggable": True}}]
SHAPES: Mapping[str, Mapping[str, Any]] = {
    "a": {"domain": _SEED},
    "b": {"domain": _BARE},
    "plugged": {"domain": _SEED, "volumes": _DISK},
}
RENDERINGS = {ratio: Rendering(ratio, quota_limits=BOTH) for ratio in ("", "1.5", "4.5")}


@dataclass
class ModelVm:
    """A running VM; `launcher` is the uid of the pod that it lives in."""

    name: str
    uid: str
    node: str
    launcher: str = ""
    state: tuple[str, str, str] = ("", "", "")
    """status.migrationState: the migration's uid, its source pod's name and its target pod's, once handed over."""


@dataclass
class Move:
    """A VMIM. `target` is the uid of its launcher pod once that is there."""

    name: str
    vm: str
    vmi_uid: str
    created: int
    phase: str = ""
    refused: bool = False
    abort: bool = False
    ended: float | None = None
    target: str = ""
    source: str = ""
    """The name of the source pod, from Pending on."""
    handed_over: bool = False

    @property
    def over(self) -> bool:
        return self.phase in ("Succeeded", "Failed")

    @property
    def uid(self) -> str:
        return f"uid-{self.name}"


def other_pod(number: int, memory: str) -> Pod:
    """A pod that is no VM's."""
    resources = {"limits": {"cpu": "100m", "memory": memory}, "requests": {"cpu": "100m", "memory": memory}}
    spec = {"containers": [{"name": "c", "resources": resources}]}
    body = {"metadata": {"name": f"other-{number}", "uid": f"other-{number}"}, "spec": spec}
    return msgspec.convert(body, Pod)


def is_other(pod: Pod) -> bool:
    return pod.name.startswith("other-")


def side_of(pod: Pod) -> str:
    """The uid of the launcher pod on whose side a pod is."""
    owners = [owner.uid for owner in pod.metadata.owner_references or () if owner.kind == "Pod"]
    return owners[0] if owners else pod.uid


_USAGES: dict[str, ResourceList] = {}


def usage(pod: Pod) -> ResourceList:
    if pod.uid not in _USAGES:
        _USAGES[pod.uid] = pod_usage(pod)
    return _USAGES[pod.uid]


@lru_cache(maxsize=4096)
def instance_of(name: str, uid: str, node: str, state: tuple[str, str, str] = ("", "", "")) -> VirtualMachineInstance:
    vmi = machine(name=name, node=node, **SHAPES[name])
    uid_of_migration, source, target = state
    migration_state = MigrationState(migration_uid=uid_of_migration, source_pod=source, target_pod=target)
    status = msgspec.structs.replace(vmi.status, migration_state=migration_state if uid_of_migration else None)
    metadata = msgspec.structs.replace(vmi.metadata, uid=uid, resource_version="1")
    return msgspec.structs.replace(vmi, metadata=metadata, status=status)


@lru_cache(maxsize=4096)
def launcher_of(name: str, uid: str, node: str, job: str, ratio: str, number: int) -> Pod:
    move = vmim(name=job) if job else None
    stamp = f"2026-01-01T00:00:00.{number:09}Z"
    pod = launcher(instance_of(name, uid, node), node=node, migration=move, rendering=RENDERINGS[ratio], created=stamp)
    key = f"pod-{name}-{node}-{job}-{ratio}-{number}"
    metadata = msgspec.structs.replace(pod.metadata, name=f"virt-launcher-{key}", uid=key, resource_version="1")
    return msgspec.structs.replace(pod, metadata=metadata)


def migration_of(move: Move) -> VirtualMachineInstanceMigration:
    """KubeVirt names the source pod from Pending on; it copies the VMI's state when the migration is over."""
    target = move.target if move.over and move.handed_over else ""
    return _vmim(
        move.name, move.vm, move.phase, move.refused, move.abort, move.created, move.ended, move.source, target
    )


@lru_cache(maxsize=4096)
def _vmim(
    name: str,
    vm: str,
    phase: str,
    refused: bool,
    abort: bool,
    created: int,
    ended: float | None,
    source: str,
    target: str,
) -> VirtualMachineInstanceMigration:
    migration = vmim(phase, vm, refused=refused, abort=abort, name=name, created=f"2026-01-01T00:00:00.{created:09}Z")
    state = {"sourcePod": source, "targetPod": f"virt-launcher-{target}" if target else ""}
    if ended is not None:
        state["endTimestamp"] = datetime.fromtimestamp(ended, UTC).isoformat()
    state = {key: text for key, text in state.items() if text}
    if not state:
        return migration
    status = msgspec.to_builtins(migration.status) | {"migrationState": state}
    return msgspec.structs.replace(migration, status=msgspec.convert(status, type(migration.status)))


T = TypeVar("T", bound=Object)


@dataclass(frozen=True)
class Seen:
    """Everything that watches show."""

    namespace: str
    rendering: Rendering
    migrations: tuple[VirtualMachineInstanceMigration, ...]
    instances: tuple[VirtualMachineInstance, ...]
    pods: tuple[Pod, ...]
    quotas: tuple[ResourceQuota, ...]


class BrokenInvariant(AssertionError):
    """The planner did what it must not do."""


def changes_more_than_a_touch(decided: Plan) -> bool:
    return bool(decided.hard or decided.annotations.keys() - {ANNOTATION_TOUCHED})


@dataclass
class Cluster:
    """The truth, what the planner sees of it, and what it remembers."""

    base: dict[str, str] = field(default_factory=lambda: {"limitsCpu": "6", "limitsMemory": "13Gi", "pods": "5"})
    ratio: str = "1.5"
    now: float = 1000.0
    vms: dict[str, ModelVm] = field(default_factory=dict)
    moves: dict[str, Move] = field(default_factory=dict)
    pods: dict[str, Pod] = field(default_factory=dict)
    quotas: dict[str, ResourceQuota] = field(default_factory=dict)
    memories: dict[str, Timers] = field(default_factory=dict)
    frozen: dict[str, Any] = field(default_factory=dict)
    lagging: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """status.hard of each quota as admission's cache has it, while that lags."""
    looked_at: dict[str, ResourceQuota] = field(default_factory=dict)
    """The newest version of each quota that was decided about."""
    cache: Cache = field(default_factory=Cache)
    cached: dict[str, Object] = field(default_factory=dict)
    counter: int = 0
    patches: int = 0
    """Those that only touch a quota are not counted."""

    def __post_init__(self) -> None:
        hard = {"limits.cpu": "6", "limits.memory": "13Gi", "pods": "5"}
        self.quotas["default"] = quota(hard, name="default")
        self.quotas["own"] = quota({"requests.memory": "9Gi", "services": "3"}, name="own", labels=MANAGED)

    # ---- the API server --------------------------------------------------------------------------------------

    def used(self, name: str) -> ResourceList:
        """status.used: whatever is not terminal counts."""
        hard = self.quotas[name].hard
        counts = total(usage(pod) for pod in self.pods.values() if not pod.terminal)
        return {resource: counts.get(resource, ZERO) for resource in hard}

    def admit(self, pod: Pod) -> bool:
        """Quota admission: used + pod ≤ hard, for each resource that any quota names, as hard is and as its cache has
        it. Admitted pods are there."""
        need = usage(pod)
        for name, rq in self.quotas.items():
            used = self.used(name)
            for raw in (rq.hard, self.lagging.get(name, rq.hard)):
                hard = parse_resource_list(raw)
                if any(used.get(n, ZERO) + need[n] > limit for n, limit in hard.items() if need.get(n, ZERO) > ZERO):
                    return False
        self.pods[pod.uid] = pod
        return True

    def admission_lags(self) -> None:
        """Keeps status.hard as it is from now on, until `lagging` is cleared."""
        for name, rq in self.quotas.items():
            self.lagging.setdefault(name, dict(rq.hard))

    def write(self, name: str, hard: Mapping[str, str | None], annotations: Mapping[str, str | None]) -> None:
        """A merge patch of a quota, by any client."""
        old = self.quotas[name]
        self.counter += 1
        merged = {k: v for k, v in {**old.annotations, **annotations}.items() if v is not None}
        limits = {k: v for k, v in {**old.hard, **hard}.items() if v is not None}
        metadata = msgspec.structs.replace(old.metadata, annotations=merged, resource_version=str(self.counter))
        spec = msgspec.structs.replace(old.spec, hard=limits)
        self.quotas[name] = msgspec.structs.replace(old, metadata=metadata, spec=spec)

    # ---- KubeVirt --------------------------------------------------------------------------------------------

    def start(self, name: str) -> None:
        """A VM starts, if quota lets its pod in."""
        self.counter += 1
        vm = ModelVm(name, f"uid-{name}-{self.counter}", "node-1")
        pod = self._launcher(vm, "node-1", None)
        if self.admit(pod):
            vm.launcher = pod.uid
            self.vms[name] = vm
            if name == "plugged":
                self.admit(attachment(pod))

    def migrate(self, name: str) -> str:
        self.counter += 1
        move = Move(f"move-{self.counter}", name, self.vms[name].uid, self.counter)
        self.moves[move.name] = move
        return move.name

    def step(self, move: Move) -> bool | None:
        """KubeVirt does the next thing for a migration. False: quota has refused a pod; None: nothing to do yet."""
        vm = self.vms.get(move.vm)
        if move.over:
            return None
        if vm is None or vm.uid != move.vmi_uid or (move.phase == "Pending" and move.abort):
            self.end(move, "Failed")
        elif move.phase == "Pending":
            return self._create_target(move, vm)
        elif move.phase == "Running" and vm.launcher != move.target:
            vm.launcher = move.target  # the VMI says so before its migration does
            vm.node = self.pods[move.target].spec.node_name or ""
        else:
            self._next_phase(move, vm)
        return True

    def _next_phase(self, move: Move, vm: ModelVm) -> None:
        phase = PHASES[PHASES.index(move.phase) + 1]
        if phase == "Succeeded":
            self.end(move, phase)
            return
        move.phase = phase
        if phase == "Pending":
            move.source = self.pods[vm.launcher].name
        elif phase == "PreparingTarget":
            move.handed_over = True
            vm.state = (move.uid, move.source, self.pods[move.target].name)

    def _create_target(self, move: Move, vm: ModelVm) -> bool | None:
        """The launcher, once the VM has only one, then its attachment pod, then Scheduling: each by itself."""
        if not move.target:
            if sum(side_of(pod) == pod.uid for _, pod in self.sides(vm.name)) > 1:  # its VMIActivePodsCount
                return None
            self.counter += 1
            pod = self._launcher(vm, f"node-{self.counter}", move)
            if not self.admit(pod):
                move.refused = True
                return False
            move.target = pod.uid
            return True
        target = self.pods[move.target]
        if target.terminal:
            self.end(move, "Failed")
            return True
        if vm.name == "plugged" and not self._attached(target):
            move.refused |= not (admitted := self.admit(attachment(target)))
            return admitted
        move.phase, move.refused = "Scheduling", False
        return True

    def end(self, move: Move, phase: str) -> None:
        """The migration is over; its pods end when `finish` is called for them. KubeVirt says when, mostly."""
        move.phase = phase
        move.ended = self.now if move.created % 3 else None

    def left_over(self) -> list[Pod]:
        """Pods that count and in which no VM lives and to which none is on its way."""
        used = {vm.launcher for vm in self.vms.values()}
        used |= {move.target for move in self.moves.values() if not move.over}
        sides = {uid for uid in used if uid in self.pods and not self.pods[uid].terminal}
        return [p for p in self.pods.values() if not p.terminal and side_of(p) not in sides and not is_other(p)]

    def finish(self, pod: Pod, ending: str) -> None:
        """A pod ends: it turns terminal, or goes away and takes its attachment pod with it."""
        if ending == "gone":
            for uid in [uid for uid, member in self.pods.items() if side_of(member) == pod.uid or uid == pod.uid]:
                del self.pods[uid]
            return
        self.pods[pod.uid] = msgspec.structs.replace(
            pod,
            status=msgspec.structs.replace(pod.status, phase=ending),
            metadata=msgspec.structs.replace(pod.metadata, resource_version="2"),
        )

    def _attached(self, target: Pod) -> bool:
        return any(side_of(pod) == target.uid for pod in self.pods.values() if pod.uid != target.uid)

    def _launcher(self, vm: ModelVm, node: str, move: Move | None) -> Pod:
        job = move.name if move else ""
        return launcher_of(vm.name, vm.uid, node, job, self.ratio, self.counter)

    # ---- the planner -----------------------------------------------------------------------------------------

    def truth(self) -> Seen:
        return Seen(
            namespace=msgspec.json.encode({"limit": self.base}).decode() if self.base else "",
            rendering=RENDERINGS[self.ratio],
            migrations=tuple(self._cached(migration_of(move)) for move in self.moves.values()),
            instances=tuple(self._cached(instance_of(vm.name, vm.uid, vm.node, vm.state)) for vm in self.vms.values()),
            pods=tuple(pod for pod in self.pods.values() if not is_other(pod)),
            quotas=tuple(self._with_status(name) for name in self.quotas),
        )

    def _cached(self, obj: T) -> T:
        """The same object as before if nothing about it has changed, as in an informer's cache."""
        cached = self.cached.setdefault(obj.uid, obj)
        if cached != obj:
            cached = self.cached[obj.uid] = obj
        return cached

    def seen(self) -> Seen:
        return replace(self.truth(), **self.frozen)

    def _with_status(self, name: str) -> ResourceQuota:
        rq = self.quotas[name]
        used = {resource: str(amount) for resource, amount in self.used(name).items()}
        hard = dict(self.lagging.get(name, rq.hard))
        return msgspec.structs.replace(rq, status=msgspec.structs.replace(rq.status, hard=hard, used=used))

    def reconcile(self) -> list[Plan]:
        """The planner looks at every quota once, as the controller does: at most one patch each.

        A version that is not the newest is a conflict; the quota is read afresh, the rest as the watches show it.
        """
        snapshot, plans = self.seen(), []
        for rq in snapshot.quotas:
            decided = self._decide(snapshot, rq)
            if decided and rq.metadata.resource_version != self.quotas[rq.name].metadata.resource_version:
                rq = self._with_status(rq.name)
                decided = self._decide(snapshot, rq)
            if rq.metadata.resource_version == self.quotas[rq.name].metadata.resource_version:
                self.looked_at[rq.name] = rq
            if decided:
                self.patches += changes_more_than_a_touch(decided)
                self.write(rq.name, decided.hard, decided.annotations)
            plans.append(decided)
        return plans

    def _decide(self, snapshot: Seen, rq: ResourceQuota) -> Plan:
        memory = self.memories.get(rq.name, Timers())
        decided = plan(self._observed(snapshot, rq, memory), EXACT)
        if decided:
            again = plan(self._observed(snapshot, applied(rq, decided), decided.timers), EXACT)
            if changes_more_than_a_touch(again):
                raise BrokenInvariant(f"a second patch for one observation: {decided} then {again}")
        self.memories[rq.name] = decided.timers
        return decided

    def _observed(self, snapshot: Seen, rq: ResourceQuota, memory: Timers) -> Facts:
        return Facts(
            quota=rq,
            limits=snapshot.namespace,
            migrations=snapshot.migrations,
            instances={vmi.name: vmi for vmi in snapshot.instances},
            now=self.now,
            timers=memory,
            pods=snapshot.pods,
            rendering=snapshot.rendering,
            cache=self.cache,
        )

    # ---- the oracle ------------------------------------------------------------------------------------------

    def sides(self, name: str) -> Iterator[tuple[bool, Pod]]:
        """A VM's counted pods, and whether each is of the side that it lives in."""
        home = self.vms[name].launcher if name in self.vms else ""
        for pod in self.pods.values():
            if not pod.terminal and not is_other(pod) and self._vm_of(pod) == name:
                yield side_of(pod) == home, pod

    def beyond_one_side(self, name: str) -> ResourceList:
        """Returns the usage of a VM beyond the side that it lives in, as far as KubeVirt vouches for it."""
        return total(self.vouched_sides(name).values())

    def vouched_sides(self, name: str) -> Mapping[str, ResourceList]:
        """Returns the usage by the launcher's uid: of a target under way, and of the pods that a migration that is
        over, or the VMI, names."""
        usages: dict[str, ResourceList] = {}
        for at_home, pod in self.sides(name):
            uid = side_of(pod)
            if not at_home and self._is_vouched(name, self.pods.get(uid, pod)):
                usages[uid] = total([usages.get(uid, {}), usage(pod)])
        return usages

    def home(self, name: str) -> ResourceList:
        """Returns the usage of the side that a VM lives in."""
        return total(usage(pod) for at_home, pod in self.sides(name) if at_home)

    def _is_vouched(self, name: str, launcher: Pod) -> bool:
        vm = self.vms[name]
        if launcher.labels["kubevirt.io/created-by"] != vm.uid or vm.launcher not in self.pods:
            return False
        here = self.pods[vm.launcher].name
        if here in vm.state and launcher.name in vm.state:
            return True
        moves = [move for move in self.moves.values() if move.vm == name and move.vmi_uid == vm.uid]
        return any(
            (move.target == launcher.uid and (not move.over or move.handed_over))
            or (move.source == launcher.name and (move.over or vm.launcher == move.target))
            for move in moves
        )

    def to_come(self, move: Move) -> ResourceList:
        """Returns the usage of the pods that KubeVirt has yet to create for a migration."""
        vm = self.vms.get(move.vm)
        if vm is None or vm.uid != move.vmi_uid or move.abort or move.over or move.phase == "":
            return {}
        pods: list[Pod] = []
        target = self.pods.get(move.target) if move.target else None
        if move.phase == "Pending" and target is None:
            target = self._launcher(vm, "node-x", move)
            pods.append(target)
        if vm.name == "plugged" and move.phase == "Pending" and target and not self._attached(target):
            pods.append(attachment(target))
        return total(map(usage, pods))

    def _vm_of(self, pod: Pod) -> str:
        side = self.pods.get(side_of(pod), pod)
        return side.annotations.get("kubevirt.io/domain", "")
