"""Fake nodes for VMs: with the labels that a launcher pod's nodeSelector asks for, and devices."""

from __future__ import annotations

from typing import Any

from kubeloop.testing.cluster.nodes import fake_node

_LABELS = {"kubevirt.io/schedulable": "true", "cpumanager": "true", "machine-type.node.kubevirt.io/q35": "true"}
_CAPACITY = {
    "hugepages-2Mi": "1Ti",
    "hugepages-1Gi": "1Ti",
    "devices.kubevirt.io/kvm": "1k",
    "devices.kubevirt.io/tun": "1k",
    "devices.kubevirt.io/vhost-net": "1k",
}


def kubevirt_node(name: str) -> dict[str, Any]:
    """A Node for kwok to manage."""
    node = fake_node(name)
    node["metadata"]["annotations"]["kubevirt.io/heartbeat"] = "2026-01-01T00:00:00Z"
    node["metadata"]["labels"] |= _LABELS
    for amounts in ("capacity", "allocatable"):
        node["status"][amounts] |= _CAPACITY
    return node
