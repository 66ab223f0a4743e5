"""Tracks which Kubernetes releases count: what the API servers say they are, asked again every few minutes.

During an upgrade of several API servers either of them may answer, and either may admit the next pod: what one of them
said a short while ago counts as well."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec

from kubeloop.client.client import Client
from kubeloop.client.errors import ApiError
from pkg.util.quotacount.releases import UNKNOWN, Releases, doubt, releases_of

log = logging.getLogger(__name__)

PERIOD: Final = 120.0
"""Seconds between two questions."""
ANSWER_LIFETIME: Final = 600.0
"""Seconds for which an answer counts; the last one counts on."""


class _Version(msgspec.Struct, rename="camel"):
    """apimachinery version.Info."""

    git_version: str = ""


async def ask(client: Client) -> str:
    """Returns the version of the API server that answers, "" if it cannot be read. Raises ApiError."""
    answer = await client.transport.request("GET", "/version")
    try:
        return msgspec.json.decode(answer, type=_Version).git_version
    except msgspec.MsgspecError:
        return ""


class KubernetesVersion:
    """`run` until cancelled; `changed` is set when other versions count."""

    def __init__(self, *known_versions: str, clock: Callable[[], float] = time.monotonic) -> None:
        """`known_versions`: what API servers have already said."""
        self._clock = clock
        self._last_seen: dict[str, float] = {}
        self.changed = asyncio.Event()
        self._releases: Releases = UNKNOWN
        for version in known_versions:
            self.record(version)

    @property
    def versions(self) -> tuple[str, ...]:
        """The versions that count, sorted."""
        return tuple(sorted(self._last_seen))

    def releases(self) -> Releases:
        return self._releases

    async def run(self, client: Client) -> None:
        while True:
            await asyncio.sleep(PERIOD)
            try:
                self.record(await ask(client))
            except ApiError as exc:
                log.debug("version of the API server: %s", exc)

    def record(self, version: str) -> None:
        """Records that an API server has this version."""
        old_versions, now = self.versions, self._clock()
        self._last_seen = {
            old_version: seen_at for old_version, seen_at in self._last_seen.items() if now - seen_at < ANSWER_LIFETIME
        } | {version: now}
        if self.versions == old_versions:
            return
        self._releases = releases_of(self.versions)
        self.changed.set()
        if reason := doubt(self.versions):
            log.warning("%s", reason)
        elif old_versions:
            log.info("pods count as in Kubernetes %s", version)


async def wait_for_version(client: Client, stop: asyncio.Event) -> KubernetesVersion | None:
    """Waits until the API server has said its version; returns None when `stop` is set first. Raises ApiError,
    ConfigError."""
    version = asyncio.create_task(ask(client))
    try:
        await wait_for_either(stop, version)
        return KubernetesVersion(version.result()) if version.done() else None
    finally:
        version.cancel()
        await asyncio.wait([version])


async def wait_for_either(stop: asyncio.Event, task: asyncio.Task[Any]) -> None:
    """Waits until `stop` is set or the task has ended. Raises what the task raised."""
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([stopped, task], return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopped.cancel()
    if not stop.is_set():
        task.result()
