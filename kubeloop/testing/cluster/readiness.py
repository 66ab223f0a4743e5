"""Waiting for a cluster that starts: each step ends when it is done, when its process died, or when time is up."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from kubeloop.api.objects import condition_is_true
from kubeloop.api.registry import NODES, Resource
from kubeloop.client.client import Client
from kubeloop.client.errors import STATUS_404, AlreadyExists, ApiError
from kubeloop.testing.cluster.processes import Process
from kubeloop.testing.cluster.reporting import StartError

#: Seconds for the whole start. Four are usual; a machine that has other work takes many times as long.
START_TIMEOUT = 300.0
_POLL = 0.05


class Patience:
    """The deadline of the whole start, and the processes that must live meanwhile: at least one when it is over."""

    def __init__(self) -> None:
        self._deadline = time.monotonic() + START_TIMEOUT
        self.watched: list[Process] = []
        """Processes whose end is the end of the wait."""

    async def until(self, problem: str, condition: Callable[[], Awaitable[bool]]) -> None:
        """Polls `condition`. Raises StartError with the process that ended, or with `problem` when the time is over."""
        while not await condition():
            self.check()
            if time.monotonic() > self._deadline:
                logs = self.watched[0].log.parent
                raise StartError(f"{problem} after {START_TIMEOUT:.0f} s: see the logs in {logs}")
            await asyncio.sleep(_POLL)

    def check(self) -> None:
        """Raises StartError if one of the watched processes has ended."""
        for process in self.watched:
            process.check()


async def listens(address: tuple[str, int]) -> bool:
    try:
        _, writer = await asyncio.open_connection(*address)
    except OSError:
        return False
    writer.close()
    return True


async def server_ready(client: Client) -> bool:
    """Does /readyz say ok? False, too, when nothing answers."""
    try:
        await client.transport.request("GET", "/readyz", retry=False)
    except ApiError:
        return False
    return True


def load_crds(files: Iterable[Path]) -> list[dict[str, Any]]:
    """The CustomResourceDefinition of each file."""
    return [yaml.safe_load(path.read_text("utf-8")) for path in files]


async def create(client: Client, resource: Resource[Any], bodies: Iterable[Mapping[str, Any]]) -> None:
    """Creates the objects that are missing. Raises ApiError."""
    for body in bodies:
        with contextlib.suppress(AlreadyExists):
            await client.resource(resource).create(body)


async def crds_served(client: Client, definitions: Iterable[Mapping[str, Any]]) -> bool:
    """Does the list of every kind work? For a moment after a CRD is Established it may not. Raises ApiError."""
    for definition in definitions:
        spec = definition["spec"]
        for version in spec["versions"]:
            path = f"/apis/{spec['group']}/{version['name']}/{spec['names']['plural']}"
            if not await _exists(client, path, {"limit": "1"}):
                return False
    return True


async def controllers_work(client: Client) -> bool:
    """Has the service-account controller been round? It and the quota controller start together."""
    return await _exists(client, "/api/v1/namespaces/default/serviceaccounts/default")


async def nodes_ready(client: Client, names: Iterable[str]) -> bool:
    nodes = await client.resource(NODES).list()
    return {n.name for n in nodes if condition_is_true(n.status.conditions, "Ready")}.issuperset(names)


async def _exists(client: Client, path: str, params: Mapping[str, str] | None = None) -> bool:
    try:
        await client.transport.request("GET", path, params=params)
    except STATUS_404:
        return False
    return True
