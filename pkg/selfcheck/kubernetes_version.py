"""Tracks which Kubernetes releases count: what the API servers say they are, asked again every few minutes.

During an upgrade either of several API servers may answer, and either may admit the next pod: both count then."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Final

import msgspec

from kubeloop.client.client import Client
from kubeloop.client.errors import ApiError
from pkg.util.quotacount.releases import Releases, doubt, releases_of

log = logging.getLogger(__name__)

PERIOD: Final = 120.0
ANSWERS: Final = 5
"""The answers that count, for ten minutes; while there are no new ones they count on."""


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
    """`run` until cancelled."""

    def __init__(self, *known_versions: str) -> None:
        """`known_versions`: what API servers have already said."""
        self._answers: deque[str] = deque(maxlen=ANSWERS)
        for version in known_versions:
            self.record(version)

    @property
    def versions(self) -> tuple[str, ...]:
        """The versions that count, sorted."""
        return tuple(sorted(set(self._answers)))

    def releases(self) -> Releases:
        return releases_of(self.versions)

    async def run(self, client: Client) -> None:
        while True:
            await asyncio.sleep(PERIOD)
            try:
                self.record(await ask(client))
            except ApiError as exc:
                log.debug("version of the API server: %s", exc)

    def record(self, version: str) -> None:
        """Records that an API server has this version."""
        old_versions = self.versions
        self._answers.append(version)
        if self.versions == old_versions:
            return
        if reason := doubt(self.versions):
            log.warning("%s", reason)
        elif old_versions:
            log.info("pods count as in Kubernetes %s", version)


async def wait_for_version(client: Client, stop: asyncio.Event) -> KubernetesVersion | None:
    """Returns None when `stop` is set before the API server has said its version. Raises ApiError, ConfigError."""
    asking, stopped = asyncio.create_task(ask(client)), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([asking, stopped], return_when=asyncio.FIRST_COMPLETED)
        return KubernetesVersion(asking.result()) if asking.done() else None
    finally:
        asking.cancel()
        stopped.cancel()
        await asyncio.wait([asking])
