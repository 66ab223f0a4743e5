"""`python -m lab.kubevirt --kubeconfig F`: runs until SIGTERM or SIGINT."""

import argparse
import contextlib
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import fields

from kubeloop.client.config import ClientConfig
from lab.kubevirt.options import StandInOptions
from lab.kubevirt.register import register
from lab.stand_in import arguments, run
from pkg.config.management import Management
from pkg.util.kubevirt.profiles import PROFILES


def parse_arguments(argv: Sequence[str]) -> tuple[argparse.Namespace, StandInOptions]:
    """The command line, a flag for each of StandInOptions; SystemExit(2) for a wrong one."""
    parser = arguments("kubevirt", "system:serviceaccount:kubevirt:kubevirt-controller", __doc__)
    for field in fields(StandInOptions):
        choices = sorted(PROFILES) if field.name == "overhead_profile" else None
        flag, default = f"--{field.name.replace('_', '-')}", field.default
        if isinstance(default, bool):
            parser.add_argument(flag, action="store_true")
        else:
            read = _seconds if isinstance(default, float) else type(default)
            parser.add_argument(flag, type=read, default=default, choices=choices)
    flags = parser.parse_args(argv)
    return flags, StandInOptions(**{field.name: getattr(flags, field.name) for field in fields(StandInOptions)})


def main(argv: Sequence[str]) -> int:
    flags, options = parse_arguments(argv)

    @contextlib.asynccontextmanager
    async def lifetime(management: Management, _: ClientConfig) -> AsyncIterator[None]:
        register(management, options)
        yield

    return run("virt-controller", flags, lifetime, options.selects)


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 <= seconds < float("inf"):
        raise ValueError(text)
    return seconds


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
