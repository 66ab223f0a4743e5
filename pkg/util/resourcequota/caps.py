"""How much may be added to a ResourceQuota: `max-extra` on it and on its namespace, and the room for annotations.

A migration that a cap leaves out waits; the first in line is served first.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress

from pkg.util import constants
from pkg.util.amounts import as_written, shown
from pkg.util.quantity import ZERO, Quantity
from pkg.util.resourcequota.base import is_added
from pkg.util.resourcequota.entries import parse_resources
from pkg.util.resourcequota.errors import (
    CapReached,
    IdleCap,
    InvalidEntry,
    ResourceQuotaError,
    TooManyEntries,
)

MAX_ANNOTATION_BYTES = 200 * 1024
"""An object's annotations may take 256 KiB; what is left is for others."""


class Caps:
    """The caps of one quota. A cap that is garbage allows nothing: better to wait than to overrun it."""

    def __init__(self, *texts: str) -> None:
        self._caps: list[Mapping[str, Quantity]] = []
        self.problem: ResourceQuotaError | None = None
        for text in filter(None, texts):
            try:
                self._caps.append(parse_resources(constants.ANNOTATION_MAX_EXTRA, text))
            except InvalidEntry as exc:
                self.problem = CapReached(f"{exc}: nothing is added")

    def refuse(self, what: str, added: Mapping[str, Quantity]) -> ResourceQuotaError | None:
        """Why `added` altogether is too much with `what` in it; None when it is not."""
        if self.problem is not None:
            return self.problem
        for cap in self._caps:
            for name, limit in sorted(cap.items()):
                if added.get(name, ZERO) > limit:
                    raised, most = shown(added[name], name), as_written(str(limit), name)
                    return CapReached(
                        f"{what} waits: {name} would be raised by {raised}, max-extra is {most}"
                    )
        return None


def idle(on_quota: str, on_namespace: str, hard: Collection[str]) -> list[ResourceQuotaError]:
    """The names in `max-extra` that cap nothing: on a quota those that its spec.hard does not have, on a namespace,
    whose quotas may limit different things, those that are no resource that headroom adds."""
    texts = (
        (on_quota, lambda name: name in hard, "spec.hard does not have it"),
        (on_namespace, is_added, "quotas do not count it of pods or claims"),
    )
    found: list[ResourceQuotaError] = []
    for text, caps, why in texts:
        with suppress(InvalidEntry):  # garbage is said where something is to be added
            cap = parse_resources(constants.ANNOTATION_MAX_EXTRA, text) if text else {}
            names = sorted(name for name in cap if not caps(name))
            found += [IdleCap(f"max-extra of {name} caps nothing: {why}") for name in names]
    return found


def refuse_size(what: str, size: int) -> ResourceQuotaError | None:
    """Why the annotations have grown too large with `what` in them, in bytes; None when they have not."""
    if size <= MAX_ANNOTATION_BYTES:
        return None
    return TooManyEntries(f"{what} waits: the annotations would take {size} of {MAX_ANNOTATION_BYTES} bytes")
