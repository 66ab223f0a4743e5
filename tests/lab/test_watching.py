"""The namespaces and kinds that a demo or a measurement follows."""

from __future__ import annotations

import pytest

from kubeloop.api.registry import PODS
from kubeloop.client.errors import ServerError
from kubeloop.testing.cluster.errors import ClusterError
from kubeloop.testing.fake.server import FakeCluster
from lab.record import Happening, Record
from lab.watching import Watching


def broken(_: object) -> None:
    raise ServerError("etcd is away", status=500)


async def test_a_kind_that_cannot_be_listed_is_an_error() -> None:
    cluster = FakeCluster()
    cluster.reactors.append(broken)
    watching = Watching(cluster.client(), {"ns": Record()}, PODS, sync_timeout=0.2)
    with pytest.raises(ClusterError, match="did not list all that is followed within"):
        async with watching:
            pytest.fail("it was entered")


async def test_a_listener_that_fails_fails_the_run() -> None:
    def fail(_: Happening) -> None:
        raise ValueError("no number")

    cluster = FakeCluster()
    cluster.put(PODS, {"metadata": {"name": "a", "namespace": "ns"}})
    watching = Watching(cluster.client(), {"ns": Record(listener=fail)}, PODS)
    await watching.__aenter__()
    with pytest.raises(ValueError, match="no number"):
        await watching.__aexit__(None, None, None)
