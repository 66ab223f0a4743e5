"""Requests about a Lease."""

import pytest

from kubeloop.api.core import LeaseSpec
from kubeloop.client.client import Client
from kubeloop.client.errors import ApiError
from kubeloop.leaderelection.lease_lock import LeaseLock
from kubeloop.testing.scripted_server import GET, PATCH, POST, WATCH, ScriptedServer, body, watch
from kubeloop.testing.scripted_steps import bookmark, deleted, error, modified

LEASES = "/apis/coordination.k8s.io/v1/namespaces/ns/leases"
LEASE = f"{LEASES}/headroom"
OBJECT = {
    "metadata": {"name": "headroom", "namespace": "ns", "resourceVersion": "7"},
    "spec": {"holderIdentity": "a", "leaseDurationSeconds": 15, "leaseTransitions": 2},
}


async def test_the_lease_is_written_at_the_version_that_was_read() -> None:
    async with ScriptedServer() as server:
        server.script(GET, LEASE, body(OBJECT))
        server.script(POST, LEASES, body(OBJECT))
        server.script(PATCH, LEASE, body(OBJECT))
        async with Client(server.config()) as client:
            lock = LeaseLock(client, "ns", "headroom")
            lease = await lock.get()
            await lock.create(LeaseSpec(holder_identity="a"))
            await lock.update(LeaseSpec(lease_duration_seconds=1), lease.metadata.resource_version)
        created, patched = server.seen(POST)[0].json, server.seen(PATCH)[0].json
    assert lease.spec == LeaseSpec(holder_identity="a", lease_duration_seconds=15, lease_transitions=2)
    assert created["metadata"] == {"name": "headroom", "namespace": "ns"}
    assert created["spec"] == {"holderIdentity": "a"}
    assert patched == {
        "metadata": {"resourceVersion": "7"},
        "spec": {
            "holderIdentity": None,
            "leaseDurationSeconds": 1,
            "acquireTime": None,
            "renewTime": None,
            "leaseTransitions": None,
        },
    }


async def test_the_watch_is_of_one_lease_and_ends_with_an_error() -> None:
    async with ScriptedServer() as server:
        steps = watch(modified(OBJECT), bookmark("8"), deleted(OBJECT), modified(OBJECT), error(410, "Expired"))
        server.script(WATCH, LEASES, steps)
        async with Client(server.config()) as client:
            lock = LeaseLock(client, "ns", "headroom")
            leases = lock.watch()
            holders = [(await anext(leases)).spec.holder_identity for _ in range(2)]
            with pytest.raises(ApiError):
                await anext(leases)
        assert server.seen(WATCH)[0].query["fieldSelector"] == "metadata.name=headroom"
    assert holders == ["a", "a"]
