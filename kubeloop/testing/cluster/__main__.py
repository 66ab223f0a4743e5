"""The guard's own process: `python -m kubeloop.testing.cluster DIRECTORY keep|remove`, the pipe is its stdin."""

import os
import shutil
import sys
from pathlib import Path

from kubeloop.testing.cluster.cluster import down
from kubeloop.testing.cluster.guard import CALLED_OFF


def main(directory: str, remove: str) -> None:
    if os.read(0, 1) == CALLED_OFF:
        return
    down(Path(directory))
    if remove == "remove":
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
