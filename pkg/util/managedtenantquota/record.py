"""What is recorded of a raised quota: spec.hard as it was, and what was added to it; what raises and restores it. Pure.

The quota's own annotation is written by the same patch that raises it, and removed by the one that restores it. The
status of a VirtualMachineMigrationResourceQuota is for people, and for KubeVirt's own controller: it is read only of
quotas that have no annotation, where that controller may have left them raised.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from kubeloop.api.core import ResourceQuota
from kubeloop.api.meta import RawQuantity, RawResourceList, Struct
from kubeloop.api.quantity import ZERO, Quantity, QuantityError
from kubeloop.api.resource_list import ResourceList, format_resource_list, parse_resource_list
from pkg.api.mtq import VirtualMachineMigrationResourceQuota
from pkg.util.constants import ANNOTATION_ORIGINALS


class _Annotation(Struct):
    """On the wire: by quota, although a quota records only itself."""

    quotas: dict[str, RawResourceList] = msgspec.field(default_factory=dict)
    additional: RawResourceList = msgspec.field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Record:
    """spec.hard of a quota as it was, and what was added; all of it readable."""

    hard: Mapping[str, RawQuantity]
    additional: Mapping[str, RawQuantity]

    def text(self, quota: str) -> str:
        """The value of the quota's annotation."""
        return msgspec.json.encode(
            _Annotation({quota: dict(self.hard)}, dict(self.additional)), order="sorted"
        ).decode()

    @property
    def limits(self) -> ResourceList:
        return parse_resource_list(self.hard)

    @property
    def raised_limits(self) -> ResourceList:
        """What spec.hard is raised to: only names that the quota limits, as the budget spells them (upstream)."""
        additional = parse_resource_list(self.additional)
        return {name: limit + additional.get(name, ZERO) for name, limit in self.limits.items()}

    def to_raise(self, hard: Mapping[str, RawQuantity]) -> dict[str, str]:
        """The change of a quota that says `hard`; empty when nothing is added. A limit that says less than what was
        recorded, or more than it would be raised to, stays."""
        now, original = parse_resource_list(hard), self.limits
        return format_resource_list(
            {n: limit for n, limit in self.raised_limits.items() if n in now and original[n] <= now[n] < limit}
        )

    def to_restore(self, hard: Mapping[str, RawQuantity], *, exactly: bool) -> dict[str, str]:
        """The change that takes back what was added; no limit rises by it. `exactly`: only a limit that says what it
        was raised to. Any other value was written by a person, and stays."""
        now, raised_limits = parse_resource_list(hard), self.raised_limits
        back = {n: limit for n, limit in self.limits.items() if n in now and limit < now[n]}
        return format_resource_list(
            {n: limit for n, limit in back.items() if not exactly or now[n] == raised_limits[n]}
        )


def record_of(quota: ResourceQuota) -> Record | None:
    """What a raised quota says of itself; None where it says nothing, or garbage. A user who could write it could
    write spec.hard as well."""
    with suppress(msgspec.DecodeError):
        annotation = msgspec.json.decode(quota.annotations.get(ANNOTATION_ORIGINALS, ""), type=_Annotation)
        if quota.name in annotation.quotas:
            return Record(readable(annotation.quotas[quota.name])[0], readable(annotation.additional)[0])
    return None


def is_in_use(budget: VirtualMachineMigrationResourceQuota) -> bool:
    """Whether the status says that something is raised. What may be added alone says nothing: upstream always keeps
    that there."""
    status = budget.status
    return bool(status.original_blocking_resource_quotas or status.migrations_to_blocking_resource_quotas)


def recorded_migrations(budget: VirtualMachineMigrationResourceQuota) -> dict[str, list[str]]:
    """The migrations that share the window, by name, and the quotas that refused each."""
    migrations = budget.status.migrations_to_blocking_resource_quotas or {}
    return {name: list(quotas or ()) for name, quotas in migrations.items()}


def status_records(budget: VirtualMachineMigrationResourceQuota) -> tuple[dict[str, Record], list[str]]:
    """The records in a status, by quota, and what in it cannot be read."""
    additional, bad = readable(budget.status.additional_migration_resources or budget.additional)
    records, unreadable = {}, [f"{name} of what was added" for name in bad]
    for quota in budget.status.original_blocking_resource_quotas or ():
        hard, bad = readable(quota.spec.hard or {})
        records[quota.name] = Record(hard, additional)
        unreadable += [f"{name} of quota {quota.name}" for name in bad]
    return records, unreadable


def readable(resources: RawResourceList) -> tuple[RawResourceList, list[str]]:
    """The resources whose quantities are such and not negative, and the names of the others."""
    good: RawResourceList = {}
    for name, value in resources.items():
        with suppress(QuantityError):
            if Quantity.parse(value) >= ZERO:
                good[name] = value
    return good, [name for name in resources if name not in good]


def is_enforced(quota: ResourceQuota) -> bool:
    """Whether quota admission goes by spec.hard already, or by less: it reads status.hard, which the controller manager
    copies."""
    now, used = parse_resource_list(quota.hard), parse_resource_list(quota.status.hard)
    return all(used[name] <= limit for name, limit in now.items() if name in used)
