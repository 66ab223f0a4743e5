"""Looks at the webhooks of another process, or of before, where this one registers none; or removes them."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Final

from kubeloop.api.core import ValidatingWebhookConfiguration
from kubeloop.api.registry import VALIDATING_WEBHOOK_CONFIGURATIONS
from kubeloop.client.client import Client
from kubeloop.client.errors import ApiError
from kubeloop.webhook.registration import NotReached, registered
from pkg.selfcheck.probe import ANNOTATION_HASH, probe
from pkg.util.constants import WEBHOOK_CONFIGURATION_NAME
from pkg.webhook.registration import (
    DRIFT,
    EVENT_CHANGED,
    EVENT_NOT_REACHED,
    EVENT_OTHER_FLAGS,
    UNREACHABLE,
    Tell,
    unregister,
)

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
        """Looks once; reports a fault that two looks in a row have found. Raises ApiError."""
        configuration = await registered(self.client, VALIDATING_WEBHOOK_CONFIGURATIONS, WEBHOOK_CONFIGURATION_NAME)
        if self._was_registered and configuration is None:
            kind = VALIDATING_WEBHOOK_CONFIGURATIONS.kind
            message = f"{kind} {WEBHOOK_CONFIGURATION_NAME} was deleted by another client"
            log.warning("%s", message)
            self.tell(EVENT_CHANGED, message)
        self._was_registered = configuration is not None
        event, fault = await self._fault(configuration) if configuration else ("", "")
        if configuration or self._failing:
            UNREACHABLE.set(event == EVENT_NOT_REACHED)
            DRIFT.set(event == EVENT_OTHER_FLAGS)
        self._failing = self._failing + 1 if fault else 0
        if self._failing == 2:
            log.warning("%s", fault)
            self.tell(event, fault)

    async def _fault(self, configuration: ValidatingWebhookConfiguration) -> tuple[str, str]:
        """An event's reason and message, "" where there is none: our webhooks do not answer; or they do, and are not
        those that the headroom which answers would register: then none that runs looks after them."""
        hooks = configuration.webhooks or ()
        names = ", ".join(f"{hook['name']} ({hook.get('failurePolicy', '')})" for hook in hooks)
        try:
            mark = await probe(self.client, self.namespace)
        except NotReached as exc:
            return EVENT_NOT_REACHED, f"the webhooks {names} are registered and do not answer: {exc}"
        if configuration.annotations.get(ANNOTATION_HASH, mark) == mark:
            return "", ""
        return EVENT_OTHER_FLAGS, (
            f"the webhooks {names} were registered with other flags than those of the headroom that answers: "
            "`headroom release --only webhooks --force` removes them"
        )
