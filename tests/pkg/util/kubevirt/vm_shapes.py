"""Shapes of VMs whose launcher pods KubeVirt renders differently."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from kubeloop.api.core import ResourceQuotaSpec
from pkg.api.kubevirt import KubeVirtConfiguration, VirtualMachineInstance
from tests.objects import CPU, machine, vmi

USUAL = KubeVirtConfiguration()
SEED = vmi()
UNSCOPED = ResourceQuotaSpec()
ALL_MEMORY = ("memory", "requests.memory", "limits.memory")


def shape(limits: Mapping[str, str] | None, requests: Mapping[str, str], **domain: Any) -> VirtualMachineInstance:
    resources: dict[str, Any] = {"requests": dict(requests)}
    if limits is not None:
        resources["limits"] = dict(limits)
    volumes = domain.pop("volumes", None)
    return machine({"cpu": CPU, "resources": resources, **domain}, volumes=volumes)


LIMITED = {"cpu": "2", "memory": "4Gi"}
SHAPES: dict[str, VirtualMachineInstance] = {
    "the seed's VM": vmi(),
    "a VM without memory limit": shape({"cpu": "2"}, {"memory": "2730Mi"}),
    "a VM without any limit": shape(None, {"memory": "2730Mi"}),
    "a VM with huge pages": shape(
        LIMITED, {"memory": "4Gi"}, memory={"guest": "3996Mi", "hugepages": {"pageSize": "2Mi"}}
    ),
    "a VM with huge pages and no limits": shape(
        None, {"memory": "2Gi"}, memory={"guest": "2Gi", "hugepages": {"pageSize": "1Gi"}}
    ),
    "a VM whose request is its limit": shape(LIMITED, {}),
    "a VM that says only its guest's memory": shape(None, {}, memory={"guest": "3Gi"}),
    "a VM with CPUs of its own": shape(
        {"cpu": "2", "memory": "4Gi"}, {"cpu": "2", "memory": "4Gi"}, cpu={**CPU, "dedicatedCpuPlacement": True}
    ),
    "a VM whose overhead is overcommitted": machine(
        {
            "cpu": {"cores": 2},
            "resources": {"limits": LIMITED, "requests": {"memory": "1Gi"}, "overcommitGuestOverhead": True},
        }
    ),
    "a VM with a device and a container disk": shape(
        LIMITED,
        {"memory": "2730Mi"},
        devices={"gpus": [{"name": "g", "deviceName": "nvidia.com/A100"}]},
        volumes=[{"name": "disk", "containerDisk": {"image": "i"}}],
    ),
    "a large VM": shape({"cpu": "32", "memory": "260Gi"}, {"memory": "256Gi"}),
}
shapes = pytest.mark.parametrize("instance", list(SHAPES.values()), ids=list(SHAPES))
