"""What an act can do: create objects, start and stop headroom, wait for facts and check them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from pkg.api import registry
from pkg.api.registry import Resource
from pkg.client.client import Client
from pkg.demo import guard, seed
from pkg.demo.amounts import Amounts
from pkg.demo.checks import Check, Report
from pkg.demo.chronicle import Chronicle
from pkg.demo.headroom import Headroom
from pkg.demo.rancher import Agent
from pkg.demo.watching import Watching
from pkg.testcluster.cluster import Cluster
from pkg.testcluster.kubevirt.options import PHASE_SECONDS
from pkg.util import constants

PATIENCE = 60.0
"""Seconds that a fact has to come true: far more than it takes, also on a busy machine."""
_LOOK_AGAIN = 0.25
_LOOK_SOON = 0.05
_VMIMS = registry.VIRTUAL_MACHINE_INSTANCE_MIGRATIONS

RUNNING_SECONDS = 2.5
STEP_SECONDS = 0.4
"""How long a migration's phases last at speed 1: Running, and each one before."""
HELD_BACK = {constants.PHASE_RUNNING: 3600.0}
"""A migration stays in Running until `finish` lets it go on."""


class Stopped(Exception):
    """The play cannot go on: what follows builds on a fact that did not come true."""


class Stage:
    """Where the acts play. `speed` divides every pause; what the checks need time for is left alone.

    `kubeconfig` is headroom's, the cluster's own unless told.
    """

    def __init__(
        self,
        cluster: Cluster,
        client: Client,
        chronicle: Chronicle,
        watching: Watching,
        report: Report,
        *,
        speed: float,
        deserted: Callable[[], bool] = lambda: False,
        kubeconfig: Path | None = None,
    ) -> None:
        self.chronicle = chronicle
        self.report = report
        self.act = ""
        self.began = 0.0
        self._cluster = cluster
        self._client = client
        self._watching = watching
        self._speed = speed
        self._deserted = deserted
        self._kubeconfig = kubeconfig
        self._headroom: Headroom | None = None

    def begin(self, letter: str, title: str) -> None:
        """A new act: its checks carry the letter, and `began` is the time from which it looks at things."""
        self.act = letter
        self.began = self.chronicle.mark("act", f"({letter}) {title}").at

    # -- checks -------------------------------------------------------------------------------------------------------

    def check(self, name: str, expected: object, seen: object, *, headline: bool = False) -> None:
        """A fact that is or is not."""
        self.report.add(Check(self.act, name, expected, seen, headline))

    async def expect(
        self, name: str, expected: object, look: Callable[[], object], *, headline: bool = False
    ) -> None:
        """A fact that comes true within PATIENCE. Raises Stopped when it does not."""
        deadline = time.monotonic() + PATIENCE
        while (seen := look()) != expected and time.monotonic() < deadline:
            self.go_on()
            await self._watching.changed(_LOOK_AGAIN)
        self.check(name, expected, seen, headline=headline)
        if seen != expected:
            raise Stopped(f"({self.act}) {name}: not within {PATIENCE:g} s")

    def go_on(self) -> None:
        """Raises Stopped when there is no point in going on: nobody looks, or headroom has ended by itself."""
        if self._deserted():
            raise Stopped("nobody reads the output any more")
        if self._headroom is not None and self._headroom.exit_code() is not None:
            raise Stopped(f"headroom ended by itself: {self._headroom.last_words()}")

    # -- deeds --------------------------------------------------------------------------------------------------------

    async def pause(self, seconds: float) -> None:
        """Time for people to look."""
        await asyncio.sleep(seconds / self._speed)
        self.go_on()

    async def create(self, resource: Resource[Any], body: Mapping[str, Any]) -> None:
        """Create an object, in the namespace where its kind has one."""
        namespace = seed.NAMESPACE if resource.namespaced else ""
        await self._client.resource(resource).create(body, namespace)

    async def migrate(
        self, name: str, vm: str, *, linger: float, least: float = 0.5, held_back: bool = False
    ) -> None:
        """Start a live migration. Its source pod keeps counting for `linger` seconds by speed, `least` at least."""
        steps = dict.fromkeys(_STEPS, STEP_SECONDS / self._speed)
        steps[constants.PHASE_RUNNING] = RUNNING_SECONDS / self._speed
        body = seed.migration(
            name,
            vm,
            phases={**steps, **(HELD_BACK if held_back else {})},
            source_linger=max(linger / self._speed, least),
        )
        await self.create(_VMIMS, body)

    async def finish(self, migration: str) -> None:
        """Let a migration that was held back go on."""
        go_on = {"metadata": {"annotations": {PHASE_SECONDS: "0"}}}
        await self._client.resource(_VMIMS).merge_patch(migration, go_on, seed.NAMESPACE)

    async def restart_rancher(self) -> None:
        """Kill Rancher's agent and start it again. Raises ClusterError."""
        self.chronicle.mark("rancher", "agent restarts")
        await asyncio.to_thread(self._cluster.restart, "rancher")

    async def restart_agent(self, times: int) -> int:
        """Restart Rancher's agent inside its process, one time after the other; how often it wrote its base.

        Each time it is waited for what it writes, PATIENCE at most: one that writes nothing is not counted.
        """
        self.chronicle.mark("rancher", f"agent restarts ×{times}")
        agent = Agent(self._cluster.directory, seed.NAMESPACE)
        before = agent.writes()
        for done in range(times):
            agent.restart()
            if not await self._until(partial(agent.has_written, before + done + 1)):
                break
        return agent.writes() - before

    async def is_guarded(self, hard: Amounts) -> bool:
        """Wait until the API server asks headroom's webhook and this keeps people from lowering the quota to
        `hard`; False when that does not come within PATIENCE."""
        kubeconfig, quota = self._cluster.kubeconfig, self.chronicle.quota
        deadline = time.monotonic() + PATIENCE
        while quota is not None and time.monotonic() < deadline:
            if await guard.is_refused(kubeconfig, seed.NAMESPACE, quota.name, hard):
                return True
            self.go_on()
            await asyncio.sleep(_LOOK_AGAIN)
        return False

    async def catch_up(self) -> bool:
        """Wait until every version of the quota that there is now has been seen; False: not within PATIENCE."""
        quotas, _ = await self._client.resource(registry.RESOURCE_QUOTAS).list(seed.NAMESPACE)
        newest = max((int(quota.metadata.resource_version) for quota in quotas), default=0)
        return await self._until(lambda: self.chronicle.quota_seen >= newest)

    async def _until(self, done: Callable[[], bool]) -> bool:
        deadline = time.monotonic() + PATIENCE
        while not done() and time.monotonic() < deadline:
            self.go_on()
            await self._watching.changed(_LOOK_SOON)
        return done()

    async def start_headroom(self, *flags: str) -> None:
        """Start `headroom controller FLAGS`. Raises StartError."""
        self.chronicle.mark("headroom", " ".join(["headroom controller", *flags]))
        kubeconfig = self._kubeconfig or self._cluster.kubeconfig
        self._headroom = await Headroom.start(self._cluster.directory, kubeconfig, flags)

    async def stop_headroom(self) -> None:
        """SIGTERM, and it is expected to drain."""
        if self._headroom is None:
            return
        headroom, self._headroom = self._headroom, None
        code = await headroom.stop()
        self.chronicle.mark("headroom", "")
        self.check(
            "headroom drains on SIGTERM", "exit 0", "still running" if code is None else f"exit {code}"
        )


_STEPS = (
    constants.PHASE_SCHEDULING,
    constants.PHASE_SCHEDULED,
    constants.PHASE_PREPARING_TARGET,
    constants.PHASE_TARGET_READY,
)
