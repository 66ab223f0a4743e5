"""The acts. Each says what it does and what the API server has to show; later acts build on earlier ones."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pkg.api import registry
from pkg.demo import questions, seed
from pkg.demo.amounts import Amounts, Quota
from pkg.demo.chronicle import QuotaVersion
from pkg.demo.headroom import WEBHOOK
from pkg.demo.stage import Stage
from pkg.util import constants

ALL_PHASES = "Pending Scheduling Scheduled PreparingTarget TargetReady Running Succeeded"
_REFUSAL = (
    "exceeded quota: {quota}, requested: limits.cpu=2015m,limits.memory=4797464313, "
    "used: limits.cpu=2015m,limits.memory=4797464313, limited: limits.cpu=3,limits.memory=5000Mi"
)
_RESTARTS = 5
_VM, _SECOND_VM = "vm1", "vm2"


@dataclass(frozen=True, slots=True)
class Act:
    """`play` raises Stopped when the play cannot go on, and what the API server says no to."""

    letter: str
    title: str
    play: Callable[[Stage], Awaitable[None]]


async def refused(stage: Stage) -> None:
    """(a) Two launcher pods do not fit, and nobody makes room."""
    chronicle = stage.chronicle
    await stage.create(registry.SETTINGS, seed.setting())
    await stage.create(registry.NAMESPACES, seed.namespace())
    await _hard(stage, "Rancher renders the namespace's limit", seed.BASE)
    await _runs(stage, _VM, seed.FIRST_DOMAIN)
    await _used(stage, f"what quota counts of {_VM}'s pod", seed.POD)
    await stage.pause(1.0)
    await stage.migrate("m1", _VM, linger=5.0)
    await stage.expect("m1 is refused", "Pending, refused", lambda: questions.state_of(chronicle, "m1"))
    quota = chronicle.quota.name if chronicle.quota else ""
    await stage.expect(
        "and quota says why",
        _REFUSAL.format(quota=quota),
        lambda: questions.refusal_of(chronicle, "m1"),
        headline=True,
    )
    await stage.pause(3.0)
    has_target = questions.target_of(chronicle, "m1") is not None
    stage.check(
        "so it stays",
        "Pending, no target pod",
        f"{_phase(stage, 'm1')}, {'a' if has_target else 'no'} target pod",
    )


async def raised(stage: Stage) -> None:
    """(b) The same migration, once headroom runs: Harvester's numbers."""
    await stage.start_headroom("--estimate", "harvester")
    await _hard(stage, "the quota is raised as Harvester would", seed.HARVESTER, headline=True)
    await _used(stage, "both of m1's pods run", seed.BOTH_PODS)
    await _succeeds(stage, "m1")
    await _is_back(stage, "m1", used=seed.POD)
    _never_more(stage, seed.EXACT)


async def reverted(stage: Stage) -> None:
    """(c) Rancher's agent restarts in the middle of a second VM's migration and writes its base over everything.

    Without the guard that shows, and is repaired; with it nobody ever sees it.
    """
    await _runs(stage, _SECOND_VM, seed.SECOND_DOMAIN)
    await _used(stage, f"{_SECOND_VM} takes what is left", seed.BASE)
    await stage.migrate("m2", _SECOND_VM, linger=4.0, held_back=True)
    await _hard(stage, "the quota is raised for it", seed.SECOND_RAISED)
    await stage.expect("m2 is under way", constants.PHASE_RUNNING, lambda: _phase(stage, "m2"))
    await stage.pause(1.0)
    restarted = stage.chronicle.clock()
    await stage.restart_rancher()
    await _hard(stage, "Rancher's agent reverts the quota", seed.BASE, since=restarted)
    revert = questions.first_version(stage.chronicle, restarted, _is(seed.BASE))
    repaired_since = revert.at if revert else restarted
    await _hard(stage, "headroom repairs it", seed.SECOND_RAISED, since=repaired_since, headline=True)
    _tell_how_fast(stage, repaired_since)
    await stage.stop_headroom()
    await _guarded(stage, seed.SECOND_RAISED)
    await stage.finish("m2")
    await _succeeds(stage, "m2")
    _never_more(stage, seed.SECOND_RAISED)


async def given_back(stage: Stage) -> None:
    """(d) What was added goes when the old pod is gone."""
    await _is_back(stage, "m2", used=seed.BASE)
    quota = stage.chronicle.quota
    stage.check(
        "entries left on the quota", "none", ", ".join(quota.entries) or "none" if quota else "no quota"
    )
    await stage.stop_headroom()


async def exact(stage: Stage) -> None:
    """(e) In the full namespace, what quota counts to the byte, for as long as it counts it."""
    chronicle = stage.chronicle
    await stage.start_headroom()
    await stage.migrate("m3", _VM, linger=12.0, least=8.0)
    await _hard(stage, "the quota is raised by what quota counts", seed.EXACT)
    await _full(stage, "both pods fill it to the byte", seed.EXACT)
    await _succeeds(stage, "m3")
    await stage.migrate("m4", _SECOND_VM, linger=2.0)
    await _hard(stage, "m4 adds to what m3's old pod holds", seed.BOTH_MOVE)
    await _full(stage, "four pods fill it to the byte", seed.BOTH_MOVE)
    await stage.expect(
        "m4's target pod is",
        "admitted while m3's old pod counts",
        lambda: questions.admission_of(chronicle, "m4", "m3"),
        headline=True,
    )
    await _succeeds(stage, "m4")
    await _is_back(stage, "m3", used=seed.BASE)
    _never_more(stage, seed.BOTH_MOVE)
    await stage.stop_headroom()


SCENARIO: tuple[Act, ...] = (
    Act("a", "refused: a quota without room for a migration", refused),
    Act("b", "with headroom: it makes room by Harvester's numbers, and takes it back", raised),
    Act("c", "revert: Rancher's agent restarts while a second VM migrates; then with the guard", reverted),
    Act("d", "back: once the old pod is gone", given_back),
    Act("e", "exact and held: what quota counts to the byte, for as long as it counts it", exact),
)
"""In the order of the play. A further act is a function and a line here; it starts headroom with flags of its own."""


async def _runs(stage: Stage, vm: str, domain: Mapping[str, Any]) -> None:
    await stage.create(registry.VIRTUAL_MACHINES, seed.machine(vm, domain))
    await stage.expect(f"{vm} is started", "Running", lambda: stage.chronicle.machines.get(vm))


async def _hard(
    stage: Stage, name: str, wanted: Amounts, *, since: float | None = None, headline: bool = False
) -> None:
    at = stage.began if since is None else since
    await stage.expect(
        name, wanted, lambda: questions.hard_since(stage.chronicle, at, wanted), headline=headline
    )


async def _used(stage: Stage, name: str, wanted: Amounts) -> None:
    await stage.expect(name, wanted, lambda: questions.used_since(stage.chronicle, stage.began, wanted))


async def _full(stage: Stage, name: str, amounts: Amounts) -> None:
    wanted = Quota(amounts, amounts)
    await stage.expect(
        name, wanted, lambda: questions.quota_since(stage.chronicle, stage.began, wanted), headline=True
    )


async def _succeeds(stage: Stage, migration: str) -> None:
    await stage.expect(
        f"{migration} runs through", ALL_PHASES, lambda: questions.phases_of(stage.chronicle, migration)
    )


async def _is_back(stage: Stage, migration: str, *, used: Amounts) -> None:
    chronicle = stage.chronicle
    await stage.expect(
        f"the quota is back when {migration}'s old pod is gone",
        Quota(seed.BASE, used),
        lambda: questions.quota_after(chronicle, migration),
    )
    stage.check("until then its room was", "held", questions.held_until_the_end(chronicle, migration))


async def _guarded(stage: Stage, raised: Amounts) -> None:
    """Rancher's agent again, and again, while headroom's webhook looks at what it writes."""
    await stage.start_headroom("--estimate", "harvester", WEBHOOK)
    guarded = await stage.is_guarded(seed.BASE)
    stage.check("headroom's webhook guards the quota", "yes", "yes" if guarded else "no")
    since = stage.chronicle.clock()
    written = await stage.restart_agent(_RESTARTS)
    stage.check("Rancher's agent restarts and writes its base", f"{_RESTARTS} times", f"{written} times")
    seen = await stage.catch_up()
    least = questions.lowest_under_entries(stage.chronicle, since) if seen else None
    stage.chronicle.mark(*(("good", "no revert visible") if least == raised else ("note", "reverted")))
    name = f"with the guard, agent restarts ×{_RESTARTS}: no revert visible, the least allowed is"
    stage.check(name, raised, least, headline=True)


def _never_more(stage: Stage, most: Amounts) -> None:
    """Room that nobody needs could be taken by anybody."""
    stage.check("the most that was ever allowed", most, questions.highest_since(stage.chronicle, stage.began))


def _is(hard: Amounts) -> Callable[[QuotaVersion], bool]:
    return lambda version: version.hard == hard


def _phase(stage: Stage, migration: str) -> str:
    track = stage.chronicle.migrations.get(migration)
    return track.phase if track else "not there"


def _tell_how_fast(stage: Stage, reverted_at: float) -> None:
    repair = questions.first_version(stage.chronicle, reverted_at, _is(seed.SECOND_RAISED))
    if repair is not None:
        stage.chronicle.mark("note", f"reverted for {_milliseconds(repair.at - reverted_at)} ms")


def _milliseconds(seconds: float) -> int:
    """Rounded up: what comes in one breath was still one after the other."""
    return max(1, math.ceil(seconds * 1000))
