"""KubeVirt's account: who creates launcher and attachment pods. Pure.

The one list of accounts that the reserve, the locks and deploy/policy.yaml go by. virt-controller alone creates pods
and patches their metadata (KubeVirt pkg/virt-controller/watch: vmi/lifecycle.go, vmi/volume-hotplug.go, migration.go,
descheduler.go); virt-api, virt-handler and virt-operator only read, delete and exec. Names are exact: any tenant can
create a service account of that name in the own namespace.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from pkg.api.kubevirt import KubeVirt
from pkg.util.kubevirt.rendering import deployed, oldest

SERVICE_ACCOUNT: Final = "kubevirt-controller"
DEFAULT_NAMESPACES: Final = ("harvester-system", "kubevirt")
"""Where KubeVirt is installed by Harvester and by its own manifests."""


def virt_controllers(kubevirts: Sequence[KubeVirt], chosen: Collection[str] = ()) -> Sequence[str]:
    """virt-controller's user names: those that `--kubevirt-user` names; else the account in the namespace of the
    KubeVirt CR that is deployed, or will be; without a CR, in the usual namespaces."""
    if chosen:
        return sorted(chosen)
    kubevirt = deployed(kubevirts) or oldest(kubevirts)
    namespaces = (kubevirt.namespace,) if kubevirt else DEFAULT_NAMESPACES
    return sorted(f"system:serviceaccount:{namespace}:{SERVICE_ACCOUNT}" for namespace in namespaces)
