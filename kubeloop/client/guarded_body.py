"""The body of a write that is checked when its bytes are sent, not when the request was made."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import BytesPayload
from aiohttp.abc import AbstractStreamWriter

from kubeloop.client.errors import ApiError

BeforeWrite = Callable[[], None]
"""Raises ApiError where a write must not be sent (any more)."""


class GuardedBody(BytesPayload):
    """Asks `before_write` in the step of the loop in which the body goes to the socket.

    Between making a request and sending it the loop may wait for long: for a token, a connection, a TLS handshake,
    or because the process was stopped. aiohttp holds the headers back until the body's first byte, so a write that is
    refused here leaves no trace on the wire. `refused` is why, once it happened.
    """

    def __init__(self, body: bytes, before_write: BeforeWrite) -> None:
        super().__init__(body)
        self._before_write = before_write
        self.refused: ApiError | None = None

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        try:
            self._before_write()
        except ApiError as err:
            self.refused = err
            raise
        await super().write_with_length(writer, content_length)
