"""The reference vectors: recorded from the Go implementations that this project agrees with."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

FOLDER = Path(__file__).resolve().parents[2] / "vectors"
SOURCE_POD = "pod-t1-virt-launcher-vm1-t8vc9"
TARGET_POD = "pod-t1-virt-launcher-vm1-hq9zx"
POD_WITH_RATIO = "pod-t2-virt-launcher-vm2-gcg5l"
VMI = "virtualmachineinstance-t1-vm1"
QUOTA = "resourcequota-t1-default-abc"


def lines(name: str) -> Iterator[dict[str, Any]]:
    """The vectors of a JSON lines file."""
    with (FOLDER / f"{name}.jsonl").open(encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)


def recorded(name: str, kind: Any = Any) -> Any:
    """An object as the real controllers left it, by the end of its file's name."""
    (path,) = (FOLDER / "recorded").glob(f"*{name}.json")
    return msgspec.json.decode(path.read_bytes(), type=kind)
