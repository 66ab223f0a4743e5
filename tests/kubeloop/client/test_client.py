"""The client's identity for the API server, and work on many objects."""

from __future__ import annotations

from typing import Any, cast

import pytest

from kubeloop.client.client import Client, for_each, own_user
from kubeloop.client.errors import Conflict, NotFound, Unreachable


class Answering:
    """A client whose server gives one answer, or none."""

    def __init__(self, answer: bytes | Exception) -> None:
        self.transport = self
        self.requests: list[tuple[Any, ...]] = []
        self._answer = answer

    async def request(self, *args: Any, **_: Any) -> bytes:
        self.requests.append(args)
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


async def user_from(answer: bytes | Exception) -> str:
    return await own_user(cast("Client", Answering(answer)))


async def test_the_user_of_a_self_subject_review() -> None:
    assert await user_from(b'{"status":{"userInfo":{"username":"system:serviceaccount:a:b"}}}') == (
        "system:serviceaccount:a:b"
    )


@pytest.mark.parametrize(
    "answer",
    [
        NotFound("no such resource"),
        Unreachable("gone"),
        b"{}",
        b'{"status":null}',
        b'{"status":{"userInfo":[]}}',
        b"<html>",
        b"[]",
    ],
    ids=["an old server", "no server", "nothing", "null", "a list", "no JSON", "another shape"],
)
async def test_a_server_that_does_not_say(answer: bytes | Exception) -> None:
    assert await user_from(answer) == ""


async def test_what_fails_for_one_keeps_none_of_the_others_from_it(caplog: pytest.LogCaptureFixture) -> None:
    calls: list[int] = []

    async def work(number: int) -> int:
        calls.append(number)
        if number in (1, 3):
            raise (NotFound if number == 1 else Conflict)(f"no {number}")
        return -number

    with pytest.raises(NotFound, match="no 1"):
        await for_each(range(5), work)
    assert (calls, caplog.messages) == ([0, 1, 2, 3, 4], ["3: no 3"])
    assert await for_each([0, 2], work) == [0, -2]
