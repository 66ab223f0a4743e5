"""The steps. Each says what it does and what the API server has to show; later steps build on earlier ones."""

import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from kubeloop.api import registry
from kubeloop.api.quantity import Quantity
from lab import bodies, questions
from lab.demo import seed
from lab.demo.driver import Driver
from lab.headroom import WEBHOOK
from lab.kubevirt.evacuation_controller import PREFIX as EVACUATION
from lab.questions import Quota
from lab.record import Amounts, QuotaVersion
from pkg.api.harvesterhci import SETTINGS
from pkg.api.kubevirt import VIRTUAL_MACHINES
from pkg.util import constants

ALL_PHASES = "Pending Scheduling Scheduled PreparingTarget TargetReady Running Succeeded"
_REFUSAL = (
    "exceeded quota: {quota}, requested: limits.cpu=2015m,limits.memory=4797464313, "
    "used: limits.cpu=2015m,limits.memory=4797464313, limited: limits.cpu=3,limits.memory=5000Mi"
)
_FORGED = "only KubeVirt creates pods with the label kubevirt.io=virt-launcher or hotplug-disk"
_RESTARTS = 5
_DRAINED_RESTARTS = 3
_VM, _SECOND_VM = "vm1", "vm2"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Step:
    """`run` raises Stopped when the demo cannot go on, and what the API server says no to."""

    letter: str
    title: str
    run: Callable[[Driver], Awaitable[None]]


async def show_refusal(driver: Driver) -> None:
    """(a) Two launcher pods do not fit, and the quota stays as it is."""
    record = driver.record
    await driver.create(SETTINGS, seed.overhead_setting())
    await driver.create(registry.NAMESPACES, bodies.namespace(seed.NAMESPACE, seed.LIMIT))
    await _expect_hard(driver, "Rancher renders the namespace's limit", seed.BASE)
    await _start_vm(driver, _VM, seed.FIRST_DOMAIN)
    await _expect_used(driver, f"what quota counts of {_VM}'s pod", seed.POD)
    await driver.pause(1.0)
    await driver.migrate("m1", _VM, linger=5.0)
    await driver.expect("m1 is refused", "Pending, refused", lambda: questions.state_of(record, "m1"))
    quota = record.quota.quota.name if record.quota else ""
    await driver.expect(
        "and quota says why", _REFUSAL.format(quota=quota), lambda: questions.refusal_of(record, "m1"), headline=True
    )
    await driver.pause(3.0)
    has_target = questions.target_of(record, "m1") is not None
    driver.check(
        "so it stays", "Pending, no target pod", f"{_phase(driver, 'm1')}, {'a' if has_target else 'no'} target pod"
    )


async def show_raise(driver: Driver) -> None:
    """(b) The same migration, once headroom runs: Harvester's numbers."""
    await driver.start_headroom("--estimate", "harvester")
    await _expect_hard(driver, "the quota is raised as Harvester would", seed.HARVESTER, headline=True)
    await _expect_used(driver, "both of m1's pods run", seed.BOTH_PODS)
    await _expect_success(driver, "m1")
    await _expect_return(driver, "m1", used=seed.POD)
    _check_highest(driver, seed.EXACT)


async def show_revert(driver: Driver) -> None:
    """(c) Rancher's agent restarts in the middle of a second VM's migration and writes its base over everything.

    Without the guard that shows, and is repaired; with it the quota never drops.
    """
    await _start_vm(driver, _SECOND_VM, seed.SECOND_DOMAIN)
    await _expect_used(driver, f"{_SECOND_VM} takes what is left", seed.BASE)
    await driver.migrate("m2", _SECOND_VM, linger=4.0, held_back=True)
    await _expect_hard(driver, "the quota is raised for it", seed.SECOND_RAISED)
    await driver.expect("m2 is under way", constants.PHASE_RUNNING, lambda: _phase(driver, "m2"))
    await driver.pause(1.0)
    restart_time = driver.record.clock()
    await driver.restart_rancher()
    await _expect_hard(driver, "Rancher's agent reverts the quota", seed.BASE, since=restart_time)
    revert = questions.first_version(driver.record, restart_time, _has_hard(seed.BASE))
    repaired_since = revert.at if revert else restart_time
    await _expect_hard(driver, "headroom repairs it", seed.SECOND_RAISED, since=repaired_since, headline=True)
    _note_repair_time(driver, repaired_since)
    await driver.stop_headroom()
    await _check_guard(driver, seed.SECOND_RAISED)
    await driver.namespace.hurry("m2")
    await _expect_success(driver, "m2")
    _check_highest(driver, seed.SECOND_RAISED)


async def show_return(driver: Driver) -> None:
    """(d) The quota goes back to its base when the old pod is gone."""
    await _expect_return(driver, "m2", used=seed.BASE)
    quota = driver.record.quota
    keys = quota.entries if quota else ["no quota"]
    driver.check("entries left on the quota", "none", ", ".join(keys) or "none")
    await driver.stop_headroom()


async def show_exact_raise(driver: Driver) -> None:
    """(e) A full namespace is raised by the usage that quota counts, to the byte, for as long as quota counts it."""
    record = driver.record
    await driver.start_headroom()
    await driver.migrate("m3", _VM, linger=12.0, least=8.0)
    await _expect_hard(driver, "the quota is raised by what quota counts", seed.EXACT)
    await _expect_full(driver, "both pods fill it to the byte", seed.EXACT)
    await _expect_success(driver, "m3")
    await driver.migrate("m4", _SECOND_VM, linger=2.0)
    await _expect_hard(driver, "m4 adds to what m3's old pod holds", seed.BOTH_MOVE)
    await _expect_full(driver, "four pods fill it to the byte", seed.BOTH_MOVE)
    await driver.expect(
        "m4's target pod is",
        "admitted while m3's old pod counts",
        lambda: questions.admission_of(record, "m4", "m3"),
        headline=True,
    )
    await _expect_success(driver, "m4")
    await _expect_return(driver, "m3", used=seed.BASE)
    _check_highest(driver, seed.BOTH_MOVE)
    driver.check("migrations refused after the raise", 0, questions.refused_after_raise(record))
    await driver.stop_headroom()


async def show_forged_pod(driver: Driver) -> None:
    """(f) A tenant creates a pod that looks like a VM's."""
    for kind in (registry.VALIDATING_ADMISSION_POLICIES, registry.VALIDATING_ADMISSION_POLICY_BINDINGS):
        await driver.create(kind, *seed.policies(kind.kind))
    driver.record.mark("note", "deploy/policy.yaml")
    message = await driver.forge()
    driver.check("a tenant's pod with a launcher's labels is refused", _FORGED, message[: len(_FORGED)], headline=True)


async def show_maintenance(driver: Driver) -> None:
    """(g) A node with three VMs and Rancher's agent is drained: KubeVirt creates the migrations, and the agent starts
    anew again and again."""
    await driver.clear(_VM, _SECOND_VM)
    await _expect_used(driver, "the namespace is empty", Amounts.of("0", "0"))
    await driver.pace_kubevirt(linger=5.0)
    await driver.namespace.annotate(seed.MAINTAINED_LIMIT)
    await _expect_hard(driver, "Rancher grants another limit", seed.MAINTAINED)
    await driver.start_headroom(WEBHOOK)
    node = await driver.start_on_one_node(seed.THIRD_SPEC, seed.THREE_VMS)
    await _expect_used(driver, "three VMs use nine tenths of it", seed.THREE_PODS)
    await _expect_quota(driver, "and of requests.memory", seed.THREE_REQUESTS, _requested_memory)
    since = driver.record.clock()
    await driver.drain(node)
    await driver.expect("KubeVirt migrates each of them", len(seed.THREE_VMS), lambda: len(_evacuations(driver)))
    is_guarded = await driver.is_guarded(seed.MAINTAINED)
    driver.check("headroom's webhook guards the quota", "yes", "yes" if is_guarded else "no")
    writes = await driver.restart_agent(_DRAINED_RESTARTS)
    driver.check("Rancher's agent starts anew and writes its base", f"{_DRAINED_RESTARTS} times", f"{writes} times")
    await driver.expect(
        "all of them arrive",
        [constants.PHASE_SUCCEEDED] * len(seed.THREE_VMS),
        lambda: [_phase(driver, name) for name in _evacuations(driver)],
        headline=True,
    )
    await driver.expect("the quota is back", Quota(seed.MAINTAINED, seed.THREE_PODS), lambda: _current_quota(driver))
    driver.check(f"launchers left on {node}", 0, await driver.pods_on(node))
    is_caught_up = await driver.catch_up()
    low = [version for version in questions.reverts(driver.record, seed.MAINTAINED) if version.at >= since]
    driver.check("versions of the quota without room for them", 0, len(low) if is_caught_up else None, headline=True)
    # They come at once: one that is raised first may lose its room to another's target until that is raised, too.
    kept_out = [refusal for refusal in questions.late_refusals(driver.record, seed.MAINTAINED, since) if refusal.full]
    driver.check("migrations kept out of what was added for them", 0, len(kept_out))
    await driver.stop_headroom()


SCENARIO: tuple[Step, ...] = (
    Step("a", "refused: a quota too small for a migration", show_refusal),
    Step("b", "with headroom: it raises the quota by Harvester's numbers, and lowers it again", show_raise),
    Step("c", "revert: Rancher's agent restarts while a second VM migrates; then with the guard", show_revert),
    Step("d", "back: once the old pod is gone", show_return),
    Step("e", "exact and held: what quota counts to the byte, for as long as it counts it", show_exact_raise),
    Step("f", "forged: a tenant's pod that looks like a VM's is refused by deploy/policy.yaml", show_forged_pod),
    Step("g", "maintenance: a node with three VMs and Rancher's agent is drained", show_maintenance),
)
"""The steps in their order. A further step is a function and a line here; it starts headroom with flags of its own."""


async def _start_vm(driver: Driver, vm: str, domain: Mapping[str, Any]) -> None:
    await driver.create(VIRTUAL_MACHINES, bodies.machine(vm, {"domain": dict(domain)}, strategy="Always"))
    await driver.expect(f"{vm} is started", "Running", lambda: driver.status_of(vm))


async def _expect_quota(
    driver: Driver,
    name: str,
    expected: T,
    read: Callable[[QuotaVersion], T],
    *,
    since: float | None = None,
    headline: bool = False,
) -> None:
    """Expects `expected` to be read of the quota at a moment since the step began, or since `since`."""
    start = driver.began if since is None else since
    await driver.expect(
        name, expected, lambda: questions.value_since(driver.record, start, expected, read), headline=headline
    )


_expect_hard = partial(_expect_quota, read=lambda version: version.hard)
_expect_used = partial(_expect_quota, read=lambda version: version.used)


async def _expect_full(driver: Driver, name: str, amounts: Amounts) -> None:
    await _expect_quota(driver, name, Quota(amounts, amounts), Quota.of, headline=True)


async def _expect_success(driver: Driver, migration: str) -> None:
    await driver.expect(f"{migration} runs through", ALL_PHASES, lambda: questions.phases_of(driver.record, migration))


async def _expect_return(driver: Driver, migration: str, *, used: Amounts) -> None:
    record = driver.record
    await driver.expect(
        f"the quota is back when {migration}'s old pod is gone",
        Quota(seed.BASE, used),
        lambda: questions.quota_after(record, migration),
    )
    driver.check("until then its headroom was", "held", questions.held_until_the_end(record, migration))


async def _check_guard(driver: Driver, hard: Amounts) -> None:
    """Restarts Rancher's agent again and again while headroom's webhook guards the quota."""
    await driver.start_headroom("--estimate", "harvester", WEBHOOK)
    is_guarded = await driver.is_guarded(seed.BASE)
    driver.check("headroom's webhook guards the quota", "yes", "yes" if is_guarded else "no")
    since = driver.record.clock()
    writes = await driver.restart_agent(_RESTARTS)
    driver.check("Rancher's agent restarts and writes its base", f"{_RESTARTS} times", f"{writes} times")
    is_caught_up = await driver.catch_up()
    least = questions.lowest_under_entries(driver.record, since) if is_caught_up else None
    driver.record.mark(*(("good", "no revert visible") if least == hard else ("note", "reverted")))
    name = f"with the guard, agent restarts ×{_RESTARTS}: no revert visible, the least allowed is"
    driver.check(name, hard, least, headline=True)


def _check_highest(driver: Driver, most: Amounts) -> None:
    """Checks the highest limit: any pod could use headroom that no migration needs."""
    driver.check("the most that was ever allowed", most, questions.highest_since(driver.record, driver.began))


def _has_hard(hard: Amounts) -> Callable[[QuotaVersion], bool]:
    return lambda version: version.hard == hard


def _evacuations(driver: Driver) -> list[str]:
    """The migrations that KubeVirt has created for a drained node."""
    return [name for name in driver.record.migrations if name.startswith(EVACUATION)]


def _requested_memory(version: QuotaVersion) -> Quantity:
    return Quantity.parse(version.quota.used.get("requests.memory", 0))


def _current_quota(driver: Driver) -> Quota | None:
    return Quota.of(driver.record.quota) if driver.record.quota else None


def _phase(driver: Driver, migration: str) -> str:
    track = driver.record.migrations.get(migration)
    return track.phase if track else "not there"


def _note_repair_time(driver: Driver, reverted_at: float) -> None:
    repair = questions.first_version(driver.record, reverted_at, _has_hard(seed.SECOND_RAISED))
    if repair is not None:
        # Rounded up: what comes in one breath was still one after the other.
        milliseconds = max(1, math.ceil((repair.at - reverted_at) * 1000))
        driver.record.mark("note", f"reverted for {milliseconds} ms")
