"""`python -m lab.rancher --kubeconfig F`: runs until SIGTERM or SIGINT; SIGHUP restarts its agent."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Sequence

from lab.rancher.namespace_controller import register
from lab.stand_in import arguments, run
from pkg.config.management import Management


def main(argv: Sequence[str]) -> int:
    """The exit code."""
    parser = arguments("rancher", "system:serviceaccount:cattle-system:rancher", __doc__)

    def start(management: Management) -> None:
        agent = register(management)
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, agent.restart)

    return run("rancher", parser.parse_args(argv), start)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
