"""API objects for tests, as the API server hands them out. Everything has the seed's values unless a test says
otherwise: namespace limits 3000m / 5000Mi, a VM with limits 2 / 4Gi and requests 2730Mi, its launcher pod at ratio 1.5.
"""

import dataclasses
import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from kubeloop.api.core import LimitRange, Namespace, PersistentVolumeClaim, Pod, ResourceQuota
from kubeloop.api.meta import RawQuantity
from pkg.api.kubevirt import (
    TPM,
    KubeVirtConfiguration,
    MigrationState,
    Move,
    VirtualMachine,
    VirtualMachineInstance,
    VirtualMachineInstanceMigration,
    VolumeStatus,
)
from pkg.api.kubevirt import PersistentVolumeClaimInfo as ClaimInfo
from pkg.util import constants
from pkg.util.kubevirt.launcher import attachment_container, render_containers
from pkg.util.kubevirt.overhead import overhead_of
from pkg.util.kubevirt.profiles import DEFAULT_PROFILE, Profile
from pkg.util.kubevirt.rendering import Rendering

BASE = '{"limit":{"limitsCpu":"3000m","limitsMemory":"5000Mi"}}'
Resources = Mapping[str, RawQuantity]
"""A ResourceList as a test writes it."""

HARD = {"limits.cpu": "3", "limits.memory": "5000Mi"}
ENTRY = '{"limits.cpu":"2","limits.memory":"4737464313"}'
RAISED = {"limits.cpu": "5", "limits.memory": "9980344313"}
POD_ENTRY = '{"limits.cpu":"2015m","limits.memory":"4797464313"}'
"""What quota counts of one launcher pod of the seed's VM."""
ONE_MORE = {"limits.cpu": "5015m", "limits.memory": str(5000 * 1024**2 + 4797464313)}
TWO_MORE = {"limits.cpu": "7030m", "limits.memory": str(5000 * 1024**2 + 2 * 4797464313)}
"""HARD with room for so many pods."""
CPU = {"cores": 2, "sockets": 1, "threads": 1}
LIMITS = {"cpu": "2", "memory": "4Gi"}
SEED_DOMAIN: dict[str, Any] = {
    "cpu": CPU,
    "devices": {"interfaces": [{"name": "default", "masquerade": {}}]},
    "memory": {"guest": "3996Mi"},
    "resources": {"limits": LIMITS, "requests": {"cpu": "125m", "memory": "2730Mi"}},
}
"""The seed's VM as the cluster has it."""

DEFAULT_LABELS = {constants.LABEL_DEFAULT_RESOURCE_QUOTA: "true"}
RESYNC = constants.ANNOTATION_RESYNC_NEEDED
SKIP = constants.ANNOTATION_SKIP_AUTO_SCALING
OWNER = constants.ANNOTATION_OWNER
COMPENSATION = constants.ANNOTATION_MIGRATING_COMPENSATION
MARKS = {SKIP: "true", OWNER: "headroom"}
"""What takeover leaves on every quota that it takes."""
LONG_NAME = "a-very-long-name-exceeds-the-63-length-and-it-reports-error-in-old-version"
EARLIER = "2026-01-01T00:00:00Z"

BOTH = frozenset({"cpu", "memory"})
"""What the namespace's quotas limit, unless a test says otherwise."""
AT_1_5 = Rendering("1.5", quota_limits=BOTH, harvester_ratio="1.5")
AT_4_5 = Rendering("4.5", quota_limits=BOTH, harvester_ratio="4.5")

T = TypeVar("T")
_numbers = itertools.count(1)


def build(
    kind: type[T],
    name: str,
    spec: Mapping[str, Any] | None = None,
    status: Mapping[str, Any] | None = None,
    **metadata: Any,
) -> T:
    """An object, in namespace ns1 unless told otherwise, whose uid follows from its name. `deleting`: it is going."""
    if metadata.pop("deleting", False):
        metadata["deletionTimestamp"] = EARLIER
    body = {
        "metadata": {"name": name, "namespace": "ns1", "uid": uid_of(name), **metadata},
        "spec": spec or {},
        "status": status or {},
    }
    return msgspec.convert(body, kind)


def uid_of(name: str) -> str:
    """The uid that `build` gives an object of that name."""
    return f"uid-{name}"


def by_uid(vm_name: str = "vm1") -> str:
    """The key of a VM's entry as Harvester ≥ 1.4.2 writes it."""
    return f"harvesterhci.io/migratingUID-{uid_of(vm_name)}"


def by_name(vm_name: str = "vm1") -> str:
    """The key of a VM's entry as Harvester ≤ 1.4.1 writes it."""
    return f"harvesterhci.io/migrating-{vm_name}"


def annotated_namespace(annotation: str | None = BASE, name: str = "ns1", *, deleting: bool = False) -> Namespace:
    annotations = {} if annotation is None else {constants.ANNOTATION_RANCHER_RESOURCE_QUOTA: annotation}
    return build(Namespace, name, namespace="", annotations=annotations, deleting=deleting)


def quota(
    hard: Resources | None = None,
    annotations: Mapping[str, str] | None = None,
    *,
    name: str = "default-abc",
    used: Resources | None = None,
    labels: Mapping[str, str] | None = None,
    deleting: bool = False,
    version: str = "100",
) -> ResourceQuota:
    return build(
        ResourceQuota,
        name,
        {"hard": dict(HARD if hard is None else hard)},
        {"used": dict(used or {})},
        resourceVersion=version,
        labels=dict(DEFAULT_LABELS if labels is None else labels),
        annotations=dict(annotations or {}),
        deleting=deleting,
    )


def limit_range(default: Resources, request: Resources | None = None) -> LimitRange:
    """A LimitRange with container defaults."""
    item = {"type": "Container", "default": default, "defaultRequest": request or {}}
    return build(LimitRange, "limits", {"limits": [item]})


def vmi(
    name: str = "vm1",
    *,
    limits: Resources | None = None,
    requests: Resources | None = None,
    annotations: Mapping[str, str] | None = None,
    **status: Any,
) -> VirtualMachineInstance:
    resources = {
        "limits": LIMITS if limits is None else limits,
        "requests": {"memory": "2730Mi"} if requests is None else requests,
    }
    spec = {"domain": {"cpu": CPU, "resources": resources}}
    return build(VirtualMachineInstance, name, spec, {"phase": "Running"} | status, annotations=dict(annotations or {}))


def running_vmi(vm: str = "vm1", node: str = "node-1", **options: Any) -> VirtualMachineInstance:
    return vmi(vm, nodeName=node, **options)


def machine(domain: Mapping[str, Any], name: str = "vm1", node: str = "node-1", **spec: Any) -> VirtualMachineInstance:
    """A running VMI by its domain and further fields of its spec."""
    status = {"nodeName": node, "phase": "Running"}
    return build(VirtualMachineInstance, name, {"domain": domain, **spec}, status)


def plugged(node: str = "node-1") -> VirtualMachineInstance:
    """The seed's VM with a hotplugged volume, which an attachment pod beside its launcher has."""
    disk = {"name": "d", "persistentVolumeClaim": {"claimName": "c", "hotpluggable": True}}
    resources = {"limits": {"cpu": "2", "memory": "4Gi"}, "requests": {"memory": "2730Mi"}}
    return machine({"resources": resources}, node=node, volumes=[disk])


def vm(
    *,
    spec: Mapping[str, Any] | None = None,
    domain: Mapping[str, Any] | None = None,
    status: str = "Starting",
    **metadata: Any,
) -> VirtualMachine:
    """A VM that is about to start."""
    resources = {"limits": LIMITS, "requests": {"cpu": "125m", "memory": "2730Mi"}}
    template = {"spec": {"domain": {"cpu": {"cores": 2}, "resources": resources, **(domain or {})}}}
    strategy = {"runStrategy": "Always"} if spec is None else spec
    return build(VirtualMachine, "vm1", {"template": template, **strategy}, {"printableStatus": status}, **metadata)


def vmim(
    phase: str | None = "Pending",
    vm: str = "vm1",
    *,
    refused: bool = False,
    abort: bool = False,
    name: str = "",
    created: str = EARLIER,
    deleting: bool = False,
) -> VirtualMachineInstanceMigration:
    conditions = [
        {"type": kind, "status": "True"}
        for kind, served in (
            (constants.CONDITION_REJECTED_BY_RESOURCE_QUOTA, refused),
            (constants.CONDITION_ABORT_REQUESTED, abort),
        )
        if served
    ]
    return build(
        VirtualMachineInstanceMigration,
        name or f"migration-of-{vm}",
        {"vmiName": vm},
        {"phase": phase, "conditions": conditions},
        creationTimestamp=created,
        deleting=deleting,
    )


def pod(
    cpu: str = "100m",
    memory: str = "10Mi",
    *,
    name: str = "",
    phase: str = "Running",
    node: str = "",
    conditions: Sequence[Mapping[str, Any]] = (),
    **metadata: Any,
) -> Pod:
    """A pod of one container with these limits."""
    containers = [{"name": "main", "resources": {"limits": {"cpu": cpu, "memory": memory}}}]
    name = name or f"pod-{next(_numbers)}"
    status = {"phase": phase, "conditions": list(conditions)}
    return build(Pod, name, {"containers": containers, "nodeName": node}, status, **metadata)


def controlled_by(kind: str, name: str, uid: str) -> list[dict[str, Any]]:
    """The ownerReferences of what a controller made for that object."""
    return [{"kind": kind, "name": name, "uid": uid, "controller": True}]


def plain_launcher(vm: str = "vm1", *, target_of: str = "", node: str = "node1", phase: str = "Running") -> Pod:
    """A VM's pod that counts 2 / 4Gi; `target_of` is the uid of the migration that made it."""
    labels = {
        constants.LABEL_APP: constants.APP_VIRT_LAUNCHER,
        constants.LABEL_CREATED_BY: uid_of(vm),
        constants.LABEL_VM_NAME: vm,
    }
    if target_of:
        labels[constants.LABEL_MIGRATION_JOB_UID] = target_of
    return pod(
        *LIMITS.values(),
        name=f"virt-launcher-{vm}-{node}",
        node=node,
        phase=phase,
        labels=labels,
        ownerReferences=controlled_by("VirtualMachineInstance", vm, uid_of(vm)),
        creationTimestamp=EARLIER,
    )


def launcher(
    instance: VirtualMachineInstance | None = None,
    *,
    node: str = "node-1",
    migration: VirtualMachineInstanceMigration | None = None,
    rendering: Rendering = AT_1_5,
    profile: Profile = DEFAULT_PROFILE,
    overhead: int | None = None,
    phase: str = "Running",
    created: str = EARLIER,
    limited: Collection[str] = BOTH,
) -> Pod:
    """The launcher pod of a VMI (vm1's if not given), as KubeVirt of `profile` renders it.

    `limited`: what a quota of the namespace limits, for KubeVirt then sets limits that the VMI has not.
    """
    instance = instance or vmi()
    rendering = dataclasses.replace(rendering, profile=profile, quota_limits=frozenset(limited))
    overhead = overhead_of(instance, rendering) if overhead is None else overhead
    containers = render_containers(instance, rendering, overhead=overhead)
    job = migration.uid if migration else ""
    labels = {
        "kubevirt.io": "virt-launcher",
        "kubevirt.io/created-by": instance.uid,
        "vm.kubevirt.io/name": instance.name,
    }
    annotations = {"kubevirt.io/domain": instance.name, "kubevirt.io/memory-overhead-bytes": str(overhead)}
    if job:
        labels["kubevirt.io/migrationJobUID"] = job
    spec = {
        "containers": msgspec.to_builtins(containers.containers),
        "initContainers": msgspec.to_builtins(containers.init_containers),
        "nodeName": node,
        "priorityClassName": instance.spec.priority_class_name,
    }
    return build(
        Pod,
        f"virt-launcher-{instance.name}-{job or 'source'}",
        spec,
        {"phase": phase},
        labels=labels,
        annotations=annotations,
        ownerReferences=controlled_by("VirtualMachineInstance", instance.name, instance.uid),
        creationTimestamp=created,
    )


def attachment(pod: Pod, kubevirt: KubeVirtConfiguration | None = None, phase: str = "Running") -> Pod:
    """The attachment pod of hotplugged volumes beside a launcher pod."""
    container = attachment_container(Rendering(kubevirt=kubevirt or KubeVirtConfiguration()))
    return build(
        Pod,
        f"hp-volume-{pod.name}",
        {"containers": [msgspec.to_builtins(container)]},
        {"phase": phase},
        uid=f"uid-hp-{pod.uid}",
        labels={"kubevirt.io": "hotplug-disk"},
        ownerReferences=controlled_by("Pod", pod.name, pod.uid),
    )


def ended(pod: Pod, phase: str = "Succeeded") -> Pod:
    """The same pod when it is over."""
    return msgspec.structs.replace(pod, status=msgspec.structs.replace(pod.status, phase=phase))


def limits_text(cpu: str = "", memory: str = "", **amounts: str) -> str:
    """Rancher's annotation that grants this."""
    texts = {"limitsCpu": cpu, "limitsMemory": memory, **amounts}
    return msgspec.json.encode({"limit": {name: text for name, text in texts.items() if text}}).decode()


def claim(
    name: str, size: str = "10Mi", *, storage_class: str = "local", mode: str = "ReadWriteOnce", created: str = EARLIER
) -> PersistentVolumeClaim:
    """A PersistentVolumeClaim that is bound."""
    spec = {"resources": {"requests": {"storage": size}}, "storageClassName": storage_class}
    return build(PersistentVolumeClaim, name, spec, {"accessModes": [mode]}, creationTimestamp=created)


def with_state(instance: VirtualMachineInstance, claim: str = "state-1") -> VirtualMachineInstance:
    """The VMI with a persistent TPM and the claim that KubeVirt says it uses."""
    devices = msgspec.structs.replace(instance.spec.domain.devices, tpm=TPM(persistent=True))
    domain = msgspec.structs.replace(instance.spec.domain, devices=devices)
    volume = VolumeStatus(name="persistent-state-for-this-vm", persistent_volume_claim_info=ClaimInfo(claim_name=claim))
    return msgspec.structs.replace(
        instance,
        spec=msgspec.structs.replace(instance.spec, domain=domain),
        status=msgspec.structs.replace(instance.status, volume_status=[volume]),
    )


def moving(instance: VirtualMachineInstance, source: str = "old", destination: str = "new") -> VirtualMachineInstance:
    """The VMI with a disk that KubeVirt says moves to another claim."""
    volume = Move("root", ClaimInfo(source), ClaimInfo(destination))
    status = msgspec.structs.replace(instance.status, migrated_volumes=[volume])
    return msgspec.structs.replace(instance, status=status)


def between_claims(
    migration: VirtualMachineInstanceMigration, target: str = "state-2"
) -> VirtualMachineInstanceMigration:
    """The migration with the claims that KubeVirt names in its status."""
    state = msgspec.structs.replace(
        migration.status.migration_state or MigrationState(),
        source_persistent_state_claim="state-1",
        target_persistent_state_claim=target,
    )
    return msgspec.structs.replace(migration, status=msgspec.structs.replace(migration.status, migration_state=state))
