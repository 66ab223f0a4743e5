"""The stand-ins' programs: their command line, their account, and a run until SIGTERM or SIGINT."""

import argparse
import asyncio
import logging
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from kubeloop.client.client import Client
from kubeloop.client.config import ClientConfig
from kubeloop.client.errors import ConfigError
from kubeloop.client.loading import load_config
from kubeloop.controllers.run import run_until_signal
from pkg.config.management import Management

Lifetime = Callable[[Management, ClientConfig], AbstractAsyncContextManager[object]]
"""Registers handlers when it is entered, and runs until it is left; the configuration impersonates nobody."""
_DRAIN = 1.0
"""Seconds. What is not written by then is written after the next start."""


def arguments(name: str, user: str, description: str | None) -> argparse.ArgumentParser:
    """Returns a parser of the flags that each stand-in takes."""
    parser = argparse.ArgumentParser(prog=f"python -m lab.{name}", description=description)
    parser.add_argument("--kubeconfig", metavar="FILE")
    parser.add_argument("--as-user", default=user, metavar="USER")
    parser.add_argument("-v", "--verbose", action="store_true")
    return parser


def run(
    program: str, flags: argparse.Namespace, lifetime: Lifetime, selects: Callable[[str], bool] = lambda _: True
) -> int:
    """Runs the stand-in until a signal; returns the exit code: 0, or 2 for a wrong configuration. `program` is the
    User-Agent, `selects` as Management takes it."""
    level = logging.DEBUG if flags.verbose else logging.INFO
    logging.basicConfig(level=level, format="%(asctime)s %(levelname).1s %(name)s: %(message)s", stream=sys.stderr)
    try:
        return run_until_signal(lambda stop: _serve(program, flags, lifetime, selects, stop))
    except ConfigError as error:
        print(f"{program} stand-in: {error}", file=sys.stderr)
        return 2


async def _serve(
    program: str, flags: argparse.Namespace, lifetime: Lifetime, selects: Callable[[str], bool], stop: asyncio.Event
) -> None:
    client_config = config = load_config(flags.kubeconfig)
    if flags.as_user:
        # An admission webhook is to see who it is; system:masters keeps the permissions.
        client_config = config.impersonate(flags.as_user, ("system:masters", "system:serviceaccounts"))
    async with Client(client_config, user_agent=program) as client:
        management = Management(client, whole=True, selects=selects)
        async with lifetime(management, config):
            await management.start()
            await stop.wait()
            await management.stop(_DRAIN)
