"""Clusters in memory as the reports see them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from kubeloop.api.core import Namespace, Pod, ResourceQuota
from pkg.api.kubevirt import KubeVirt, VirtualMachineInstance, VirtualMachineInstanceMigration
from pkg.report.snapshot import Snapshot
from pkg.util.resourcequota.planner import plan
from pkg.util.resourcequota.policy import EXACT
from tests.decisions import applied, charged, named
from tests.objects import BASE

NOON = 1767268800.0  # 2026-01-01T12:00:00Z


def cluster(
    quotas: Sequence[ResourceQuota],
    migrations: Sequence[VirtualMachineInstanceMigration] = (),
    pods: Iterable[Pod] = (),
    instances: Sequence[VirtualMachineInstance] = (),
    *,
    limits: str = BASE,
    ratio: str = "1.5",
    annotations: Mapping[str, str] | None = None,
    **fields: Any,
) -> Snapshot:
    """The namespace ns1; status.used is what its quotas charge for the pods."""
    pods = list(pods)
    metadata = {"name": "ns1", "annotations": {"field.cattle.io/resourceQuota": limits, **(annotations or {})}}
    configuration = {"additionalGuestMemoryOverheadRatio": ratio}
    kubevirt = {"spec": {"configuration": configuration}, "status": {"phase": "Deployed"}}
    return Snapshot(
        now=NOON,
        namespaces=[msgspec.convert({"metadata": metadata}, Namespace)],
        quotas=[rq if rq.used else charged(rq, pods) for rq in quotas],
        migrations=[named(migration, pods, instances) for migration in migrations],
        instances=instances,
        pods=pods,
        kubevirts=[msgspec.convert(kubevirt, KubeVirt)],
        **fields,
    )


def settled(snapshot: Snapshot) -> Snapshot:
    """The same cluster once headroom has run."""
    quotas = [applied(rq, plan(snapshot.observe(rq), EXACT)) for rq in snapshot.quotas]
    return replace(snapshot, quotas=quotas)
