"""VMs that are about to start."""

from __future__ import annotations

from typing import Any

import msgspec

from pkg.api.kubevirt import VirtualMachine


def machine(
    cpu: str = "2",
    memory: str = "4Gi",
    *,
    name: str = "vm1",
    spec: dict[str, Any] | None = None,
    domain: dict[str, Any] | None = None,
    status: str = "Starting",
    **metadata: Any,
) -> VirtualMachine:
    """The seed's VM."""
    resources = {"limits": {"cpu": cpu, "memory": memory}, "requests": {"cpu": "125m", "memory": "2730Mi"}}
    shape = {"cpu": {"cores": 2}, "resources": resources, **(domain or {})}
    content = {
        "metadata": {"name": name, "namespace": "ns1", "uid": f"uid-of-{name}", **metadata},
        "spec": {
            "template": {"spec": {"domain": shape}},
            **({"runStrategy": "Always"} if spec is None else spec),
        },
        "status": {"printableStatus": status},
    }
    return msgspec.convert(content, VirtualMachine)


def limits(cpu: str = "", memory: str = "", **more: str) -> str:
    texts = {"limitsCpu": cpu, "limitsMemory": memory, **more}
    return msgspec.json.encode({"limit": {name: text for name, text in texts.items() if text}}).decode()
