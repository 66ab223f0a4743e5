"""An informer of pods over a scripted API server, under virtual time, and what a handler is told."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from kubeloop.api.core import Pod
from kubeloop.api.meta import ObjectMeta
from kubeloop.api.registry import PODS
from kubeloop.cache.informer import SharedIndexInformer
from kubeloop.cache.lister_watcher import ListerWatcher
from kubeloop.cache.recovery import ReflectorOptions
from kubeloop.client.client import Client
from kubeloop.client.resource_client import ResourceClient
from kubeloop.testing.scripted_server import GET, LIST, WATCH, Reply, ScriptedServer, raw, resources, status, watch
from kubeloop.testing.scripted_steps import added, bookmark, hang, obj
from kubeloop.testing.virtual_time import now

PATH, DISCOVERY = PODS.path(), "/api/v1"
ONE = PODS.path("ns")
"""Where a watch of one object alone is asked for: the probe of whether watches bring anything."""
SERVED, NOT_SERVED = resources("v1", "pods"), resources("v1", "secrets")
REFUSED = status(422, "Invalid", "sendInitialEvents is forbidden for watch unless the feature gate is enabled")
NO_KIND = raw(b"404 page not found\n", 404, {"Content-Type": "text/plain"})


def pod(
    name: str,
    version: str = "1",
    namespace: str = "ns",
    *,
    uid: str | None = None,
    labels: dict[str, str] | None = None,
) -> Pod:
    """A pod; its uid follows from its name."""
    uid = f"uid-{name}" if uid is None else uid
    return Pod(metadata=ObjectMeta(name=name, namespace=namespace, uid=uid, resource_version=version, labels=labels))


def versions_of(*pods: Pod) -> str:
    """Names and versions: `a@1 b@7`."""
    return " ".join(sorted(f"{pod.name}@{pod.metadata.resource_version}" for pod in pods))


class Recorder:
    """A handler that records its events: `initial a@1`, `added a@1`, `updated a@1 to a@2`, `deleted a@2`, or `missed
    a@1` of a deletion whose final state is unknown."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def on_add(self, obj: Pod, is_in_initial_list: bool) -> None:
        self.events.append(f"{'initial' if is_in_initial_list else 'added'} {versions_of(obj)}")

    def on_update(self, old: Pod, new: Pod) -> None:
        self.events.append(f"updated {versions_of(old)} to {versions_of(new)}")

    def on_delete(self, obj: Pod, final_state_unknown: bool) -> None:
        self.events.append(f"{'missed' if final_state_unknown else 'deleted'} {versions_of(obj)}")

    def take(self) -> str:
        """Returns the events since the last call."""
        events = ", ".join(self.events)
        self.events.clear()
        return events


class Turns:
    """Counts the turns of the event loop, and the work that is done in each."""

    def __init__(self) -> None:
        self.work: list[int] = [0]

    @asynccontextmanager
    async def counted(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self._count())
        try:
            yield
        finally:
            task.cancel()

    def add(self, amount: int) -> None:
        self.work[-1] += amount

    async def _count(self) -> None:
        while True:
            self.work.append(0)
            await asyncio.sleep(0)


def sent(name: str, version: str = "1", **meta: Any) -> dict[str, Any]:
    """A pod in JSON."""
    return obj(name, version, "ns", metadata=meta)


FIRST = added(sent("a")), bookmark("5", initial_events_end=True)


@dataclass
class RunningInformer:
    """An informer that runs, its server, and what it has told a handler."""

    server: ScriptedServer
    informer: SharedIndexInformer[Pod]
    recorder: Recorder

    def content(self) -> str:
        return versions_of(*self.informer.indexer.list())

    def requests_made(self) -> list[str]:
        """Lists and watches so far, with resourceVersion or continue token; "initial" for a WatchList."""
        return [
            f"{request.verb} {_start_of(request.query)}".strip()
            for request in self.server.requests
            if request.path == PATH
        ]

    def times(self) -> list[float]:
        """Returns the times of the requests."""
        return [request.at for request in self.server.requests if request.path == PATH]

    def discoveries(self) -> int:
        return len(self.server.seen(GET, DISCOVERY))

    def problems(self) -> list[str]:
        return self.informer.problems(now())


@asynccontextmanager
async def running(
    watches: Sequence[Reply],
    lists: Sequence[Reply] = (),
    *,
    served: Reply = SERVED,
    select: Callable[[ResourceClient[Pod]], ListerWatcher[Pod]] = lambda pods: pods,
    options: ReflectorOptions | None = None,
    **informer_options: Any,
) -> AsyncIterator[RunningInformer]:
    """`watches` and `lists` are answered in turn, then watches are silent, but for one of a single object; `served` is
    discovery's answer; `select` says which pods; `informer_options` are the informer's options."""
    async with ScriptedServer() as server, Client(server.config()) as client:
        server.script(WATCH, PATH, *watches)
        server.script(LIST, PATH, *lists)
        server.always(GET, DISCOVERY, served)
        server.always(WATCH, ONE, watch(added(sent("a")), bookmark("999", initial_events_end=True), hang()))
        run = RunningInformer(
            server, SharedIndexInformer(select(client.resource(PODS)), options=options, **informer_options), Recorder()
        )
        run.informer.add_event_handler(run.recorder)
        run.informer.start()
        try:
            yield run
        finally:
            await run.informer.stop()


def _start_of(query: Any) -> str:
    if query.get("sendInitialEvents"):
        return "initial"
    return query.get("resourceVersion") or query.get("continue") or ""
