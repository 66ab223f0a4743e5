"""`python -m pkg.testcluster.rancher --kubeconfig F`: runs until SIGTERM or SIGINT; SIGHUP restarts its agent."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
from collections.abc import Sequence

from pkg.client.client import Client
from pkg.client.config import load_config
from pkg.client.errors import ConfigError
from pkg.config.management import Management
from pkg.generic.run import run_until_signal
from pkg.testcluster.rancher.agent import register

_DRAIN = 1.0
"""Seconds. What is not written by then is written after the next start."""


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    """The command line; SystemExit(2) for a wrong one."""
    parser = argparse.ArgumentParser(prog="python -m pkg.testcluster.rancher", description=__doc__)
    parser.add_argument("--kubeconfig", metavar="FILE")
    parser.add_argument("--as-user", default="system:serviceaccount:cattle-system:rancher", metavar="USER")
    parser.add_argument("--every-event", action="store_true", help="render on every change of a namespace")
    parser.add_argument("-v", "--verbose", action="store_true")
    return parser.parse_args(argv)


async def serve(arguments: argparse.Namespace, stop: asyncio.Event) -> None:
    """Run the controllers until `stop` is set. Raises ConfigError."""
    config = load_config(arguments.kubeconfig)
    if arguments.as_user:
        # An admission webhook is to see Rancher; system:masters keeps the permissions.
        config = config.impersonate(arguments.as_user, ("system:masters", "system:serviceaccounts"))
    async with Client(config, user_agent="rancher") as client:
        management = Management(client)
        agent = register(management, every_event=arguments.every_event)
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, agent.restart)
        await management.start()
        await stop.wait()
        await management.stop(_DRAIN)


def main(argv: Sequence[str]) -> int:
    """The exit code: 0, 2 for a wrong configuration."""
    arguments = parse_arguments(argv)
    level = logging.DEBUG if arguments.verbose else logging.INFO
    logging.basicConfig(
        level=level, format="%(asctime)s %(levelname).1s %(name)s: %(message)s", stream=sys.stderr
    )
    try:
        return run_until_signal(lambda stop: serve(arguments, stop))
    except ConfigError as error:
        print(f"rancher stand-in: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
