"""The Lease that candidates compete for (client-go's resourcelock.LeaseLock)."""

import os
import socket
import uuid
from collections.abc import AsyncGenerator

import msgspec

from kubeloop.api.core import Lease, LeaseSpec
from kubeloop.api.registry import LEASES
from kubeloop.client.client import Client

_WATCH_SECONDS = 300.0


class LeaseLock:
    """Reads and writes a Lease, over connections of its own. `identity`: unique for each process. Raises ApiError."""

    def __init__(self, client: Client, namespace: str, name: str, identity: str = "") -> None:
        # The client's own connections may all wait for slow answers: the lease may not.
        self._leases = Client(client.transport.separate()).resource(LEASES)
        self._namespace = namespace
        self._name = name
        self.identity = identity or f"{os.environ.get('POD_NAME') or socket.gethostname()}_{uuid.uuid4()}"

    def __str__(self) -> str:
        return f"{self._namespace}/{self._name}"

    async def get(self) -> Lease:
        """Raises NotFound."""
        return await self._leases.get(name=self._name, namespace=self._namespace)

    async def create(self, spec: LeaseSpec) -> Lease:
        """Raises AlreadyExists."""
        metadata = {"name": self._name, "namespace": self._namespace}
        return await self._leases.create({"metadata": metadata, "spec": spec})

    async def update(self, spec: LeaseSpec, resource_version: str) -> Lease:
        """Raises Conflict when the Lease is no longer at that version."""
        # Every field: what a merge patch leaves out stays as the last holder wrote it.
        fields = {field.encode_name: getattr(spec, field.name) for field in msgspec.structs.fields(spec)}
        patch = {"metadata": {"resourceVersion": resource_version}, "spec": fields}
        return await self._leases.merge_patch(patch, name=self._name, namespace=self._namespace)

    async def watch(self) -> AsyncGenerator[Lease, None]:
        """The Lease as it is and every change of it, not its deletion. Ends after minutes; raises ApiError."""
        field = f"metadata.name={self._name}"
        async with self._leases.watch(self._namespace, field_selector=field, timeout_seconds=_WATCH_SECONDS) as events:
            async for event in events:
                if event.object is not None and event.type != "DELETED":
                    yield event.object
