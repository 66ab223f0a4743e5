"""The fake nodes, which kwok keeps Ready and on which it runs pods.

There is no scheduler: a pod is created with its node's name. The capacity is beyond what any test fills.
"""

from __future__ import annotations

from typing import Any

_CAPACITY = {"cpu": "1000", "memory": "16Ti", "ephemeral-storage": "16Ti", "pods": "1000"}


def node_names(count: int) -> list[str]:
    """node-1, node-2, …"""
    return [f"node-{number}" for number in range(1, count + 1)]


def fake_node(name: str) -> dict[str, Any]:
    """A Node for kwok to manage."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {"kwok.x-k8s.io/node": "fake"},
            "labels": {
                "type": "kwok",
                "kubernetes.io/arch": "amd64",
                "kubernetes.io/os": "linux",
                "kubernetes.io/hostname": name,
                "node-role.kubernetes.io/worker": "",
            },
        },
        "status": {
            "capacity": dict(_CAPACITY),
            "allocatable": dict(_CAPACITY),
            "nodeInfo": {
                "architecture": "amd64",
                "operatingSystem": "linux",
                "kubeletVersion": "fake",
                **dict.fromkeys(("bootID", "containerRuntimeVersion", "kernelVersion", "kubeProxyVersion"), ""),
                **dict.fromkeys(("machineID", "osImage", "systemUUID"), ""),
            },
        },
    }
