"""Causes: why headroom cannot do its work, as the running controller publishes it and the reports read it; and those
that no request meets: other writers that lower a quota again and again while headroom raises it."""

import logging
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kubeloop.api.core import ResourceQuota
from kubeloop.api.registry import RESOURCE_QUOTAS
from kubeloop.client.errors import ApiError

if TYPE_CHECKING:
    from kubeloop.client.client import Client  # the offline commands import this module, and need no client

log = logging.getLogger(__name__)

MANY: Final = 10
"""Reverts in WINDOW from which on somebody has to be named: Rancher's sync makes one or two a migration."""
WINDOW: Final = 60.0
LOWERS: Final = "lowers spec.hard again and again while VMs migrate, against what headroom raises"


class Cause(msgspec.Struct, frozen=True):
    """A reason for which headroom cannot do its work, and what waits because of it. `by` names who refuses ("webhook
    X", "ValidatingAdmissionPolicy X (binding Y)", "RBAC"; "" where nobody answers), or who undoes what was written
    ("field manager X"). `status` is the HTTP status, 0 where no request was refused, `reason` the sentence that was
    given. `objects` are "Kind namespace/name", or a plural for a kind that may not be read: the first of `count`."""

    by: str
    status: int
    reason: str
    objects: Sequence[str] = ()
    count: int = 0

    @property
    def text(self) -> str:
        if not self.by:
            return self.reason
        if not self.status or self.status >= 500:
            return f"{self.by}: {self.reason}"
        return f"{self.by} refuses headroom's requests ({self.status}): {self.reason}"

    def line(self, namespace: str = "") -> str:
        """Returns the text with what waits, in the namespace if there is something, and how many others."""
        waiting_object = next(iter(self.waiting(namespace) or self.objects), "")
        rest = f" and {self.count - 1} more" if self.count > 1 else ""
        return f"{self.text}: {waiting_object}{rest}" if waiting_object else self.text

    def waiting(self, namespace: str) -> list[str]:
        """Returns the objects of the namespace that wait, and the namespace itself."""
        beginning, itself = f" {namespace}/", f"Namespace {namespace}"
        return [obj for obj in self.objects if beginning in obj or obj == itself]


def decode_causes(text: str) -> list[Cause]:
    """Decodes what is published as JSON; returns nothing of what another program wrote."""
    try:
        return msgspec.json.decode(text, type=list[Cause])
    except msgspec.MsgspecError:
        return []


@dataclass(eq=False)
class Reverts:
    """The reverts of each quota in the last WINDOW seconds."""

    client: "Client"
    _times: dict[str, deque[float]] = field(default_factory=dict, init=False)
    _managers: dict[str, str] = field(default_factory=dict, init=False)

    async def note(self, quota: ResourceQuota, lowered: Iterable[str]) -> str:
        """Notes that another writer lowered these limits. Returns its field manager from MANY times in WINDOW on."""
        times, now = self._times.setdefault(quota.key, deque(maxlen=MANY)), self.client.transport.server_clock()
        times.append(now)
        if len(times) < MANY or times[0] < now - WINDOW:
            return ""
        if quota.key not in self._managers:
            entries: Sequence[dict[str, Any]] = ()
            try:  # no cache keeps managedFields
                answer = await self.client.transport.request("GET", RESOURCE_QUOTAS.path(quota.namespace, quota.name))
                entries = msgspec.json.decode(answer)["metadata"].get("managedFields") or ()
            except ApiError as exc:
                log.debug("%s: its field managers are not read: %s", quota.key, exc)
            fields = {f"f:{name}" for name in lowered}  # a metav1.ManagedFieldsEntry names what its manager wrote last
            owners = [
                entry
                for entry in entries
                if not fields.isdisjoint(((entry.get("fieldsV1") or {}).get("f:spec") or {}).get("f:hard") or ())
            ]
            # Who may write the quota may leave out the time and the manager.
            last: dict[str, Any] = max(owners, key=lambda entry: entry.get("time") or "", default={})
            self._managers[quota.key] = last.get("manager") or "unknown"
        return self._managers[quota.key]

    def causes(self) -> list[Cause]:
        """Returns one cause for each manager that has to be stopped."""
        oldest = self.client.transport.server_clock() - WINDOW
        self._times = {key: times for key, times in self._times.items() if times[-1] >= oldest}
        self._managers = {key: manager for key, manager in self._managers.items() if key in self._times}
        by_manager: dict[str, list[str]] = {}
        for key, manager in sorted(self._managers.items()):
            by_manager.setdefault(manager, []).append(f"{RESOURCE_QUOTAS.kind} {key}")
        return [Cause(f"field manager {manager}", 0, LOWERS, keys, len(keys)) for manager, keys in by_manager.items()]
