"""`headroom version`."""

import importlib.metadata


def version() -> None:
    """Print the version."""
    print(f"headroom {importlib.metadata.version('harvester-headroom')}")
