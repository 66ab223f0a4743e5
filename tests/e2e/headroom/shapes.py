"""VMs of many shapes: what makes a launcher pod count more, less, or under other names."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kubeloop.api.registry import LIMIT_RANGES
from lab.bodies import kubevirt
from lab.namespace import Namespace
from tests.objects import SEED_DOMAIN

SIDECARS = "hooks.kubevirt.io/hookSidecars"
LIMITS = ("limits.cpu", "limits.memory")
COUNTED = (
    *LIMITS,
    "requests.cpu",
    "requests.memory",
    "requests.ephemeral-storage",
    "pods",
    "count/pods",
    "requests.devices.kubevirt.io/kvm",
)
"""What quota counts of every launcher."""
OVERHEAD = ("limits.memory", "requests.memory", "memory")
"""Names under which the overhead counts."""

PLUGGED = {"name": "extra", "persistentVolumeClaim": {"claimName": "extra", "hotpluggable": True}}
SMALL_CONTAINERS = {
    "type": "Container",
    "default": {"cpu": "50m", "memory": "32Mi"},
    "defaultRequest": {"cpu": "7m", "memory": "17Mi"},
}
"""A LimitRange for containers that say nothing themselves, as a hook sidecar does."""


@dataclass(frozen=True)
class Shape:
    """A kind of VM. `domain` and `spec` are laid over the seed's; `names` are counted beside COUNTED."""

    domain: Mapping[str, Any] = field(default_factory=dict)
    spec: Mapping[str, Any] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    limit_range: Mapping[str, Any] | None = None
    steps: bool = False
    """The pods of a side come and go one by one."""

    def body(self, name: str) -> dict[str, Any]:
        """The VMI."""
        devices = {**SEED_DOMAIN["devices"], **self.domain.get("devices", {})}
        spec = {"domain": {**SEED_DOMAIN, **self.domain, "devices": devices}, **self.spec}
        return kubevirt("VirtualMachineInstance", name, spec, self.annotations)


def _devices(**devices: Any) -> dict[str, Any]:
    return {"devices": devices}


SHAPES: Mapping[str, Shape] = {
    "the seed's VM": Shape(),
    "CPUs of its own": Shape(
        {
            "cpu": {"cores": 2, "sockets": 1, "threads": 1, "dedicatedCpuPlacement": True},
            "memory": {"guest": "2Gi"},
            "resources": {"limits": {"cpu": "2", "memory": "2Gi"}, "requests": {"cpu": "2", "memory": "2Gi"}},
        }
    ),
    "huge pages": Shape(
        {
            "memory": {"guest": "2Gi", "hugepages": {"pageSize": "2Mi"}},
            "resources": {"limits": {"cpu": "2", "memory": "2Gi"}, "requests": {"cpu": "1", "memory": "2Gi"}},
        },
        names=("requests.hugepages-2Mi",),
    ),
    "a GPU and a host device": Shape(
        _devices(
            gpus=[{"name": "gpu1", "deviceName": "nvidia.com/TU104GL"}],
            hostDevices=[{"name": "nic1", "deviceName": "intel.com/qat"}],
        ),
        names=("requests.nvidia.com/TU104GL", "requests.intel.com/qat"),
    ),
    "container disks and a file system": Shape(
        _devices(filesystems=[{"name": "shared", "virtiofs": {}}]),
        spec={
            "volumes": [
                {"name": "root", "containerDisk": {"image": "os"}},
                {"name": "tools", "containerDisk": {"image": "tools"}},
                {"name": "shared", "persistentVolumeClaim": {"claimName": "shared"}},
            ]
        },
    ),
    "a path of the compute container": Shape(
        _devices(filesystems=[{"name": "token", "virtiofs": {}}]),
        spec={"volumes": [{"name": "token", "containerPath": {"path": "/var/run/token", "readOnly": True}}]},
    ),
    "exec probes and a TPM": Shape(
        _devices(tpm={}),
        spec={"livenessProbe": {"exec": {"command": ["true"]}}, "readinessProbe": {"exec": {"command": ["true"]}}},
    ),
    "a persistent TPM": Shape(_devices(tpm={"persistent": True})),
    "no screen and no console": Shape(_devices(autoattachGraphicsDevice=False, autoattachSerialConsole=False)),
    "no limits under a quota on limits": Shape(
        {"resources": {"requests": {"memory": "1Gi"}}, "memory": {"guest": "1Gi"}}
    ),
    "a hotplugged volume": Shape(spec={"volumes": [PLUGGED]}, steps=True),
    "sidecars under a LimitRange": Shape(
        annotations={SIDECARS: '[{"image":"one"},{"image":"two"}]'}, limit_range=SMALL_CONTAINERS
    ),
    "Guaranteed, with a reserve": Shape(
        {
            "memory": {"guest": "2Gi", "reservedOverhead": {"addedOverhead": "100Mi"}},
            "resources": {"limits": {"cpu": "2", "memory": "3Gi"}, "requests": {"cpu": "2", "memory": "3Gi"}},
        }
    ),
}
"""By a name that people understand."""


SEED: Mapping[str, Any] = Shape().body("")["spec"]
"""The spec of the seed's VMI."""


async def start(namespace: Namespace, *names: str, shape: Shape | None = None) -> None:
    """VMIs, once they run."""
    shape = shape or Shape()
    if shape.limit_range:
        await namespace.create(LIMIT_RANGES, limit_range(shape.limit_range))
    await namespace.instances(*(shape.body(name) for name in names))


def limit_range(item: Mapping[str, Any]) -> dict[str, Any]:
    return {"metadata": {"name": "small"}, "spec": {"limits": [item]}}
