"""What keeps the controllers from their work, told where people look: an event on what waits, the metric, the log, and
the ConfigMap that the reports read. Somebody else has to act: a webhook, a policy or RBAC refuses requests, there is no
answer, or another writer undoes what was written."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from kubeloop.api.meta import Object
from kubeloop.controllers.controller import Controller
from kubeloop.controllers.events import WARNING, EventRecorder
from kubeloop.controllers.reconcile import Trouble
from kubeloop.errors import one_line
from kubeloop.workqueue.queue import loop_time
from pkg.config.cause import Cause
from pkg.config.metrics import METRICS

log = logging.getLogger(__name__)

EVENT_REFUSED: Final = "RequestRefused"
EVENT_UNANSWERED: Final = "RequestUnanswered"
LOOK: Final = 1.0
"""Seconds between two looks, which ask the API server nothing."""
LASTS: Final = 2.0
"""Seconds after which a refusal is told: by then the request was tried about ten times."""
LINGERS: Final = 3.0
"""Seconds after which one that is not seen is over: between two tries a handler may wait for other events."""
_FORGOTTEN: Final = 60.0
"""Seconds after which one that comes back is a new event."""
_MOST_OBJECTS, _MOST_CAUSES, _LONGEST = 200, 10, 1000
"""How much the ConfigMap holds: objects of a cause, causes, characters of a sentence."""

_NO_ANSWER: Final = "no answer"
_WAITING = METRICS["headroom_requests_refused"].gauge()


@dataclass(slots=True)
class _Seen:
    """A trouble that goes on: `obj` is what events are written on."""

    controller: Controller[Any]
    trouble: Trouble
    since: float
    last: float
    is_told: bool = False

    @property
    def shown(self) -> str:
        """What waits."""
        resource = self.controller.informer.resource
        return f"{resource.kind} {self.trouble.key}" if self.trouble.key else self.controller.name


@dataclass(eq=False)
class Troubles:
    """`run` until cancelled."""

    found: Callable[[], Iterable[tuple[Controller[Any], Trouble]]]
    events: EventRecorder
    own: Object
    """What events about the installation are written on."""
    silent: Sequence[str] = ()
    """Handlers that write events of their own about what is refused."""
    others: Callable[[], Sequence[Cause]] = tuple
    """Causes that no request has met, of which their finders write the events."""
    causes: Sequence[Cause] = field(default=(), init=False)
    """What is told now."""
    _seen: dict[tuple[str, str, str], _Seen] = field(default_factory=dict, init=False)
    # By controller, key and who refuses.
    _measured: set[str] = field(default_factory=set, init=False)
    # Invariant: the label's values that are exported.

    async def run(self) -> None:
        while True:
            self.look()
            await asyncio.sleep(LOOK)

    def look(self) -> None:
        """Once: what is new is told, what is over is forgotten."""
        now = loop_time()
        for controller, trouble in self.found():
            identity = (controller.name, trouble.key, _cause_of(trouble).by)
            seen = self._seen.setdefault(identity, _Seen(controller, trouble, now, now))
            if now - seen.last > LINGERS:
                seen.since = now
            seen.trouble, seen.last = trouble, now
        self._seen = {identity: each for identity, each in self._seen.items() if now - each.last < _FORGOTTEN}
        told = [each for each in self._seen.values() if _is_told(each, now)]
        for seen in told:
            if not seen.is_told:
                seen.is_told = True
                self._tell(seen)
        self.causes = [*_grouped(told), *self.others()]
        self._measure()

    def _measure(self) -> None:
        counts: defaultdict[str, int] = defaultdict(int)
        for cause in self.causes:
            counts[cause.by or _NO_ANSWER] += cause.count
        for gone in self._measured - counts.keys():
            _WAITING.remove(gone)
        for by, count in counts.items():
            _WAITING.labels(by).set(count)
        self._measured = set(counts)

    def _tell(self, seen: _Seen) -> None:
        cause, trouble = _cause_of(seen.trouble), seen.trouble
        if trouble.error is None:
            log.warning("%s waits for an answer: %s: %s", trouble.handler, seen.shown, cause.text)
        if trouble.handler in self.silent:
            return
        about = seen.controller.informer.indexer.get_by_key(trouble.key) if trouble.key else None
        text = cause.text if about is not None else f"{cause.text}: {seen.shown}"
        self.events.event(about or self.own, WARNING, EVENT_REFUSED if trouble.error else EVENT_UNANSWERED, text)


def _is_told(seen: _Seen, now: float) -> bool:
    """A missing answer was waited for already."""
    lasts = seen.trouble.error is None or seen.last - seen.since >= LASTS
    return lasts and now - seen.last <= LINGERS


def _cause_of(trouble: Trouble) -> Cause:
    if trouble.error is None:
        return Cause("", 0, "the API server, or a webhook that it asks, does not answer")
    by, reason, _ = trouble.error.refusal
    text = "".join(each if each.isprintable() else "\ufffd" for each in one_line(reason))
    return Cause(by, trouble.error.status, text[:_LONGEST])


def _grouped(told: Iterable[_Seen]) -> list[Cause]:
    """One for each who refuses, and each status, with the sentence that came first."""
    causes: dict[tuple[str, int], Cause] = {}
    objects: defaultdict[tuple[str, int], dict[str, None]] = defaultdict(dict)
    for seen in told:
        cause = _cause_of(seen.trouble)
        causes.setdefault((cause.by, cause.status), cause)
        objects[cause.by, cause.status][seen.shown] = None
    return [
        msgspec.structs.replace(cause, objects=sorted(objects[key])[:_MOST_OBJECTS], count=len(objects[key]))
        for key, cause in list(causes.items())[:_MOST_CAUSES]
    ]
