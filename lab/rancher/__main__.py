"""`python -m lab.rancher --kubeconfig F`: runs until SIGTERM or SIGINT; SIGHUP restarts its agent."""

import asyncio
import base64
import contextlib
import logging
import signal
import sys
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

from kubeloop.api.registry import VALIDATING_WEBHOOK_CONFIGURATIONS
from kubeloop.client.client import Client
from kubeloop.client.config import ClientConfig
from kubeloop.client.errors import NotFound
from kubeloop.webhook.certificates import issue
from kubeloop.webhook.server import WebhookServer
from kubeloop.webhook.serving_certificate import load, server_context
from lab.rancher.agent import register
from lab.rancher.lock import CONFIGURATION, HOOKS, SUDO_GROUP, SUDO_USER, webhooks
from lab.rancher.releases import DEFAULT, RELEASES, Release
from lab.stand_in import arguments, run
from pkg.config.management import Management

logger = logging.getLogger(__name__)

_HOST: Final = "127.0.0.1"


@contextlib.asynccontextmanager
async def rancher(management: Management, config: ClientConfig, release: Release) -> AsyncIterator[None]:
    """Runs a release's webhook and registers its controllers."""
    async with contextlib.AsyncExitStack() as stack:
        writer: Client | None = None
        if release.locks_quotas:
            await stack.enter_async_context(_serve_webhook(management.client))
            sudo = config.impersonate(SUDO_USER, (SUDO_GROUP,))
            writer = await stack.enter_async_context(Client(sudo, user_agent="rancher"))
        else:
            await _unregister_webhook(management.client)
        agent = register(management, writer, release)
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, agent.restart)
        yield


@contextlib.asynccontextmanager
async def _serve_webhook(client: Client) -> AsyncIterator[None]:
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


async def _unregister_webhook(client: Client) -> None:
    """Removes the configuration that a later release has left. Raises ApiError."""
    with contextlib.suppress(NotFound):
        await client.resource(VALIDATING_WEBHOOK_CONFIGURATIONS).delete(name=CONFIGURATION)


async def _register(client: Client, hooks: list[dict[str, Any]]) -> None:
    configurations = client.resource(VALIDATING_WEBHOOK_CONFIGURATIONS)
    try:
        await configurations.merge_patch({"webhooks": hooks}, name=CONFIGURATION)
    except NotFound:
        await configurations.create({"metadata": {"name": CONFIGURATION}, "webhooks": hooks})


def main(argv: Sequence[str]) -> int:
    parser = arguments("rancher", "system:serviceaccount:cattle-system:rancher", __doc__)
    parser.add_argument("--rancher", choices=sorted(RELEASES), default=DEFAULT, help="the release that is played")
    flags = parser.parse_args(argv)
    release = RELEASES[flags.rancher]
    return run("rancher", flags, lambda management, config: rancher(management, config, release))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
