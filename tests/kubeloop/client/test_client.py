"""Who the API server takes us for."""

from __future__ import annotations

from typing import Any, cast

import pytest

from kubeloop.client.client import Client, own_user
from kubeloop.client.errors import NotFound, Unreachable


class Answering:
    """A client whose server gives one answer, or none."""

    def __init__(self, answer: bytes | Exception) -> None:
        self.transport = self
        self.asked: list[tuple[Any, ...]] = []
        self._answer = answer

    async def request(self, *args: Any, **_: Any) -> bytes:
        self.asked.append(args)
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


async def asked(answer: bytes | Exception) -> str:
    return await own_user(cast("Client", Answering(answer)))


async def test_the_user_of_a_self_subject_review() -> None:
    assert await asked(b'{"status":{"userInfo":{"username":"system:serviceaccount:a:b"}}}') == (
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
    assert await asked(answer) == ""
