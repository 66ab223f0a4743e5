"""What a launcher pod asks of a node."""

from __future__ import annotations

from kubeloop.testing.cluster.nodes import fake_node
from lab.nodes import kubevirt_node


def test_a_node_has_what_a_launcher_pod_selects_and_asks_for() -> None:
    node = kubevirt_node("node-1")
    labels, allocatable = node["metadata"]["labels"], node["status"]["allocatable"]
    assert labels["kubevirt.io/schedulable"] == "true"
    assert labels["machine-type.node.kubevirt.io/q35"] == "true"
    assert {"devices.kubevirt.io/kvm", "devices.kubevirt.io/tun", "devices.kubevirt.io/vhost-net"} <= set(
        allocatable
    )


def test_other_nodes_stay_as_they_are() -> None:
    kubevirt_node("node-1")
    assert "devices.kubevirt.io/kvm" not in fake_node("node-2")["status"]["allocatable"]
