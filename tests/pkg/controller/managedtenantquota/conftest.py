"""A namespace whose migration quota has refused."""

from __future__ import annotations

import pytest

from tests.pkg.controller.managedtenantquota.server import Cluster


@pytest.fixture
async def cluster() -> Cluster:
    found = Cluster()
    found.refuse()
    return found
