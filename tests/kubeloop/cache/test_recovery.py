"""The step after the end of a list or watch, as tables."""

import itertools
import random
from collections.abc import Sequence

import pytest

from kubeloop.cache.recovery import Attempt, Next, Recovery, ReflectorOptions
from kubeloop.client.errors import (
    ApiError,
    BadRequest,
    Forbidden,
    Gone,
    Invalid,
    NotFound,
    NotInstalled,
    ServerError,
    ServiceUnavailable,
    TooManyRequests,
    Unauthorized,
    Unreachable,
)


class FixedRandom(random.Random):
    """No jitter: `random()` is always the same."""

    def __init__(self, value: float = 0.0) -> None:
        super().__init__()
        self.value = value

    def random(self) -> float:
        return self.value


BROKE_EARLY = Attempt(opened=True, lasted=2.0, events=0)
BROUGHT = Attempt(opened=True, lasted=2.0, events=50)
LASTED = Attempt(opened=True, lasted=10.0, events=0)
SHORT = Attempt(opened=True, lasted=0.5, events=0)
BUSY = Attempt(opened=True, lasted=0.5, events=4)
GONE = Gone("too old")
TOO_LARGE = ServerError("Too large resource version: 9, current: 5", status=504, reason="Timeout")
DOWN = Unreachable("refused")


def recovery(jitter: float = 0.0) -> Recovery:
    return Recovery(ReflectorOptions(), FixedRandom(jitter))


Failure = Exception | tuple[Attempt, Exception]
"""Without an attempt: of one whose watch was never opened."""


def lists(delay: float) -> Next:
    """Instead of resuming the watch."""
    return Next(delay, resume=False)


FAILURES: dict[str, tuple[Sequence[Failure], Next]] = {
    "a server that can't be reached is waited for": ([DOWN], Next(0.8)),
    "longer each time": ([DOWN] * 3, Next(3.2)),
    "but not for ever longer": ([DOWN] * 50, Next(15.0)),
    "a connection that worked is tried again at once": ([(BROKE_EARLY, DOWN)], Next(0.0)),
    "the second time it breaks early there is a pause": ([(BROKE_EARLY, DOWN)] * 2, Next(1.6)),
    "one that lasted makes up for those before": ([(BROKE_EARLY, DOWN)] * 5 + [(LASTED, DOWN)], Next(0.0)),
    "however often it happens": ([(LASTED, DOWN)] * 9, Next(0.0)),
    "a watch that brought events resets the back-off": ([*[DOWN] * 5, (BROUGHT, DOWN)], Next(0.0)),
    "each time": ([(BROUGHT, DOWN)] * 9, Next(0.0)),
    "watches that break within a second are slowed down": ([(BUSY, DOWN)] * 9, Next(0.8)),
    "an expired version is listed again at once": ([GONE], lists(0.0)),
    "but not in a loop": ([GONE] * 3, lists(1.6)),
    "also after a long outage, as of a restarted server": ([*[DOWN] * 9, GONE], lists(0.0)),
    "a server that is back but not ready is tried sooner": ([*[DOWN] * 9, ServiceUnavailable("starting")], Next(0.8)),
    "an expired version as an ERROR event, likewise": (
        [(BROKE_EARLY, ApiError("x", status=200, reason="Expired"))],
        lists(0.0),
    ),
    "the position is lost where the reason alone says so": ([ApiError("x", reason="Gone")], lists(0.0)),
    "a version that is too large is listed again at once": ([TOO_LARGE], lists(0.0)),
    "a gateway that times out is not that": ([ServerError("gateway", status=504)], lists(0.8)),
    "a throttled watch is resumed": ([TooManyRequests("x")], Next(0.8)),
    "not before the server wants it": ([TooManyRequests("x", retry_after=7.0)], Next(7.0)),
    "a short Retry-After does not shorten the backoff": ([ServiceUnavailable("x", retry_after=0.1)], Next(0.8)),
    "without permission the position is kept": ([Forbidden("x")], Next(0.8)),
    "without credentials as well": ([Unauthorized("x")], Next(0.8)),
    "a server that fails is asked for a new list": ([ServerError("x")], lists(0.8)),
    "an unconfirmed 404 says nothing against the position": ([NotFound("x")], Next(0.8)),
    "a refused request too": ([Invalid("x")], lists(0.8)),
    "a malformed one too": ([BadRequest("x")], lists(0.8)),
    "a bug of ours does not spin": ([(BROKE_EARLY, ValueError("x"))], lists(0.8)),
}


@pytest.mark.parametrize(("failures", "expected"), FAILURES.values(), ids=FAILURES)
def test_after_a_failure(failures: Sequence[Failure], expected: Next) -> None:
    memory = recovery()
    pairs = (failure if isinstance(failure, tuple) else (Attempt(), failure) for failure in failures)
    assert [memory.after_failure(attempt, err) for attempt, err in pairs][-1] == expected


ENDS: dict[str, tuple[list[Attempt], Next]] = {
    "a watch that reached its time is followed by the next": ([LASTED], Next(0.0)),
    "one that lasted a second too": ([Attempt(True, 1.0, 0)] * 9, Next(0.0)),
    "a short one with events is resumed at once": ([BUSY], Next(0.0)),
    "but a row of them is slowed down": ([BUSY] * 9, Next(0.8)),
    "a short one without events is suspect": ([SHORT], Next(0.8)),
    "after three of them it is listed again": ([SHORT] * 3, lists(3.2)),
    "an event in between counts": ([SHORT, SHORT, BUSY, SHORT], Next(1.6)),
}


@pytest.mark.parametrize(("attempts", "expected"), ENDS.values(), ids=ENDS)
def test_after_a_proper_end(attempts: list[Attempt], expected: Next) -> None:
    memory = recovery()
    assert [memory.after_end(attempt) for attempt in attempts][-1] == expected


MISSING = NotInstalled("the server could not find the requested resource")


def polls(memory: Recovery, count: int) -> list[Next]:
    return [memory.after_failure(Attempt(), MISSING) for _ in range(count)]


@pytest.mark.parametrize(("jitter", "delay"), [(0.0, 48.0), (0.5, 60.0), (1.0, 72.0)])
def test_a_kind_that_is_not_installed_is_polled(jitter: float, delay: float) -> None:
    steps = polls(recovery(jitter), 3)
    assert [(step.delay, step.resume) for step in steps] == [(pytest.approx(delay), False)] * 3


def test_once_woken_it_is_looked_for_more_often_for_a_while() -> None:
    memory = recovery(0.5)
    memory.woken()
    assert [following.delay for following in polls(memory, 10)] == [0.25, 0.5, 1, 2, 4, 8, 16, 32, 60, 60]


def waits(seed: int, count: int) -> list[float]:
    memory = Recovery(ReflectorOptions(), random.Random(seed))
    return [memory.after_failure(Attempt(), Unreachable("away")).delay for _ in range(count)]


def test_the_back_off_grows_to_30_s_jitter_included() -> None:
    for seed in range(50):
        delays = waits(seed, 12)
        assert all(0.8 <= delay <= 30.0 for delay in delays)
        assert all(later > earlier / 2 for earlier, later in itertools.pairwise(delays))
        assert delays[-1] >= 15.0


def test_backoff_is_spread() -> None:
    assert len({waits(seed, 1)[0] for seed in range(50)}) == 50
