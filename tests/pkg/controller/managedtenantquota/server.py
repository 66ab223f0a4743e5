"""A namespace with a budget on an API server of the test's own, the handler over it, and a process that may end."""

import asyncio
from collections.abc import Callable
from email.utils import formatdate
from typing import Any

from kubeloop.api import registry
from kubeloop.api.registry import Resource
from kubeloop.api.resource_list import format_resource_list, parse_resource_list
from kubeloop.client.client import Client
from kubeloop.client.connections import ServerClock
from kubeloop.testing.fake.objects import Request
from kubeloop.testing.fake.server import FakeTransport
from kubeloop.workqueue.queue import loop_time
from pkg.api.harvesterhci import SETTINGS
from pkg.api.kubevirt import KUBEVIRTS, VIRTUAL_MACHINE_INSTANCE_MIGRATIONS, VIRTUAL_MACHINE_INSTANCES
from pkg.api.mtq import VIRTUAL_MACHINE_MIGRATION_RESOURCE_QUOTAS
from pkg.config.management import Management
from pkg.config.settings import Settings
from pkg.controller.managedtenantquota.managedtenantquota_controller import register
from pkg.selfcheck.api_server import PROBE_MARK
from pkg.util.quotacount.usage import pod_usage
from tests.decisions import by_value
from tests.kinds import Events, Kind, Server
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
START = 1_800_000_000.0
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


class ProcessEnded(BaseException):
    """The process was killed: nothing that it would have done next happens."""


class Counting(Server):
    """An API server that counts writes, and after `left` more of them raises `then` (None: never)."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[tuple[str, str]] = []
        self.read = 0
        """How many requests wrote nothing."""
        self.left: int | None = None
        self.then: BaseException = ProcessEnded()

    def client(self, *, strict: bool = False) -> Client:
        return Client(_Counted(self))

    def done(self, method: str, path: str) -> None:
        verb = {"POST": "create", "DELETE": "delete"}.get(method, "patch")
        parts = path.split("/")
        if parts[-1] == "status":
            verb, parts = "patch status", parts[:-1]
        self.made.append((verb, parts[-1] if verb == "create" else parts[-2]))
        if self.left is not None:
            self.left -= 1
            if self.left == 0:
                raise self.then


class _Counted(FakeTransport):
    def __init__(self, server: Counting) -> None:
        super().__init__(server)
        self.server_clock = ServerClock(loop_time, lambda: START + loop_time())
        self._server = server

    async def request(self, method: str, path: str, **options: Any) -> bytes:
        answer = await super().request(method, path, **options)
        if method != "GET" and "dryRun" not in (options.get("params") or {}):
            self._server.done(method, path)
        else:
            self._server.read += 1
        return answer


def _marked(request: Request) -> None:
    """Returns our webhook's answer to a probe."""
    if (request.verb, request.plural) == ("create", "events"):
        request.body["metadata"]["annotations"] = {PROBE_MARK: "hash"}


class WindowCluster:
    """Everything outside of our process: it stays when the process ends."""

    def __init__(self) -> None:
        self.set_back = 0.0
        """Seconds by which the API server's clock was."""
        self.server = Counting()
        self.server.clock = lambda: START + loop_time() - self.set_back
        self.server.reactors.append(_marked)
        kind: Callable[[Resource[Any]], Kind[Any]] = self.server.kind
        self.budgets = kind(VIRTUAL_MACHINE_MIGRATION_RESOURCE_QUOTAS)
        self.quotas, self.locks = (kind(registry.RESOURCE_QUOTAS), kind(registry.VALIDATING_WEBHOOK_CONFIGURATIONS))
        self.namespaces, self.pods = kind(registry.NAMESPACES), kind(registry.PODS)
        self.migrations = kind(VIRTUAL_MACHINE_INSTANCE_MIGRATIONS)
        self.instances = kind(VIRTUAL_MACHINE_INSTANCES)
        self.kubevirts, self.settings = kind(KUBEVIRTS), kind(SETTINGS)
        self.leases, self.probes = kind(registry.LEASES), kind(registry.EVENTS)
        self.addresses = kind(registry.MUTATING_WEBHOOK_CONFIGURATIONS)
        self.locks.given(REGISTRATION)
        self.addresses.given(PROBE)
        self.namespaces.given({"metadata": {"name": "ns1", "uid": "uid-ns1"}})
        self.settings.given({"metadata": {"name": "additional-guest-memory-overhead-ratio"}, "value": "1.5"})
        self.quotas.given(quota())
        self.budgets.given(budget())

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
            additions = {name: used[name] + usage[name] for name in used if name in usage}
            self.quotas.edited(key, {"status": {"used": format_resource_list({**used, **additions})}})

    def enforce(self) -> None:
        """The controller manager copies spec.hard to status.hard."""
        for key, raw in list(self.quotas.objects.items()):
            self.quotas.edited(key, {"status": {"hard": raw["spec"]["hard"]}})

    def catch_up(self) -> None:
        """Every watch brings everything."""
        for kind in (self.budgets, self.quotas, self.locks, self.pods, self.migrations):
            kind.catch_up()

    def lag(self) -> None:
        """Keeps all later writes from our caches."""
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
        return not self.locked and idle and self.hard == FULL

    @property
    def locked(self) -> list[str]:
        """The locks' names."""
        return [name for name in self.locks.objects if name.startswith("lock.")]


class Process:
    """A run of the controller: its memory ends with it."""

    def __init__(self, cluster: WindowCluster, skew: float = 0.0, **options: Any) -> None:
        """`skew`: seconds by which this machine's clock is ahead."""
        self.cluster = cluster
        self.events = Events()
        self._clock = ServerClock(loop_time, lambda: START + loop_time() + skew)
        self._management = Wired(cluster.server, clock=self._clock)
        wire(self._management, self.events, **options)

    async def look(self, namespace: str = "ns1") -> float | None:
        """Its locks and the namespace are worked off once; in how many seconds they want to be re-checked."""
        self._clock.heard(formatdate(self.cluster.server.clock(), usegmt=True))  # every answer says it
        again = {
            lock.name: await self._management.handle(registry.VALIDATING_WEBHOOK_CONFIGURATIONS, lock.name)
            for lock in self._management.locks.cache().list()
        }
        again[""] = await self._management.handle(registry.NAMESPACES, namespace)
        stand = {"", *self.cluster.locked}
        return min((s for name, s in again.items() if s is not None and name in stand), default=None)

    @property
    def cause(self) -> BaseException | None:
        """Returns the error for which the namespace's last call asked to be made again."""
        return self._management.cause

    async def settle(self) -> float | None:
        """Look again for as long as that is soon."""
        for _ in range(20):
            again = await self.look()
            if again is None or again > 0.5:
                return again
            await asyncio.sleep(max(0.01, again))
        raise AssertionError("it never settles")

    async def rest(self) -> None:
        """Settle, and the controller manager copies the limits, until nothing more comes of it."""
        for _ in range(3):
            await self.settle()
            self.cluster.enforce()


def wire(management: Management, events: Events, **options: Any) -> None:
    users = ["system:serviceaccount:headroom:headroom"]
    register(management, events.recorder, Settings(controller_users=users, **options))


async def open_window(cluster: WindowCluster, process: Process) -> None:
    assert await process.settle() == 30.0
    assert by_value(cluster.hard) == by_value(GRANTED)


async def close_window(cluster: WindowCluster, process: Process) -> None:
    cluster.enforce()
    cluster.admit()
    await process.rest()
