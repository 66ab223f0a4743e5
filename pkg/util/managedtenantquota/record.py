"""The record of a raised quota: spec.hard as it was, and what was added to it; the changes that raise and restore it.
Pure.

The quota's own annotation is written by the same patch that raises it, and removed by the one that restores it. The
status of a VirtualMachineMigrationResourceQuota is for people, and for KubeVirt's own controller: it is read only of
quotas that have no annotation, where that controller may have left them raised.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
    """The original spec.hard of a quota and what was added to it; every quantity can be read."""

    hard: Mapping[str, RawQuantity]
    additional: Mapping[str, RawQuantity]

    def text(self, quota: str) -> str:
        """Returns the value of the quota's annotation."""
        annotation = _Annotation({quota: dict(self.hard)}, dict(self.additional))
        return msgspec.json.encode(annotation, order="sorted").decode()

    @property
    def limits(self) -> ResourceList:
        return parse_resource_list(self.hard)

    @property
    def raised_limits(self) -> ResourceList:
        """Returns the raised spec.hard: only names that the quota limits, as the budget spells them (upstream)."""
        additional = parse_resource_list(self.additional)
        return {name: limit + additional.get(name, ZERO) for name, limit in self.limits.items()}

    def to_raise(self, hard: Mapping[str, RawQuantity]) -> dict[str, str]:
        """Returns the change that raises a quota with the limits `hard`; empty if nothing is added. A limit below the
        recorded one, or above the raised one, stays."""
        now, original = parse_resource_list(hard), self.limits
        return format_resource_list(
            {n: limit for n, limit in self.raised_limits.items() if n in now and original[n] <= now[n] < limit}
        )

    def to_restore(self, hard: Mapping[str, RawQuantity], *, exactly: bool) -> dict[str, str]:
        """Returns the change that takes back what was added; no limit rises by it. `exactly`: only a limit that equals
        its raised value. Any other value was written by a person, and stays."""
        now, raised = parse_resource_list(hard), self.raised_limits
        back = {n: limit for n, limit in self.limits.items() if n in now and limit < now[n]}
        return format_resource_list({n: limit for n, limit in back.items() if not exactly or now[n] == raised[n]})


def record_of(quota: ResourceQuota) -> Record | None:
    """Returns the record that a raised quota has, or None if it has none or garbage. A user who could write it could
    write spec.hard as well."""
    with suppress(msgspec.DecodeError):
        annotation = msgspec.json.decode(quota.annotations.get(ANNOTATION_ORIGINALS, ""), type=_Annotation)
        if quota.name in annotation.quotas:
            return Record(readable(annotation.quotas[quota.name]), readable(annotation.additional))
    return None


def is_in_use(budget: VirtualMachineMigrationResourceQuota) -> bool:
    """Reports whether the status says that something is raised. Upstream always keeps there what may be added: that
    alone means nothing."""
    status = budget.status
    return bool(status.original_blocking_resource_quotas or status.migrations_to_blocking_resource_quotas)


def recorded_migrations(budgets: Iterable[VirtualMachineMigrationResourceQuota]) -> dict[str, Sequence[str]]:
    """Returns the migrations that share the window, by name, and the quotas that refused each."""
    blocking = [budget.status.migrations_to_blocking_resource_quotas or {} for budget in budgets]
    return {name: quotas or () for migrations in blocking for name, quotas in migrations.items()}


def status_records(budgets: Iterable[VirtualMachineMigrationResourceQuota]) -> dict[str, Record]:
    """Returns the records in statuses, by quota."""
    return {
        quota.name: Record(
            readable(quota.spec.hard or {}), readable(budget.status.additional_migration_resources or budget.additional)
        )
        for budget in budgets
        for quota in budget.status.original_blocking_resource_quotas or ()
    }


def readable(resources: RawResourceList) -> RawResourceList:
    """Returns the resources whose quantities can be read and are not negative."""
    good: RawResourceList = {}
    for name, value in resources.items():
        with suppress(QuantityError):
            if Quantity.parse(value) >= ZERO:
                good[name] = value
    return good


def is_lowering_enforced(quota: ResourceQuota) -> bool:
    """Reports whether quota admission goes by spec.hard already, or by less: it reads status.hard, which the controller
    manager copies."""
    now, used = parse_resource_list(quota.hard), parse_resource_list(quota.status.hard)
    return all(used[name] <= limit for name, limit in now.items() if name in used)
