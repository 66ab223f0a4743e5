"""Keeps the webhook configurations on the API server as they should be, and takes them away."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from kubeloop.api.admissionregistration import MutatingWebhookConfiguration, ValidatingWebhookConfiguration
from kubeloop.api.registry import MUTATING_WEBHOOK_CONFIGURATIONS, VALIDATING_WEBHOOK_CONFIGURATIONS, Resource
from kubeloop.client.client import Client
from kubeloop.client.errors import AlreadyExists, ApiError, Conflict, NotFound
from kubeloop.client.retry import retry_on_conflict
from pkg.config.configuration_writes import written
from pkg.config.probe import ANNOTATION_HASH, PROBE_CONFIGURATION, PROBE_PATH, NotReached, probe
from pkg.util.constants import WEBHOOK_CONFIGURATION_NAME
from pkg.webhook.caller import Caller
from pkg.webhook.configurations import MANAGED_BY, Endpoint, Webhook, fingerprint, mutating, probing, validating
from pkg.webhook.metrics import DRIFT, LAST_REACHED, UNREACHABLE
from pkg.webhook.options import WEBHOOKS, FailurePolicy, Options

log = logging.getLogger(__name__)

INJECT_CA_FROM = "cert-manager.io/inject-ca-from"

Configuration = ValidatingWebhookConfiguration | MutatingWebhookConfiguration
Tell = Callable[[str, str], None]
"""Writes an event of this reason and message."""
C = TypeVar("C", ValidatingWebhookConfiguration, MutatingWebhookConfiguration)
_Make = Callable[[Endpoint, Options, bytes | None], list[Webhook]]

_KINDS: Sequence[tuple[Resource[Any], _Make]] = (
    (VALIDATING_WEBHOOK_CONFIGURATIONS, validating),
    (MUTATING_WEBHOOK_CONFIGURATIONS, mutating),
)
EVENT_NOT_REACHED = "WebhookNotReached"
EVENT_OTHER_FLAGS = "WebhookFlagsDiffer"
WITHDRAWN_AFTER = 60.0
"""Seconds in which every probe failed, after which the webhooks are withdrawn."""
_OTHER_SECONDS = 60.0
"""After the answer of a replica with other flags, nothing is rewritten for so long."""
_NEWS_ATTEMPTS = 20
_NEWS_PAUSE = 0.1
_NEWS_SECONDS = 2.0
"""A probe that the API server gives up on takes the webhook's whole timeoutSeconds."""


class Registrar:
    """Registers the webhooks once the API server is proven to reach them, and withdraws them when it no longer does.

    Writes only what differs. Replicas with the same flags do not disturb each other; others are recognised by the mark
    in their answers, and a warning is logged.
    """

    def __init__(
        self,
        client: Client,
        endpoint: Endpoint,
        options: Options,
        *,
        caller: Caller | None = None,
        clock: Callable[[], float] = time.monotonic,
        tell: Tell = lambda _reason, _message: None,
        inject_ca_from: str | None = None,
    ) -> None:
        """`caller` has the key to register with, and gets the one that is registered already; None: without any.
        `tell` reports what an administrator has to know; `inject_ca_from` is
        `namespace/name` of cert-manager's Certificate, for its CA injector."""
        self._annotations = {INJECT_CA_FROM: inject_ca_from} if inject_ca_from else {}
        self._client = client
        self._endpoint = endpoint
        self._options = options
        self._caller = caller
        self._clock = clock
        self._tell = tell
        self.mark = fingerprint(endpoint, options)
        self._failing_since: float | None = None
        self._other_seen = float("-inf")
        self._differing = 0
        # Invariant: how many looks in a row were answered by a replica with other flags.
        self._told = False

    async def ensure(self, bundle: bytes | None) -> None:
        """Write the configurations where they differ. `bundle` None: another program (cert-manager) sets caBundle,
        and it stays.

        Raises ApiError, and NotReached while the API server does not reach the webhook.
        """
        began = self._clock()
        try:
            mark, ours = await self._proven(bundle)
        except NotReached as exc:
            if self._failing_since is None:
                self._failing_since = began
            await self._not_reached(exc, bundle, self._failing_since)
            raise
        except ApiError:
            self._failing_since = None  # an API server that is away says nothing about the webhook
            raise
        self._failing_since = None
        self._told = False
        UNREACHABLE.set(0)
        LAST_REACHED.set(time.time())
        self._compare(mark)
        if not ours or self._clock() - self._other_seen < _OTHER_SECONDS:
            # Two that rewrite each other's configurations would never end.
            await self.adopt()
            return
        for resource, make in _KINDS:
            await self._ensure(
                resource,
                WEBHOOK_CONFIGURATION_NAME,
                lambda make=make: make(self._known(), self._options, bundle),  # type: ignore[misc]
            )

    def _compare(self, mark: str) -> None:
        """Warn of a replica with other flags, and report it at the second look in a row: then it is no rollout."""
        self._differing = self._differing + 1 if mark != self.mark else 0
        DRIFT.set(bool(self._differing))
        if not self._differing:
            return
        self._other_seen = self._clock()
        what = f"another replica answers, and it was started with other flags ({mark}, not {self.mark})"
        log.warning("%s", what)
        if self._differing == 2:
            self._tell(EVENT_OTHER_FLAGS, what)

    def _known(self) -> Endpoint:
        """The endpoint with the key that is registered, or shall be."""
        return replace(self._endpoint, key=self._caller.key) if self._caller else self._endpoint

    async def adopt(self) -> None:
        """The key that the API server sends is the one that is registered, by whichever replica. Raises ApiError."""
        if self._caller is None:
            return
        if found := await registered(self._client, VALIDATING_WEBHOOK_CONFIGURATIONS):
            self._caller.adopt(found.webhooks or ())

    async def _proven(self, bundle: bytes | None) -> tuple[str, bool]:
        """The mark of the replica that answered the probe, and whether it is registered where we are.

        Raises NotReached, ApiError."""
        wanted = probing(self._endpoint, self._options, bundle)
        place = MUTATING_WEBHOOK_CONFIGURATIONS, PROBE_CONFIGURATION
        found = await registered(self._client, *place)
        if self._is_anothers(found):
            with contextlib.suppress(NotReached):
                return await probe(self._client, self._options.namespace), False
        stands = found is not None and self._is_current(found, wanted)
        if not stands:
            await self._ensure(*place, lambda: wanted)
        began = self._clock()
        for attempt in range(_NEWS_ATTEMPTS):
            try:
                mark = await probe(self._client, self._options.namespace)
                # Replicas that start together may each have registered themselves: the last one stays.
                return mark, stands or not self._is_anothers(await registered(self._client, *place))
            except NotReached:
                if attempt == _NEWS_ATTEMPTS - 1 or self._clock() - began >= _NEWS_SECONDS:
                    raise
                # An API server learns of a configuration by a watch.
                await asyncio.sleep(_NEWS_PAUSE)
        raise AssertionError("unreachable")

    def _is_anothers(self, found: Configuration | None) -> bool:
        """Whether the probe is registered for the address of another replica."""
        if found is None or not self._endpoint.url:
            return False
        standing = {webhook.get("clientConfig", {}).get("url") for webhook in found.webhooks or ()}
        return standing != {self._endpoint.client_config(PROBE_PATH)["url"]}

    async def _not_reached(self, why: NotReached, bundle: bytes | None, since: float) -> None:
        """After a minute the webhooks with Ignore are withdrawn: no write waits for a webhook that does not answer."""
        UNREACHABLE.set(1)
        if self._clock() - since < WITHDRAWN_AFTER:
            return
        strict = [name for name in WEBHOOKS if self._options.failure_policy_of(name) is FailurePolicy.FAIL]
        if strict:
            await self._withdraw_others(bundle)
            self._say(f"the API server does not reach the webhooks, writes to {', '.join(strict)} fail: {why}")
        elif await unregister(self._client, keep_probe=True):
            self._say(f"the webhooks are withdrawn until the API server reaches them again: {why}")

    async def _withdraw_others(self, bundle: bytes | None) -> None:
        """Leave only the webhooks with Fail, of what is registered."""
        for resource, make in _KINDS:
            wanted = make(self._known(), self._options, bundle)
            strict = [each for each in wanted if each["failurePolicy"] == FailurePolicy.FAIL]
            if await registered(self._client, resource):
                await self._ensure(resource, WEBHOOK_CONFIGURATION_NAME, lambda strict=strict: strict)  # type: ignore[misc]

    def _say(self, what: str) -> None:
        """Log and report why the webhooks are not reached, once for each outage."""
        if not self._told:
            self._told = True
            log.warning("%s", what)
            self._tell(EVENT_NOT_REACHED, what)

    async def _ensure(self, resource: Resource[Any], name: str, make: Callable[[], list[Webhook]]) -> None:
        # Another replica may create, change or delete the same configuration meanwhile.
        await retry_on_conflict(lambda _: self._write(resource, name, make), errors=(AlreadyExists, Conflict, NotFound))

    async def _write(self, resource: Resource[Any], name: str, make: Callable[[], list[Webhook]]) -> None:
        configurations = self._client.resource(resource)
        found: Configuration | None = await registered(self._client, resource, name)
        if found is None:
            if wanted := make():
                await configurations.create(self._body(resource, name, wanted))
                written(resource, name, "created")
            return
        if self._caller is not None and resource is VALIDATING_WEBHOOK_CONFIGURATIONS:
            self._caller.adopt(found.webhooks or ())  # from one place: both configurations have one key
        wanted = make()
        if not wanted:
            await configurations.delete(name=name, uid=found.uid)
            written(resource, name, "removed")
        elif not self._is_current(found, wanted):
            metadata = {
                "resourceVersion": found.metadata.resource_version,
                "labels": MANAGED_BY,
                "annotations": self._annotations_of(name),
            }
            webhooks = _with_their_bundle(wanted, found.webhooks or [])
            await configurations.merge_patch({"metadata": metadata, "webhooks": webhooks}, name=name)
            written(resource, name, "updated")

    def _is_current(self, found: Configuration, wanted: list[Webhook]) -> bool:
        """Whether nothing has to be written."""
        standing, annotations = found.webhooks or [], self._annotations_of(found.name)
        is_marked = MANAGED_BY.items() <= found.labels.items() and annotations.items() <= found.annotations.items()
        return is_marked and standing == _with_their_bundle(wanted, standing)

    def _body(self, resource: Resource[Any], name: str, webhooks: list[Webhook]) -> dict[str, Any]:
        return {
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": {"name": name, "labels": MANAGED_BY, "annotations": self._annotations_of(name)},
            "webhooks": webhooks,
        }

    def _annotations_of(self, name: str) -> dict[str, str]:
        """The probe's configuration is the same for all replicas, whatever their flags."""
        mark = {} if name == PROBE_CONFIGURATION else {ANNOTATION_HASH: self.mark}
        return self._annotations | mark


async def registered(client: Client, resource: Resource[C], name: str = WEBHOOK_CONFIGURATION_NAME) -> C | None:
    """The configuration that stands; None: there is none. Raises ApiError."""
    with contextlib.suppress(NotFound):
        return await client.resource(resource).get(name=name)
    return None


async def unregister(client: Client, *, keep_probe: bool = False) -> list[str]:
    """Remove the configurations; the kinds of those that were there. Raises ApiError."""
    ours = [(resource, WEBHOOK_CONFIGURATION_NAME) for resource, _make in _KINDS]
    probes = [] if keep_probe else [(MUTATING_WEBHOOK_CONFIGURATIONS, PROBE_CONFIGURATION)]
    removed = []
    for resource, name in (*ours, *probes):
        with contextlib.suppress(NotFound):
            await client.resource(resource).delete(name=name)
            written(resource, name, "removed")
            removed += [resource.kind] if name == WEBHOOK_CONFIGURATION_NAME else []
    return removed


def _with_their_bundle(wanted: list[Webhook], standing: list[Webhook]) -> list[Webhook]:
    """Without a caBundle of ours, the one that stands there (a CA injector's) stays."""
    bundles = {w.get("name"): w.get("clientConfig", {}).get("caBundle") for w in standing}
    completed = copy.deepcopy(wanted)
    for webhook in completed:
        if "caBundle" not in webhook["clientConfig"] and bundles.get(webhook["name"]):
            webhook["clientConfig"]["caBundle"] = bundles[webhook["name"]]
    return completed
