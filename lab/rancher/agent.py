"""The stand-in's agent as others see it: restarted by a signal to its process, and known by what that logs."""

from __future__ import annotations

import signal
from pathlib import Path

from kubeloop.testing.cluster import processes

_NAME = "rancher"


class Agent:
    """Of the cluster in `directory`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def restart(self) -> None:
        """As if new: it renders every namespace once more. The process stays: that is quick."""
        processes.find(self._directory, _NAME).signal(signal.SIGHUP)

    def restarts(self) -> int:
        return self._logged("agent restarted")

    def writes(self, namespace: str) -> int:
        """How often it has written the namespace's base over another limit, and the API server has said yes."""
        return self._logged(f"namespace {namespace}: quota ", " set to ")

    def _logged(self, *texts: str) -> int:
        try:
            log = processes.log_path(self._directory, _NAME).read_text("utf-8", "replace")
        except OSError:
            return 0
        return sum(all(text in line for text in texts) for line in log.splitlines())
