"""Log lines on stderr, for people or for programs."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

from pkg.cmd.options import LogFormat, LogOptions

_NOISY = ("asyncio", "aiohttp")


class _JSONFormatter(logging.Formatter):
    """One JSON object a line, a traceback as a text in it."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info and record.exc_info[1] is not None:
            line["error"] = repr(record.exc_info[1])
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


def set_up(options: LogOptions) -> None:
    """Install the one handler of this process; called once, by the command that runs."""
    handler = logging.StreamHandler(sys.stderr)
    if options.log_format is LogFormat.JSON:
        handler.setFormatter(_JSONFormatter())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S"))
    logging.basicConfig(
        level=logging.DEBUG if options.verbose else logging.INFO, handlers=[handler], force=True
    )
    for name in _NOISY:
        logging.getLogger(name).setLevel(logging.WARNING)
