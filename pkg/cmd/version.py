"""`headroom version`."""

from __future__ import annotations

import importlib.metadata


def version() -> None:
    """Print the version."""
    print(f"headroom {importlib.metadata.version('harvester-headroom')}")
