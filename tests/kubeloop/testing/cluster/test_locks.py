from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kubeloop.testing.cluster.errors import ClusterError
from kubeloop.testing.cluster.locks import locked

_HOLDER = """
import sys
from pathlib import Path
from kubeloop.testing.cluster.locks import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_lock_is_given_when_its_holder_ends_however_that_happens_and_not_before(tmp_path: Path) -> None:
    lock, waited = tmp_path / "lock", list[float]()
    command = [sys.executable, "-c", _HOLDER, str(lock)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=Path(__file__).parents[4]) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(ClusterError, match="is held by another process"), locked(lock, timeout=0.3):
            pass

        def waiting(seconds: float) -> None:
            waited.append(seconds)
            if len(waited) == 3:
                holder.kill()

        with pytest.raises(RuntimeError), locked(lock, timeout=60, waiting=waiting):
            raise RuntimeError
    assert len(waited) >= 3
    assert waited == sorted(waited)
    with locked(lock, timeout=0):
        pass
