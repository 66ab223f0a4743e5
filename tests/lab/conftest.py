"""Virtual time for the tests of the lab that ask for it."""

from tests.kubeloop.conftest import pytest_asyncio_loop_factories

__all__ = ["pytest_asyncio_loop_factories"]
