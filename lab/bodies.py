"""Bodies of the objects that the demo, scale runs, benches and tests create on a cluster, for any client."""

import itertools
import json
import time
from collections.abc import Mapping
from typing import Any

from kubeloop.testing.cluster.control_plane import fake_node
from lab.kubevirt.options import PACED_PHASES, PREFIX
from lab.rancher.project import CLUSTER
from pkg.util import constants
from pkg.util.constants import ANNOTATION_RANCHER_RESOURCE_QUOTA, LABEL_DEFAULT_RESOURCE_QUOTA, TRUE
from pkg.util.resourcequota.base import RESOURCE_NAMES

Raw = dict[str, Any]

_numbers = itertools.count(1)
_NODE_LABELS = {"kubevirt.io/schedulable": "true", "cpumanager": "true", "machine-type.node.kubevirt.io/q35": "true"}
_NODE_CAPACITY = {
    "hugepages-2Mi": "1Ti",
    "hugepages-1Gi": "1Ti",
    "devices.kubevirt.io/kvm": "1k",
    "devices.kubevirt.io/tun": "1k",
    "devices.kubevirt.io/vhost-net": "1k",
}


def new_name(prefix: str = "e2e") -> str:
    """A name that nothing on the cluster has."""
    return f"{prefix}-{int(time.time() * 1000) % 10**8}-{next(_numbers)}"


def quota_text(limits: Mapping[str, Any]) -> str:
    """Returns Rancher's annotation on a namespace; `limits` by Rancher's names."""
    return json.dumps({"limit": dict(limits)}, separators=(",", ":"))


def limit(hard: Mapping[str, Any]) -> Raw:
    """Returns Rancher's ResourceQuotaLimit for limits by the ResourceQuota's names."""
    by_resource = {name: rancher for rancher, name in RESOURCE_NAMES.items()}
    extended = {name: str(amount) for name, amount in hard.items() if name not in by_resource}
    fields = {by_resource[name]: str(amount) for name, amount in hard.items() if name in by_resource}
    return fields | ({"extended": extended} if extended else {})


def granting(hard: Mapping[str, Any]) -> str:
    """Returns Rancher's annotation on a namespace for limits by the ResourceQuota's names."""
    return quota_text(limit(hard))


def project(name: str, limits: Mapping[str, Any], default: Mapping[str, Any]) -> Raw:
    """A project of Rancher's with a quota, and the default of its namespaces; limits by the ResourceQuota's names."""
    spec = {
        "clusterName": CLUSTER,
        "displayName": name,
        "resourceQuota": {"limit": limit(limits)},
        "namespaceDefaultResourceQuota": {"limit": limit(default)},
    }
    return {"metadata": {"name": name}, "spec": spec}


def namespace(name: str, text: str, labels: Mapping[str, str] | None = None) -> Raw:
    annotations = {ANNOTATION_RANCHER_RESOURCE_QUOTA: text}
    return {"metadata": {"name": name, "annotations": annotations, "labels": dict(labels or {})}}


def default_quota(name: str, hard: Mapping[str, str]) -> Raw:
    metadata = {"name": name, "labels": {LABEL_DEFAULT_RESOURCE_QUOTA: TRUE}}
    return {"metadata": metadata, "spec": {"hard": dict(hard)}}


def node(name: str) -> Raw:
    """A Node for kwok to manage, with the labels that a launcher pod's nodeSelector asks for, and devices."""
    body = fake_node(name)
    body["metadata"]["annotations"]["kubevirt.io/heartbeat"] = "2026-01-01T00:00:00Z"
    body["metadata"]["labels"] |= _NODE_LABELS
    for amounts in ("capacity", "allocatable"):
        body["status"][amounts] |= _NODE_CAPACITY
    return body


def kubevirt(kind: str, name: str, spec: Mapping[str, Any], annotations: Mapping[str, str] | None = None) -> Raw:
    """An object of KubeVirt's."""
    metadata = {"name": name, "annotations": dict(annotations or {})}
    return {"apiVersion": "kubevirt.io/v1", "kind": kind, "metadata": metadata, "spec": dict(spec)}


def machine(
    name: str,
    template: Mapping[str, Any],
    *,
    strategy: str = "RerunOnFailure",
    annotations: Mapping[str, str] | None = None,
) -> Raw:
    """A VM; `template` is its VMI's spec."""
    spec = {"runStrategy": strategy, "template": {"spec": dict(template)}}
    return kubevirt("VirtualMachine", name, spec, annotations)


def limited(cpu: str = "2", memory: str = "4Gi") -> Raw:
    """The spec of a VMI of one core with these limits."""
    resources = {"limits": {"cpu": cpu, "memory": memory}, "requests": {"cpu": "125m", "memory": memory}}
    return {"domain": {"cpu": {"cores": 1}, "resources": resources, "devices": {}}}


def pod(cpu: str = "100m", memory: str = "10Mi", text: str = "", **metadata: Any) -> Raw:
    """A tenant's pod, of a generated name unless `metadata` has one."""
    container = {"name": "main", "image": "none", "resources": {"limits": {"cpu": cpu, "memory": memory}}}
    metadata = {"generateName": "tenant-", "labels": {"app": "tenant"}, **metadata}
    return {"metadata": metadata, "spec": {"containers": [{**container, "args": [text]}]}}


def migration(name: str, vm: str, **marks: Any) -> Raw:
    """A VM's migration; `marks` tell the stand-in how it goes on (`source_linger_seconds=2`)."""
    return kubevirt("VirtualMachineInstanceMigration", name, {"vmiName": vm}, stand_in(**marks))


def stand_in(**marks: Any) -> dict[str, str]:
    return {PREFIX + key.replace("_", "-"): str(value) for key, value in marks.items()}


def pace(early: float, running: float) -> str:
    """Returns `phase_seconds` of a migration: the seconds of each phase before Running, and of Running."""
    seconds = {**dict.fromkeys(PACED_PHASES, early), constants.PHASE_RUNNING: running}
    return ",".join(f"{phase}={length:g}" for phase, length in seconds.items())
