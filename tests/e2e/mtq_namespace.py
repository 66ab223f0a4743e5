"""A namespace with quotas and a migration budget, and everything that is seen of its locks."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from kubeloop.api import registry
from kubeloop.api.core import ValidatingWebhookConfiguration
from kubeloop.api.quantity import ZERO, Quantity
from kubeloop.client.client import Client
from kubeloop.client.errors import Forbidden, NotFound
from lab import bodies
from lab.namespace import Namespace, becomes, by_value
from lab.watching import Watching
from pkg.api.mtq import VIRTUAL_MACHINE_MIGRATION_RESOURCE_QUOTAS
from pkg.util.managedtenantquota.lock import lock_name, recognise
from tests.e2e.admin import Admin
from tests.e2e.headroom.amounts import Versions

BUDGETS = VIRTUAL_MACHINE_MIGRATION_RESOURCE_QUOTAS
LOCKS = registry.VALIDATING_WEBHOOK_CONFIGURATIONS
ENOUGH = {"limits.cpu": "2", "limits.memory": "2Gi", "requests.memory": "2Gi", "pods": "4"}
SMALL = {"cpu": "500m", "memory": "64Mi"}
"""A VM that three nodes have room for many of."""


class Budgeted(Namespace):
    """Made by `make_budgeted`. Its quota is called "quota" and its budget "budget", its VMs are SMALL."""

    async def budget(self, additional: Mapping[str, str] | None = None) -> None:
        spec = {"additionalMigrationResources": dict(ENOUGH if additional is None else additional)}
        await self.create(BUDGETS, {"metadata": {"name": "budget"}, "spec": spec})

    async def machine(self, name: str = "vm1", **options: Any) -> None:
        await super().machine(name, **{**SMALL, **options})

    async def migrate(self, vm: str = "vm1", name: str = "", **options: Any) -> str:
        return await super().migrate(vm, name, **{"running": 0.2, "phase": 0.1, "linger": 0.2, **options})

    async def fill(self, **spare_amounts: str) -> dict[str, str]:
        """Lower the quota to what is used; `spare_amounts`: and a bit. Its spec.hard, by which the API server
        admits pods then: its cache of quotas may be late."""
        await self.until_counted("quota")
        spare = by_value({name.replace("_", "."): too_much for name, too_much in spare_amounts.items()})
        hard = {name: str(used + spare.get(name, ZERO)) for name, used in (await self.used("quota")).items()}
        await self.patch_quota({"spec": {"hard": hard}}, "quota")
        await self.until_counted("quota")
        too_much = str(spare.get("limits.cpu", ZERO) + Quantity.parse("1m"))
        pods = self.client.resource(registry.PODS).dry_run()

        async def refused() -> bool:
            try:
                await pods.create(bodies.pod(too_much), namespace=self.name)
            except Forbidden:
                return True
            return False

        await becomes(refused, True)
        return hard

    async def lock(self) -> ValidatingWebhookConfiguration | None:
        try:
            return await self.client.resource(LOCKS).get(name=lock_name(self.name))
        except NotFound:
            return None

    async def until_raised(self, hard: Mapping[str, Any]) -> None:
        async def raised() -> bool:
            return await self.hard("quota") != by_value(hard)

        await becomes(raised, True)

    async def until_unlocked(self) -> None:
        await becomes(self.lock, None)

    async def at_rest(self, hard: Mapping[str, Any], quota: str = "quota", seconds: float = 15.0) -> None:
        """Until the quota is as it was, the status holds no originals and the lock is gone."""

        async def resting() -> bool:
            status = (await self.get(BUDGETS, "budget")).status
            if await self.lock() is not None or status.original_blocking_resource_quotas:
                return False
            if status.migrations_to_blocking_resource_quotas:
                return False
            return await self.hard(quota) == by_value(hard)

        await becomes(resting, True, seconds)


@dataclass
class WindowRecord(Versions):
    """The versions that a watch of all locks and one namespace's quotas brings, in order."""

    locked: list[tuple[float, float]] = field(default_factory=list)
    """Begin and end of every lock, monotonic seconds."""
    since: float | None = None

    @property
    def raised(self) -> list[tuple[str, dict[str, Quantity], bool]]:
        """Every version of a quota's spec.hard: its name, and whether the namespace was locked."""
        return [
            (
                version.quota.name,
                by_value(version.quota.hard),
                any(begin <= version.at <= end for begin, end in self.locked),
            )
            for version in self.record.quotas
        ]


@contextlib.asynccontextmanager
async def watched(namespace: Budgeted) -> AsyncIterator[WindowRecord]:
    """Watches while the block runs."""
    record, ready = WindowRecord(namespace), asyncio.Event()
    locks = asyncio.create_task(_watch_locks(namespace, record, ready))
    async with Watching(namespace.client, {namespace.name: record.record}, registry.RESOURCE_QUOTAS):
        await ready.wait()
        try:
            yield record
            await asyncio.sleep(0.3)
        finally:
            locks.cancel()
            await asyncio.wait([locks])


async def _watch_locks(namespace: Budgeted, record: WindowRecord, ready: asyncio.Event) -> None:
    locks = namespace.client.resource(LOCKS)
    version = (await locks.list()).resource_version
    async with locks.watch(resource_version=version) as events:
        ready.set()
        async for event in events:
            lock = recognise(event.object)
            if lock is None or lock.namespace != namespace.name:
                continue
            if event.type == "ADDED":
                record.since = time.monotonic()
            elif event.type == "DELETED" and record.since is not None:
                record.locked.append((record.since, time.monotonic()))
                record.since = None


@contextlib.asynccontextmanager
async def hanging(client: Client, resource: str, labels: Mapping[str, str], policy: str) -> AsyncIterator[None]:
    """Another webhook never answers about a resource's changes, in the namespaces with these labels. The API server
    waits as long as it does by default."""

    async def say_nothing(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.CancelledError):  # else asyncio logs each that the end cuts off
            await reader.read()

    async with await asyncio.start_server(say_nothing, "127.0.0.1", 0) as server:
        rule = {"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["UPDATE"], "resources": [resource]}
        webhook = {
            "name": "hangs.example.com",
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "failurePolicy": policy,
            "namespaceSelector": {"matchLabels": dict(labels)},
            "rules": [rule],
            "clientConfig": {"url": f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"},
        }
        body = {"metadata": {"name": "hangs"}, "webhooks": [webhook]}
        await client.resource(LOCKS).create(body)
        try:
            yield
        finally:
            await client.resource(LOCKS).delete(name="hangs")


async def make_budgeted(admin: Admin) -> Budgeted:
    """A new namespace without Rancher's annotation."""
    return Budgeted(admin.client, (await admin.namespace()).name)
