"""Whether the webhook that keeps pods out of added room is registered: without it the label has no use."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from pkg.api.admissionregistration import ValidatingWebhookConfiguration
from pkg.client.errors import ApiError, NotFound
from pkg.client.resource_client import ResourceClient
from pkg.util.constants import WEBHOOK_CONFIGURATION_NAME

ASK_AGAIN = 5.0
"""Seconds for which a yes counts."""
ASK_SOON = 0.5
"""Seconds for which a no counts: a webhook that starts is to be believed in before the next quota is raised."""


class PodWebhook:
    """Asks the API server for our webhooks' registration, now and then."""

    def __init__(
        self,
        configurations: ResourceClient[ValidatingWebhookConfiguration],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._configurations = configurations
        self._clock = clock
        self._registered = False
        self._asked_at = float("-inf")
        self._asking = asyncio.Lock()

    async def is_registered(self) -> bool:
        """Whether new pods are sent to our webhook. An answer that cannot be had changes nothing. One
        request at a time: those who ask meanwhile get its answer."""
        async with self._asking:
            if self._clock() - self._asked_at >= (ASK_AGAIN if self._registered else ASK_SOON):
                await self._ask()
                self._asked_at = self._clock()
        return self._registered

    async def _ask(self) -> None:
        try:
            configuration = await self._configurations.get(name=WEBHOOK_CONFIGURATION_NAME)
        except NotFound:
            self._registered = False
        except ApiError:
            pass
        else:
            self._registered = sees_pods(configuration)


def sees_pods(configuration: ValidatingWebhookConfiguration) -> bool:
    """Whether one of the webhooks is about pods."""
    rules = [rule for webhook in configuration.webhooks or () for rule in webhook.get("rules") or ()]
    return any("pods" in (rule.get("resources") or ()) for rule in rules)
