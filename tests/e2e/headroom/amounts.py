"""Quotas in numbers: what Rancher grants, what was added, what a watch has seen."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from itertools import groupby

from kubeloop.api.core import ResourceQuota
from kubeloop.api.quantity import ZERO, Quantity
from kubeloop.testing.polling import until
from lab.namespace import PODS, QUOTAS, Namespace, by_value
from lab.record import Record
from lab.watching import Watching
from pkg.util.constants import LABEL_DEFAULT_RESOURCE_QUOTA

Amounts = dict[str, Quantity]

ONE = {"limits.cpu": "2015m", "limits.memory": "4797464313"}
TWO = {"limits.cpu": "4030m", "limits.memory": "9594928626"}
"""What quota counts of so many of the seed's VMs: as a base ONE leaves no room for anything else."""
AT_4_5 = {"limits.cpu": "2015m", "limits.memory": "5682461313"}
"""ONE with the launcher at ratio 4.5: 108.4 % of the seed's quota."""


def plus(amounts: Amounts, summand: Amounts) -> Amounts:
    """`amounts` with what `summand` has of the same names added."""
    return {name: amount + summand.get(name, ZERO) for name, amount in amounts.items()}


def minus(amounts: Amounts, subtrahend: Amounts) -> Amounts:
    """Returns what `amounts` has more than `subtrahend`, names of `amounts`."""
    return {name: amount - subtrahend.get(name, ZERO) for name, amount in amounts.items()}


@dataclass
class Versions:
    """The versions that a watch of a namespace's quotas and pods brings. A quota's name of "" is the default
    quota's."""

    namespace: Namespace
    record: Record = field(default_factory=Record)

    async def quotas(self, name: str = "") -> list[ResourceQuota]:
        """Every version of a quota, up to those that are there now."""
        newest = max([int(item.metadata.resource_version) for item in await self.namespace.items(QUOTAS)])
        await until(lambda: any(item.version >= newest for item in self.record.quotas), "the watch")
        return self._shown(name)

    def _shown(self, name: str) -> list[ResourceQuota]:
        quotas = [version.quota for version in self.record.quotas]
        if name:
            return [quota for quota in quotas if quota.name == name]
        return [quota for quota in quotas if quota.labels.get(LABEL_DEFAULT_RESOURCE_QUOTA) == "true"]

    def is_changed(self) -> bool:
        """Reports whether spec.hard of the default quota has changed so far."""
        return len([hard for hard, _ in groupby(self._shown(""), key=lambda quota: by_value(quota.hard))]) > 1

    async def changes(self, name: str = "") -> list[tuple[int, Amounts]]:
        """Each spec.hard that a quota had, in order, with the resourceVersion that brought it: one count for all
        objects of an API server."""
        groups = groupby(await self.quotas(name), key=lambda quota: by_value(quota.hard))
        return [(int(next(quotas).metadata.resource_version), hard) for hard, quotas in groups]

    async def hards(self, name: str = "") -> list[Amounts]:
        return [hard for _, hard in await self.changes(name)]

    async def ended(self, pod: str) -> int:
        """The resourceVersion in which a pod ceased to count, once the watch has shown it."""
        await until(lambda: self.record.pods[pod].ended, f"the end of {pod}")
        change = self.record.pods[pod].ended
        return change.version if change else 0


@contextlib.asynccontextmanager
async def watched(*namespaces: Namespace) -> AsyncIterator[list[Versions]]:
    """Watches from the state of now until the block ends."""
    all_versions = [Versions(namespace) for namespace in namespaces]
    records = {versions.namespace.name: versions.record for versions in all_versions}
    async with Watching(namespaces[0].client, records, QUOTAS, PODS):
        yield all_versions
