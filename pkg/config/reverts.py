"""Other writers that lower a quota again and again while headroom raises it: the quota's field managers name them."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from kubeloop.api.core import ResourceQuota
from kubeloop.api.registry import RESOURCE_QUOTAS
from kubeloop.client.client import Client
from kubeloop.client.errors import ApiError
from pkg.config.cause import Cause

log = logging.getLogger(__name__)

MANY: Final = 10
"""Reverts in WINDOW from which on somebody has to be named: Rancher's sync makes one or two a migration."""
WINDOW: Final = 60.0
LOWERS: Final = "lowers spec.hard again and again while VMs migrate, against what headroom raises"
_UNKNOWN: Final = "unknown"


@dataclass(slots=True)
class _RevertHistory:
    times: deque[float] = field(default_factory=lambda: deque(maxlen=MANY))
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
        reverted, now = self._quotas.setdefault(quota.key, _RevertHistory()), self.clock()
        reverted.times.append(now)
        if len(reverted.times) < MANY or reverted.times[0] < now - WINDOW:
            return ""
        reverted.manager = reverted.manager or await self._manager(quota, list(lowered))
        return reverted.manager

    async def _manager(self, quota: ResourceQuota, lowered: Sequence[str]) -> str:
        """Returns the last one that wrote any of these limits."""
        try:  # no cache keeps managedFields
            answer = await self.client.transport.request("GET", RESOURCE_QUOTAS.path(quota.namespace, quota.name))
            entries = msgspec.json.decode(answer)["metadata"].get("managedFields", ())
        except ApiError as exc:
            log.debug("%s: its field managers are not read: %s", quota.key, exc)
            return _UNKNOWN
        owners = [entry for entry in entries if not _limits_of(entry).isdisjoint(lowered)]
        return max(owners, key=lambda entry: entry["time"], default={"manager": _UNKNOWN})["manager"]

    def causes(self) -> list[Cause]:
        """Returns one cause for each manager that has to be stopped."""
        oldest = self.clock() - WINDOW
        self._quotas = {key: reverted for key, reverted in self._quotas.items() if reverted.times[-1] >= oldest}
        by_manager: dict[str, list[str]] = {}
        for key, reverted in sorted(self._quotas.items()):
            if reverted.manager:
                by_manager.setdefault(reverted.manager, []).append(f"{RESOURCE_QUOTAS.kind} {key}")
        return [Cause(f"field manager {manager}", 0, LOWERS, keys, len(keys)) for manager, keys in by_manager.items()]


def _limits_of(entry: Mapping[str, Any]) -> set[str]:
    """Returns the limits that the manager of a metav1.ManagedFieldsEntry wrote last."""
    fields = entry.get("fieldsV1", {}).get("f:spec", {}).get("f:hard", {})
    return {name.removeprefix("f:") for name in fields}
