"""Launcher and attachment pods as KubeVirt writes them: names, labels, annotations and resources as recorded.

What only a kubelet would look at (mounts, arguments, security contexts) is left out: quota does not count it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from kubeloop.api.core import Pod, PodSpec
from kubeloop.api.objects import owner_reference
from lab.kubevirt import names
from lab.kubevirt.objects import VirtualMachineInstance, VirtualMachineInstanceMigration
from pkg.api.kubevirt import KubeVirtConfiguration, Volume
from pkg.util import constants
from pkg.util.kubevirt.launcher import attachment_container
from pkg.util.kubevirt.rendering import Rendering

Body = dict[str, Any]

_IMAGE = "virt-launcher"
_DEFAULT_GRACE = 30
_EXTRA_GRACE = 30
"""Seconds that a launcher has beyond its guest's, KubeVirt's template service."""
_NOT_FOR_PODS = frozenset(
    {names.ANNOTATION_LAST_APPLIED, names.ANNOTATION_OBSERVED_API, names.ANNOTATION_OBSERVED_STORAGE}
)


def launcher_name(vmi: VirtualMachineInstance, migration: VirtualMachineInstanceMigration | None = None) -> str:
    """The launcher's name: one a VMI, and one a migration."""
    return names.generated_name(_base(vmi), migration.uid if migration else vmi.uid)


def launcher_pod(
    vmi: VirtualMachineInstance,
    containers: PodSpec,
    *,
    overhead: int,
    node: str | None,
    migration: VirtualMachineInstanceMigration | None = None,
    claim: str = "",
) -> Body:
    """The body of a launcher pod; of the target pod when there is a `migration`. `overhead` is bytes, `claim` the one
    of the VM's persistent state."""
    spec = vmi.spec
    body: Body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": launcher_name(vmi, migration),
            "generateName": names.generate_name(_base(vmi)),
            "namespace": vmi.namespace,
            "labels": _labels(vmi, node, migration),
            "annotations": _annotations(vmi, overhead, migration),
            "ownerReferences": [msgspec.to_builtins(owner_reference(vmi, controller=True))],
        },
        "spec": {
            "containers": [_container(container) for container in containers.containers],
            "initContainers": [_container(container) for container in containers.init_containers or ()],
            "restartPolicy": "Never",
            "hostname": names.host_name(spec.hostname or vmi.name),
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "readinessGates": [{"conditionType": "kubevirt.io/virtual-machine-unpaused"}],
            "nodeSelector": _node_selector(vmi, migration),
            "terminationGracePeriodSeconds": _grace(vmi) + _EXTRA_GRACE,
        },
    }
    optional = {
        "nodeName": node,
        "subdomain": spec.subdomain,
        "tolerations": spec.tolerations,
        "priorityClassName": spec.priority_class_name,
        "volumes": [{"name": "state", "persistentVolumeClaim": {"claimName": claim}}] if claim else None,
    }
    body["spec"].update({key: value for key, value in optional.items() if value})
    return body


def attachment_pod(
    launcher: Pod,
    volumes: Iterable[Volume],
    configuration: KubeVirtConfiguration,
    migration: VirtualMachineInstanceMigration | None = None,
) -> Body:
    """The body of the pod that plugs `volumes` into `launcher`, on its node and owned by it."""
    metadata: Body = {
        "name": names.generated_name("hp-volume-", launcher.uid),
        "generateName": "hp-volume-",
        "namespace": launcher.namespace,
        "labels": {constants.LABEL_APP: constants.APP_HOTPLUG_DISK},
        "ownerReferences": [msgspec.to_builtins(owner_reference(launcher, controller=True))],
    }
    if migration is not None:
        metadata["labels"][constants.LABEL_MIGRATION_JOB_UID] = migration.uid
        metadata["annotations"] = {names.ANNOTATION_MIGRATION_JOB_NAME: migration.name}
    spec = {
        "containers": [
            {
                **_container(attachment_container(Rendering(kubevirt=configuration))),
                "command": ["/usr/bin/container-disk"],
            }
        ],
        "nodeName": launcher.spec.node_name,
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 0,
        "volumes": [_claim(volume) for volume in volumes],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def hotplugged(vmi: VirtualMachineInstance) -> list[Volume]:
    """The volumes that were plugged into the running VM."""
    return [volume for volume in vmi.spec.volumes or () if _is_hotplugged(volume)]


def _base(vmi: VirtualMachineInstance) -> str:
    return f"virt-launcher-{vmi.name}-"


def _labels(
    vmi: VirtualMachineInstance, node: str | None, migration: VirtualMachineInstanceMigration | None
) -> dict[str, str]:
    labels = {
        **vmi.labels,
        constants.LABEL_APP: constants.APP_VIRT_LAUNCHER,
        constants.LABEL_CREATED_BY: vmi.uid,
        constants.LABEL_VM_NAME: names.host_name(vmi.spec.hostname or vmi.name),
        constants.LABEL_VMI_ID: names.instance_id(vmi.name),
    }
    # The VMI's own node name, if it has one already, is not the pod's.
    labels.pop(constants.LABEL_NODE_NAME, None)
    if node:
        labels[constants.LABEL_NODE_NAME] = node
    if migration is not None:
        labels[constants.LABEL_MIGRATION_JOB_UID] = migration.uid
    return labels


def _annotations(
    vmi: VirtualMachineInstance, overhead: int, migration: VirtualMachineInstanceMigration | None
) -> dict[str, str]:
    annotations = {
        **{key: value for key, value in vmi.annotations.items() if key not in _NOT_FOR_PODS},
        "kubevirt.io/domain": vmi.name,
        "kubevirt.io/migrationTransportUnix": "true",
        constants.ANNOTATION_MEMORY_OVERHEAD: str(overhead),
        "kubectl.kubernetes.io/default-container": "compute",
        "descheduler.alpha.kubernetes.io/request-evict-only": "",
        "istio.io/reroute-virtual-interfaces": "k6t-eth0",
        "traffic.sidecar.istio.io/kubevirtInterfaces": "k6t-eth0",
        "pre.hook.backup.velero.io/command": _freezer(vmi, "--freeze"),
        "pre.hook.backup.velero.io/container": "compute",
        "pre.hook.backup.velero.io/timeout": "60s",
        "post.hook.backup.velero.io/command": _freezer(vmi, "--unfreeze"),
        "post.hook.backup.velero.io/container": "compute",
    }
    if migration is not None:
        annotations[names.ANNOTATION_MIGRATION_JOB_NAME] = migration.name
    return annotations


def _freezer(vmi: VirtualMachineInstance, action: str) -> str:
    return json.dumps(["/usr/bin/virt-freezer", action, "--name", vmi.name, "--namespace", vmi.namespace])


def _node_selector(vmi: VirtualMachineInstance, migration: VirtualMachineInstanceMigration | None) -> Mapping[str, str]:
    added = (migration.spec.added_node_selector or {}) if migration else {}
    own = {"kubernetes.io/arch": vmi.spec.architecture or "amd64", "kubevirt.io/schedulable": "true"}
    return {**added, **own, **(vmi.spec.node_selector or {})}


def _grace(vmi: VirtualMachineInstance) -> int:
    seconds = vmi.spec.termination_grace_period_seconds
    return _DEFAULT_GRACE if seconds is None else seconds


def _container(container: Any) -> Body:
    built: Body = msgspec.to_builtins(container)
    return {"image": _IMAGE, **built}


def _claim(volume: Volume) -> Body:
    claim, data = volume.persistent_volume_claim, volume.data_volume
    # A DataVolume's claim has the DataVolume's name.
    name = (claim.claim_name if claim else "") or (data.name if data else "")
    return {"name": volume.name, "persistentVolumeClaim": {"claimName": name}}


def _is_hotplugged(volume: Volume) -> bool:
    sources = (volume.persistent_volume_claim, volume.data_volume)
    return any(source is not None and source.hotpluggable for source in sources)
