"""A namespace with quotas and a migration budget, and everything that is seen of its locks."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from kubeloop.api import registry
from kubeloop.api.admissionregistration import ValidatingWebhookConfiguration
from kubeloop.api.core import Event, ResourceQuota
from kubeloop.api.objects import condition_is_true
from kubeloop.client.errors import NotFound
from kubeloop.testing.polling import until
from lab.bodies import kubevirt
from lab.record import Record
from lab.watching import Watching
from pkg.api.kubevirt import VIRTUAL_MACHINE_INSTANCE_MIGRATIONS, VIRTUAL_MACHINE_INSTANCES
from pkg.api.mtq import VIRTUAL_MACHINE_MIGRATION_RESOURCE_QUOTAS, VirtualMachineMigrationResourceQuota
from pkg.util.constants import CONDITION_REJECTED_BY_RESOURCE_QUOTA
from pkg.util.managedtenantquota.lock import lock_name, locked_namespace
from pkg.util.quantity import Quantity
from tests.e2e.admin import Admin
from tests.e2e.tenant import by_value

BUDGETS = VIRTUAL_MACHINE_MIGRATION_RESOURCE_QUOTAS
LOCKS = registry.VALIDATING_WEBHOOK_CONFIGURATIONS
ENOUGH = {"limits.cpu": "2", "limits.memory": "2Gi", "requests.memory": "2Gi", "pods": "4"}
SMALL = {"cpu": "500m", "memory": "64Mi"}
"""A VM that three nodes have room for many of."""


@dataclass
class Namespace:
    """Made by `made`."""

    admin: Admin
    name: str

    async def quota(self, hard: Mapping[str, str], name: str = "quota", **spec: Any) -> None:
        body = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": name}}
        body["spec"] = {"hard": dict(hard), **spec}
        await self.admin.client.resource(registry.RESOURCE_QUOTAS).create(body, namespace=self.name)
        await until(lambda: self._counts(name), f"{name} to count")

    async def budget(self, additional: Mapping[str, str] | None = None, name: str = "budget") -> None:
        body = {
            "apiVersion": BUDGETS.api_version,
            "kind": BUDGETS.kind,
            "metadata": {"name": name},
            "spec": {"additionalMigrationResources": dict(ENOUGH if additional is None else additional)},
        }
        await self.admin.client.resource(BUDGETS).create(body, namespace=self.name)

    async def machine(self, name: str = "vm1", **more: Any) -> None:
        await self.admin.machine(self.name, name, **{**SMALL, **more})

    async def instance(self, name: str, **spec: Any) -> None:
        """A VMI without a VM."""
        resources = {"limits": dict(SMALL), "requests": dict(SMALL)}
        domain = {"cpu": {"cores": 1}, "resources": resources, "devices": {}}
        body = kubevirt("VirtualMachineInstance", name, {"domain": domain, **spec})
        await self.admin.client.resource(VIRTUAL_MACHINE_INSTANCES).create(body, namespace=self.name)

    async def fill(self, quota: str = "quota", **left: str) -> dict[str, str]:
        """Lower a quota to what is used; `left`: and a bit. Its spec.hard."""
        await until(lambda: self._counts(quota), f"{quota} to count")
        found = await self.get(quota)
        spare = {name.replace("_", "."): Quantity.parse(more) for name, more in left.items()}
        zero = Quantity.parse("0")
        hard = {name: str(Quantity.parse(used) + spare.get(name, zero)) for name, used in found.used.items()}
        quotas = self.admin.client.resource(registry.RESOURCE_QUOTAS)
        await quotas.merge_patch({"spec": {"hard": hard}}, name=quota, namespace=self.name)
        await until(lambda: self._counts(quota), f"{quota} to be enforced")
        return hard

    async def get(self, quota: str = "quota") -> ResourceQuota:
        return await self.admin.client.resource(registry.RESOURCE_QUOTAS).get(name=quota, namespace=self.name)

    async def hard(self, quota: str = "quota") -> dict[str, Quantity]:
        return by_value((await self.get(quota)).hard)

    async def get_budget(self, name: str = "budget") -> VirtualMachineMigrationResourceQuota:
        return await self.admin.client.resource(BUDGETS).get(name=name, namespace=self.name)

    async def lock(self) -> ValidatingWebhookConfiguration | None:
        try:
            return await self.admin.client.resource(LOCKS).get(name=lock_name(self.name))
        except NotFound:
            return None

    async def migrate(self, vm: str = "vm1", **more: Any) -> str:
        return await self.admin.migrate(self.name, vm, **{"running": 0.2, "linger": 0.2, **more})

    async def refused(self, migration: str) -> None:
        """Until quota has refused the target pod."""

        async def marked() -> bool:
            migrations = self.admin.client.resource(VIRTUAL_MACHINE_INSTANCE_MIGRATIONS)
            found = await migrations.get(name=migration, namespace=self.name)
            return condition_is_true(found.status.conditions, CONDITION_REJECTED_BY_RESOURCE_QUOTA)

        await until(marked, f"{migration} to be refused")

    async def succeeded(self, *migrations: str, seconds: float = 30.0) -> None:
        for migration in migrations:
            await self.admin.until_phase(self.name, migration, "Succeeded", seconds=seconds)

    async def at_rest(self, originals: Mapping[str, Mapping[str, str]], seconds: float = 15.0) -> None:
        """Until the quotas are as they were, the status holds no originals and the lock is gone."""

        async def resting() -> bool:
            status = (await self.get_budget()).status
            if await self.lock() is not None or status.original_blocking_resource_quotas:
                return False
            if status.migrations_to_blocking_resource_quotas:
                return False
            return all([await self.hard(name) == by_value(hard) for name, hard in originals.items()])

        await until(resting, f"{self.name} to rest", seconds=seconds)

    async def events(self, reason: str, kind: str = "") -> list[Event]:
        found = await self.admin.client.resource(registry.EVENTS).list(
            self.name, field_selector=f"reason={reason}"
        )
        return [event for event in found if kind in ("", event.involved_object.kind)]

    async def told(self, reason: str, kind: str) -> Event:
        """The first event of a reason, about an object of a kind."""
        return (await until(lambda: self.events(reason, kind), f"event {reason} on a {kind}"))[0]

    async def _counts(self, quota: str) -> bool:
        found = await self.get(quota)
        return bool(found.status.used) and by_value(found.status.hard or {}) == by_value(found.hard)


@dataclass
class Seen:
    """What a watch of all locks and one namespace's quotas brings, in order."""

    record: Record = field(default_factory=Record)
    locked: list[tuple[float, float]] = field(default_factory=list)
    """Begin and end of every lock, monotonic seconds."""
    since: float | None = None

    @property
    def seconds(self) -> float:
        return sum(end - begin for begin, end in self.locked)

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

    def versions(self, quota: str) -> list[dict[str, Quantity]]:
        """A quota's different versions of spec.hard."""
        return [hard for hard, _ in groupby(hard for name, hard, _ in self.raised if name == quota)]


@contextlib.asynccontextmanager
async def watched(namespace: Namespace) -> AsyncIterator[Seen]:
    """Watches while the block runs."""
    seen, ready = Seen(), asyncio.Event()
    locks = asyncio.create_task(_watch_locks(namespace, seen, ready))
    async with Watching(namespace.admin.client, {namespace.name: seen.record}, registry.RESOURCE_QUOTAS):
        await ready.wait()
        try:
            yield seen
            await asyncio.sleep(0.3)
        finally:
            locks.cancel()
            await asyncio.wait([locks])


async def _watch_locks(namespace: Namespace, seen: Seen, ready: asyncio.Event) -> None:
    locks = namespace.admin.client.resource(LOCKS)
    version = (await locks.list()).resource_version
    async with locks.watch(resource_version=version) as events:
        ready.set()
        async for event in events:
            if event.object is None or locked_namespace(event.object) != namespace.name:
                continue
            if event.type == "ADDED":
                seen.since = time.monotonic()
            elif event.type == "DELETED" and seen.since is not None:
                seen.locked.append((seen.since, time.monotonic()))
                seen.since = None


@contextlib.asynccontextmanager
async def hanging(admin: Admin, resource: str, labels: Mapping[str, str], policy: str) -> AsyncIterator[None]:
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
        await admin.client.resource(LOCKS).create(body)
        try:
            yield
        finally:
            await admin.client.resource(LOCKS).delete(name="hangs")


async def made(admin: Admin) -> Namespace:
    """A new namespace without Rancher's annotation."""
    return Namespace(admin, await admin.namespace(annotated=False))
