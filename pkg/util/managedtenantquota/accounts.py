"""The accounts that a lock lets through. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from pkg.api.kubevirt import KubeVirt
from pkg.util.managedtenantquota.constants import KUBEVIRT_NAMESPACE, VIRT_CONTROLLER


def virt_controllers(kubevirts: Iterable[KubeVirt]) -> list[str]:
    """virt-controller's user names: where a KubeVirt CR is, and where KubeVirt usually lives. Anybody may create a
    service account of that name somewhere else."""
    namespaces = {KUBEVIRT_NAMESPACE, *(kubevirt.namespace for kubevirt in kubevirts)}
    return sorted(f"system:serviceaccount:{namespace}:{VIRT_CONTROLLER}" for namespace in namespaces)
