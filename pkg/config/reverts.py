"""Other writers that lower a quota again and again while headroom raises it: the quota's field managers name them."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from kubeloop.api.core import ResourceQuota
from kubeloop.api.meta import ObjectMeta, Struct
from kubeloop.api.registry import RESOURCE_QUOTAS, Resource
from kubeloop.client.client import Client
from kubeloop.client.errors import ApiError
from pkg.config.cause import Cause

log = logging.getLogger(__name__)

MANY: Final = 10
"""Reverts in WINDOW from which on somebody has to be named: Rancher's sync makes one or two a migration."""
WINDOW: Final = 60.0
LOWERS: Final = "lowers spec.hard again and again while VMs migrate, against what headroom raises"
_UNKNOWN: Final = "unknown"


class FieldsEntry(Struct):
    """metav1.ManagedFieldsEntry."""

    manager: str = ""
    time: str = ""
    fields_v1: dict[str, Any] | None = None

    def owns(self, limit: str) -> bool:
        """Reports whether its manager wrote this limit last."""
        node: Any = self.fields_v1
        for name in ("f:spec", "f:hard", f"f:{limit}"):
            node = node.get(name) if isinstance(node, dict) else None
        return node is not None


class _ManagedMeta(ObjectMeta):
    managed_fields: list[FieldsEntry] | None = None


class ManagedQuota(ResourceQuota):
    """A ResourceQuota with its field managers, which no cache keeps."""

    metadata: _ManagedMeta = _ManagedMeta()


@dataclass(slots=True)
class _RevertHistory:
    times: deque[float] = field(default_factory=deque)
    manager: str = ""


@dataclass(eq=False)
class Reverts:
    """The reverts of each quota in the last WINDOW seconds."""

    client: Client
    clock: Callable[[], float]
    _quotas: dict[str, _RevertHistory] = field(default_factory=dict, init=False)

    async def note(self, quota: ResourceQuota, lowered: Iterable[str]) -> str:
        """Notes that another writer has lowered these limits, before they are raised again. Returns the field manager
        that did once it is MANY times in WINDOW, else ""."""
        self._forget()
        reverted = self._quotas.setdefault(quota.key, _RevertHistory())
        reverted.times.append(self.clock())
        if len(reverted.times) < MANY:
            return ""
        reverted.manager = reverted.manager or await self._manager(quota, list(lowered))
        return reverted.manager

    async def _manager(self, quota: ResourceQuota, lowered: list[str]) -> str:
        try:
            managed: Resource[ManagedQuota] = replace(RESOURCE_QUOTAS, type=ManagedQuota)  # type: ignore[assignment]
            quota_now = await self.client.resource(managed).get(name=quota.name, namespace=quota.namespace)
        except ApiError as exc:
            log.debug("%s: its field managers are not read: %s", quota.key, exc)
            return _UNKNOWN
        owners = [entry for entry in quota_now.metadata.managed_fields or () if any(map(entry.owns, lowered))]
        return max(owners, key=lambda entry: entry.time, default=FieldsEntry(manager=_UNKNOWN)).manager

    def causes(self) -> list[Cause]:
        """Returns one cause for each manager that has to be stopped."""
        self._forget()
        by_manager: dict[str, list[str]] = {}
        for key, reverted in sorted(self._quotas.items()):
            if reverted.manager:
                by_manager.setdefault(reverted.manager, []).append(f"{RESOURCE_QUOTAS.kind} {key}")
        return [Cause(f"field manager {manager}", 0, LOWERS, keys, len(keys)) for manager, keys in by_manager.items()]

    def _forget(self) -> None:
        oldest = self.clock() - WINDOW
        for key, reverted in list(self._quotas.items()):
            while reverted.times and reverted.times[0] < oldest:
                reverted.times.popleft()
            if not reverted.times:
                del self._quotas[key]
