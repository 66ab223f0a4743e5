"""Splitting lines: whatever the cuts, the same lines."""

from __future__ import annotations

import itertools
import time
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeloop.client import lines as lines_module
from kubeloop.client.errors import Unreachable
from kubeloop.client.lines import split_lines


async def chunked(chunks: list[bytes]) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


async def split(chunks: list[bytes]) -> list[bytes]:
    return [line async for line in split_lines(chunked(chunks), source="here")]


@pytest.mark.parametrize(
    ("chunks", "lines"),
    [
        ([], []),
        ([b"a\n"], [b"a"]),
        ([b"a\nb\n"], [b"a", b"b"]),
        ([b"a", b"b\n"], [b"ab"]),
        ([b"a", b"\n"], [b"a"]),
        ([b"a\n", b"\n", b"b\n"], [b"a", b"b"]),
        ([b"a\nb", b"c", b"d\ne\n"], [b"a", b"bcd", b"e"]),
        ([b"", b"a\n", b""], [b"a"]),
        ([b"a\r\n"], [b"a\r"]),
    ],
)
async def test_lines_come_out_whole(chunks: list[bytes], lines: list[bytes]) -> None:
    assert await split(chunks) == lines


@given(st.lists(st.binary(min_size=1).filter(lambda b: b"\n" not in b)), st.data())
async def test_any_cutting_gives_the_same_lines(lines: list[bytes], data: st.DataObject) -> None:
    content = b"".join(line + b"\n" for line in lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(content)), max_size=20)))
    edges = [0, *cuts, len(content)]
    assert await split([content[a:b] for a, b in itertools.pairwise(edges)]) == lines


@pytest.mark.parametrize("chunks", [[b"a"], [b"a\nb"], [b"a\n", b"b", b"c"]])
async def test_half_a_last_line_is_a_break(chunks: list[bytes]) -> None:
    with pytest.raises(Unreachable, match="here closed the connection in the middle of a line"):
        await split(chunks)


async def test_a_line_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines_module, "MAX_LINE", 1000)
    with pytest.raises(Unreachable, match="longer than 1000 bytes"):
        await split([b"x" * 100] * 11)
    assert await split([b"x" * 100] * 9 + [b"\n"]) == [b"x" * 900]


async def test_a_line_of_many_chunks_takes_linear_time() -> None:
    started = time.perf_counter()
    assert [len(line) for line in await split([b"x" * 100] * 200_000 + [b"\n"])] == [20_000_000]
    assert time.perf_counter() - started < 2.0
