"""The actions of a step: create objects, start and stop headroom, wait for facts and check them."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from kubeloop.api import registry
from kubeloop.api.core import ResourceQuota
from kubeloop.api.meta import Object
from kubeloop.api.registry import Resource
from kubeloop.api.resource_list import format_resource_list
from kubeloop.client.client import Client
from kubeloop.client.errors import Forbidden
from kubeloop.client.loading import load_config
from kubeloop.client.resource_client import ResourceClient
from kubeloop.testing.cluster import processes
from kubeloop.testing.cluster.cluster import Cluster
from lab import bodies, nodes
from lab.cluster import RancherAgent
from lab.demo import seed
from lab.demo.lines import Check, Report
from lab.headroom import Headroom, in_cluster
from lab.namespace import Namespace
from lab.record import Amounts, Record
from lab.watching import Watching
from pkg.api.kubevirt import VIRTUAL_MACHINES

_PERSON = "person"
_ALL_RIGHTS = ("system:masters",)
"""A group with all permissions: a refusal of its requests is admission's."""
_WEBHOOK_WORDS = "admission webhook"
_DENIAL_WORDS = "denied request: "
T = TypeVar("T", bound=Object)

PATIENCE = 60.0
"""Seconds within which a fact has to come true: far more than it takes, also on a busy machine."""
_POLL = 0.1

RUNNING_SECONDS = 2.5
EARLY_PHASE_SECONDS = 0.4
"""The seconds of a migration's phases at speed 1: Running, and each one before."""
HELD_BACK = 3600.0
"""Seconds: a migration stays in Running until it is told to hurry."""


class Stopped(Exception):
    """The demo cannot continue: the next steps depend on a fact that did not come true."""


@dataclass(eq=False)
class Driver:
    """The cluster and the record that steps work with. `speed` divides every pause, but no time that a check needs.
    `is_deserted` reports whether the output is no longer read."""

    cluster: Cluster
    client: Client
    record: Record
    watching: Watching
    report: Report
    speed: float = 1.0
    is_deserted: Callable[[], bool] = lambda: False
    step: str = field(default="", init=False)
    began: float = field(default=0.0, init=False)
    _headroom: Headroom | None = field(default=None, init=False)

    @property
    def namespace(self) -> Namespace:
        return Namespace(self.client, seed.NAMESPACE)

    def begin(self, letter: str, title: str) -> None:
        """A new step: its checks carry the letter, and `began` is the time from which its checks count."""
        self.step = letter
        self.began = self.record.mark("step", f"({letter}) {title}").at

    # -- checks -------------------------------------------------------------------------------------------------------

    def check(self, name: str, expected: object, actual: object, *, headline: bool = False) -> None:
        """A fact that is or is not."""
        self.report.add(Check(self.step, name, expected, actual, headline))

    async def expect(self, name: str, expected: object, poll: Callable[[], object], *, headline: bool = False) -> None:
        """A fact that comes true within PATIENCE. Raises Stopped when it does not."""
        actual: object = None

        def is_equal() -> bool:
            nonlocal actual
            actual = poll()
            return actual == expected

        is_met = await self._until(is_equal)
        self.check(name, expected, actual, headline=headline)
        if not is_met:
            raise Stopped(f"({self.step}) {name}: not within {PATIENCE:g} s")

    def go_on(self) -> None:
        """Raises Stopped when the output is closed, StartError when headroom has ended by itself."""
        if self.is_deserted():
            raise Stopped("the output is closed")
        if self._headroom is not None:
            self._headroom.check()

    # -- actions ------------------------------------------------------------------------------------------------------

    async def pause(self, seconds: float) -> None:
        """Leaves time to read the output."""
        await asyncio.sleep(seconds / self.speed)
        self.go_on()

    async def create(self, resource: Resource[Any], *bodies: Mapping[str, Any]) -> None:
        """Creates objects, in the namespace where their kind has one."""
        namespace = seed.NAMESPACE if resource.namespaced else ""
        for body in bodies:
            await self.client.resource(resource).create(body, namespace=namespace)

    async def migrate(self, name: str, vm: str, *, linger: float, least: float = 0.5, held_back: bool = False) -> None:
        """Starts a live migration. Its source pod keeps counting for `linger` seconds by speed, `least` at least."""
        running = HELD_BACK if held_back else RUNNING_SECONDS / self.speed
        early, linger = EARLY_PHASE_SECONDS / self.speed, max(linger / self.speed, least)
        await self.namespace.migrate(vm, name, running=running, phase=early, linger=linger)

    async def restart_rancher(self) -> None:
        """Kills Rancher's agent and starts it again. Raises ClusterError."""
        self.record.mark("rancher", "agent restarts")
        await asyncio.to_thread(self.cluster.restart, "rancher")

    async def restart_agent(self, times: int) -> int:
        """Restarts Rancher's agent inside its process, one time after the other; returns after how many it wrote its
        base.

        Every restart waits for the agent's write, PATIENCE at most: one that writes nothing is not counted. The agent
        writes on events of the namespace as well, such as headroom's label on it: that is no restart.
        """
        self.record.mark("rancher", f"agent restarts ×{times}")
        agent = RancherAgent(self.cluster.directory)
        for restarts in range(times):
            count = agent.writes(seed.NAMESPACE)
            agent.restart()
            if not await self._until(partial(lambda count: agent.writes(seed.NAMESPACE) > count, count)):
                return restarts
        return times

    async def pace_kubevirt(self, *, linger: float) -> None:
        """Restarts KubeVirt's stand-in so that a source pod counts for `linger` seconds, divided by the speed, after a
        migration that has no mark about it."""
        flags = ("--source-linger", f"{max(linger / self.speed, 2.0):g}", "--phase-delay", f"{EARLY_PHASE_SECONDS:g}")
        directory = self.cluster.directory
        kubevirt = processes.find(directory, "kubevirt")
        await asyncio.to_thread(kubevirt.restart, [*kubevirt.argv, *flags])

    async def clear(self, *vms: str) -> None:
        for vm in vms:
            await self.namespace.delete(VIRTUAL_MACHINES, vm)

    async def start_on_one_node(self, spec: Mapping[str, Any], vms: Iterable[str]) -> str:
        """Starts VMs while all other nodes are closed; returns the node's name once they run. Raises Stopped."""
        async with nodes.only_open(self.client) as node:
            await self.create(VIRTUAL_MACHINES, *(bodies.machine(vm, spec, strategy="Always") for vm in vms))
            for vm in vms:
                await self.expect(f"{vm} is started on {node}", "Running", partial(self.status_of, vm))
        return node

    def status_of(self, vm: str) -> str:
        """The printable status of a VM."""
        machine = self.record.vms.get(vm)
        return machine.status.printable_status or "" if machine else "not there"

    async def drain(self, node: str) -> None:
        """Begins the node's maintenance; KubeVirt moves its VMs away."""
        self.record.mark("note", f"{node} is drained")
        await nodes.drain(self.client, node)

    async def pods_on(self, node: str) -> int:
        """Counts the launchers on a node that quota counts."""
        return sum(pod.spec.node_name == node for pod in await self.namespace.launchers(counting=True))

    async def is_guarded(self, hard: Amounts) -> bool:
        """Waits until headroom's webhook keeps people from lowering the quota to `hard`; False when it does not within
        PATIENCE."""
        if self.record.quota is None:
            return False
        name, patch = self.record.quota.quota.name, {"spec": {"hard": format_resource_list(hard)}}

        def lower(quotas: ResourceClient[ResourceQuota]) -> Awaitable[object]:
            return quotas.merge_patch(patch, name=name, namespace=seed.NAMESPACE)

        return bool(await self._denial(_WEBHOOK_WORDS, registry.RESOURCE_QUOTAS, lower))

    async def forge(self) -> str:
        """Returns admission's answer to a tenant who creates a pod that looks like a VM's, once the API server applies
        the policies; "admitted" when it admits the pod for PATIENCE."""
        message = await self._denial(
            _DENIAL_WORDS, registry.PODS, lambda pods: pods.create(seed.forged_pod(), namespace=seed.NAMESPACE)
        )
        return message.partition(_DENIAL_WORDS)[2] or "admitted"

    async def _denial(
        self, words: str, resource: Resource[T], ask: Callable[[ResourceClient[T]], Awaitable[object]]
    ) -> str:
        """Returns admission's answer to a person with all permissions, once it has these words; "" when it has not
        within PATIENCE. Nothing is stored (dry run). Raises ApiError."""
        deadline = time.monotonic() + PATIENCE
        config = load_config(str(self.cluster.kubeconfig)).impersonate(_PERSON, _ALL_RIGHTS)
        async with Client(config) as client:
            person = client.resource(resource).dry_run()
            while time.monotonic() < deadline:
                try:
                    await ask(person)
                except Forbidden as error:
                    if words in str(error):
                        return str(error)
                self.go_on()
                await asyncio.sleep(_POLL)
        return ""

    async def catch_up(self) -> bool:
        """Waits until the record has every present version of the quota; False when it has not within PATIENCE."""
        quotas = await self.namespace.items(registry.RESOURCE_QUOTAS)
        newest = max((int(quota.metadata.resource_version) for quota in quotas), default=0)
        return await self._until(lambda: self.record.quota is not None and self.record.quota.version >= newest)

    async def _until(self, condition: Callable[[], bool]) -> bool:
        deadline = time.monotonic() + PATIENCE
        while not (is_true := condition()) and time.monotonic() < deadline:
            self.go_on()
            await self.watching.changed(_POLL)
        return is_true

    async def start_headroom(self, *flags: str) -> None:
        """Starts `headroom controller FLAGS`. Raises StartError."""
        self.record.mark("headroom", " ".join(["headroom controller", *flags]))
        self._headroom = await in_cluster(self.cluster.directory, self.cluster.kubeconfig, flags).started()

    async def stop_headroom(self) -> None:
        """Sends SIGTERM and expects headroom to drain. Raises StartError when it does not."""
        if self._headroom is None:
            return
        headroom, self._headroom = self._headroom, None
        code = await asyncio.to_thread(headroom.stop)
        self.record.mark("headroom", "")
        self.check("headroom drains on SIGTERM", "exit 0", f"exit {code}")
