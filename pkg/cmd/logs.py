"""Log lines on stderr, for people or for programs."""

from __future__ import annotations

import logging

from kubeloop.logs import stream_handler
from pkg.cmd.options import LogFormat, LogOptions

_NOISY = ("asyncio", "aiohttp")


def set_up(options: LogOptions) -> None:
    """Install the one handler of this process; called once, by the command that runs."""
    handler = stream_handler(as_json=options.log_format is LogFormat.JSON)
    logging.basicConfig(level=logging.DEBUG if options.verbose else logging.INFO, handlers=[handler], force=True)
    for name in _NOISY:
        logging.getLogger(name).setLevel(logging.WARNING)
