"""Keeps the webhook configurations on the API server as they should be, looks at those that another process keeps, and
takes them away."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, TypeVar

from kubeloop.api.admissionregistration import MutatingWebhookConfiguration, ValidatingWebhookConfiguration
from kubeloop.api.registry import MUTATING_WEBHOOK_CONFIGURATIONS, VALIDATING_WEBHOOK_CONFIGURATIONS, Resource
from kubeloop.client.client import Client
from kubeloop.client.errors import AlreadyExists, ApiError, Conflict, NotFound
from kubeloop.client.retry import retry_on_conflict
from pkg.config.configuration_writes import written
from pkg.config.management import Management
from pkg.config.probe import ANNOTATION_HASH, PROBE_CONFIGURATION, PROBE_PATH, NotReached, probe
from pkg.util.constants import WEBHOOK_CONFIGURATION_NAME
from pkg.util.installation import about
from pkg.webhook.configurations import (
    KEY_BYTES,
    MANAGED_BY,
    Endpoint,
    Webhook,
    fingerprint,
    key_of,
    mutating,
    probing,
    validating,
)
from pkg.webhook.deadline import now
from pkg.webhook.metrics import DRIFT, LAST_REACHED, UNREACHABLE
from pkg.webhook.options import WEBHOOKS, FailurePolicy, Options

log = logging.getLogger(__name__)

INJECT_CA_FROM = "cert-manager.io/inject-ca-from"

Configuration = ValidatingWebhookConfiguration | MutatingWebhookConfiguration
Tell = Callable[[str, str], None]
"""Writes an event of this reason and message."""
C = TypeVar("C", ValidatingWebhookConfiguration, MutatingWebhookConfiguration)

_KINDS: Sequence[tuple[Resource[Any], Callable[[Endpoint, Options, bytes | None], list[Webhook]]]] = (
    (VALIDATING_WEBHOOK_CONFIGURATIONS, validating),
    (MUTATING_WEBHOOK_CONFIGURATIONS, mutating),
)
_PROBE: Final = (MUTATING_WEBHOOK_CONFIGURATIONS, PROBE_CONFIGURATION)
_RACES: Final = (AlreadyExists, Conflict, NotFound)
"""Another replica created, changed or deleted the same configuration meanwhile."""
EVENT_NOT_REACHED = "WebhookNotReached"
EVENT_OTHER_FLAGS = "WebhookFlagsDiffer"
WITHDRAWN_AFTER = 60.0
"""Seconds in which every probe failed, after which the webhooks are withdrawn."""
_OTHER_SECONDS = 60.0
"""After the answer of a replica with other flags, nothing is rewritten for so long."""
PERIOD: Final = 60.0
"""Seconds between two looks: a webhook that restarts answers again by the next one."""
_NEWS_PAUSE = 0.1
_NEWS_SECONDS = 2.0
"""How long a probe is repeated: an API server learns of a configuration by a watch. One that it gives up on takes the
webhook's whole timeoutSeconds."""


@dataclass(eq=False)
class Registrar:
    """Registers the webhooks once the API server is proven to reach them, and withdraws them when it no longer does.

    Writes only what differs. Replicas with the same flags do not disturb each other; others are recognised by the mark
    in their answers, and a warning is logged.
    """

    client: Client
    endpoint: Endpoint
    """Its key is registered, or the one that another replica has registered before."""
    options: Options
    tell: Tell = lambda _reason, _message: None
    """Reports what an administrator has to know."""
    mark: str = field(init=False)
    _failing_since: float | None = field(default=None, init=False)
    _other_seen: float = field(default=float("-inf"), init=False)
    _differing: int = field(default=0, init=False)
    # Invariant: how many looks in a row were answered by a replica with other flags.
    _told: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.mark = fingerprint(self.endpoint, self.options)
        self.endpoint = replace(self.endpoint, key=secrets.token_hex(KEY_BYTES))

    async def ensure(self, bundle: bytes | None) -> None:
        """Write the configurations where they differ. `bundle` None: another program (cert-manager) sets caBundle,
        and it stays.

        Raises ApiError, and NotReached while the API server does not reach the webhook.
        """
        began = now()
        try:
            mark, ours = await self._proven(bundle)
        except NotReached as exc:
            UNREACHABLE.set(1)
            self._failing_since = began if self._failing_since is None else self._failing_since
            if now() - self._failing_since >= WITHDRAWN_AFTER:
                await self._withdraw(bundle, exc)
            raise
        except ApiError:
            self._failing_since = None  # an API server that is away says nothing about the webhook
            raise
        self._failing_since = None
        self._told = False
        UNREACHABLE.set(0)
        LAST_REACHED.set(time.time())
        self._compare(mark)
        if ours and now() - self._other_seen >= _OTHER_SECONDS:
            await self._write(bundle)
        else:
            # Two that rewrite each other's configurations would never end.
            await self.adopt()

    async def adopt(self) -> None:
        """The key that the API server sends is the one that is registered, by whichever replica. Raises ApiError."""
        if found := await registered(self.client, VALIDATING_WEBHOOK_CONFIGURATIONS):
            self._share_key(found)

    def _share_key(self, found: Configuration) -> None:
        """From one place: both configurations have one key."""
        if key := key_of(found.webhooks or ()):
            self.endpoint = replace(self.endpoint, key=key)

    def _compare(self, mark: str) -> None:
        """Warn of a replica with other flags, and report it at the second look in a row: then it is no rollout."""
        self._differing = self._differing + 1 if mark != self.mark else 0
        DRIFT.set(bool(self._differing))
        if not self._differing:
            return
        self._other_seen = now()
        what = f"another replica answers, and it was started with other flags ({mark}, not {self.mark})"
        log.warning("%s", what)
        if self._differing == 2:
            self.tell(EVENT_OTHER_FLAGS, what)

    async def _proven(self, bundle: bytes | None) -> tuple[str, bool]:
        """The mark of the replica that answered the probe, and whether it is registered where we are.

        Raises NotReached, ApiError."""
        wanted = probing(self.endpoint, self.options, bundle)
        found = await registered(self.client, *_PROBE)
        if self._is_anothers(found):
            with contextlib.suppress(NotReached):
                return await probe(self.client, self.options.namespace), False

        async def put(again: bool) -> bool:
            return await self._put(*_PROBE, await registered(self.client, *_PROBE) if again else found, wanted)

        is_new = await retry_on_conflict(put, errors=_RACES)
        until = now() + _NEWS_SECONDS
        while True:
            try:
                mark = await probe(self.client, self.options.namespace)
                # Replicas that start together may each have registered themselves: the last one stays.
                return mark, not (is_new and self._is_anothers(await registered(self.client, *_PROBE)))
            except NotReached:
                if now() >= until:
                    raise
                await asyncio.sleep(_NEWS_PAUSE)

    def _is_anothers(self, found: Configuration | None) -> bool:
        """Whether the probe is registered for the address of another replica."""
        if found is None or not self.endpoint.url:
            return False
        standing = {webhook.get("clientConfig", {}).get("url") for webhook in found.webhooks or ()}
        return standing != {self.endpoint.client_config(PROBE_PATH)["url"]}

    async def _withdraw(self, bundle: bytes | None, why: NotReached) -> None:
        """Only the webhooks with Fail stay: no other write waits for a webhook that does not answer. Logged and
        reported once for each outage."""
        stood = await self._write(bundle, withdrawn=True)
        if not stood or self._told:
            return
        strict = ", ".join(name for name in WEBHOOKS if self.options.failure_policy_of(name) is FailurePolicy.FAIL)
        what = f"the API server does not reach the webhooks, writes to {strict} fail: {why}"
        if not strict:
            what = f"the webhooks are withdrawn until the API server reaches them again: {why}"
        self._told = True
        log.warning("%s", what)
        self.tell(EVENT_NOT_REACHED, what)

    async def _write(self, bundle: bytes | None, *, withdrawn: bool = False) -> bool:
        """Both configurations, or of those that stand what stays when they are withdrawn. Whether any stood."""

        async def attempt(_: bool) -> bool:
            stood = False
            for resource, make in _KINDS:
                found: Configuration | None = await registered(self.client, resource)
                stood |= found is not None
                if found is not None and resource is VALIDATING_WEBHOOK_CONFIGURATIONS:
                    self._share_key(found)
                wanted = make(self.endpoint, self.options, bundle)
                if withdrawn:
                    wanted = [each for each in wanted if found and each["failurePolicy"] == FailurePolicy.FAIL]
                await self._put(resource, WEBHOOK_CONFIGURATION_NAME, found, wanted)
            return stood

        return await retry_on_conflict(attempt, errors=_RACES)

    async def _put(
        self, resource: Resource[Any], name: str, found: Configuration | None, wanted: list[Webhook]
    ) -> bool:
        """Whether anything had to be written. Raises one of _RACES."""
        configurations = self.client.resource(resource)
        annotations = {INJECT_CA_FROM: inject} if (inject := self.options.inject_ca_from) else {}
        if name != PROBE_CONFIGURATION:  # which is the same for all replicas, whatever their flags
            annotations[ANNOTATION_HASH] = self.mark
        metadata: dict[str, Any] = {"labels": MANAGED_BY, "annotations": annotations}
        standing = (found.webhooks if found else None) or []
        wanted = _with_their_bundle(wanted, standing)
        if found is None and wanted:
            body = {"apiVersion": resource.api_version, "kind": resource.kind, "webhooks": wanted}
            await configurations.create({**body, "metadata": {"name": name, **metadata}})
            written(resource, name, "created")
        elif found is not None and not wanted:
            await configurations.delete(name=name, uid=found.uid)
            written(resource, name, "removed")
        elif found is not None and not (standing == wanted and _has(found, MANAGED_BY, annotations)):
            metadata["resourceVersion"] = found.metadata.resource_version
            await configurations.merge_patch({"metadata": metadata, "webhooks": wanted}, name=name)
            written(resource, name, "updated")
        else:
            return False
        return True


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
        """One look; reports what two in a row have found. Raises ApiError."""
        found = await registered(self.client, VALIDATING_WEBHOOK_CONFIGURATIONS)
        event, fault = await self._fault(found) if found else ("", "")
        if found or self._failing:
            UNREACHABLE.set(event == EVENT_NOT_REACHED)
            DRIFT.set(event == EVENT_OTHER_FLAGS)
        self._failing = self._failing + 1 if fault else 0
        if self._failing == 2:
            log.warning("%s", fault)
            self.tell(event, fault)

    async def _fault(self, found: ValidatingWebhookConfiguration) -> tuple[str, str]:
        """An event's reason and message, "" where there is none: our webhooks do not answer; or they do, and are not
        those that the headroom which answers would register: then none that runs looks after them."""
        hooks = found.webhooks or ()
        names = ", ".join(f"{each['name']} ({each.get('failurePolicy', '')})" for each in hooks)
        try:
            mark = await probe(self.client, self.namespace)
        except NotReached as exc:
            return EVENT_NOT_REACHED, f"the webhooks {names} are registered and do not answer: {exc}"
        if found.annotations.get(ANNOTATION_HASH, mark) == mark:
            return "", ""
        return EVENT_OTHER_FLAGS, (
            f"the webhooks {names} were registered with other flags than those of the headroom that answers: "
            "`headroom release --only webhooks --force` removes them"
        )


async def look_at_registered(management: Management, namespace: str, *, remove: bool = False) -> None:
    """Of a process that registers no webhooks: those that are registered are another's, or of before."""
    tell = partial(management.recorder("headroom").event, about(namespace), "Warning")
    await Leftovers(management.client, namespace, remove=remove, tell=tell).run()


async def registered(client: Client, resource: Resource[C], name: str = WEBHOOK_CONFIGURATION_NAME) -> C | None:
    """The configuration that stands; None: there is none. Raises ApiError."""
    with contextlib.suppress(NotFound):
        return await client.resource(resource).get(name=name)
    return None


async def unregister(client: Client) -> list[str]:
    """Remove the configurations; the kinds of those that were there, but for the probe's. Raises ApiError."""
    ours = [(resource, WEBHOOK_CONFIGURATION_NAME) for resource, _make in _KINDS]
    removed = []
    for resource, name in (*ours, _PROBE):
        with contextlib.suppress(NotFound):
            await client.resource(resource).delete(name=name)
            written(resource, name, "removed")
            removed += [resource.kind] if name == WEBHOOK_CONFIGURATION_NAME else []
    return removed


def _with_their_bundle(wanted: list[Webhook], standing: list[Webhook]) -> list[Webhook]:
    """Without a caBundle of ours, the one that stands there (a CA injector's) stays."""
    theirs = {each.get("name"): each.get("clientConfig", {}).get("caBundle") for each in standing}
    kept = {name: {"caBundle": bundle} for name, bundle in theirs.items() if bundle}
    return [{**each, "clientConfig": {**kept.get(each["name"], {}), **each["clientConfig"]}} for each in wanted]


def _has(found: Configuration, labels: Mapping[str, str], annotations: Mapping[str, str]) -> bool:
    return labels.items() <= found.labels.items() and annotations.items() <= found.annotations.items()
