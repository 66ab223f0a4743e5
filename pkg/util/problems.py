"""Problems of quotas and VMs as values: one type from a decision to event, log, metric and report. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kubeloop.api.core import EventType
from kubeloop.api.meta import Object


@dataclass(frozen=True, slots=True)
class Problem:
    """A reason why a quota or a VM is not served, or its base has changed. An administrator can do something about
    it, and the message says in one line what it is."""

    reason: str
    """The Event's (docs/reference.md)."""
    message: str
    vm: str = ""
    """The name of the VM that it is about; "": it is about the quota, or about other objects."""
    objects: Sequence[Object] = ()
    """The objects that it is about, where a namespace has a migration budget."""
    identity: str = ""
    """What stays the same while the amounts in the message change; "": the VM, or the message up to its colon."""
    kind: EventType = "Warning"
    cause: Exception | None = field(default=None, compare=False)
    """It may be a mistake of headroom's: the log shows where."""

    @property
    def key(self) -> str:
        """The same for the same problem: it is one event."""
        return f"{self.reason}/{self.identity or self.vm or self.message.partition(':')[0]}"

    def __str__(self) -> str:
        return self.message
