"""A story: what a seed stands for, how it is told, and how it gets short."""

import asyncio
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from random import Random
from typing import Any

from kubeloop.testing.virtual_time import VirtualTimeLoop
from tests.simulation import repeatable
from tests.simulation.actions import Action
from tests.simulation.cluster import SIMPLEST, Traits
from tests.simulation.process import outside, task_factory
from tests.simulation.promises import BrokenPromise
from tests.simulation.repeatable import monotonic
from tests.simulation.server import ApiWrite
from tests.simulation.world import MACHINES, SPACES, World

BEGIN, LENGTHS = 10.0, (15.0, 30.0, 60.0)
"""Seconds until the first action, and between the first and the last."""
SKEWS = (0.0, 200.0, -200.0)
"""Seconds by which a replica's clock may be off: longer than a lock may last."""

BY_POLICY = ("forge", "shrink")
"""What deploy/policy.yaml alone closes, as docs/security.md says: without it these are not told."""


@dataclass(frozen=True)
class Story:
    """The same seed, traits and actions make the same story."""

    seed: int
    traits: Traits
    actions: tuple[Action, ...]

    def __str__(self) -> str:
        unusual = [
            f"{field.name}={getattr(self.traits, field.name)}"
            for field in fields(Traits)
            if getattr(self.traits, field.name) != getattr(SIMPLEST, field.name)
        ]
        return "\n".join([f"seed {self.seed}: {', '.join(unusual) or 'the simplest cluster'}", *map(str, self.actions)])


@dataclass(frozen=True)
class Outcome:
    """`digest` is the same for the same story."""

    broken: BrokenPromise | None
    digest: str
    steps: int


def tell(story: Story, see: Callable[[ApiWrite], None] | None = None, until: float = float("inf")) -> Outcome:
    """Tells it from its beginning to its end, to `until`, or to the first broken promise. `see` is called with
    every write."""
    repeatable.begin(story.seed)
    loop = VirtualTimeLoop()
    loop.set_task_factory(task_factory)
    loop.set_exception_handler(lambda _loop, _context: None)
    try:
        return loop.run_until_complete(_tell(story, see, until))
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        with suppress(Exception):
            loop.run_until_complete(asyncio.sleep(0))
        loop.close()


async def _tell(story: Story, see: Callable[[ApiWrite], None] | None, until: float) -> Outcome:
    world = World(story.traits, story.seed)
    if see is not None:
        world.promises.followers.append(see)
    telling = outside(_happen(world, story))
    while not telling.done() and world.promises.broken is None and monotonic() < until:
        await asyncio.wait([telling], timeout=1.0)
    if world.promises.broken is None and telling.done():
        telling.result()
        world.promises.at_rest()
    telling.cancel()
    return Outcome(world.promises.broken, world.digest.hexdigest(), world.cluster.steps)


async def _happen(world: World, story: Story) -> None:
    await world.begin()
    doing = []
    for action in story.actions:
        await asyncio.sleep(max(0.0, action.at - monotonic()))
        doing.append(outside(action.happen(world)))
    await world.come_to_rest()
    for task in doing:
        if task.done():
            task.result()


# From a seed.

_AFTER = ("", "", "resourcequotas", "resourcequotas", "pods", "virtualmachineinstancemigrations")
"""The kinds after whose writes something happens; "": at its time."""


def story_of(seed: int, without: Collection[str] = ()) -> Story:
    """`without`: names of actions that are left out."""
    random = Random(seed)
    traits = _traits(random)
    number = random.randint(10, 60)
    names = random.choices(list(_LIKELY), _weights(random), k=number)
    length = random.choice(LENGTHS)
    times = sorted(round(random.uniform(BEGIN, BEGIN + length), 2) for _ in names)
    spaces = random.choice((SPACES, SPACES[:1]))
    actions = (
        Action(second, name, _LIKELY[name][1](random, traits, spaces), random.choice(_AFTER))
        for second, name in zip(times, names, strict=True)
    )
    left_out = (*without, *(() if traits.policy else BY_POLICY))
    return Story(seed, traits, tuple(action for action in actions if action.name not in left_out))


def _traits(random: Random) -> Traits:
    replicas = random.choice((1, 2))
    slow = random.choice((0.02, 0.1, 0.3))
    return Traits(
        replicas=replicas,
        skews=tuple(random.choice(SKEWS) for _ in range(replicas)),
        servers=random.choice((1, 1, 2)),
        policy=random.random() < 0.7,
        watch_lag=(0.0, slow),
        admission_lag=random.choice((0.02, 0.1)),
        counted=random.choice(((0.02, 0.1), (0.05, 0.5))),
        kubelet=random.choice(((0.05, 0.5), (0.1, 2.0))),
        source_linger=random.choice((1.0, 5.0, 20.0)),
    )


Arguments = Callable[[Random, Traits, Sequence[str]], dict[str, Any]]
"""Of the namespaces that a story is about."""


def _vm(random: Random, _: Traits, spaces: Sequence[str]) -> dict[str, Any]:
    return {"vm": random.choice([vm for vm in MACHINES if vm.partition("/")[0] in spaces])}


def _space(random: Random, _: Traits, spaces: Sequence[str]) -> dict[str, Any]:
    return {"namespace": random.choice(spaces)}


def _nothing(*_: object) -> dict[str, Any]:
    return {}


def _with(common: Arguments, **choices: tuple[Any, ...]) -> Arguments:
    return lambda random, traits, spaces: {
        **common(random, traits, spaces),
        **{name: random.choice(values) for name, values in choices.items()},
    }


def _process(random: Random, traits: Traits, _: Sequence[str]) -> dict[str, Any]:
    return {"process": random.choice([*_replicas(traits), "kubevirt", "kubevirt", "rancher"])}


def _replica(random: Random, traits: Traits, _: Sequence[str]) -> dict[str, Any]:
    return {"process": random.choice(_replicas(traits))}


def _replicas(traits: Traits) -> list[str]:
    return [f"headroom-{number}" for number in range(traits.replicas)]


_LIKELY: dict[str, tuple[float, Arguments]] = {
    "migrate": (8, _vm),
    "abort": (1, _vm),
    "pods": (6, _with(_space, cpu=("100m", "200m", "500m", "900m", "1"), number=(1, 1, 2, 5))),
    "retry": (0.5, _space),
    "free": (2, _space),
    "forge": (1, _with(_vm, cpu=("200m", "900m"))),
    "relabel": (0.5, _vm),
    "shrink": (1, _with(_vm, cpu=("100m", "500m"))),
    "grow": (1, _with(_space, cpu=("500m", "1"))),
    "enlarge": (1, _with(_vm, cpu=("1500m", "2"))),
    "limit_range": (1, _with(_space, storage=("6Gi", "1Mi"))),
    "recreate": (0.5, _vm),
    "base": (1, _with(_space, cpu=("2500m", "3", "4"))),
    "edit": (0.5, _with(_space, cpu=("2", "3", "3500m"))),
    "skip": (0.3, _with(_space, on=(True, False))),
    "switch": (0.3, _with(_space, on=(True, False))),
    "budget": (1, _with(_space, cpu=("1100m", "2500m"))),
    "leave_entry": (0.7, _space),
    "restart_agent": (1, _nothing),
    "revert": (1, _space),
    "kill": (1.5, _with(_process, down=(0.1, 2.0, 20.0))),
    "freeze": (0.7, _with(_process, seconds=(1.0, 12.0, 40.0))),
    "set_clock": (1, _with(_replica, skew=SKEWS)),
    "count_nothing": (1.5, _with(_nothing, seconds=(2.0, 40.0))),
    "silence": (1, _with(_nothing, seconds=(2.0, 5.0, 14.0))),
    "fail": (0.7, _with(_nothing, share=(0.1, 0.5), seconds=(2.0, 10.0))),
    "stall": (
        1,
        _with(
            _nothing,
            plural=("pods", "resourcequotas", "virtualmachineinstances", "virtualmachineinstancemigrations"),
            seconds=(1.0, 5.0),
        ),
    ),
    "compact": (0.5, _nothing),
}
"""How often each action comes, and what it may be about."""

_THEMES: tuple[dict[str, float], ...] = (
    dict.fromkeys(_LIKELY, 1.0),
    {"enlarge": 5, "shrink": 3, "grow": 3, "limit_range": 3},
    {"budget": 6, "enlarge": 8},
    {"budget": 6, "freeze": 3, "count_nothing": 1, "set_clock": 1},
    {"silence": 3, "count_nothing": 2, "freeze": 2, "abort": 2, "kill": 1, "stall": 1},
    {"retry": 12, "free": 3, "forge": 3, "relabel": 3, "compact": 2},
    {"pods": 8},
    {"base": 4, "edit": 4, "skip": 4, "switch": 4, "leave_entry": 4, "revert": 4},
)
"""What a story is about: how many times as often some actions come, beside migrations and pods; all others are rare.
Where everything comes as often, what takes several of a kind to go wrong hardly ever does."""
_RARE = 0.3


def _weights(random: Random) -> list[float]:
    theme = {"migrate": 1.0, "pods": 1.5, **random.choice(_THEMES)}
    return [weight * theme.get(name, _RARE) for name, (weight, _) in _LIKELY.items()]


# Short.


LATER = 10.0
"""Seconds by which a promise may be broken later in a shorter story."""


def shrunk(story: Story, promise: str, seconds: float = 300.0) -> Story:
    """The shortest story found in that time that breaks the same promise."""
    until = time.perf_counter() + seconds
    broken = tell(story).broken
    end = broken.at + LATER if broken else 0.0
    story = replace(story, actions=tuple(action for action in story.actions if action.at <= end))

    def breaks(tried: Story) -> bool:
        broken_promise = tell(tried, until=end).broken
        return broken_promise is not None and broken_promise.promise == promise

    kinds = {action.name for action in story.actions}
    for kind in sorted(kinds):
        rest_of_story = replace(story, actions=tuple(action for action in story.actions if action.name != kind))
        if time.perf_counter() < until and breaks(rest_of_story):
            story = rest_of_story
    size = max(1, len(story.actions) // 2)
    while size and time.perf_counter() < until:
        shorter = next(
            (candidate for candidate in _without(story, size) if time.perf_counter() < until and breaks(candidate)),
            None,
        )
        story, size = (shorter, size) if shorter else (story, size // 2)
    for field in fields(Traits):
        simpler = replace(story, traits=replace(story.traits, **{field.name: getattr(SIMPLEST, field.name)}))
        if simpler != story and time.perf_counter() < until and breaks(simpler):
            story = simpler
    return story


def _without(story: Story, size: int) -> Iterator[Story]:
    """Returns stories with so many actions fewer, the last ones first: what comes after the break matters least."""
    for start in range(max(0, len(story.actions) - size), -1, -size):
        yield replace(story, actions=story.actions[:start] + story.actions[start + size :])
