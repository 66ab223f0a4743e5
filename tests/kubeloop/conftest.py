"""The clock of a test and its fixtures, here and under tests/pkg: this machine's, or virtual time where the test is
marked so."""

import asyncio
from collections.abc import Callable, Mapping

import pytest

from kubeloop.testing.virtual_time import VirtualTimeLoop


def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    virtual = item.get_closest_marker("virtual_time") is not None
    return {"virtual": VirtualTimeLoop} if virtual else {"real": asyncio.new_event_loop}
