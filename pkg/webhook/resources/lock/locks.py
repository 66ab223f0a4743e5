"""The locks that stand, as a replica sees them: its cache, and the API server where the cache knows of none."""

from __future__ import annotations

from datetime import UTC, datetime

from pkg.api.admissionregistration import ValidatingWebhookConfiguration
from pkg.client.resource_client import ResourceClient
from pkg.generic.cache_reader import CacheReader
from pkg.util.managedtenantquota.lock import Lock, lock_name, locked_namespace, recognise
from pkg.webhook.deadline import in_time

_BY_NAMESPACE = "locked namespace (webhook)"


class Locks:
    """A lock in the cache may be gone already: who is refused for that one tries again, as all do."""

    def __init__(
        self,
        cache: CacheReader[ValidatingWebhookConfiguration],
        client: ResourceClient[ValidatingWebhookConfiguration],
    ) -> None:
        cache.add_indexer(_BY_NAMESPACE, lambda lock: [locked_namespace(lock)])
        self._cache = cache
        self._client = client

    async def find(self, namespace: str) -> Lock | None:
        """The namespace's lock, None when there is none any more. Raises NoAnswer."""
        cached = self._cache.by_index(_BY_NAMESPACE, namespace)
        if cached:
            return recognise(cached[0])
        there = await in_time(self._client.get(name=lock_name(namespace)))
        found = recognise(there) if there is not None else None
        return found if found is not None and found.namespace == namespace else None

    @staticmethod
    def since(lock: Lock) -> str:
        """When it was made, for people; to the second."""
        moment = datetime.fromtimestamp(lock.since, UTC).isoformat(timespec="seconds")
        return moment.replace("+00:00", "Z")
