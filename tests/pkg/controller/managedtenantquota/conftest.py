"""A namespace whose migration quota has refused."""

import pytest

from tests.pkg.controller.managedtenantquota.server import WindowCluster


@pytest.fixture
async def cluster() -> WindowCluster:
    new_cluster = WindowCluster()
    new_cluster.refuse()
    return new_cluster
