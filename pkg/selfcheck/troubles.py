"""Reports what keeps the controllers from their work where people look: an event on what waits, the metric, the log,
and the ConfigMap that the reports read. Somebody else has to act: a webhook, a policy or RBAC refuses requests, there
is no answer, or another writer undoes what was written."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

import msgspec

from kubeloop.api.meta import Object
from kubeloop.controllers.controller import Controller
from kubeloop.controllers.events import WARNING, EventRecorder
from kubeloop.controllers.reconcile import Trouble
from kubeloop.errors import one_line
from kubeloop.logs import printable
from kubeloop.workqueue.queue import loop_time
from pkg.api.kubevirt import VIRTUAL_MACHINE_INSTANCES, VIRTUAL_MACHINES
from pkg.config.causes import Cause
from pkg.config.metrics import METRICS

log = logging.getLogger(__name__)

EVENT_REFUSED: Final = "RequestRefused"
EVENT_UNANSWERED: Final = "RequestUnanswered"
REPORT_AFTER: Final = 2.0
"""Seconds after which a refusal is told: by then the request was tried about ten times."""
END_AFTER: Final = 3.0
"""Seconds after which one that is not seen is over: between two tries a handler may wait for other events."""
_MOST_OBJECTS, _MOST_CAUSES, _LONGEST = 200, 10, 1000
"""The most that the ConfigMap holds: objects of a cause, causes, characters of a sentence."""

_WAITING = METRICS["headroom_requests_refused"].gauge()


@dataclass(slots=True)
class _OngoingTrouble:
    controller: Controller[Any]
    trouble: Trouble
    cause: Cause
    since: float
    last_seen: float
    is_reported: bool = False


@dataclass(eq=False)
class Troubles:
    """`run` until cancelled."""

    find_troubles: Callable[[], Iterable[tuple[Controller[Any], Trouble]]]
    events: EventRecorder
    own_object: Object
    silent: Sequence[str] = ()
    """Handlers that write events of their own about what is refused."""
    more_causes: Callable[[], Sequence[Cause]] = tuple
    """Causes that no request has met, of which their finders write the events."""
    causes: Sequence[Cause] = field(default=(), init=False)
    _ongoing: dict[tuple[str, str, str], _OngoingTrouble] = field(default_factory=dict, init=False)
    # By controller, key and who refuses.

    async def run(self) -> None:
        while True:
            self.check()
            await asyncio.sleep(1.0)

    def check(self) -> None:
        """Checks once: reports what is new, and forgets what is over."""
        now = loop_time()
        for controller, trouble in self.find_troubles():
            cause, resource = _cause_of(controller, trouble), controller.informer.resource
            # A tenant's VM or VMI with annotations of nearly 256 KiB: nobody refuses headroom.
            if cause.by == "validation" and resource in (VIRTUAL_MACHINES, VIRTUAL_MACHINE_INSTANCES):
                continue
            ongoing = _OngoingTrouble(controller, trouble, cause, now, now)
            ongoing = self._ongoing.setdefault((controller.name, trouble.key, cause.by), ongoing)
            ongoing.trouble, ongoing.cause, ongoing.last_seen = trouble, cause, now
        self._ongoing = {key: ongoing for key, ongoing in self._ongoing.items() if now - ongoing.last_seen <= END_AFTER}
        groups: dict[tuple[str, int], list[Cause]] = {}
        for ongoing in self._ongoing.values():
            # A missing answer was waited for already.
            if ongoing.trouble.error is None or ongoing.last_seen - ongoing.since >= REPORT_AFTER:
                groups.setdefault((ongoing.cause.by, ongoing.cause.status), []).append(ongoing.cause)
                if not ongoing.is_reported:
                    self._report(ongoing)
        self.causes = [*map(_merged, islice(groups.values(), _MOST_CAUSES)), *self.more_causes()]
        _WAITING.clear()
        for cause in self.causes:  # causes by the same one may have several statuses
            _WAITING.labels(cause.by or "no answer").inc(cause.count)

    def _report(self, ongoing: _OngoingTrouble) -> None:
        ongoing.is_reported = True
        trouble, cause = ongoing.trouble, ongoing.cause
        if trouble.error is None:
            log.warning("%s waits for an answer: %s: %s", trouble.handler, cause.objects[0], cause.text)
        if trouble.handler not in self.silent:
            cached = ongoing.controller.informer.indexer.get_by_key(trouble.key)
            reason, text = EVENT_REFUSED if trouble.error else EVENT_UNANSWERED, cause.text if cached else cause.line()
            self.events.event(cached or self.own_object, WARNING, reason, text)


def _cause_of(controller: Controller[Any], trouble: Trouble) -> Cause:
    """Returns the cause with the one object that waits, or the plural of a kind that may not be read."""
    objects = [f"{controller.informer.resource.kind} {trouble.key}" if trouble.key else controller.name]
    if trouble.error is None:
        return Cause("", 0, "the API server, or a webhook that it asks, does not answer", objects, 1)
    by, reason, _ = trouble.error.refusal
    return Cause(by, trouble.error.status, printable(one_line(reason))[:_LONGEST], objects, 1)


def _merged(causes: Sequence[Cause]) -> Cause:
    """Returns the cause that came first, with everything that waits because of it."""
    objects = sorted({obj for cause in causes for obj in cause.objects})
    return msgspec.structs.replace(causes[0], objects=objects[:_MOST_OBJECTS], count=len(objects))
