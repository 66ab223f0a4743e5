"""Lines of a watch, split from whatever chunks the network delivers."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable

from kubeloop.client.errors import Unreachable

MAX_LINE = 64 * 1024 * 1024
"""Bytes without a line's end after which the server is not taken for an API server."""


async def split_lines(chunks: AsyncIterable[bytes], *, source: str) -> AsyncGenerator[bytes, None]:
    """Whole lines without their end; empty ones are left out. Linear in the bytes, however a line is cut up.

    Raises Unreachable where the stream ends within a line (the connection broke off) or a line has no end;
    `source` names the server in its message.
    """
    pending: list[bytes] = []
    waiting = 0
    async for chunk in chunks:
        pieces = chunk.split(b"\n")
        if len(pieces) > 1:
            pending.append(pieces[0])
            pieces[0] = b"".join(pending)
            pending.clear()
            waiting = 0
            for line in pieces[:-1]:
                if line:
                    yield line
        if last := pieces[-1]:
            pending.append(last)
            waiting += len(last)
            if waiting > MAX_LINE:
                raise Unreachable(f"{source} sent a line longer than {MAX_LINE} bytes")
    if pending:
        raise Unreachable(f"{source} closed the connection in the middle of a line")
