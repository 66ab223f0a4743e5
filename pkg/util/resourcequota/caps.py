"""How much may be added to a ResourceQuota: an administrator's caps, and what its annotations have room for. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress

from kubeloop.api.quantity import ZERO, Quantity
from pkg.util import constants
from pkg.util.amounts import as_written, shown
from pkg.util.problems import Problem
from pkg.util.resourcequota.base import is_added
from pkg.util.resourcequota.entries import parse_resources
from pkg.util.resourcequota.errors import EVENT_CAP_REACHED, EVENT_IDLE_CAP, EVENT_TOO_MANY, InvalidEntry

MAX_ANNOTATION_BYTES = 200 * 1024
"""An object's annotations may take 256 KiB; what is left is for others."""


def refuse(caps: Collection[str], what: str, added: Mapping[str, Quantity], size: int = 0) -> Problem | None:
    """Why `added` altogether, or annotations of this size, are too much with `what` in them; None when not. A cap that
    is garbage allows nothing: better to wait than to overrun it."""
    try:
        limits = [parse_resources(constants.ANNOTATION_MAX_EXTRA, text) for text in caps if text]
    except InvalidEntry as exc:
        return Problem(EVENT_CAP_REACHED, f"{exc}: nothing is added")
    for cap in limits:
        for name, limit in sorted(cap.items()):
            if added.get(name, ZERO) > limit:
                raised, most = shown(added[name], name), as_written(str(limit), name)
                text = f"{what} waits: {name} would be raised by {raised}, max-extra is {most}"
                return Problem(EVENT_CAP_REACHED, text)
    if size <= MAX_ANNOTATION_BYTES:
        return None
    text = f"{what} waits: the annotations would take {size} of {MAX_ANNOTATION_BYTES} bytes"
    return Problem(EVENT_TOO_MANY, text)


def idle(on_quota: str, on_namespace: str, hard: Collection[str]) -> list[Problem]:
    """The names in `max-extra` that cap nothing: on a quota those that its spec.hard does not have, on a namespace,
    whose quotas may limit different things, those that are no resource that headroom adds."""
    absent = [(name, "spec.hard does not have it") for name in _capped(on_quota) if name not in hard]
    never = [(name, "quotas do not count it of pods or claims") for name in _capped(on_namespace) if not is_added(name)]
    return [Problem(EVENT_IDLE_CAP, f"max-extra of {name} caps nothing: {why}") for name, why in absent + never]


def _capped(text: str) -> list[str]:
    with suppress(InvalidEntry):  # `refuse` tells, where something is to be added
        return sorted(parse_resources(constants.ANNOTATION_MAX_EXTRA, text)) if text else []
    return []
