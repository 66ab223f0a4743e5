"""A proxy in front of the API server that answers as a bad one would: `proxy.begin(FAULTS["404 pages"])`.

It speaks plain HTTP, in a thread of its own; requests reach the server with the rights of the given kubeconfig.
"""

import asyncio
import contextlib
import itertools
import json
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web
from yarl import URL

from tests.e2e.api import Api
from tests.pkg.cmd.rig import kubeconfig_for

_BUFFER = 64 * 1024 * 1024
EXPIRED = {"kind": "Status", "status": "Failure", "code": 410, "reason": "Expired", "message": "too old"}
_METADATA = b'"metadata":{'


@dataclass(frozen=True)
class Fault:
    """`answer` comes instead of the server's, `spoil` changes what the server sends (a body, or a line of a watch),
    `farewell` is the last word to the open watches (None: they stay), which are `mute` or not."""

    answer: Callable[[], web.Response] | None = None
    spoil: Callable[[bytes], bytes] = bytes
    farewell: bytes | None = None
    mute: bool = False


def _page() -> web.Response:
    return web.Response(status=404, text="<html>no such backend</html>", content_type="text/html")


def _deep(sent: bytes) -> bytes:
    """1,000 to 5,000 levels beside the metadata of every object."""
    levels = itertools.cycle((1000, 3000, 5000))
    parts = sent.split(_METADATA)
    spoilt = [
        b'"deep":%b%b,%b%b' % (b"[" * depth, b"]" * depth, _METADATA, part)
        for part, depth in zip(parts[1:], levels, strict=False)
    ]
    return parts[0] + b"".join(spoilt)


_SPOILT = (
    (b'"spec":{', b'"spec":["no"],"was":{'),
    (_METADATA, b'"metadata":null,"was":{'),
    (b'"labels":{', b'"labels":7,"were":{'),
    (b'"uid":"', b'"uid":{},"was":"'),
)
_numbers = itertools.count()


def _misshapen(sent: bytes) -> bytes:
    """Here and there something is of another type than it should be, each time something else."""
    for right, wrong in _SPOILT:
        head, *tails = sent.split(right)
        sent = head + b"".join((right if next(_numbers) % 3 else wrong) + part for part in tails)
    return sent


_BROKEN_OFF = b'{"type":"MODIFIED","object":{"kind":'
_GONE = json.dumps({"type": "ERROR", "object": EXPIRED}).encode() + b"\n"

FAULTS = {
    "404 pages": Fault(_page, farewell=_BROKEN_OFF),
    "deep objects": Fault(spoil=_deep),
    "misshapen objects": Fault(spoil=_misshapen),
    "misshapen lists": Fault(spoil=_misshapen, farewell=_GONE),
}
"""What a server that is away, slow or restarted does is a row of tests/kubeloop/cache/test_faults.py, and an action of
the simulation."""


MUTE_WATCHES = Fault(mute=True)
"""They open, and bring nothing; all else is answered."""
WELL = Fault(farewell=b"")
"""The watches of before break off."""


class FaultProxy:
    """`with FaultProxy(api, folder) as proxy`; `proxy.kubeconfig` is what a program gets instead of the server's."""

    def __init__(self, api: Api, folder: Path) -> None:
        self._folder = folder
        self._server = f"https://{api.address}"
        self._tls = api.tls
        self._fault = WELL
        self._watches: dict[web.StreamResponse, web.Request] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> "FaultProxy":
        self._thread.start()
        self._call(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        self._call(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)

    def begin(self, fault: Fault) -> None:
        """Starts the fault, until `end`."""
        self._call(self._change(fault))

    def end(self) -> None:
        """All is well again; the watches of before break off."""
        self._call(self._change(WELL))

    def watched(self) -> set[str]:
        """The paths of the watches that are open."""
        return {request.path for request in list(self._watches.values())}

    def _call(self, coroutine: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(10)

    async def _start(self) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=self._tls), read_bufsize=_BUFFER
        )
        application = web.Application(client_max_size=_BUFFER)
        application.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(application, access_log=None, handler_cancellation=True, shutdown_timeout=0.5)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.kubeconfig = kubeconfig_for(f"http://127.0.0.1:{self._runner.addresses[0][1]}", self._folder)

    async def _stop(self) -> None:
        await self._change(WELL)
        await self._runner.cleanup()
        await self._session.close()

    async def _change(self, fault: Fault) -> None:
        self._fault = fault
        if fault.farewell is None:
            return
        for response, request in list(self._watches.items()):
            with contextlib.suppress(OSError):
                if fault.farewell:
                    await response.write(fault.farewell)
            if request.transport is not None:
                request.transport.close()

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        if self._fault.answer is not None:
            return self._fault.answer()
        headers = {name: request.headers[name] for name in ("Accept", "Content-Type") if name in request.headers}
        url = URL(self._server + request.raw_path, encoded=True)
        async with self._session.request(
            request.method, url, data=body or None, headers=headers, timeout=None
        ) as answer:
            if "watch" in request.query and answer.status == 200:
                return await self._relay(request, answer)
            return await self._answer(answer)

    async def _answer(self, answer: aiohttp.ClientResponse) -> web.StreamResponse:
        content = await answer.read()
        if answer.status == 200:
            content = self._fault.spoil(content)
        return web.Response(status=answer.status, body=content, content_type=answer.content_type)

    async def _relay(self, request: web.Request, answer: aiohttp.ClientResponse) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": answer.content_type})
        await response.prepare(request)
        self._watches[response] = request
        try:
            async for line in answer.content:
                if not self._fault.mute:
                    await response.write(self._fault.spoil(line))
        finally:
            del self._watches[response]
        return response
