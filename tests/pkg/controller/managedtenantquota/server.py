"""A namespace with a budget on an API server of the test's own, the handler over it, and a process that may end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from email.utils import formatdate
from typing import Any

from kubeloop.api import registry
from kubeloop.api.registry import Resource
from kubeloop.client.client import Client
from kubeloop.client.errors import ApiError
from kubeloop.client.server_clock import ServerClock
from kubeloop.controllers.errors import RetryAfter
from kubeloop.testing.fake.server import FakeTransport
from pkg.api.harvesterhci import SETTINGS
from pkg.api.kubevirt import KUBEVIRTS, VIRTUAL_MACHINE_INSTANCE_MIGRATIONS, VIRTUAL_MACHINE_INSTANCES
from pkg.api.mtq import VIRTUAL_MACHINE_MIGRATION_RESOURCE_QUOTAS
from pkg.config.probe import NotReached
from pkg.controller.indexes import index
from pkg.controller.managedtenantquota.identity import LockMaker
from pkg.controller.managedtenantquota.managedtenantquota_controller import Handler
from pkg.controller.managedtenantquota.observation import LOCKS_BY_NAMESPACE, Observer
from pkg.controller.managedtenantquota.register import locked
from pkg.controller.managedtenantquota.writer import Clients, Writer
from pkg.util.constants import NEVER_LOCKED
from pkg.util.managedtenantquota.model import Policy
from pkg.util.quotacount.usage import pod_usage
from pkg.util.resource_list import format_resource_list, parse_resource_list
from pkg.util.resourcequota.observe import Observer as FactsObserver
from tests.decisions import by_value
from tests.kinds import Clock, Events, Kind, Server
from tests.objects import running_vmi
from tests.pkg.controller.wired import Wired
from tests.pkg.util.managedtenantquota.objects import FULL, GRANTED, budget, quota, refused, source, target

REGISTRATION = {
    "metadata": {"name": "headroom.harvesterhci.io"},
    "webhooks": [{"clientConfig": {"url": "https://broken:1/validate-namespace"}}],
}
PROBE = {
    "metadata": {"name": "headroom-probe.harvesterhci.io"},
    "webhooks": [{"clientConfig": {"url": "https://127.0.0.1:9443/probe", "caBundle": "Q0E="}}],
}
KEY = "ns1/quota"
OPENING = [
    ("create", "validatingwebhookconfigurations"),
    ("patch status", "virtualmachinemigrationresourcequotas"),
    ("patch", "resourcequotas"),
]
CLOSING = [
    ("patch", "resourcequotas"),
    ("patch status", "virtualmachinemigrationresourcequotas"),
    ("delete", "validatingwebhookconfigurations"),
]
"""The writes that begin and end a lock."""


class Ended(BaseException):
    """The process was killed: nothing that it would have done next happens."""


class Counting(Server):
    """An API server that counts writes and ends the process after one of them."""

    def __init__(self, writes: Writes) -> None:
        self._writes = writes
        super().__init__()

    def client(self) -> Client:
        return Client(_Counted(self, self._writes))


class _Counted(FakeTransport):
    def __init__(self, server: Server, writes: Writes) -> None:
        super().__init__(server)
        self._writes = writes

    async def request(self, method: str, path: str, **options: Any) -> bytes:
        answer = await super().request(method, path, **options)
        if method != "GET":
            self._writes.done(method, path)
        return answer


class Writes:
    """What was written; `left`: after so many more writes the process ends (None: never)."""

    def __init__(self) -> None:
        self.made: list[tuple[str, str]] = []
        self.left: int | None = None

    def done(self, method: str, path: str) -> None:
        verb = {"POST": "create", "DELETE": "delete"}.get(method, "patch")
        parts = path.split("/")
        if parts[-1] == "status":
            verb, parts = "patch status", parts[:-1]
        self.made.append((verb, parts[-1] if verb == "create" else parts[-2]))
        if self.left is not None:
            self.left -= 1
            if self.left == 0:
                raise Ended


class Cluster:
    """Everything outside of our process: it stays when the process ends."""

    def __init__(self) -> None:
        self.clock = Clock(1_800_000_000.0)
        self.set_back = 0.0
        """Seconds by which the API server's clock was."""
        self.writes = Writes()
        self.server = Counting(self.writes)
        self.server.clock = lambda: self.clock.now - self.set_back
        management = Wired(self.server)
        self.caches = management.source()
        index(management.virtual_machine_instance_migrations.cache(), management.pods.cache())
        management.locks.cache().add_indexer(LOCKS_BY_NAMESPACE, locked)
        kind: Callable[[Resource[Any]], Kind[Any]] = self.server.kind
        self.budgets = kind(VIRTUAL_MACHINE_MIGRATION_RESOURCE_QUOTAS)
        self.quotas, self.locks = (
            kind(registry.RESOURCE_QUOTAS),
            kind(registry.VALIDATING_WEBHOOK_CONFIGURATIONS),
        )
        self.namespaces, self.pods = kind(registry.NAMESPACES), kind(registry.PODS)
        self.migrations = kind(VIRTUAL_MACHINE_INSTANCE_MIGRATIONS)
        self.instances = kind(VIRTUAL_MACHINE_INSTANCES)
        self.kubevirts, self.settings = kind(KUBEVIRTS), kind(SETTINGS)
        self.leases = self.server.kind(registry.LEASES)
        self.clients = Clients(self.budgets.client, self.quotas.client, self.locks.client, self.leases.client)
        self.registrations = Kind(registry.VALIDATING_WEBHOOK_CONFIGURATIONS)
        self.registrations.given(REGISTRATION)
        self.registrations.given(PROBE)
        self.namespaces.given({"metadata": {"name": "ns1", "uid": "uid-ns1"}})
        self.settings.given({"metadata": {"name": "additional-guest-memory-overhead-ratio"}, "value": "1.5"})
        self.quotas.given(quota())
        self.budgets.given(budget())
        self.unreached = ""
        self.probe_error: ApiError | None = None

    async def probe(self) -> str:
        """What the API server says of our webhook."""
        if self.probe_error is not None:
            raise self.probe_error
        if self.unreached:
            raise NotReached(self.unreached)
        return "mark"

    # What KubeVirt and the controller manager do.

    def refuse(self, vm: str = "vm1") -> None:
        """A VM whose migration quota has refused."""
        self.instances.given(running_vmi(vm))
        self.pods.given(source(vm))
        self.migrations.given(refused(vm))

    def admit(self, vm: str = "vm1") -> None:
        """The target pod is created, and counted by the quotas that count pods."""
        pod = target(refused(vm))
        self.pods.given(pod)
        usage = pod_usage(pod)
        for key, raw in list(self.quotas.objects.items()):
            used = parse_resource_list(raw["status"]["used"])
            more = {name: used[name] + usage[name] for name in used if name in usage}
            self.quotas.edited(key, {"status": {"used": format_resource_list({**used, **more})}})

    def enforce(self) -> None:
        """The controller manager copies spec.hard to status.hard."""
        for key, raw in list(self.quotas.objects.items()):
            self.quotas.edited(key, {"status": {"hard": raw["spec"]["hard"]}})

    def catch_up(self) -> None:
        """Every watch brings everything."""
        for kind in (self.budgets, self.quotas, self.locks, self.pods, self.migrations):
            kind.catch_up()

    def lag(self) -> None:
        """What is written from now on does not show in our caches."""
        for kind in (self.budgets, self.quotas, self.locks):
            kind.lagging = True

    # What a test looks at.

    @property
    def hard(self) -> dict[str, Any]:
        return self.quotas.now(KEY).hard

    @property
    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.budgets.objects["ns1/budget"].get("status", {})
        return found

    @property
    def at_rest(self) -> bool:
        idle = not self.status.keys() - {"additionalMigrationResources"}
        return not self.locks.objects and idle and self.hard == FULL


class Process:
    """One run of the controller: its memory ends with it."""

    def __init__(
        self,
        cluster: Cluster,
        policy: Policy | None = None,
        never_lock: Sequence[str] = (),
        skew: float = 0.0,
    ) -> None:
        """`skew`: seconds by which this machine's clock is ahead."""
        self.cluster = cluster
        self.clock = ServerClock(cluster.clock, lambda: cluster.clock.now + skew)
        self.events = Events()
        maker = LockMaker(
            _Client(cluster),  # type: ignore[arg-type]
            cluster.kubevirts.cache,
            holders=["system:serviceaccount:headroom:headroom"],
            never_lock=(*NEVER_LOCKED, *never_lock),
            probe=cluster.probe,
        )
        self.handler = Handler(
            Observer(FactsObserver(cluster.caches), cluster.clients, cluster.locks.cache, maker),
            Writer(cluster.clients, maker, self.events.recorder),
            self.events.recorder,
            policy or Policy(shortage=0.0),
            clock=self.clock,
            timer=cluster.clock,
        )

    async def look(self, namespace: str = "ns1") -> float | None:
        """Its locks and the namespace are worked off once; in how many seconds they want to be re-checked."""
        self.clock.heard(formatdate(self.cluster.server.clock(), usegmt=True))
        again: dict[str, float] = {}
        for lock in self.cluster.locks.cache.list():
            try:
                await self.handler.on_lock_changed(lock.name, lock)
            except RetryAfter as later:
                again[lock.name] = later.seconds
        try:
            await self.handler.on_namespace_changed(namespace, self.cluster.namespaces.cached(namespace))
        except RetryAfter as later:
            again[""] = later.seconds
        stand = {"", *self.cluster.locks.objects}
        return min((seconds for name, seconds in again.items() if name in stand), default=None)

    async def settle(self) -> float | None:
        """Look again for as long as that is soon."""
        for _ in range(20):
            again = await self.look()
            if again is None or again > 0.5:
                return again
            self.cluster.clock.now += max(0.01, again)
        raise AssertionError("it never settles")


class _Client:
    """What LockMaker asks: who we are (no answer, as before Kubernetes 1.28), and where the webhooks are."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    @property
    def transport(self) -> _Client:
        return self

    async def request(self, *_: Any, **__: Any) -> bytes:
        return b"{}"

    def resource(self, _: Any) -> Any:
        return self._cluster.registrations.client


async def open_window(cluster: Cluster, process: Process) -> None:
    assert await process.settle() == 30.0
    assert by_value(cluster.hard) == by_value(GRANTED)


async def close_window(cluster: Cluster, process: Process) -> None:
    cluster.enforce()
    cluster.admit()
    await process.settle()
    cluster.enforce()
    await process.settle()
