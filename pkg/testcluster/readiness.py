"""Waiting for a cluster that starts: each step ends when it is done, when its process died, or when time is up."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

from pkg.testcluster.errors import StartError
from pkg.testcluster.nodes import fake_node, is_ready
from pkg.testcluster.processes import Process, last_log_line
from pkg.testcluster.rest import Rest, RestError

CRDS = Path(__file__).parent / "crds"

#: Seconds for the whole start. Four are usual; a machine that compiles something beside it takes longer.
START_TIMEOUT = 120.0
_POLL = 0.05


class Patience:
    """One deadline for the whole start, and the processes that must live meanwhile."""

    def __init__(self, timeout: float = START_TIMEOUT) -> None:
        self._deadline = time.monotonic() + timeout
        self._timeout = timeout
        self._watched: list[Process] = []

    def watch(self, process: Process) -> None:
        """From now on, the end of `process` is the end of the wait."""
        self._watched.append(process)

    def until(self, what: str, done: Callable[[], bool]) -> None:
        """Poll `done`. StartError names the process that ended, or `what` did not happen in time."""
        while not done():
            self.check()
            if time.monotonic() > self._deadline:
                raise StartError(f"{what} after {self._timeout:.0f} s: see the logs in {self._logs()}")
            time.sleep(_POLL)

    def check(self) -> None:
        """StartError if one of the watched processes has ended."""
        for process in self._watched:
            if not process.alive():
                last = last_log_line(process.directory, process.name) or "no message"
                raise StartError(f"{process.name} ended while starting: {last} (whole log: {process.log})")

    def _logs(self) -> str:
        return str(self._watched[0].log.parent) if self._watched else "its directory"


def listens(address: tuple[str, int]) -> bool:
    try:
        with socket.create_connection(address, timeout=1.0):
            return True
    except OSError:
        return False


def load_crds() -> list[dict[str, Any]]:
    """Our CustomResourceDefinitions, in alphabetical order of their files."""
    return [yaml.safe_load(path.read_text("utf-8")) for path in sorted(CRDS.glob("*.yaml"))]


def create_crds(rest: Rest) -> list[str]:
    """Create those that are not there; all their names."""
    definitions = load_crds()
    for definition in definitions:
        _create(rest, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
    return [definition["metadata"]["name"] for definition in definitions]


def create_nodes(rest: Rest, names: Iterable[str]) -> None:
    for name in names:
        _create(rest, "/api/v1/nodes", fake_node(name))


def crds_served(rest: Rest, names: Iterable[str]) -> bool:
    """Is every CRD Established, and does its list work (which it may not, for a moment after Established)?"""
    for name in names:
        definition = rest.get(f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}")
        if not (_is_established(definition) and all(_exists(rest, path) for path in _list_paths(definition))):
            return False
    return True


def controllers_work(rest: Rest) -> bool:
    """Has the service-account controller been round? It and the quota controller start together."""
    return _exists(rest, "/api/v1/namespaces/default/serviceaccounts/default")


def nodes_ready(rest: Rest, names: Iterable[str]) -> bool:
    ready = {node["metadata"]["name"] for node in rest.get("/api/v1/nodes")["items"] if is_ready(node)}
    return ready.issuperset(names)


def _is_established(definition: dict[str, Any]) -> bool:
    conditions = definition.get("status", {}).get("conditions") or []
    return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)


def _list_paths(definition: dict[str, Any]) -> Iterator[str]:
    spec = definition["spec"]
    for version in spec["versions"]:
        yield f"/apis/{spec['group']}/{version['name']}/{spec['names']['plural']}?limit=1"


def _exists(rest: Rest, path: str) -> bool:
    try:
        rest.get(path)
    except RestError as error:
        if error.status != 404:
            raise
        return False
    return True


def _create(rest: Rest, path: str, body: dict[str, Any]) -> None:
    try:
        rest.create(path, body)
    except RestError as error:
        if error.status != 409:
            raise
