"""What a step can do: create objects, start and stop headroom, wait for facts and check them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from kubeloop.api import registry
from kubeloop.api.registry import Resource
from kubeloop.api.resource_list import format_resource_list
from kubeloop.client.client import Client
from kubeloop.client.errors import Forbidden
from kubeloop.client.loading import load_config
from kubeloop.client.transport import MERGE_PATCH
from kubeloop.testing.cluster.cluster import Cluster
from lab.demo import seed
from lab.demo.checks import Check, Report
from lab.headroom import Headroom, in_cluster
from lab.namespace import Namespace
from lab.rancher.agent import Agent
from lab.record import Amounts, Record
from lab.watching import Watching

_PERSON = "person"
_EVERYTHING = ("system:masters",)
"""By their rights they might."""
_BY = "admission webhook"
_DENIED = "denied request: "


async def told(kubeconfig: Path, method: str, path: str, body: Mapping[str, Any]) -> str:
    """What a person is told who may do everything and asks for that; "" when it is let in. Nothing is stored (dry run).
    Raises ApiError."""
    content = MERGE_PATCH if method == "PATCH" else "application/json"
    data = msgspec.json.encode(body)
    async with Client(load_config(str(kubeconfig)).impersonate(_PERSON, _EVERYTHING)) as client:
        try:
            await client.transport.request(method, path, params={"dryRun": "All"}, body=data, content_type=content)
        except Forbidden as error:
            return str(error)
    return ""


PATIENCE = 60.0
"""Seconds within which a fact has to come true: far more than it takes, also on a busy machine."""
_POLL = 0.1

RUNNING_SECONDS = 2.5
EARLY_PHASE_SECONDS = 0.4
"""How long a migration's phases last at speed 1: Running, and each one before."""
HELD_BACK = 3600.0
"""Seconds: a migration stays in Running until `finish` lets it go on."""


class Stopped(Exception):
    """The demo cannot continue: the next steps depend on a fact that did not come true."""


class Driver:
    """What the steps run with. `speed` divides every pause; what the checks need time for is left alone.

    `kubeconfig` is headroom's, the cluster's own unless told.
    """

    def __init__(
        self,
        cluster: Cluster,
        client: Client,
        record: Record,
        watching: Watching,
        report: Report,
        *,
        speed: float,
        deserted: Callable[[], bool] = lambda: False,
        kubeconfig: Path | None = None,
    ) -> None:
        self.record = record
        self.report = report
        self.step = ""
        self.began = 0.0
        self._cluster = cluster
        self._client = client
        self._namespace = Namespace(client, seed.NAMESPACE)
        self._watching = watching
        self._speed = speed
        self._deserted = deserted
        self._kubeconfig = kubeconfig
        self._headroom: Headroom | None = None

    def begin(self, letter: str, title: str) -> None:
        """A new step: its checks carry the letter, and `began` is the time from which its checks count."""
        self.step = letter
        self.began = self.record.mark("step", f"({letter}) {title}").at

    # -- checks -------------------------------------------------------------------------------------------------------

    def check(self, name: str, expected: object, seen: object, *, headline: bool = False) -> None:
        """A fact that is or is not."""
        self.report.add(Check(self.step, name, expected, seen, headline))

    async def expect(self, name: str, expected: object, poll: Callable[[], object], *, headline: bool = False) -> None:
        """A fact that comes true within PATIENCE. Raises Stopped when it does not."""
        seen: object = None

        def is_so() -> bool:
            nonlocal seen
            seen = poll()
            return seen == expected

        came = await self._until(is_so)
        self.check(name, expected, seen, headline=headline)
        if not came:
            raise Stopped(f"({self.step}) {name}: not within {PATIENCE:g} s")

    def go_on(self) -> None:
        """Raises Stopped when the output is closed, StartError when headroom has ended by itself."""
        if self._deserted():
            raise Stopped("the output is closed")
        if self._headroom is not None:
            self._headroom.check()

    # -- actions ------------------------------------------------------------------------------------------------------

    async def pause(self, seconds: float) -> None:
        """Time to read what was printed."""
        await asyncio.sleep(seconds / self._speed)
        self.go_on()

    async def create(self, resource: Resource[Any], body: Mapping[str, Any]) -> None:
        """Create an object, in the namespace where its kind has one."""
        namespace = seed.NAMESPACE if resource.namespaced else ""
        await self._client.resource(resource).create(body, namespace=namespace)

    async def migrate(self, name: str, vm: str, *, linger: float, least: float = 0.5, held_back: bool = False) -> None:
        """Start a live migration. Its source pod keeps counting for `linger` seconds by speed, `least` at least."""
        running = HELD_BACK if held_back else RUNNING_SECONDS / self._speed
        early, linger = EARLY_PHASE_SECONDS / self._speed, max(linger / self._speed, least)
        await self._namespace.migrate(vm, name, running=running, phase=early, linger=linger)

    async def finish(self, migration: str) -> None:
        await self._namespace.hurry(migration)

    async def restart_rancher(self) -> None:
        """Kill Rancher's agent and start it again. Raises ClusterError."""
        self.record.mark("rancher", "agent restarts")
        await asyncio.to_thread(self._cluster.restart, "rancher")

    async def restart_agent(self, times: int) -> int:
        """Restart Rancher's agent inside its process, one time after the other; how often it wrote its base.

        Each time it is waited for what it writes, PATIENCE at most: one that writes nothing is not counted.
        """
        self.record.mark("rancher", f"agent restarts ×{times}")
        agent = Agent(self._cluster.directory)
        before = agent.writes(seed.NAMESPACE)

        def wrote(times: int) -> bool:
            return agent.writes(seed.NAMESPACE) >= before + times

        for done in range(times):
            agent.restart()
            if not await self._until(partial(wrote, done + 1)):
                break
        return agent.writes(seed.NAMESPACE) - before

    async def is_guarded(self, hard: Amounts) -> bool:
        """Wait until the API server asks headroom's webhook and this keeps people from lowering the quota to
        `hard`; False when that does not come within PATIENCE."""
        if self.record.quota is None:
            return False
        path = registry.RESOURCE_QUOTAS.path(seed.NAMESPACE, self.record.quota.quota.name)
        return bool(await self._denied(_BY, "PATCH", path, {"spec": {"hard": format_resource_list(hard)}}))

    async def apply_policies(self) -> None:
        """deploy/policy.yaml."""
        for body in seed.policies():
            await self.create(seed.POLICIES[body["kind"]], body)
        self.record.mark("note", "deploy/policy.yaml")

    async def forge(self) -> str:
        """What a tenant is told who creates a pod that looks like a VM's, once the API server goes by the policies;
        "admitted" when it is let in for PATIENCE."""
        path = registry.PODS.path(seed.NAMESPACE)
        said = await self._denied(_DENIED, "POST", path, seed.forged())
        return said.partition(_DENIED)[2] or "admitted"

    async def _denied(self, words: str, method: str, path: str, body: Mapping[str, Any]) -> str:
        """What a person is told, once it has these words; "" when it has not within PATIENCE."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            if words in (said := await told(self._cluster.kubeconfig, method, path, body)):
                return said
            self.go_on()
            await asyncio.sleep(_POLL)
        return ""

    async def catch_up(self) -> bool:
        """Wait until every version of the quota that there is now has been seen; False: not within PATIENCE."""
        quotas = await self._namespace.items(registry.RESOURCE_QUOTAS)
        newest = max((int(quota.metadata.resource_version) for quota in quotas), default=0)
        return await self._until(lambda: self.record.quota is not None and self.record.quota.version >= newest)

    async def _until(self, done: Callable[[], bool]) -> bool:
        deadline = time.monotonic() + PATIENCE
        while not (is_done := done()) and time.monotonic() < deadline:
            self.go_on()
            await self._watching.changed(_POLL)
        return is_done

    async def start_headroom(self, *flags: str) -> None:
        """Start `headroom controller FLAGS`. Raises StartError."""
        self.record.mark("headroom", " ".join(["headroom controller", *flags]))
        kubeconfig = self._kubeconfig or self._cluster.kubeconfig
        self._headroom = await in_cluster(self._cluster.directory, kubeconfig, flags).started()

    async def stop_headroom(self) -> None:
        """SIGTERM, and it is expected to drain. Raises StartError when it does not."""
        if self._headroom is None:
            return
        headroom, self._headroom = self._headroom, None
        code = await asyncio.to_thread(headroom.stop)
        self.record.mark("headroom", "")
        self.check("headroom drains on SIGTERM", "exit 0", f"exit {code}")
