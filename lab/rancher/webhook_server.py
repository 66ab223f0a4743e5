"""Rancher's webhook as a server on loopback, and its registration."""

from __future__ import annotations

import base64
import contextlib
import logging
import time
from collections.abc import AsyncIterator
from typing import Any, Final

from kubeloop.api.registry import VALIDATING_WEBHOOK_CONFIGURATIONS
from kubeloop.client.client import Client
from kubeloop.client.errors import NotFound
from kubeloop.webhook.certificates import issue
from kubeloop.webhook.server import WebhookServer
from kubeloop.webhook.serving_certificate import load, server_context
from lab.rancher.lock import CONFIGURATION, HOOKS, webhooks

logger = logging.getLogger(__name__)

_HOST: Final = "127.0.0.1"


@contextlib.asynccontextmanager
async def serve(client: Client) -> AsyncIterator[None]:
    """Serves the webhook inside the block. Its configuration stays: without a server, every write that it covers
    fails. Raises ApiError."""
    material = issue([_HOST], time.time(), "rancher-webhook")
    context = server_context()
    load(context, material.serving)
    server = WebhookServer(HOOKS, context)
    await server.start(f"{_HOST}:0")
    try:
        url = f"https://{_HOST}:{server.address[1]}"
        await _register(client, webhooks(url, base64.b64encode(material.bundle).decode()))
        logger.info("webhook on %s: %s", url, CONFIGURATION)
        yield
    finally:
        await server.close()


async def unregister(client: Client) -> None:
    """Removes the configuration that a later release has left. Raises ApiError."""
    with contextlib.suppress(NotFound):
        await client.resource(VALIDATING_WEBHOOK_CONFIGURATIONS).delete(name=CONFIGURATION)


async def _register(client: Client, hooks: list[dict[str, Any]]) -> None:
    configurations = client.resource(VALIDATING_WEBHOOK_CONFIGURATIONS)
    try:
        await configurations.merge_patch({"webhooks": hooks}, name=CONFIGURATION)
    except NotFound:
        await configurations.create({"metadata": {"name": CONFIGURATION}, "webhooks": hooks})
