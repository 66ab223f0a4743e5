"""Keeps the webhook configurations on the API server as they should be, and takes them away."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

from pkg.api.admissionregistration import MutatingWebhookConfiguration, ValidatingWebhookConfiguration
from pkg.api.registry import MUTATING_WEBHOOK_CONFIGURATIONS, VALIDATING_WEBHOOK_CONFIGURATIONS, Resource
from pkg.client.client import Client
from pkg.client.errors import AlreadyExists, Conflict, NotFound
from pkg.util.webhook_names import CONFIGURATION_NAME
from pkg.webhook.configurations import (
    MANAGED_BY,
    Endpoint,
    Webhook,
    mutating,
    validating,
)
from pkg.webhook.options import Options

log = logging.getLogger(__name__)

Configuration = ValidatingWebhookConfiguration | MutatingWebhookConfiguration
_Make = Callable[[Endpoint, Options, bytes | None], list[Webhook]]

_KINDS: Sequence[tuple[Resource[Any], _Make]] = (
    (VALIDATING_WEBHOOK_CONFIGURATIONS, validating),
    (MUTATING_WEBHOOK_CONFIGURATIONS, mutating),
)
_ATTEMPTS = 5
_CONNECT_TIMEOUT = 1.0


class Registrar:
    """Writes only what differs; replicas that write the same thing do not get into each other's way."""

    def __init__(self, client: Client, endpoint: Endpoint, options: Options) -> None:
        self._client = client
        self._endpoint = endpoint
        self._options = options

    async def ensure(self, bundle: bytes | None) -> None:
        """Make the configurations say what they should. `bundle` None: whoever sets caBundle there is let alone.

        Raises ApiError.
        """
        for resource, make in _KINDS:
            await self._ensure(resource, make(self._endpoint, self._options, bundle))

    async def _ensure(self, resource: Resource[Any], wanted: list[Webhook]) -> None:
        for attempt in range(_ATTEMPTS):
            try:
                await self._write(resource, wanted)
                return
            except (AlreadyExists, Conflict, NotFound):
                if attempt == _ATTEMPTS - 1:
                    raise

    async def _write(self, resource: Resource[Any], wanted: list[Webhook]) -> None:
        configurations = self._client.resource(resource)
        try:
            found: Configuration = await configurations.get(CONFIGURATION_NAME)
        except NotFound:
            if wanted:
                await configurations.create(_body(resource, wanted))
                log.info("%s %s created", resource.kind, CONFIGURATION_NAME)
            return
        if not wanted:
            await configurations.delete(CONFIGURATION_NAME, uid=found.uid)
            log.info("%s %s removed", resource.kind, CONFIGURATION_NAME)
            return
        standing = found.webhooks or []
        wanted = _with_their_bundle(wanted, standing)
        if standing == wanted or await self._is_a_live_replica(standing, wanted):
            return
        patch = {
            "metadata": {"resourceVersion": found.metadata.resource_version, "labels": MANAGED_BY},
            "webhooks": wanted,
        }
        await configurations.merge_patch(CONFIGURATION_NAME, patch)
        log.info("%s %s updated", resource.kind, CONFIGURATION_NAME)

    async def _is_a_live_replica(self, standing: list[Webhook], wanted: list[Webhook]) -> bool:
        """Whether all that differs is the URL, and something answers there: replicas that are registered by URL
        would take the registration from each other for ever."""
        if not self._endpoint.url or _without_urls(standing) != _without_urls(wanted):
            return False
        urls = {webhook.get("clientConfig", {}).get("url", "") for webhook in standing}
        bases = {f"{urlsplit(url).scheme}://{urlsplit(url).netloc}" for url in urls}
        return len(bases) == 1 and await _answers(bases.pop())


async def unregister(client: Client) -> list[str]:
    """Remove the configurations; the kinds of those that were there. Raises ApiError."""
    removed = []
    for resource, _make in _KINDS:
        try:
            await client.resource(resource).delete(CONFIGURATION_NAME)
        except NotFound:
            continue
        removed.append(resource.kind)
    return removed


def _body(resource: Resource[Any], webhooks: list[Webhook]) -> dict[str, Any]:
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {"name": CONFIGURATION_NAME, "labels": MANAGED_BY},
        "webhooks": webhooks,
    }


def _with_their_bundle(wanted: list[Webhook], standing: list[Webhook]) -> list[Webhook]:
    """Without a caBundle of ours, the one that stands there (a CA injector's) stays."""
    bundles = {w.get("name"): w.get("clientConfig", {}).get("caBundle") for w in standing}
    completed = copy.deepcopy(wanted)
    for webhook in completed:
        if "caBundle" not in webhook["clientConfig"] and bundles.get(webhook["name"]):
            webhook["clientConfig"]["caBundle"] = bundles[webhook["name"]]
    return completed


def _without_urls(webhooks: list[Webhook]) -> list[Webhook]:
    stripped = copy.deepcopy(webhooks)
    for webhook in stripped:
        url = webhook.get("clientConfig", {}).get("url", "")
        webhook.get("clientConfig", {})["url"] = urlsplit(url).path
    return stripped


async def _answers(url: str) -> bool:
    parts = urlsplit(url)
    with contextlib.suppress(OSError, TimeoutError, ValueError):
        async with asyncio.timeout(_CONNECT_TIMEOUT):
            _reader, writer = await asyncio.open_connection(parts.hostname, parts.port or 443)
        writer.close()
        return True
    return False
