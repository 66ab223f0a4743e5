"""One embedded cluster for all tests of a run that need one, with its stand-ins. It ends with the run, however that
ends."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kubeloop.testing.cluster.cluster import Cluster
from lab.cluster import EmbeddedCluster


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """`cluster.kubeconfig` is a cluster admin's; `cluster.directory` holds the logs."""
    with EmbeddedCluster() as running:
        yield running
