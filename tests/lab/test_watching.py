"""What a demo or a measurement follows."""

from __future__ import annotations

import pytest

from kubeloop.api.registry import PODS
from kubeloop.client.errors import ServerError
from kubeloop.testing.cluster.errors import ClusterError
from kubeloop.testing.fake.server import FakeCluster
from lab.watching import Watching


def broken(_: object) -> None:
    raise ServerError("etcd is away", status=500)


async def test_a_kind_that_cannot_be_listed_is_an_error_not_an_empty_measurement() -> None:
    cluster = FakeCluster()
    cluster.reactors.append(broken)
    watching = Watching(cluster.client(), ["ns"], sync_timeout=0.2)
    watching.watch(PODS, lambda _: None)
    with pytest.raises(ClusterError, match="did not list all that is followed within"):
        async with watching:
            pytest.fail("it was entered")
