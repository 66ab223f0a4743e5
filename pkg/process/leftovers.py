"""Looks at the webhooks of another process, or of before, where this one registers none; or removes them."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Final

from kubeloop.api.registry import VALIDATING_WEBHOOK_CONFIGURATIONS
from kubeloop.client.client import Client
from kubeloop.client.errors import ApiError
from kubeloop.webhook.registration import NotReached, registered
from pkg.selfcheck.probe import probe
from pkg.util.constants import WEBHOOK_CONFIGURATION_NAME
from pkg.webhook.registration import EVENT_CHANGED, EVENT_NOT_REACHED, UNREACHABLE, Tell, unregister

log = logging.getLogger(__name__)

PERIOD: Final = 60.0
"""Seconds between two looks: a webhook that restarts answers again by the next one."""


@dataclass(eq=False)
class Leftovers:
    """`run` until cancelled."""

    client: Client
    namespace: str
    """Headroom's own."""
    remove: bool
    tell: Tell
    _failing: int = field(default=0, init=False)
    # Invariant: how many looks in a row have found a fault.
    _was_registered: bool = field(default=False, init=False)

    async def run(self) -> None:
        while True:
            try:
                if not self.remove:
                    await self.check()
                elif await unregister(self.client):
                    log.info("%s: no webhooks are served any more", WEBHOOK_CONFIGURATION_NAME)
            except ApiError as exc:
                log.warning("webhook configurations: %s, trying again in %g s", exc, PERIOD)
            await asyncio.sleep(PERIOD)

    async def check(self) -> None:
        """Looks once; reports a deletion, and webhooks that two looks in a row did not reach. Raises ApiError."""
        configuration = await registered(self.client, VALIDATING_WEBHOOK_CONFIGURATIONS, WEBHOOK_CONFIGURATION_NAME)
        fault = ""
        if configuration is not None:
            try:
                await probe(self.client, self.namespace)
            except NotReached as exc:
                hooks = configuration.webhooks or ()
                names = ", ".join(f"{hook['name']} ({hook.get('failurePolicy', '')})" for hook in hooks)
                fault = f"the webhooks {names} are registered and do not answer: {exc}"
        elif self._was_registered:
            kind = VALIDATING_WEBHOOK_CONFIGURATIONS.kind
            self._warn(EVENT_CHANGED, f"{kind} {WEBHOOK_CONFIGURATION_NAME} was deleted by another client")
        if configuration is not None or self._was_registered:
            UNREACHABLE.set(bool(fault))
        self._was_registered = configuration is not None
        self._failing = self._failing + 1 if fault else 0
        if self._failing == 2:
            self._warn(EVENT_NOT_REACHED, fault)

    def _warn(self, reason: str, message: str) -> None:
        log.warning("%s", message)
        self.tell(reason, message)
