"""The flags of a run, and the objects that it creates. Pure."""

import contextlib
import random
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from lab import bodies
from pkg.cmd.flags import option


class Strategy(StrEnum):
    """The way in which headroom makes room for migrations: entries in the quota's annotations, or VMMRQ and namespace
    lock."""

    ANNOTATION = "annotation"
    VMMRQ = "vmmrq"


@dataclass(frozen=True)
class Settings:
    """The size and pace of a run, and the subject of its measurement."""

    kubeconfig: Path | None = option(None, "Cluster to run on. Default: an embedded one of its own.", metavar="FILE")
    nodes: int = option(50, "Number of nodes.", metavar="COUNT", min=2)
    vms: int = option(1000, "Number of VMs.", metavar="COUNT", min=1)
    namespaces: int = option(20, "Number of namespaces, each with a quota.", metavar="COUNT", min=1)
    evacuate: int = option(5, "Number of nodes whose VMs are migrated away.", metavar="COUNT", min=1)
    rate: str = option("5/s", "Migrations that are created a second.", metavar="N/s")
    strategy: Strategy = option(Strategy.ANNOTATION, "How headroom raises quotas: annotation or vmmrq.")
    external: bool = option(False, "Start no controller: measure the one that runs on the cluster.", "--external")
    allow_real_nodes: bool = option(False, "Run on a cluster that has KubeVirt nodes of its own.", "--allow-real-nodes")
    clean: bool = option(
        False, "Run nothing: remove what a run that was killed has left on the cluster of --kubeconfig.", "--clean"
    )
    seed: int = option(0, "Seed of the VMs' sizes.", metavar="NUMBER")
    out: Path | None = option(
        None, "Folder for report.json and report.html. Default: headroom-scale-TIME.", metavar="DIR"
    )

    @property
    def per_second(self) -> float:
        """The number in `rate`: `5/s` or `5`; 0.0 for anything else."""
        with contextlib.suppress(ValueError):
            rate = float(self.rate.removesuffix("/s"))
            return rate if 0 < rate <= 10000 else 0.0
        return 0.0


LABEL_RUN: Final = "headroom.harvesterhci.io/scale"
"""The label of every node and namespace of a run, with its name."""
KWOK_NODE: Final = "kwok.x-k8s.io/node"
KWOK_MARKS: Final = frozenset((LABEL_RUN, KWOK_NODE))
"""The labels and annotations of kwok's nodes, on which no container runs."""
SCHEDULABLE: Final = "kubevirt.io/schedulable"
SIZES: Final = ((1, "1Gi"), (2, "2Gi"), (2, "4Gi"), (4, "8Gi"), (8, "16Gi"))
"""The cores and memory of VMs, as many of one as of another."""
QUOTA_NAME: Final = "default-scale"


@dataclass(frozen=True, slots=True)
class Plan:
    """The objects of one run; everything is named after `run`."""

    settings: Settings
    run: str

    @property
    def system_namespace(self) -> str:
        """The namespace of headroom's own objects and the KubeVirt object."""
        return f"{self.run}-system"

    @property
    def namespaces(self) -> list[str]:
        return [f"{self.run}-{number:03}" for number in range(1, self.settings.namespaces + 1)]

    @property
    def nodes(self) -> list[str]:
        return [f"{self.run}-node-{number:03}" for number in range(1, self.settings.nodes + 1)]

    def node(self, name: str) -> dict[str, Any]:
        """A node for the run's own kwok and for pods that name it."""
        body = bodies.node(name)
        del body["metadata"]["annotations"][KWOK_NODE]  # another kwok may manage those
        body["metadata"]["labels"][LABEL_RUN] = self.run
        body["spec"] = {"taints": [{"key": LABEL_RUN, "value": self.run, "effect": "NoSchedule"}]}
        return body

    def namespace(self, name: str) -> dict[str, Any]:
        return {"metadata": {"name": name, "labels": {LABEL_RUN: self.run}}}

    def vms(self) -> list[dict[str, Any]]:
        """The VMs: the namespaces in turn, sizes by the seed."""
        dice = random.Random(self.settings.seed)
        names = self.namespaces
        return [
            self._vm(f"vm-{number:05}", names[number % len(names)], *dice.choice(SIZES))
            for number in range(self.settings.vms)
        ]

    def _vm(self, name: str, namespace: str, cores: int, memory: str) -> dict[str, Any]:
        domain = {
            "cpu": {"cores": cores, "sockets": 1, "threads": 1},
            "devices": {},
            "resources": {
                "limits": {"cpu": str(cores), "memory": memory},
                "requests": {"cpu": "100m", "memory": "512Mi"},
            },
        }
        toleration = {"key": LABEL_RUN, "operator": "Exists", "effect": "NoSchedule"}
        template = {"nodeSelector": {LABEL_RUN: self.run}, "tolerations": [toleration], "domain": domain}
        body = bodies.machine(name, template, strategy="Always")
        return body | {"metadata": {"name": name, "namespace": namespace}}

    def kubevirt(self) -> dict[str, Any]:
        """The KubeVirt object: parallel limits that never make a migration wait."""
        names = ("parallelMigrationsPerCluster", "parallelOutboundMigrationsPerNode")
        limits = dict.fromkeys(names, self.settings.vms)
        return {"metadata": {"name": "kubevirt"}, "spec": {"configuration": {"migrations": limits}}}


def vmmrq(hard: Mapping[str, str]) -> dict[str, Any]:
    """A VMMRQ that grants as much again."""
    return {"metadata": {"name": "migrations"}, "spec": {"additionalMigrationResources": dict(hard)}}
