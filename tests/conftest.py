"""How the suite is spread over worker processes (pytest-xdist): the tests of one cluster module stay together."""

from __future__ import annotations

import pytest


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A module that needs the embedded cluster shares its controllers, so one worker runs it; all else is free."""
    for item in items:
        if item.get_closest_marker("cluster"):
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))
