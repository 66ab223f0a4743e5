"""The retry policy as a table: error by error, for what may and what may not be sent twice."""

import asyncio
import contextlib

import pytest

from kubeloop.client import errors
from kubeloop.client.errors import Conflict, NotFound
from kubeloop.client.retry import CONFLICT_TRIES, Closed, NotSent, RetryPolicy, Untrusted, cause, retry_on_conflict

pytestmark = pytest.mark.virtual_time

TABLE = [
    # What happened; is it sent again where twice does no harm; and else?
    ("never sent", NotSent("x"), True, True),
    ("not trusted", Untrusted("x"), False, False),
    ("closed", Closed("x"), False, False),
    ("no whole answer", errors.Unreachable("x"), True, False),
    ("throttled, with a time to come back", errors.TooManyRequests("x", retry_after=1.0), True, True),
    ("throttled", errors.TooManyRequests("x"), True, False),
    ("throttled for long", errors.TooManyRequests("x", retry_after=2.0), False, False),
    ("unavailable, with a time to come back", errors.ServiceUnavailable("x", retry_after=0.0), True, True),
    ("unavailable", errors.ServiceUnavailable("x"), True, False),
    ("a fault that asks to come back", errors.ServerError("x", retry_after=1.0), True, True),
    ("a fault", errors.ServerError("x"), False, False),
    ("a refusal", errors.Forbidden("x"), False, False),
    ("a refusal with a wait", errors.Forbidden("x", retry_after=1.0), False, False),
    ("a conflict", errors.Conflict("x"), False, False),
    ("gone", errors.Gone("x"), False, False),
    ("an error of our own", ValueError("x"), False, False),
]


async def attempts(error: Exception, *, repeatable: bool) -> int:
    """Returns the number of attempts of a call that fails once with `error`."""
    count = 0

    async def call() -> str:
        nonlocal count
        count += 1
        if count == 1:
            raise error
        return "done"

    async def no_sleep(_: float) -> None:
        pass

    with contextlib.suppress(type(error)):
        assert await RetryPolicy(sleep=no_sleep).run(call, repeatable=repeatable) == "done"
    return count


@pytest.mark.parametrize(("name", "error", "repeatable", "create"), TABLE, ids=[row[0] for row in TABLE])
async def test_what_is_tried_again(name: str, error: Exception, repeatable: bool, create: bool) -> None:
    assert await attempts(error, repeatable=True) == 1 + repeatable
    assert await attempts(error, repeatable=False) == 1 + create


async def test_waits_double_carry_jitter_and_do_not_grow_without_end() -> None:
    waits: list[float] = []

    async def note(seconds: float) -> None:
        waits.append(seconds)

    async def fail() -> None:
        raise errors.ServiceUnavailable("x")

    policy = RetryPolicy(attempts=60, base=0.1, maximum=5.0, sleep=note)
    with pytest.raises(errors.ServiceUnavailable):
        await policy.run(fail, repeatable=True)
    assert len(waits) == 59
    assert max(waits) <= 5.1
    for wait, least in zip(waits, [0.1, 0.2, 0.4, 0.8], strict=False):
        assert least <= wait <= least + 0.1


async def test_many_that_fail_together_do_not_come_back_together() -> None:
    waits: list[float] = []

    async def note(seconds: float) -> None:
        waits.append(seconds)

    async def fail() -> None:
        raise errors.TooManyRequests("x", retry_after=1.0)

    async def attempt_twice() -> None:
        with pytest.raises(errors.TooManyRequests):
            await RetryPolicy(attempts=2, sleep=note).run(fail, repeatable=False)

    await asyncio.gather(*(attempt_twice() for _ in range(50)))
    assert min(waits) >= 1.0, "never before the server's time"
    assert max(waits) - min(waits) > 0.02


@pytest.mark.parametrize(("conflicts", "answer"), [(0, "written"), (3, "written"), (9, "conflict")])
async def test_a_write_is_decided_anew_after_a_conflict(conflicts: int, answer: str) -> None:
    turns: list[bool] = []

    async def attempt(again: bool) -> str:
        turns.append(again)
        if len(turns) <= conflicts:
            raise Conflict("the object has been modified")
        return "written"

    try:
        result = await retry_on_conflict(attempt)
    except Conflict:
        result = "conflict"
    assert result == answer
    assert turns == [False, *[True] * (min(conflicts + 1, CONFLICT_TRIES) - 1)]


async def test_other_errors_are_not_tried_again() -> None:
    async def attempt(again: bool) -> None:
        assert not again
        raise NotFound("gone")

    with pytest.raises(NotFound):
        await retry_on_conflict(attempt)


@pytest.mark.parametrize(
    ("error", "words"), [(OSError("odd"), "odd"), (OSError(111, "x"), "connection refused"), (OSError(), "OSError")]
)
def test_errors_are_told_in_the_systems_words(error: OSError, words: str) -> None:
    assert cause(error) == words
