"""Registers headroom's webhooks once the API server reaches them, and takes them away."""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from kubeloop.api.registry import MUTATING_WEBHOOK_CONFIGURATIONS, VALIDATING_WEBHOOK_CONFIGURATIONS, Resource
from kubeloop.client.client import Client
from kubeloop.client.errors import ApiError, NotFound
from kubeloop.client.retry import retry_on_conflict
from kubeloop.metrics import LateGauge
from kubeloop.webhook.registration import RACES, Configuration, Endpoint, NotReached, Registration, registered
from kubeloop.workqueue.queue import loop_time
from pkg.config.metrics import METRICS, configuration_written
from pkg.config.settings import WEBHOOKS, Settings
from pkg.selfcheck.api_server import ANNOTATION_HASH, PROBE_CONFIGURATION, PROBE_PATH, probe, repeat
from pkg.util.constants import WEBHOOK_CONFIGURATION_NAME
from pkg.webhook.configurations import MANAGED_BY, fingerprint, mutating, probing, validating

log = logging.getLogger(__name__)

UNREACHABLE = LateGauge(METRICS["headroom_webhook_unreachable"])
DRIFT = LateGauge(METRICS["headroom_webhook_registration_drift"])
_LAST_REACHED = LateGauge(METRICS["headroom_webhook_last_reached_timestamp_seconds"])

INJECT_CA_FROM = "cert-manager.io/inject-ca-from"
Tell = Callable[[str, str], None]
"""Writes an event of this reason and message."""

_VALIDATING: Final = (VALIDATING_WEBHOOK_CONFIGURATIONS, WEBHOOK_CONFIGURATION_NAME)
_MUTATING: Final = (MUTATING_WEBHOOK_CONFIGURATIONS, WEBHOOK_CONFIGURATION_NAME)
_PROBE: Final = (MUTATING_WEBHOOK_CONFIGURATIONS, PROBE_CONFIGURATION)
EVENT_NOT_REACHED = "WebhookNotReached"
EVENT_OTHER_FLAGS = "WebhookFlagsDiffer"
EVENT_CHANGED = "WebhookConfigurationChanged"
WITHDRAWN_AFTER = 60.0
"""Seconds in which every probe failed, after which the webhooks are withdrawn."""
LEFTOVERS_PERIOD = 60.0
"""Seconds between two looks at leftovers: a webhook that restarts answers again by the next one."""


class Registrar(Registration):
    """Registers the webhooks once the API server is proven to reach them, and withdraws them when it no longer does.
    Replicas with the same flags do not disturb each other; others are recognised by the mark in their answers."""

    def __init__(self, client: Client, endpoint: Endpoint, settings: Settings, report: Tell = lambda *_: None) -> None:
        self.mark = fingerprint(endpoint, settings)
        self._injected = {INJECT_CA_FROM: settings.inject_ca_from} if settings.inject_ca_from else {}
        super().__init__(
            client,
            endpoint,
            WEBHOOK_CONFIGURATION_NAME,
            [
                (VALIDATING_WEBHOOK_CONFIGURATIONS, lambda endpoint, bundle: validating(endpoint, settings, bundle)),
                (MUTATING_WEBHOOK_CONFIGURATIONS, lambda endpoint, bundle: mutating(endpoint, settings, bundle)),
            ],
            labels=MANAGED_BY,
            annotations={**self._injected, ANNOTATION_HASH: self.mark},
        )
        self._settings, self._report = settings, report
        self._failing_since: float | None = None
        self._other_seen = float("-inf")
        self._differing = 0
        # Invariant: how many looks in a row were answered by a replica with other flags.
        self._is_outage_reported = False
        self._bundle: bytes | None = None
        self._kept: tuple[bytes | None, Endpoint] | None = None
        # Invariant: bundle and endpoint of all that the last look has left registered.

    def written(self, resource: Resource[Any], name: str, operation: str) -> None:
        configuration_written(resource, name, operation)
        if self._kept == (self._bundle, self.endpoint):
            change = "deleted" if operation == "created" else "changed"
            message = f"{resource.kind} {name} was {change} by another client, and is written again"
            _warn(self._report, EVENT_CHANGED, message)

    async def ensure(self, bundle: bytes | None) -> None:
        """Writes the configurations where they differ, or withdraws them. Raises ApiError, NotReached."""
        began, self._bundle = loop_time(), bundle
        try:
            mark, is_own = await self._probe(bundle)
        except NotReached as exc:
            UNREACHABLE.set(1)
            self._failing_since = began if self._failing_since is None else self._failing_since
            if loop_time() - self._failing_since >= WITHDRAWN_AFTER:
                await self._withdraw(bundle, exc)
            raise
        except ApiError:
            self._failing_since = None  # an API server that is away says nothing about the webhook
            raise
        self._failing_since, self._is_outage_reported = None, False
        UNREACHABLE.set(0)
        _LAST_REACHED.set(time.time())
        # At the second look in a row: then it is no rollout.
        self._differing = self._differing + 1 if mark != self.mark else 0
        DRIFT.set(bool(self._differing))
        if self._differing:
            self._other_seen = loop_time()
        if self._differing == 2:
            message = f"another replica answers, and it was started with other flags ({mark}, not {self.mark})"
            _warn(self._report, EVENT_OTHER_FLAGS, message)
        if is_own and loop_time() - self._other_seen >= 60.0:
            await self.write(bundle)
            self._kept = bundle, self.endpoint
        else:
            # Two that rewrite each other's configurations would never end.
            await self.adopt()

    async def adopt(self) -> None:
        """Adopts the key that is registered. The probe's is the first that is written and the last that goes."""
        for configuration in (_PROBE, _VALIDATING):  # one of 0.1.0 has no key
            if self.share_key(await registered(self.client, *configuration)):
                return

    async def _probe(self, bundle: bytes | None) -> tuple[str, bool]:
        """Returns an answering replica's mark and whether this one's address is probed. Raises NotReached, ApiError."""
        current = await registered(self.client, *_PROBE)
        if self._is_anothers(current):
            with suppress(NotReached):
                return await probe(self.client, self._settings.namespace), False

        async def put(again: bool) -> bool:
            present = await registered(self.client, *_PROBE) if again else current
            self.share_key(present)
            webhooks = probing(self.endpoint, self._settings, bundle)
            # Without the mark: it is the same for all replicas, whatever their flags.
            return await self.put(*_PROBE, present, webhooks, self._injected)

        is_new = await retry_on_conflict(put, errors=RACES)
        until = loop_time() + 2.0  # an API server learns of a configuration by a watch
        while True:
            try:
                mark = await probe(self.client, self._settings.namespace)
                # Replicas that start together may each have registered themselves: the last one stays.
                return mark, not (is_new and self._is_anothers(await registered(self.client, *_PROBE)))
            except NotReached:
                if loop_time() >= until:
                    raise
                await asyncio.sleep(0.1)

    def _is_anothers(self, current: Configuration | None) -> bool:
        if current is None or not self.endpoint.url:
            return False
        urls = [webhook.get("clientConfig", {}).get("url", "") for webhook in current.webhooks or ()]
        return not all(url.startswith(self.endpoint.url + PROBE_PATH) for url in urls)

    async def _withdraw(self, bundle: bytes | None, error: NotReached) -> None:
        """Withdraws all webhooks without Fail: no write waits in vain. Reports it once for each outage."""
        self._kept = None
        was_registered = await self.write(bundle, only=lambda webhook: webhook["failurePolicy"] == "Fail")
        if not was_registered or self._is_outage_reported:
            return
        self._is_outage_reported = True
        strict = ", ".join(name for name in WEBHOOKS if name in self._settings.strict)
        message = "the webhooks are withdrawn until the API server reaches them again"
        if strict:
            message = f"the API server does not reach the webhooks, writes to {strict} fail"
        _warn(self._report, EVENT_NOT_REACHED, f"{message}: {error}")


async def unregister(client: Client) -> list[str]:
    """Removes the configurations; returns the kinds of those that were there, but for the probe's. Raises ApiError."""
    removed: list[str] = []
    configurations: list[tuple[Resource[Any], str]] = [_VALIDATING, _MUTATING, _PROBE]
    for resource, name in configurations:
        with suppress(NotFound):
            await client.resource(resource).delete(name=name)
            configuration_written(resource, name, "removed")
            removed += [resource.kind] if name == WEBHOOK_CONFIGURATION_NAME else []
    return removed


@dataclass(eq=False)
class Leftovers:
    """Looks at webhooks that this process does not register, or removes them. `run` until cancelled."""

    client: Client
    namespace: str
    remove: bool
    tell: Tell
    _failing: int = field(default=0, init=False)
    # Invariant: how many looks in a row have found a fault.
    _was_registered: bool = field(default=False, init=False)

    async def run(self) -> None:
        await repeat(self.check, LEFTOVERS_PERIOD, retry=LEFTOVERS_PERIOD, subject="webhook configurations")

    async def check(self) -> None:
        """Looks once; reports a deletion, and webhooks that two looks in a row did not reach. Raises ApiError."""
        if self.remove:
            if await unregister(self.client):
                log.info("%s: no webhooks are served any more", WEBHOOK_CONFIGURATION_NAME)
            return
        configuration, fault = await registered(self.client, *_VALIDATING), ""
        if configuration is not None:
            try:
                await probe(self.client, self.namespace)
            except NotReached as exc:
                hooks = configuration.webhooks or ()
                names = ", ".join(f"{hook['name']} ({hook.get('failurePolicy', '')})" for hook in hooks)
                fault = f"the webhooks {names} are registered and do not answer: {exc}"
        elif self._was_registered:
            _warn(self.tell, EVENT_CHANGED, f"{_VALIDATING[0].kind} {_VALIDATING[1]} was deleted by another client")
        if configuration is not None or self._was_registered:
            UNREACHABLE.set(bool(fault))
        self._was_registered = configuration is not None
        self._failing = self._failing + 1 if fault else 0
        if self._failing == 2:
            _warn(self.tell, EVENT_NOT_REACHED, fault)


def _warn(tell: Tell, reason: str, message: str) -> None:
    log.warning("%s", message)
    tell(reason, message)
