"""The Rancher stand-in's agent, as the demo restarts it and reads what it did."""

from __future__ import annotations

import signal
from pathlib import Path

from pkg.testcluster import processes

_AGENT = "rancher"


class Agent:
    """The agent of the Rancher stand-in of the cluster in `directory`, as far as it writes into `namespace`."""

    def __init__(self, directory: Path, namespace: str) -> None:
        self._directory = directory
        self._says = f"namespace {namespace}: quota "

    def restart(self) -> None:
        """As if new: it renders every namespace once more. The process stays: that is quick."""
        processes.find(self._directory, _AGENT).signal(signal.SIGHUP)

    def has_written(self, times: int) -> bool:
        """Whether `writes` is that, or more."""
        return self.writes() >= times

    def writes(self) -> int:
        """How often it has written the namespace's base over another limit, and the API server has said yes."""
        try:
            log = processes.log_path(self._directory, _AGENT).read_text("utf-8", "replace")
        except OSError:
            return 0
        return sum(self._says in line and " set to " in line for line in log.splitlines())
