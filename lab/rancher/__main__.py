"""`python -m lab.rancher --kubeconfig F`: runs until SIGTERM or SIGINT; SIGHUP restarts its agent."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator, Sequence

from kubeloop.client.client import Client
from kubeloop.client.config import ClientConfig
from lab.rancher.agent import register
from lab.rancher.lock import SUDO_GROUP, SUDO_USER
from lab.rancher.releases import DEFAULT, RELEASES, Release
from lab.rancher.webhook_server import serve, unregister
from lab.stand_in import arguments, run
from pkg.config.management import Management


@contextlib.asynccontextmanager
async def rancher(management: Management, config: ClientConfig, release: Release) -> AsyncIterator[None]:
    """Runs a release's webhook and registers its controllers."""
    async with contextlib.AsyncExitStack() as stack:
        writer: Client | None = None
        if release.locks_quotas:
            await stack.enter_async_context(serve(management.client))
            sudo = config.impersonate(SUDO_USER, (SUDO_GROUP,))
            writer = await stack.enter_async_context(Client(sudo, user_agent="rancher"))
        else:
            await unregister(management.client)
        agent = register(management, writer, release)
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, agent.restart)
        yield


def main(argv: Sequence[str]) -> int:
    parser = arguments("rancher", "system:serviceaccount:cattle-system:rancher", __doc__)
    parser.add_argument("--rancher", choices=sorted(RELEASES), default=DEFAULT, help="the release that is played")
    flags = parser.parse_args(argv)
    release = RELEASES[flags.rancher]
    return run("rancher", flags, lambda management, config: rancher(management, config, release))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
