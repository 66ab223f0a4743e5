"""Launcher and attachment pods as KubeVirt writes them: names, labels, annotations and resources as recorded.

What only a kubelet would look at (mounts, arguments, security contexts) is left out: quota does not count it.
"""

import hashlib
import json
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from kubeloop.api.core import Pod
from kubeloop.api.objects import owner_reference
from lab.kubevirt.objects import ANNOTATION_MIGRATION_JOB_NAME, VirtualMachineInstance, VirtualMachineInstanceMigration
from pkg.api.kubevirt import Volume
from pkg.util import constants
from pkg.util.kubevirt.launcher import attachment_container, render_containers
from pkg.util.kubevirt.overhead import overhead_of
from pkg.util.kubevirt.rendering import Rendering

Body = dict[str, Any]

_SUFFIX_LETTERS: Final = "bcdfghjklmnpqrstvwxz2456789"
"""apimachinery's alphabet for generated names: no vowels, no words."""
_MAX_GENERATED_BASE: Final = 58
_MAX_LABEL: Final = 63
_IMAGE: Final = "virt-launcher"
COMPUTE: Final = "compute"
"""The container with the guest."""
_DEFAULT_GRACE = 30
_EXTRA_GRACE = 30
"""Seconds that a launcher has beyond its guest's, KubeVirt's template service."""
_NOT_FOR_PODS = frozenset(
    {
        "kubectl.kubernetes.io/last-applied-configuration",
        "kubevirt.io/latest-observed-api-version",
        "kubevirt.io/storage-observed-api-version",
    }
)


def generated_names(base: str, uid: str) -> dict[str, str]:
    """Returns names for an object's metadata: `base` as the API server truncates it (apiserver's names/generate.go),
    and a name of that and five characters that follow from `uid`.

    The API server would draw them; drawn from the uid, a pod that was created just before a crash or a lost answer is
    found again by its name instead of being created twice.
    """
    number = int.from_bytes(hashlib.sha256(uid.encode()).digest()[:8], "big")
    base, suffix = base[:_MAX_GENERATED_BASE], ""
    for _ in range(5):
        number, index = divmod(number, len(_SUFFIX_LETTERS))
        suffix += _SUFFIX_LETTERS[index]
    return {"generateName": base, "name": base + suffix}


def vmi_id(name: str) -> str:
    """A VMI's name as a label value: names longer than 63 characters end in a hash (KubeVirt 1.7)."""
    if len(name) <= _MAX_LABEL:
        return name
    digest = hashlib.sha1(name.encode(), usedforsecurity=False).hexdigest()[:8]
    return f"{name[: _MAX_LABEL - 9]}-{digest}"


def host_name(name: str) -> str:
    """A VMI's name as a pod's hostname: its first part, 63 characters at most (KubeVirt's SanitizeHostname)."""
    return name.split(".", 1)[0][:_MAX_LABEL].rstrip("-")


def launcher_pod(
    vmi: VirtualMachineInstance,
    rendering: Rendering,
    node: str | None,
    migration: VirtualMachineInstanceMigration | None = None,
    claim: str = "",
    image: str = _IMAGE,
) -> Body:
    """The body of a launcher pod, or of a `migration`'s target; `claim` is that of the VM's persistent state."""
    spec, grace, overhead = vmi.spec, vmi.spec.termination_grace_period_seconds, overhead_of(vmi, rendering)
    containers = render_containers(vmi, rendering, overhead=overhead, digests_known=migration is not None)
    optional = {
        "nodeName": node,
        "subdomain": spec.subdomain,
        "tolerations": spec.tolerations,
        "priorityClassName": spec.priority_class_name,
        "volumes": claim and [{"name": "state", "persistentVolumeClaim": {"claimName": claim}}],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": _metadata(vmi, overhead, node, migration),
        "spec": {
            "containers": [_container(container, image) for container in containers.containers],
            "initContainers": [_container(container, image) for container in containers.init_containers or ()],
            "restartPolicy": "Never",
            "hostname": host_name(spec.hostname or vmi.name),
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "readinessGates": [{"conditionType": "kubevirt.io/virtual-machine-unpaused"}],
            "nodeSelector": {
                **((migration.spec.added_node_selector or {}) if migration else {}),
                "kubernetes.io/arch": spec.architecture or "amd64",
                "kubevirt.io/schedulable": "true",
                **(spec.node_selector or {}),
            },
            "terminationGracePeriodSeconds": _EXTRA_GRACE + (_DEFAULT_GRACE if grace is None else grace),
            **{key: value for key, value in optional.items() if value},
        },
    }


def attachment_pod(
    launcher: Pod,
    volumes: Iterable[Volume],
    rendering: Rendering,
    migration: VirtualMachineInstanceMigration | None = None,
) -> Body:
    """The body of the pod that plugs `volumes` into `launcher`, on its node and owned by it."""
    marks = {constants.LABEL_MIGRATION_JOB_UID: migration.uid} if migration else {}
    metadata = {
        **generated_names("hp-volume-", launcher.uid),
        "namespace": launcher.namespace,
        "labels": {constants.LABEL_APP: constants.APP_HOTPLUG_DISK, **marks},
        "annotations": {ANNOTATION_MIGRATION_JOB_NAME: migration.name} if migration else {},
        "ownerReferences": [msgspec.to_builtins(owner_reference(launcher, controller=True))],
    }
    spec = {
        "containers": [{**_container(attachment_container(rendering)), "command": ["/usr/bin/container-disk"]}],
        "nodeName": launcher.spec.node_name,
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 0,
        "volumes": [_claim(volume) for volume in volumes],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def hotplugged_volumes(vmi: VirtualMachineInstance) -> list[Volume]:
    """The volumes that were plugged into the running VM."""
    return [
        volume
        for volume in vmi.spec.volumes or ()
        if any(source.hotpluggable for source in (volume.persistent_volume_claim, volume.data_volume))
    ]


def _metadata(
    vmi: VirtualMachineInstance, overhead: int, node: str | None, migration: VirtualMachineInstanceMigration | None
) -> Body:
    # The VMI's own node name, if it has one already, is not the pod's.
    labels = {key: value for key, value in vmi.labels.items() if key != constants.LABEL_NODE_NAME}
    labels |= {
        constants.LABEL_APP: constants.APP_VIRT_LAUNCHER,
        constants.LABEL_CREATED_BY: vmi.uid,
        constants.LABEL_VM_NAME: host_name(vmi.spec.hostname or vmi.name),
        "vmi.kubevirt.io/id": vmi_id(vmi.name),
        **({constants.LABEL_NODE_NAME: node} if node else {}),
        **({constants.LABEL_MIGRATION_JOB_UID: migration.uid} if migration else {}),
    }
    annotations = {key: value for key, value in vmi.annotations.items() if key not in _NOT_FOR_PODS}
    annotations |= {
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
        **({ANNOTATION_MIGRATION_JOB_NAME: migration.name} if migration else {}),
    }
    return {
        **generated_names(f"virt-launcher-{vmi.name}-", (migration or vmi).uid),
        "namespace": vmi.namespace,
        "labels": labels,
        "annotations": annotations,
        "ownerReferences": [msgspec.to_builtins(owner_reference(vmi, controller=True))],
    }


def _freezer(vmi: VirtualMachineInstance, action: str) -> str:
    return json.dumps(["/usr/bin/virt-freezer", action, "--name", vmi.name, "--namespace", vmi.namespace])


def _container(container: Any, image: str = _IMAGE) -> Body:
    body: Body = msgspec.to_builtins(container)
    return {"image": image, **body}


def _claim(volume: Volume) -> Body:
    # A DataVolume's claim has the DataVolume's name.
    name = volume.persistent_volume_claim.claim_name or volume.data_volume.name
    return {"name": volume.name, "persistentVolumeClaim": {"claimName": name}}
