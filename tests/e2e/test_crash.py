"""Killed with SIGKILL at any moment and started again, it ends where it would have ended without (level-triggered).

The scenario is the demo's: a refused migration, room for it, a second VM, Rancher's revert in between, an abort, and
back to the base. It is killed once in each run, at another point: right after a step, before anything has followed
from it, or as soon as the first write that follows from it is seen.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio

from kubeloop.testing.cluster.cluster import Cluster
from kubeloop.testing.polling import until
from lab.namespace import by_value
from tests.e2e.admin import admin_of
from tests.e2e.conftest import MakeTenant, StartController
from tests.e2e.tenant import HARD, RAISED, Tenant
from tests.program import Program

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("alone")]

TWICE = {"limits.cpu": "7", "limits.memory": str(5242880000 + 2 * 4737464313)}

ONE, OTHER = "migration-of-vm1", "migration-of-vm2"

Step = tuple[str, Callable[[Tenant], Awaitable[Any]], dict[str, str]]
"""What happens, and what spec.hard becomes of it."""

SCENARIO: list[Step] = [
    ("the first migration is refused", lambda ns: ns.refused("vm1", ONE), RAISED),
    ("its target is scheduled", lambda ns: ns.enter(ONE, "Scheduling"), RAISED),
    ("the second migration is refused", lambda ns: ns.refused("vm2", OTHER), TWICE),
    ("Rancher's agent restarts", lambda ns: ns.revert(), TWICE),
    ("the first one runs", lambda ns: ns.enter(ONE, "Running"), TWICE),
    ("an abort of the second is asked for", lambda ns: ns.enter(OTHER, "Pending", abort=True), TWICE),
    ("the first one has succeeded", lambda ns: ns.enter(ONE, "Succeeded"), RAISED),
    ("the second one has failed", lambda ns: ns.enter(OTHER, "Failed", abort=True), HARD),
]


@dataclass(frozen=True)
class Kill:
    """When: after which step, and whether a write of ours that follows from it is waited for. `down` is how many
    more steps happen before the program is there again."""

    step: int
    seen: bool
    down: int = 0

    def __str__(self) -> str:
        when = "once the quota shows it" if self.seen else "at once"
        missed = f", back {self.down} steps later" if self.down else ""
        return f"{SCENARIO[self.step][0]}: killed {when}{missed}"


KILLS = [
    Kill(0, seen=True),
    Kill(2, seen=True, down=2),
    Kill(4, seen=False, down=3),
    Kill(7, seen=False),
]
"""A kill after every write is the simulation's affair; here the processes are real."""


class Runs:
    """The program, again and again."""

    def __init__(self, start: StartController, mode: str) -> None:
        self._start = start
        self.mode = mode
        self.program: Program | None = None
        self.logs: list[Program] = []

    def ensure(self) -> Program:
        if self.program is None:
            self.program = self._start(self.mode)
            self.logs.append(self.program)
        return self.program

    def kill(self) -> None:
        self.ensure().kill()
        self.program = None


@pytest.fixture(scope="module", params=["takeover", "assist"])
def runs(request: pytest.FixtureRequest, shared_controller: StartController) -> Iterator[Runs]:
    runs = Runs(shared_controller, request.param)
    yield runs
    if runs.program is not None:
        runs.kill()
    assert not [program for program in runs.logs if "Traceback" in program.text()]


async def migrate_and_kill(namespace: Tenant, runs: Runs, kill: Kill | None) -> None:
    """The scenario; every step's end is waited for, unless the program is down."""
    for name in ("vm1", "vm2"):
        await namespace.vm(name)
    down = 0
    for number, (_name, happens, hard) in enumerate(SCENARIO):
        if down == 0:
            runs.ensure()
        before = await namespace.hard()
        await happens(namespace)
        if kill is not None and number == kill.step:
            if kill.seen:
                await until_written(namespace, before)
            runs.kill()
            down = kill.down + 1
        down = max(0, down - 1)
        if down == 0 and number < len(SCENARIO) - 1:
            runs.ensure()
            await namespace.until_hard(hard)
    runs.ensure()
    await namespace.until_hard(HARD)
    for name in ("vm1", "vm2"):
        await namespace.until_shown(None, name)


async def until_written(namespace: Tenant, before: object) -> None:
    async def written() -> bool:
        return await namespace.hard() != before

    await until(written, "the write")


async def end(namespace: Tenant) -> dict[str, Any]:
    """Everything that headroom writes, by value, without names and times of this run."""
    vmis = [(await namespace.vmi(name)).annotations for name in ("vm1", "vm2")]
    return {
        "annotations": dict(await namespace.annotations()),
        "hard": await namespace.hard(),
        "vmis": [json.dumps(dict(annotations), sort_keys=True) for annotations in vmis],
    }


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def undisturbed(runs: Runs, cluster: Cluster) -> dict[str, Any]:
    """Where the scenario ends without a kill."""
    async with admin_of(cluster) as admin:
        namespace = await Tenant.made(admin)
        await migrate_and_kill(namespace, runs, None)
        reached = await end(namespace)
    assert reached["hard"] == by_value(HARD)
    assert not [key for key in reached["annotations"] if "migrating" in key]
    return reached


@pytest.mark.parametrize("kill", KILLS, ids=str)
async def test_the_end_is_the_same(
    runs: Runs, undisturbed: dict[str, Any], tenant: MakeTenant, kill: Kill
) -> None:
    namespace = await tenant()
    await migrate_and_kill(namespace, runs, kill)
    assert await end(namespace) == undisturbed
