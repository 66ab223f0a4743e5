"""Draining a node: which pods go, which stay, which forbid it."""

import asyncio
from typing import Any

import pytest

from kubeloop.api.registry import NODES, PODS
from kubeloop.client.drain import Drain, DrainError
from kubeloop.client.errors import TooManyRequests
from kubeloop.testing.fake.objects import Request
from kubeloop.testing.fake.server import FakeCluster
from kubeloop.testing.virtual_time import now

pytestmark = pytest.mark.virtual_time

ALL: dict[str, Any] = {"ignore_daemon_sets": True, "delete_empty_dir_data": True, "force": True}
DAEMON = {"ownerReferences": [{"kind": "DaemonSet", "name": "d", "uid": "u", "controller": True}]}
OWNED = {"ownerReferences": [{"kind": "ReplicaSet", "name": "r", "uid": "u", "controller": True}]}
SCRATCH = {"volumes": [{"name": "v", "emptyDir": {}}]}
OVER = {"phase": "Succeeded"}

# pod: metadata, spec, status; options; whether it goes, or what DrainError says
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any], dict[str, Any], bool | str]] = {
    "of a controller": (OWNED, {}, {}, {}, True),
    "of nothing": ({}, {}, {}, {}, "has no controller"),
    "of nothing, by force": ({}, {}, {}, {"force": True}, True),
    "of nothing, and over": ({}, {}, OVER, {}, True),
    "of a DaemonSet": (DAEMON, {}, {}, {}, "belongs to a DaemonSet"),
    "of a DaemonSet, ignored": (DAEMON, {}, {}, {"ignore_daemon_sets": True}, False),
    "with local data": (OWNED, SCRATCH, {}, {}, "has an emptyDir"),
    "with local data that may go": (OWNED, SCRATCH, {}, {"delete_empty_dir_data": True}, True),
    "with local data, and over": (OWNED, SCRATCH, OVER, {}, True),
    "the kubelet's own": ({"annotations": {"kubernetes.io/config.mirror": "x"}}, {}, {}, {}, False),
    "skipped": ({}, {}, {}, {"skips": lambda pod: pod.name == "p"}, False),
    "not selected": (OWNED, {}, {}, {"pod_selector": "app!=storage"}, True),
    "left out by the selector": (OWNED | {"labels": {"app": "x"}}, {}, {}, {"pod_selector": "app!=x"}, False),
}


def put_pod(cluster: FakeCluster, name: str, node: str = "n", **fields: Any) -> None:
    metadata = {"name": name, "namespace": "ns"} | fields.get("metadata", {})
    spec = {"nodeName": node} | fields.get("spec", {})
    cluster.put(PODS, {"metadata": metadata, "spec": spec, "status": fields.get("status", {})})


@pytest.mark.parametrize("case", CASES)
async def test_a_pod(case: str) -> None:
    metadata, spec, status, options, goes = CASES[case]
    cluster = FakeCluster()
    put_pod(cluster, "p", metadata=metadata, spec=spec, status=status)
    put_pod(cluster, "q", node="another")
    drain = Drain(client=cluster.client(), **options)
    if isinstance(goes, str):
        with pytest.raises(DrainError, match=f"node n cannot be drained: ns/p {goes}"):
            await drain.run("n")
    else:
        await drain.run("n")
    pods = {pod.name for pod in cluster.all(PODS)}
    assert pods == ({"q"} if goes is True else {"p", "q"})


async def test_no_new_pods_come_meanwhile() -> None:
    cluster = FakeCluster()
    cluster.put(NODES, {"metadata": {"name": "n"}})
    drain = Drain(client=cluster.client())
    assert (await drain.cordon("n")).spec.unschedulable
    assert not (await drain.cordon("n", False)).spec.unschedulable


async def test_a_refused_eviction_is_tried_again() -> None:
    cluster = FakeCluster()
    put_pod(cluster, "p", metadata={"finalizers": ["example.org/slow"]})
    refusals = [TooManyRequests("disruption budget")] * 2
    tried = []

    def budget(request: Request) -> None:
        if request.subresource == "eviction":
            tried.append(now() - started)
            if refusals:
                raise refusals.pop()

    cluster.reactors.append(budget)
    started = now()
    with pytest.raises(DrainError, match="node n: not drained within 30 s"):
        await Drain(client=cluster.client(), timeout=30.0, **ALL).run("n")
    assert (now() - started, tried) == (pytest.approx(30), pytest.approx([0, 5, 10]))
    draining = asyncio.create_task(Drain(client=cluster.client(), **ALL).run("n"))
    await asyncio.sleep(10)
    assert not draining.done()
    cluster.remove(PODS, "ns/p")
    put_pod(cluster, "p")  # of a StatefulSet: the same name
    await draining
    assert [pod.name for pod in cluster.all(PODS)] == ["p"]
