"""Reports what keeps the controllers from their work where people look: an event on what waits, the metric, the log,
and the ConfigMap that the reports read. Somebody else has to act: a webhook, a policy or RBAC refuses requests, there
is no answer, or another writer undoes what was written."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Final

import msgspec

from kubeloop.api.meta import rfc3339
from kubeloop.api.registry import CONFIG_MAPS
from kubeloop.client.errors import ApiError, NotFound
from kubeloop.controllers.controller import Controller
from kubeloop.controllers.events import WARNING
from kubeloop.controllers.reconcile import Trouble
from kubeloop.errors import one_line
from kubeloop.logs import printable
from kubeloop.workqueue.queue import loop_time
from pkg.api.kubevirt import VIRTUAL_MACHINE_INSTANCES, VIRTUAL_MACHINES
from pkg.config.causes import Cause
from pkg.config.management import Management
from pkg.config.metrics import METRICS
from pkg.selfcheck.api_server import repeat
from pkg.selfcheck.installation import REFRESH, Installation, about
from pkg.util.constants import CONFIG_MAP, TRUE

log = logging.getLogger(__name__)

EVENT_REFUSED: Final = "RequestRefused"
EVENT_UNANSWERED: Final = "RequestUnanswered"
REPORT_AFTER: Final = 2.0
"""Seconds after which a refusal is told: by then the request was tried about ten times."""
END_AFTER: Final = 3.0
"""Seconds after which one that is not seen is over: between two tries a handler may wait for other events."""
PUBLISH_PERIOD: Final = 2.0
"""Seconds between two looks at what is to be published, which ask the API server nothing."""
FAULT_AFTER: Final = 10.0
"""Seconds until a fault is published: at the start every cache is behind for a moment."""
LAST_WRITE: Final = 2.0
"""Seconds that a controller which ends waits for its ConfigMap to be written."""
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
    """The troubles of this process: `run` finds, reports and publishes them until it is cancelled."""

    management: Management
    namespace: str
    silent: Sequence[str]
    """Handlers that write events of their own about what is refused."""
    installation: Callable[[], Installation]
    faults: Callable[[], Sequence[str]]
    """Returns what is wrong with the installation now, a line each."""
    causes: Sequence[Cause] = field(default=(), init=False)
    _ongoing: dict[tuple[str, str, str], _OngoingTrouble] = field(default_factory=dict, init=False)
    # By controller, key and who refuses.
    _last_without_fault: float = field(default_factory=loop_time, init=False)
    _due: float = field(default=float("-inf"), init=False)
    _published: Installation | None = field(default=None, init=False)

    async def run(self) -> None:
        publishing = repeat(self.publish, PUBLISH_PERIOD, retry=REFRESH, subject=f"ConfigMap {CONFIG_MAP}")
        try:
            async with asyncio.TaskGroup() as tasks:  # a write that is not answered is a trouble to find
                tasks.create_task(publishing)
                while True:
                    self.check()
                    await asyncio.sleep(1.0)
        finally:
            await self.end()

    def check(self) -> None:
        """Checks once: reports what is new, and forgets what is over."""
        now = loop_time()
        for controller, trouble in self.management.troubles():
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
        self.causes = [*map(_merged, islice(groups.values(), _MOST_CAUSES)), *self.management.reverts.causes()]
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
            reason = EVENT_REFUSED if trouble.error else EVENT_UNANSWERED
            text = cause.text if cached else cause.line()
            self.management.recorder("headroom").event(cached or about(self.namespace), WARNING, reason, text)

    async def end(self) -> None:
        """Writes that the controller has ended, if it wrote anything before."""
        if self._published is None:
            return
        try:
            async with asyncio.timeout(LAST_WRITE):
                await self._write(replace(self._published, ended=TRUE))
        except (ApiError, TimeoutError) as exc:
            log.warning("ConfigMap %s: %s", CONFIG_MAP, exc)

    async def publish(self) -> None:
        """Writes the ConfigMap if the installation changed, or if it was last written a while ago. Raises ApiError."""
        faults = self.faults()
        if not faults:
            self._last_without_fault = loop_time()
        lasting_faults = faults if loop_time() - self._last_without_fault >= FAULT_AFTER else ()
        lines = [*(cause.line() for cause in self.causes), *lasting_faults]
        rest = f"; and {len(lines) - 1} more, see /readyz" if len(lines) > 1 else ""
        problem = lines[0] + rest if lines else ""
        refused = msgspec.json.encode(self.causes).decode() if self.causes else ""
        installation = replace(self.installation(), problem=problem, refused=refused)
        published = self._published
        if published is not None and published.problem and problem:
            published = replace(published, problem=problem)  # in other words: how long a cache is behind goes on
        if installation == published and loop_time() < self._due:
            return
        await self._write(installation)
        self._published, self._due = installation, loop_time() + REFRESH

    async def _write(self, installation: Installation) -> None:
        published = replace(installation, seen=rfc3339(self.management.clock()))
        body = {"data": {name: str(value) for name, value in msgspec.to_builtins(published).items()}}
        config_maps = self.management.client.resource(CONFIG_MAPS)
        try:
            await config_maps.merge_patch(body, name=CONFIG_MAP, namespace=self.namespace)
        except NotFound:
            await config_maps.create({"metadata": {"name": CONFIG_MAP}, **body}, namespace=self.namespace)


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
