"""The registration as a process sees it that serves no webhooks itself: removed where none shall be served, and else
whether the API server reaches it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Final

from kubeloop.api.registry import VALIDATING_WEBHOOK_CONFIGURATIONS
from kubeloop.client.client import Client
from kubeloop.client.errors import ApiError, NotFound
from pkg.config.probe import NotReached, probe
from pkg.util.constants import WEBHOOK_CONFIGURATION_NAME
from pkg.webhook.metrics import UNREACHABLE
from pkg.webhook.registration import unregister

log = logging.getLogger(__name__)

PERIOD: Final = 60.0
"""Seconds between two looks: a webhook that restarts answers again by the next one."""


class Leftovers:
    """`run` until cancelled."""

    def __init__(self, client: Client, namespace: str, *, remove: bool, tell: Callable[[str], None]) -> None:
        """`namespace` is headroom's own; `tell` reports what an administrator has to know."""
        self._client = client
        self._namespace = namespace
        self._remove = remove
        self._tell = tell
        self._failing = 0
        # Invariant: how many looks in a row have found webhooks that do not answer.

    async def run(self) -> None:
        while True:
            try:
                await (self._removed() if self._remove else self.check())
            except ApiError as exc:
                log.warning("webhook configurations: %s, trying again in %g s", exc, PERIOD)
            await asyncio.sleep(PERIOD)

    async def _removed(self) -> None:
        if await unregister(self._client):
            log.info("%s: no webhooks are served any more", WEBHOOK_CONFIGURATION_NAME)

    async def check(self) -> None:
        """One look; reports what two in a row have found. Raises ApiError."""
        registered = await self._registered()
        found = await self._unreachable(registered) if registered else ""
        if registered or self._failing:
            UNREACHABLE.set(bool(found))
        self._failing = self._failing + 1 if found else 0
        if self._failing == 2:
            log.warning("%s", found)
            self._tell(found)

    async def _registered(self) -> list[str]:
        """The names of our webhooks, each with its failure policy."""
        configurations = self._client.resource(VALIDATING_WEBHOOK_CONFIGURATIONS)
        with contextlib.suppress(NotFound):
            found = await configurations.get(name=WEBHOOK_CONFIGURATION_NAME)
            return [f"{each['name']} ({each.get('failurePolicy', '')})" for each in found.webhooks or ()]
        return []

    async def _unreachable(self, registered: Sequence[str]) -> str:
        """Why they do not answer; "" where they do."""
        try:
            await probe(self._client, self._namespace)
        except NotReached as exc:
            return f"the webhooks {', '.join(registered)} are registered and do not answer: {exc}"
        return ""
