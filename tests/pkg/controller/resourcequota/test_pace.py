"""The pace: an event is decided about soon, and none is lost."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kubeloop.api import registry
from kubeloop.controllers.errors import RetryAfter
from kubeloop.testing.virtual_time import now, run
from pkg.api.kubevirt import VIRTUAL_MACHINE_INSTANCE_MIGRATIONS, VIRTUAL_MACHINE_INSTANCES
from pkg.config.management import KUBEVIRT_PODS, Management
from pkg.config.settings import Settings
from pkg.controller.registry import register_all
from pkg.controller.resourcequota.resourcequota_controller import ResourceQuotaHandler
from pkg.util.resourcequota.timers import LONGEST, SHORTEST
from tests.decisions import sentences
from tests.kinds import Server
from tests.objects import ENTRY, by_name

BASE, RAISED = {"limits.cpu": "1"}, {"limits.cpu": "2"}


class PacedNamespace:
    """A quota, and in its namespace the VM vm1, which migrates. `decided` has when the quota's handler was called."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.server = Server()
        self.decided: list[float] = []
        self.again: Callable[[], float] = lambda: 0.0
        self.puts = 0

        async def decide(_handler: ResourceQuotaHandler, _key: str, _quota: object) -> None:
            self.decided.append(now())
            if again := self.again():
                raise RetryAfter(again)

        monkeypatch.setattr(ResourceQuotaHandler, "on_resource_quota_changed", decide)
        self.management = Management(self.server.client(), workers=1)
        register_all(self.management, self.management.recorder("headroom"), Settings())
        self.put(registry.NAMESPACES, "ns1", namespace="")
        self.quota()
        self.instance()
        self.migration("Running")

    def put(self, resource: Any, name: str, *, namespace: str = "ns1", **fields: Any) -> None:
        self.server.kind(resource).put(name, namespace, **fields)

    def quota(self, used: str = "1", hard: dict[str, str] = BASE, entries: int = 1) -> None:
        annotations = {by_name(f"vm{number}"): ENTRY for number in range(1, entries + 1)}
        status = {"hard": BASE, "used": {"limits.cpu": used}}
        self.put(
            registry.RESOURCE_QUOTAS, "q", metadata={"annotations": annotations}, spec={"hard": hard}, status=status
        )

    def migration(self, phase: str, name: str = "m1", vm: str = "vm1", *, refused: bool = False) -> None:
        conditions = [{"type": "migrationRejectedByResourceQuota", "status": "True"}] if refused else []
        status = {"phase": phase, "conditions": conditions}
        self.put(VIRTUAL_MACHINE_INSTANCE_MIGRATIONS, name, spec={"vmiName": vm}, status=status)

    def instance(self) -> None:
        """It is on another node each time."""
        self.puts += 1
        self.put(VIRTUAL_MACHINE_INSTANCES, "vm1", status={"phase": "Running", "nodeName": f"node-{self.puts}"})

    def pod(self) -> None:
        """A new one each time."""
        self.puts += 1
        self.put(registry.PODS, f"pod-{self.puts}", metadata={"labels": {KUBEVIRT_PODS: "virt-launcher"}})


@asynccontextmanager
async def running(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[PacedNamespace]:
    rig = PacedNamespace(monkeypatch)
    await rig.management.start()
    await asyncio.sleep(10.0)
    rig.decided.clear()
    yield rig
    await rig.management.stop(timeout=1.0)


Happens = Callable[[PacedNamespace], object]
WHEN: dict[str, tuple[list[Happens], list[float]]] = {
    "a pod comes": ([PacedNamespace.pod], [SHORTEST]),
    "a VMI moves on": ([PacedNamespace.instance], [SHORTEST]),
    "the quota counts": ([lambda rig: rig.quota(used="2")], [SHORTEST]),
    "a migration moves on": ([lambda rig: rig.migration("Succeeded")], [SHORTEST]),
    "what belongs together comes together": (
        [PacedNamespace.instance, PacedNamespace.pod, lambda rig: rig.migration("Succeeded")],
        [SHORTEST],
    ),
    "a migration comes": ([lambda rig: rig.migration("", "m2")], [0.0]),
    "a migration is Pending, and its VM has an entry": ([lambda rig: rig.migration("Pending")], [SHORTEST]),
    "a migration is Pending, and its VM has none": ([lambda rig: rig.migration("Pending", vm="vm2")], [0.0]),
    "a migration is refused": ([lambda rig: rig.migration("Pending", refused=True)], [0.0]),
    "a migration is refused just after something that can wait": (
        [PacedNamespace.pod, lambda rig: rig.migration("Pending", refused=True)],
        [0.0],
    ),
    "another client changes a limit": ([lambda rig: rig.quota(hard=RAISED)], [0.0]),
    "another client takes an entry away, just after a pod came": (
        [PacedNamespace.pod, lambda rig: rig.quota(entries=0)],
        [0.0],
    ),
    "the namespace changes": (
        [lambda rig: rig.put(registry.NAMESPACES, "ns1", namespace="", metadata={"labels": {"a": "b"}})],
        [0.0],
    ),
}


@sentences(WHEN)
def test_when_the_quota_is_decided_about(
    case: tuple[list[Happens], list[float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    happen, expected = case

    async def scenario() -> None:
        async with running(monkeypatch) as rig:
            began = now()
            for happens in happen:
                happens(rig)
            await asyncio.sleep(5.0)
            assert [at - began for at in rig.decided] == pytest.approx(expected)

    run(scenario())


def test_the_own_patch_is_decided_about_with_the_next_event(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        monkeypatch.setattr(ResourceQuotaHandler, "is_as_written", lambda *_: True)
        async with running(monkeypatch) as rig:
            began = now()
            rig.quota(hard=RAISED)
            await asyncio.sleep(SHORTEST / 2)
            rig.quota(hard=RAISED, used="2")
            await asyncio.sleep(5.0)
            assert [at - began for at in rig.decided] == pytest.approx([SHORTEST])

    run(scenario())


@pytest.mark.parametrize("seed", range(10))
def test_after_every_event_comes_a_decision(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever timers run, whatever else the handler waits for, and however events fall among them."""
    drawn = random.Random(seed)

    async def scenario() -> None:
        async with running(monkeypatch) as rig:
            rig.again = lambda: drawn.choice([0.0, 0.01, 0.05, 0.3, 600.0])
            phases = itertools.cycle(["", "Pending", "Scheduling", "Running", "Succeeded"])
            events: list[Happens] = [
                PacedNamespace.pod,
                PacedNamespace.instance,
                lambda rig: rig.migration(next(phases), refused=drawn.random() < 0.5),
                lambda rig: rig.quota(used=str(drawn.random()), entries=drawn.randrange(4)),
            ]
            happened: list[float] = []
            for _ in range(300):
                await asyncio.sleep(drawn.choice([0.0, 0.001, 0.02, SHORTEST, 0.1, LONGEST, 1.0]))
                happened.append(now())
                drawn.choice(events)(rig)
            await asyncio.sleep(2 * LONGEST)
            for at in happened:
                assert any(at <= decided <= at + LONGEST + 0.001 for decided in rig.decided), (at, rig.decided)

    run(scenario())
