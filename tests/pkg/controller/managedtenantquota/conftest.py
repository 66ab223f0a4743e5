"""A namespace whose migration quota has refused."""

from __future__ import annotations

import pytest

from tests.pkg.controller.managedtenantquota.server import Cluster


@pytest.fixture
async def cluster() -> Cluster:
    new_cluster = Cluster()
    new_cluster.refuse()
    return new_cluster
