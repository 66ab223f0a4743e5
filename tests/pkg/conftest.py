"""Tests may run in virtual time, as those of kubeloop."""

from tests.kubeloop.conftest import pytest_asyncio_loop_factories

__all__ = ["pytest_asyncio_loop_factories"]
