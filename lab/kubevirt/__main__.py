"""`python -m lab.kubevirt --kubeconfig F`: runs until SIGTERM or SIGINT."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import fields

from lab.kubevirt.options import Options
from lab.kubevirt.register import register
from lab.stand_in import arguments, run
from pkg.util.kubevirt.profiles import PROFILES


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    """The command line; SystemExit(2) for a wrong one."""
    default = Options()
    parser = arguments("kubevirt", "system:serviceaccount:kubevirt:kubevirt-controller", __doc__)
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
    return parser.parse_args(argv)


def options_of(given: argparse.Namespace) -> Options:
    """The command line as Options."""
    return Options(**{field.name: getattr(given, field.name) for field in fields(Options)})


def main(argv: Sequence[str]) -> int:
    """The exit code."""
    given = parse_arguments(argv)
    return run("virt-controller", given, lambda management: register(management, options_of(given)))


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 <= seconds < float("inf"):
        raise ValueError(text)
    return seconds


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
