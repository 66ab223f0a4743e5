"""The order of the files, and one embedded cluster for all tests of a run that need one, with its stand-ins. It ends
with the run, however that ends."""

from collections.abc import Iterator

import pytest

from kubeloop.testing.cluster.cluster import Cluster
from lab.cluster import EmbeddedCluster

LONGEST = (
    "tests/simulation/",
    "tests/pkg/test_tenant_cost.py",
    "tests/pkg/util/resourcequota/test_interleavings.py",
    "tests/lab/cmd/test_commands.py",
    "tests/e2e/test_rancher.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the longest files first: at the end of a run each would keep one worker busy while the others are idle."""
    items.sort(key=lambda item: not item.nodeid.startswith(LONGEST))


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """`cluster.kubeconfig` is a cluster admin's; `cluster.directory` holds the logs."""
    with EmbeddedCluster() as running:
        yield running
