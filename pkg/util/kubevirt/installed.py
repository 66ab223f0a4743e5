"""The KubeVirt that is installed, by its CR: which CR counts, whose account creates its pods, how many migrations it
lets run at once. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from pkg.api.kubevirt import KubeVirt, KubeVirtConfiguration, MigrationConfiguration
from pkg.util.constants import KUBEVIRT_PHASE_DEPLOYED

SERVICE_ACCOUNT: Final = "kubevirt-controller"
DEFAULT_NAMESPACES: Final = ("harvester-system", "kubevirt")
"""Where KubeVirt is installed by Harvester and by its own manifests."""


def deployed(kubevirts: Iterable[KubeVirt]) -> KubeVirt | None:
    """The KubeVirt CR that counts, the oldest of several: virt-operator deploys one, and its webhook admits no second
    one (pkg/virt-operator/webhooks, KubeVirtCreateAdmitter). Where that webhook is away, a tenant's is younger."""
    return _oldest(k for k in kubevirts if k.status.phase == KUBEVIRT_PHASE_DEPLOYED)


def observed_version(kubevirts: Iterable[KubeVirt]) -> str | None:
    """The version of the KubeVirt that is installed, as its CR says it."""
    kubevirt = deployed(kubevirts)
    return kubevirt.status.observed_kube_virt_version if kubevirt else None


def virt_controllers(kubevirts: Sequence[KubeVirt], chosen: Collection[str] = ()) -> Sequence[str]:
    """virt-controller's user names: those that `--kubevirt-user` names; else the account in the namespace of the
    KubeVirt CR that is deployed, or will be; without a CR, in the usual namespaces.

    The one list of accounts that the reserve, the locks and deploy/policy.yaml go by. virt-controller alone creates
    launcher and attachment pods and patches their metadata (KubeVirt pkg/virt-controller/watch: vmi/lifecycle.go,
    vmi/volume-hotplug.go, migration.go, descheduler.go); virt-api, virt-handler and virt-operator only read, delete and
    exec. Names are exact: any tenant can create a service account of that name in the own namespace.
    """
    if chosen:
        return sorted(chosen)
    kubevirt = deployed(kubevirts) or _oldest(kubevirts)
    namespaces = (kubevirt.namespace,) if kubevirt else DEFAULT_NAMESPACES
    return sorted(f"system:serviceaccount:{namespace}:{SERVICE_ACCOUNT}" for namespace in namespaces)


@dataclass(frozen=True, slots=True)
class Limits:
    """How many migrations may run: in the cluster, and away from one node. KubeVirt's own where nothing is given."""

    per_cluster: int = 5
    per_node: int = 2


USUAL_LIMITS: Final = Limits()


def limits_of(configuration: KubeVirtConfiguration, default: Limits = USUAL_LIMITS) -> Limits:
    """What the KubeVirt CR says; `default` where it says nothing."""
    given = configuration.migrations or MigrationConfiguration()
    cluster, node = given.parallel_migrations_per_cluster, given.parallel_outbound_migrations_per_node
    return Limits(default.per_cluster if cluster is None else cluster, default.per_node if node is None else node)


def hindrance(running: Iterable[Collection[str]], node: str, limits: Limits) -> str:
    """Why a migration away from `node` has to wait, "" when it need not.

    `running` has the source nodes of every migration that runs or has a target pod already; more than one while
    a VMI's nodeName has moved on and its migration has not ended.
    """
    sources = list(running)
    if len(sources) >= limits.per_cluster:
        return f"{len(sources)} migrations run, {limits.per_cluster} may"
    outbound = sum(node in nodes for nodes in sources)
    return f"{outbound} migrations leave {node}, {limits.per_node} may" if outbound >= limits.per_node else ""


def _oldest(kubevirts: Iterable[KubeVirt]) -> KubeVirt | None:
    return min(kubevirts, key=lambda k: k.metadata.creation_timestamp or "", default=None)
