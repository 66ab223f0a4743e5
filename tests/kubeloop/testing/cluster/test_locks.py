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


@pytest.fixture
def held(tmp_path: Path) -> subprocess.Popen[str]:
    """Another process that holds the lock at tmp_path/lock until its standard input ends."""
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLDER, str(tmp_path / "lock")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[4],
    )  # fmt: skip
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    return holder


def test_a_lock_that_another_process_holds_is_not_given(tmp_path: Path, held: subprocess.Popen[str]) -> None:
    with pytest.raises(ClusterError, match="is held by another process"), locked(tmp_path / "lock", timeout=0.3):
        pass
    held.communicate()


def test_who_waits_is_told_for_how_long_and_gets_the_lock_at_its_end(
    tmp_path: Path, held: subprocess.Popen[str]
) -> None:
    waited: list[float] = []

    def waiting(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 3:
            held.communicate()

    with locked(tmp_path / "lock", timeout=60, waiting=waiting):
        assert len(waited) >= 3
    assert waited == sorted(waited)


def test_a_killed_holder_frees_the_lock(tmp_path: Path, held: subprocess.Popen[str]) -> None:
    held.kill()
    held.communicate()
    with locked(tmp_path / "lock", timeout=0):
        pass


def test_a_lock_is_free_again_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), locked(tmp_path / "lock"):
        raise RuntimeError
    with locked(tmp_path / "lock", timeout=0):
        pass
