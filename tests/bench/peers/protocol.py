"""Protocol of every measured program: `PROGRAM cache KUBECONFIG KIND WATCHES`.

Once its caches hold everything it prints one JSON line: seconds and CPU seconds since they were started, and the
objects of one. Then it answers each line on standard input with the events it has handled since and the objects that it
holds now, and ends with it.
Imported by programs in another virtual environment: the standard library alone.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Callable


class Measured:
    """The clock of a program, from when it starts to fill its caches, and its count of events."""

    def __init__(self) -> None:
        self.events = 0
        self._began = time.perf_counter()
        self._cpu = time.process_time()
        self._is_synced = False

    def synced(self, objects: Callable[[], int]) -> None:
        """Says what the first sync took; from now on questions are answered. Later calls do nothing. `objects`: how
        many one cache holds."""
        if self._is_synced:
            return
        self._is_synced = True
        self._objects = objects
        seconds, cpu = time.perf_counter() - self._began, time.process_time() - self._cpu
        self._say({"seconds": seconds, "cpu": cpu, "objects": objects()})
        threading.Thread(target=self._answer, daemon=True).start()

    def _answer(self) -> None:
        for _ in sys.stdin:
            self._say({"events": self.events, "objects": self._objects()})
        os._exit(0)

    def _say(self, figures: dict[str, float]) -> None:
        print(json.dumps(figures), flush=True)


def arguments() -> tuple[str, str, int]:
    """Kubeconfig, kind, watches."""
    _, _, kubeconfig, kind, watches = sys.argv
    return kubeconfig, kind, int(watches)
