"""One embedded cluster for all end-to-end tests of a run, with its stand-ins. It ends with the run, however that ends."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pkg.testcluster.cluster import Cluster, EmbeddedCluster


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """`cluster.kubeconfig` is a cluster admin's; `cluster.directory` holds the logs."""
    with EmbeddedCluster() as running:
        yield running
