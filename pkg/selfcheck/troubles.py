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
CHECK_PERIOD: Final = 1.0
REPORT_AFTER: Final = 2.0
"""Seconds after which a refusal is told: by then the request was tried about ten times."""
END_AFTER: Final = 3.0
"""Seconds after which one that is not seen is over: between two tries a handler may wait for other events."""
_MOST_OBJECTS, _MOST_CAUSES, _LONGEST = 200, 10, 1000
"""The most that the ConfigMap holds: objects of a cause, causes, characters of a sentence."""

_VALIDATION: Final = "validation"
"""Of a tenant's VM or VMI, as with annotations of nearly 256 KiB: the object's own fault, nobody refuses headroom."""
_NO_ANSWER: Final = "no answer"
_WAITING = METRICS["headroom_requests_refused"].gauge()


@dataclass(slots=True)
class _OngoingTrouble:
    controller: Controller[Any]
    trouble: Trouble
    cause: Cause
    since: float
    last_seen: float
    is_reported: bool = False

    @property
    def waiting_object(self) -> str:
        """The object that waits."""
        resource = self.controller.informer.resource
        return f"{resource.kind} {self.trouble.key}" if self.trouble.key else self.controller.name


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
            await asyncio.sleep(CHECK_PERIOD)

    def check(self) -> None:
        """Checks once: reports what is new, and forgets what is over."""
        now = loop_time()
        for controller, trouble in self.find_troubles():
            cause, resource = _cause_of(trouble), controller.informer.resource
            if cause.by == _VALIDATION and resource in (VIRTUAL_MACHINES, VIRTUAL_MACHINE_INSTANCES):
                continue
            ongoing = _OngoingTrouble(controller, trouble, cause, now, now)
            ongoing = self._ongoing.setdefault((controller.name, trouble.key, cause.by), ongoing)
            ongoing.trouble, ongoing.cause, ongoing.last_seen = trouble, cause, now
        self._ongoing = {key: ongoing for key, ongoing in self._ongoing.items() if now - ongoing.last_seen <= END_AFTER}
        groups: dict[tuple[str, int], list[_OngoingTrouble]] = {}
        for ongoing in self._ongoing.values():
            # A missing answer was waited for already.
            if ongoing.trouble.error is None or ongoing.last_seen - ongoing.since >= REPORT_AFTER:
                groups.setdefault((ongoing.cause.by, ongoing.cause.status), []).append(ongoing)
                if not ongoing.is_reported:
                    self._report(ongoing)
        self.causes = [*map(_cause_of_all, islice(groups.values(), _MOST_CAUSES)), *self.more_causes()]
        _WAITING.clear()
        for cause in self.causes:  # causes by the same one may have several statuses
            _WAITING.labels(cause.by or _NO_ANSWER).inc(cause.count)

    def _report(self, ongoing: _OngoingTrouble) -> None:
        ongoing.is_reported = True
        trouble, text = ongoing.trouble, ongoing.cause.text
        if trouble.error is None:
            log.warning("%s waits for an answer: %s: %s", trouble.handler, ongoing.waiting_object, text)
        if trouble.handler in self.silent:
            return
        waiting_object = ongoing.controller.informer.indexer.get_by_key(trouble.key) if trouble.key else None
        reason = EVENT_REFUSED if trouble.error else EVENT_UNANSWERED
        if waiting_object is not None:
            self.events.event(waiting_object, WARNING, reason, text)
        else:
            self.events.event(self.own_object, WARNING, reason, f"{text}: {ongoing.waiting_object}")


def _cause_of(trouble: Trouble) -> Cause:
    if trouble.error is None:
        return Cause("", 0, "the API server, or a webhook that it asks, does not answer")
    by, reason, _ = trouble.error.refusal
    return Cause(by, trouble.error.status, printable(one_line(reason))[:_LONGEST])


def _cause_of_all(troubles: Sequence[_OngoingTrouble]) -> Cause:
    """Returns the cause that came first, with everything that waits because of it."""
    objects = sorted({ongoing.waiting_object for ongoing in troubles})
    return msgspec.structs.replace(troubles[0].cause, objects=objects[:_MOST_OBJECTS], count=len(objects))
