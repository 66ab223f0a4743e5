"""A scripted API server: a real HTTP server on loopback whose every answer, and every fault, a test writes down.

    async with ScriptedServer() as server:
        server.script(LIST, PODS, status(503, "ServiceUnavailable"), listing([pod("a")], "5"))
        server.script(WATCH, PODS, watch(added(pod("b", "6")), bookmark("7"), drop()), status(410, "Expired"))
        async with Client(server.config()) as client:
            ...
        assert server.seen(WATCH, PODS)[0].query["resourceVersion"] == "5"

- A route is a verb and a path (`registry.Resource.path()`); a GET with `watch=true` is `WATCH`. Each request takes the
  next reply of its route's script, then what `always` says. A request that nothing was written for gets a 404 and is
  in `server.unscripted`; an unscripted watch stays open without a word.
- A reply is made by `listing`, `body`, `status`, `resources`, `groups`, `raw`, `cut`, `refuse`, `silent`, `slow` or
  `watch`, or is any coroutine function from the request to a response.
- The steps of `watch` are made by scripted_steps.py; a number is seconds of silence. A `LiveWatch` gets them while it
  is open: `server.script(WATCH, PODS, live.reply)`, `await live.opened()`, `live.send(added(pod("b", "6")), drop())`.
"""

import asyncio
import json
import ssl
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from aiohttp import web
from multidict import CIMultiDictProxy

from kubeloop.client.config import ClientConfig
from kubeloop.testing.polling import PATIENCE, until
from kubeloop.testing.scripted_steps import End, Step, hang, status_object

GET = LIST = "GET"
WATCH = "WATCH"
POST, PATCH, DELETE, PUT = "POST", "PATCH", "DELETE", "PUT"

Reply = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True)
class Seen:
    """A request as it arrived. `verb` as in a route; `body` as sent; `at` by the loop's clock."""

    verb: str
    path: str
    query: Mapping[str, str]
    headers: CIMultiDictProxy[str]
    body: bytes
    at: float = 0.0

    @property
    def json(self) -> Any:
        """The body, decoded. Raises ValueError for one that is not JSON."""
        return json.loads(self.body)


class ScriptedServer:
    """The server that the module describes. `ssl_context` makes it an https server."""

    def __init__(self, ssl_context: ssl.SSLContext | None = None) -> None:
        self.requests: list[Seen] = []
        self.unscripted: list[Seen] = []
        self._ssl = ssl_context
        self._scripts: dict[tuple[str, str], deque[Reply]] = defaultdict(deque)
        self._always: dict[tuple[str, str], Reply] = {}
        self._runner: web.AppRunner | None = None
        self.port = 0

    def script(self, verb: str, path: str, *replies: Reply) -> None:
        """Appends replies to the route's script; each answers one request."""
        self._scripts[verb, path].extend(replies)

    def always(self, verb: str, path: str, reply: Reply) -> None:
        """Sets the route's reply for the time when its script is used up."""
        self._always[verb, path] = reply

    def seen(self, verb: str, path: str | None = None) -> list[Seen]:
        """The requests of a route (or of a verb) so far, in order of arrival."""
        return [r for r in self.requests if r.verb == verb and path in (None, r.path)]

    async def wait_seen(self, verb: str, path: str, count: int = 1, timeout: float = PATIENCE) -> Seen:
        """Waits until the route had `count` requests and returns the last of these. Raises AssertionError."""
        await until(lambda: len(self.seen(verb, path)) >= count, f"{verb} {path}", seconds=timeout, pause=0.01)
        return self.seen(verb, path)[count - 1]

    @property
    def url(self) -> str:
        return f"{'https' if self._ssl else 'http'}://127.0.0.1:{self.port}"

    def config(self, **fields: Any) -> ClientConfig:
        """Returns a configuration for this server; `fields` are further ones of ClientConfig."""
        return ClientConfig(host=self.url, **fields)

    async def start(self) -> None:
        """Listens on a free port of 127.0.0.1; after a `stop` on the same one. Raises OSError."""
        app = web.Application(client_max_size=2**28)
        app.router.add_route("*", "/{path:.*}", self._handle)
        # handler_cancellation: a reply that hangs ends when its client leaves.
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.05)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, ssl_context=self._ssl)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Closes every connection and the port; `start` opens the same port again: an API server that restarts."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        watching = request.method == "GET" and request.query.get("watch") in ("true", "1")
        verb = WATCH if watching else request.method
        arrived_at = asyncio.get_running_loop().time()
        record = Seen(verb, request.path, dict(request.query), request.headers, await request.read(), arrived_at)
        self.requests.append(record)
        return await self._reply(record)(request)

    def _reply(self, request: Seen) -> Reply:
        route = (request.verb, request.path)
        if self._scripts[route]:
            return self._scripts[route].popleft()
        if route in self._always:
            return self._always[route]
        self.unscripted.append(request)
        return watch(hang()) if request.verb == WATCH else status(404, "NotFound", "nothing is scripted for this")


def body(obj: Any, code: int = 200) -> Reply:
    """A JSON answer: an object, or whatever a patch or create returns."""
    return raw(json.dumps(obj).encode(), code)


def listing(items: Sequence[Mapping[str, Any]], resource_version: str, continue_: str = "") -> Reply:
    """Returns a page of a list; `continue_` says that more pages follow."""
    meta = {"resourceVersion": resource_version} | ({"continue": continue_} if continue_ else {})
    return body({"apiVersion": "v1", "kind": "List", "metadata": meta, "items": list(items)})


def resources(api_version: str, *plurals: str) -> Reply:
    """Returns the discovery of one version: an APIResourceList."""
    listed = [{"name": plural, "kind": plural, "verbs": ["list", "watch"]} for plural in plurals]
    return body({"kind": "APIResourceList", "groupVersion": api_version, "resources": listed})


def groups(*api_versions: str) -> Reply:
    """Returns the discovery of the groups: an APIGroupList."""
    listed = [{"name": version.split("/")[0], "versions": [{"groupVersion": version}]} for version in api_versions]
    return body({"kind": "APIGroupList", "apiVersion": "v1", "groups": listed})


def status(code: int, reason: str, message: str = "", retry_after: int | None = None) -> Reply:
    """A refusal with a metav1.Status; `retry_after` becomes the header Retry-After (whole seconds)."""
    headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
    return raw(json.dumps(status_object(code, reason, message)).encode(), code, headers)


def raw(content: bytes, code: int = 200, headers: dict[str, str] | None = None) -> Reply:
    """Returns a reply of any bytes; JSON's content type unless `headers` say otherwise."""

    async def reply(_: web.Request) -> web.StreamResponse:
        return web.Response(body=content, status=code, headers={"Content-Type": "application/json"} | (headers or {}))

    return reply


def slow(seconds: float, then: Reply) -> Reply:
    """Returns a reply that comes so many seconds later."""

    async def reply(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(seconds)
        return await then(request)

    return reply


def refuse() -> Reply:
    """The request arrives, then the connection is reset without an answer. aiohttp's client by itself sends an
    idempotent request (a watch, too) once more at once: two of these in a row make one that is lost."""

    async def reply(request: web.Request) -> web.StreamResponse:
        _reset(request)
        return web.Response()

    return reply


def silent() -> Reply:
    """The request arrives and is never answered."""

    async def reply(_: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    return reply


def cut(content: bytes, announced: int) -> Reply:
    """An answer of `announced` bytes of which only `content` comes before the connection is reset."""

    async def reply(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.content_length = announced
        await response.prepare(request)
        await response.write(content)
        await asyncio.sleep(0.01)  # a reset would overtake what is not yet sent
        _reset(request)
        return response

    return reply


def watch(*steps: Step) -> Reply:
    """A watch that sends its steps, then ends as the server's own time limit ends it."""

    async def reply(request: web.Request) -> web.StreamResponse:
        live = LiveWatch()
        live.send(*steps)
        live.end()
        return await live.reply(request)

    return reply


class LiveWatch:
    """A watch that the test feeds. One object serves one request."""

    def __init__(self) -> None:
        self._steps: asyncio.Queue[Step | None] = asyncio.Queue()
        self._opened = asyncio.Event()
        self.closed = asyncio.Event()
        """Set when the stream is over, on either side."""

    async def reply(self, request: web.Request) -> web.StreamResponse:
        try:
            response = web.StreamResponse(headers={"Content-Type": "application/json"})
            response.enable_chunked_encoding()
            await response.prepare(request)
            self._opened.set()
            while (step := await self._steps.get()) is not None:
                if step is End.DROP:
                    await asyncio.sleep(0.01)  # a reset would overtake what is not yet sent
                    _reset(request)
                    break
                if step is End.HANG:
                    await asyncio.Event().wait()
                elif isinstance(step, bytes):
                    await response.write(step)
                else:
                    await asyncio.sleep(step)
            return response
        finally:
            self.closed.set()

    def send(self, *steps: Step) -> None:
        """Appends steps: they are played in this order, once a client watches."""
        for step in steps:
            self._steps.put_nowait(step)

    def end(self) -> None:
        """Ends the stream properly, after what was sent before."""
        self._steps.put_nowait(None)

    async def opened(self, timeout: float = PATIENCE) -> None:
        """Waits until a client watches. Raises TimeoutError."""
        async with asyncio.timeout(timeout):
            await self._opened.wait()


def _reset(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()
