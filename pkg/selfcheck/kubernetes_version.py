"""Which Kubernetes releases count: what the API servers say they are, asked again every few minutes.

During an upgrade of several API servers either of them may answer, and either may admit the next pod: what one of them
said a short while ago counts as well.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

import msgspec

from kubeloop.client.client import Client
from kubeloop.client.errors import ApiError
from pkg.util.quotacount.releases import UNKNOWN, Releases, doubt, releases_of

log = logging.getLogger(__name__)

PERIOD: Final = 120.0
"""Seconds between two questions."""
KEPT: Final = 600.0
"""Seconds for which an answer counts; the last one counts on."""


class _Version(msgspec.Struct, rename="camel"):
    """apimachinery version.Info."""

    git_version: str = ""


async def ask(client: Client) -> str:
    """The version of the API server that answers, "" if it cannot be read. Raises ApiError."""
    answer = await client.transport.request("GET", "/version")
    try:
        return msgspec.json.decode(answer, type=_Version).git_version
    except msgspec.MsgspecError:
        return ""


class KubernetesVersion:
    """`run` until cancelled; `changed` is set when other versions count."""

    def __init__(self, *said: str, clock: Callable[[], float] = time.monotonic) -> None:
        """`said`: what API servers have already said."""
        self._clock = clock
        self._heard: dict[str, float] = {}
        self.changed = asyncio.Event()
        self._releases: Releases = UNKNOWN
        for version in said:
            self.hear(version)

    @property
    def versions(self) -> tuple[str, ...]:
        """What counts, sorted."""
        return tuple(sorted(self._heard))

    def releases(self) -> Releases:
        return self._releases

    async def run(self, client: Client) -> None:
        while True:
            await asyncio.sleep(PERIOD)
            try:
                self.hear(await ask(client))
            except ApiError as exc:
                log.debug("version of the API server: %s", exc)

    def hear(self, version: str) -> None:
        """An API server has said that this is its version."""
        before, now = self.versions, self._clock()
        self._heard = {each: at for each, at in self._heard.items() if now - at < KEPT} | {version: now}
        if self.versions == before:
            return
        self._releases = releases_of(self.versions)
        self.changed.set()
        if why := doubt(self.versions):
            log.warning("%s", why)
        elif before:
            log.info("pods count as in Kubernetes %s", version)
