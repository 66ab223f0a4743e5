"""`python -m pkg.testcluster.kubevirt --kubeconfig F`: runs until SIGTERM or SIGINT."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from collections.abc import Sequence
from dataclasses import fields

from pkg.client.client import Client
from pkg.client.config import load_config
from pkg.client.errors import ConfigError
from pkg.config.management import Management
from pkg.generic.run import run_until_signal
from pkg.testcluster.kubevirt.options import Options
from pkg.testcluster.kubevirt.register import register
from pkg.util.kubevirt.profiles import PROFILES

_DRAIN = 1.0
"""Seconds. What is not written by then is written after the next start."""


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    """The command line; SystemExit(2) for a wrong one."""
    default = Options()
    parser = argparse.ArgumentParser(prog="python -m pkg.testcluster.kubevirt", description=__doc__)
    parser.add_argument("--kubeconfig", metavar="FILE")
    parser.add_argument(
        "--as-user", default="system:serviceaccount:kubevirt:kubevirt-controller", metavar="USER"
    )
    parser.add_argument("--source-linger", type=_seconds, default=default.source_linger, metavar="SECONDS")
    parser.add_argument("--target-linger", type=_seconds, default=default.target_linger, metavar="SECONDS")
    parser.add_argument("--phase-delay", type=_seconds, default=default.phase_delay, metavar="SECONDS")
    parser.add_argument("--overhead-profile", choices=sorted(PROFILES), default=default.overhead_profile)
    parser.add_argument("--parallel-migrations", type=int, default=default.parallel_migrations, metavar="N")
    parser.add_argument("--parallel-outbound", type=int, default=default.parallel_outbound, metavar="N")
    parser.add_argument("--first-retry", type=_seconds, default=default.first_retry, metavar="SECONDS")
    parser.add_argument("--max-retry", type=_seconds, default=default.max_retry, metavar="SECONDS")
    parser.add_argument(
        "--finished-linger", type=_seconds, default=default.finished_linger, metavar="SECONDS"
    )
    parser.add_argument("--quota-lag", type=_seconds, default=default.quota_lag, metavar="SECONDS")
    parser.add_argument("--drained-bucket", action="store_true")
    parser.add_argument("--namespace-prefix", default=default.namespace_prefix, metavar="PREFIX")
    parser.add_argument("-v", "--verbose", action="store_true")
    return parser.parse_args(argv)


def options_of(arguments: argparse.Namespace) -> Options:
    """The command line as Options."""
    return Options(**{field.name: getattr(arguments, field.name) for field in fields(Options)})


async def serve(arguments: argparse.Namespace, stop: asyncio.Event) -> None:
    """Run the controllers until `stop` is set. Raises ConfigError."""
    config = load_config(arguments.kubeconfig)
    if arguments.as_user:
        # An admission webhook is to see KubeVirt's controller; system:masters keeps the permissions.
        config = config.impersonate(arguments.as_user, ("system:masters", "system:serviceaccounts"))
    async with Client(config, user_agent="virt-controller") as client:
        management = Management(client)
        register(management, options_of(arguments))
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
        print(f"kubevirt stand-in: {error}", file=sys.stderr)
        return 2


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 <= seconds < float("inf"):
        raise ValueError(text)
    return seconds


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
