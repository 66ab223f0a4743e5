"""Launcher and attachment pods in memory, as KubeVirt makes them for a VMI, and a namespace that has some."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from pkg.api.core import LimitRange, Pod, ResourceQuota
from pkg.api.kubevirt import (
    KubeVirtConfiguration,
    MigrationState,
    VirtualMachineInstance,
    VirtualMachineInstanceMigration,
)
from pkg.api.meta import ObjectMeta, OwnerReference, RawResourceList
from pkg.util.kubevirt.launcher import attachment_container, render_containers
from pkg.util.kubevirt.overhead import memory_overhead
from pkg.util.kubevirt.profiles import DEFAULT_PROFILE, Profile
from pkg.util.kubevirt.rendering import Rendering
from pkg.util.kubevirt.target import usage_of
from pkg.util.resourcequota.model import Memory, Observed, Plan
from pkg.util.resourcequota.planner import plan
from pkg.util.resourcequota.policy import EstimateKind, Mode, Policy
from tests.pkg.util.resourcequota.world import applied, observed, uid_of, vmi

EXACT = Policy(Mode.TAKEOVER, EstimateKind.EXACT)
RECORDED = pathlib.Path(__file__).parents[3] / "vectors" / "recorded"
NO_COMPUTE_LIMITS: frozenset[str] = frozenset()
BOTH = frozenset({"cpu", "memory"})
"""What the namespace's quotas limit, unless a test says otherwise."""
AT_1_5 = Rendering("1.5", quota_limits=BOTH)
AT_4_5 = Rendering("4.5", quota_limits=BOTH)
ENDED = ("Succeeded", "Failed")
HANDED_OVER = ("PreparingTarget", "TargetReady", "Running", *ENDED)


def recorded(name: str, kind: type[Any]) -> Any:
    """A recorded object by the end of its file's name."""
    (path,) = RECORDED.glob(f"*{name}.json")
    return msgspec.json.decode(path.read_bytes(), type=kind)


def launcher(
    instance: VirtualMachineInstance | None = None,
    *,
    node: str = "node-1",
    migration: VirtualMachineInstanceMigration | None = None,
    rendering: Rendering = AT_1_5,
    profile: Profile = DEFAULT_PROFILE,
    overhead: int | None = None,
    phase: str = "Running",
    created: str = "2026-01-01T00:00:00Z",
    annotated: bool = True,
    limited: Collection[str] = BOTH,
) -> Pod:
    """The launcher pod of a VMI (vm1's if not given), as KubeVirt of `profile` renders it.

    `limited`: what a quota of the namespace limits, for KubeVirt then sets limits that the VMI has not.
    """
    instance = instance or vmi()
    if overhead is None:
        overhead = memory_overhead(
            instance.spec,
            ratio=rendering.ratio,
            profile=profile,
            plugins=rendering.kubevirt.binding_plugins,
        )
    containers = render_containers(
        instance,
        dataclasses.replace(rendering, profile=profile, quota_limits=frozenset(limited)),
        overhead=overhead,
    )
    job = migration.uid if migration else ""
    labels = {
        "kubevirt.io": "virt-launcher",
        "kubevirt.io/created-by": instance.uid,
        "vm.kubevirt.io/name": instance.name,
    }
    annotations = {"kubevirt.io/domain": instance.name}
    if job:
        labels["kubevirt.io/migrationJobUID"] = job
    if annotated:
        annotations["kubevirt.io/memory-overhead-bytes"] = str(overhead)
    owner = OwnerReference(
        kind="VirtualMachineInstance", name=instance.name, uid=instance.uid, controller=True
    )
    name = f"virt-launcher-{instance.name}-{job or 'source'}"
    metadata = ObjectMeta(
        name=name,
        namespace="ns1",
        uid=f"uid-{name}",
        labels=labels,
        annotations=annotations,
        owner_references=[owner],
        creation_timestamp=created,
    )
    spec: dict[str, Any] = {
        "containers": msgspec.to_builtins(containers.containers),
        "initContainers": msgspec.to_builtins(containers.init_containers),
        "nodeName": node,
        "priorityClassName": instance.spec.priority_class_name,
    }
    pod: Pod = msgspec.convert({"spec": spec, "status": {"phase": phase}}, Pod)
    return msgspec.structs.replace(pod, metadata=metadata)


def attachment(of: Pod, kubevirt: KubeVirtConfiguration | None = None, phase: str = "Running") -> Pod:
    """The attachment pod of hotplugged volumes beside a launcher pod."""
    container = attachment_container(Rendering(kubevirt=kubevirt or KubeVirtConfiguration()))
    metadata = ObjectMeta(
        name=f"hp-volume-{of.name}",
        namespace="ns1",
        uid=f"uid-hp-{of.uid}",
        labels={"kubevirt.io": "hotplug-disk"},
        owner_references=[OwnerReference(kind="Pod", name=of.name, uid=of.uid, controller=True)],
    )
    body = {"spec": {"containers": [msgspec.to_builtins(container)]}, "status": {"phase": phase}}
    return msgspec.structs.replace(msgspec.convert(body, Pod), metadata=metadata)


def ended(pod: Pod, phase: str = "Succeeded") -> Pod:
    """The same pod when it is over."""
    return msgspec.structs.replace(pod, status=msgspec.structs.replace(pod.status, phase=phase))


def machine(domain: Mapping[str, Any], name: str = "vm1", **more: Any) -> VirtualMachineInstance:
    """A VMI by its domain; further fields of its spec, and `node`."""
    node = more.pop("node", "node-1")
    body = {
        "metadata": {"name": name, "namespace": "ns1", "uid": uid_of(name)},
        "spec": {"domain": domain, **more},
        "status": {"nodeName": node, "phase": "Running"},
    }
    return msgspec.convert(body, VirtualMachineInstance)


def limit_range(default: RawResourceList, request: RawResourceList | None = None) -> LimitRange:
    """A LimitRange with container defaults."""
    item = {"type": "Container", "default": default, "defaultRequest": request or {}}
    return msgspec.convert({"spec": {"limits": [item]}}, LimitRange)


def namespace(
    quota: ResourceQuota,
    migrations: Sequence[VirtualMachineInstanceMigration] = (),
    pods: Iterable[Pod] = (),
    instances: Iterable[VirtualMachineInstance] | None = None,
    *,
    rendering: Rendering = AT_1_5,
    max_extra: str = "",
    **more: Any,
) -> Observed:
    """What a decision looks at; without `instances` each VM of a migration is there, on node-1.

    The quota's status.used is what it charges for the pods, unless the quota has one.
    """
    pods = list(pods)
    if instances is None:
        names = {m.spec.vmi_name for m in migrations}
        instances = [vmi(name, nodeName="node-1") for name in sorted(names)]
    instances = list(instances)
    migrations = [named(migration, pods, instances) for migration in migrations]
    if not quota.used:
        quota = charged(quota, pods)
    seen = observed(quota, migrations, instances, ratio=rendering.ratio or "1", **more)
    return dataclasses.replace(seen, pods=pods, rendering=rendering, max_extra=max_extra)


def named(
    migration: VirtualMachineInstanceMigration,
    pods: Sequence[Pod],
    instances: Sequence[VirtualMachineInstance],
) -> VirtualMachineInstanceMigration:
    """The migration with the pods that KubeVirt names in its status: the source from Pending on, the target once it has
    been handed over; as it is if it names any."""
    vmi = next((vmi for vmi in instances if vmi.name == migration.spec.vmi_name), None)
    phase = migration.phase
    if not phase or (migration.status.migration_state and migration.status.migration_state.source_pod):
        return migration

    def is_its(pod: Pod) -> bool:
        owners = pod.metadata.owner_references or ()
        return any(
            owner.kind == "VirtualMachineInstance" and owner.name == migration.spec.vmi_name
            for owner in owners
        )

    launchers = [pod for pod in pods if is_its(pod)]
    targets = [p for p in launchers if p.labels.get("kubevirt.io/migrationJobUID") == migration.uid]
    node = vmi.status.node_name if vmi else None
    others = [
        p for p in launchers if p not in targets and (phase in ENDED or p.spec.node_name == node or targets)
    ]
    state = msgspec.to_builtins(migration.status.migration_state or MigrationState())
    if others:
        state["sourcePod"] = others[0].name
    if targets and phase in HANDED_OVER:
        state |= {"targetPod": targets[0].name, "targetNode": targets[0].spec.node_name}
    status = msgspec.structs.replace(
        migration.status, migration_state=msgspec.convert(state, MigrationState) if state else None
    )
    return msgspec.structs.replace(migration, status=status)


def charged(quota: ResourceQuota, pods: Iterable[Pod]) -> ResourceQuota:
    """The quota with status.used as the quota controller sets it."""
    usage = usage_of(pods, quota.spec)
    used: RawResourceList = {name: str(usage[name]) if name in usage else "0" for name in quota.hard}
    return msgspec.structs.replace(quota, status=msgspec.structs.replace(quota.status, used=used))


def remembering(seen: Observed, memory: Memory, now: float) -> Observed:
    """The same namespace later, with what the last decision remembered."""
    return dataclasses.replace(seen, memory=memory, now=now)


def entry(text: str | None) -> dict[str, str]:
    """An entry annotation's value as the API server keeps it."""
    assert text is not None
    value: dict[str, str] = json.loads(text)
    return value


def after(seen: Observed, policy: Policy = EXACT) -> tuple[ResourceQuota, Plan]:
    """The quota when nothing is left to do, and the one patch that brought it there.

    A second patch for the same observation is a failure.
    """
    policy = dataclasses.replace(policy, settle=0.0)
    made = plan(seen, policy)
    done = applied(seen.quota, made)
    again = plan(dataclasses.replace(seen, quota=done, memory=made.memory), policy)
    assert not again, f"the plan applied gives another plan: {again}"
    return done, made
