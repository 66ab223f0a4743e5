"""A webhook server with a certificate of its own, and the two ways to talk to it: HTTP, and bytes."""

import asyncio
import contextlib
import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from kubeloop.controllers.listener import Limits
from kubeloop.webhook.admission import ALLOW, AdmissionRequest, Decision, Hook
from kubeloop.webhook.certificates import issue
from kubeloop.webhook.server import ServerMetrics, WebhookServer
from kubeloop.webhook.serving_certificate import load, server_context

REVIEW = msgspec.json.encode(
    {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {"uid": "u-1", "operation": "UPDATE", "object": {}},
    }
)
QUICK = Limits(handshake=1.0, head=1.0, body=1.0)
KEY = "0123456789abcdef" * 2
JSON = {"Content-Type": "application/json"}
HEAD = b"POST /allow HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


async def allow(_: AdmissionRequest) -> Decision:
    return ALLOW


async def knows_key(key: str) -> bool:
    return key == KEY


class RecordedMetrics(ServerMetrics):
    """The metrics that a server reported."""

    def __init__(self) -> None:
        self.open: int | None = None
        self.early: Counter[str] = Counter()
        self.decisions: list[tuple[str, Decision]] = []
        self.expires: float | None = None

    def name(self, path: str) -> str:
        return {"/deny": "denials"}.get(path, path)

    def connections(self, count: int) -> None:
        self.open = count

    def closed(self, reason: str) -> None:
        self.early[reason] += 1

    def decided(self, webhook: str, decision: Decision) -> None:
        self.decisions.append((webhook, decision))

    def certificate(self, expires: float) -> None:
        self.expires = expires


class Peer:
    """Trusts the server."""

    def __init__(self, server: WebhookServer, trusted: bytes, recorded: RecordedMetrics) -> None:
        self.server = server
        self.recorded = recorded
        self.tls = ssl.create_default_context(cadata=trusted.decode())
        self._session = aiohttp.ClientSession()

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.server.address[1]}"

    async def post(
        self, path: str, body: bytes = REVIEW, headers: Mapping[str, str] = JSON, method: str = "POST"
    ) -> tuple[int, bytes]:
        """Status and body."""
        async with self._session.request(method, self.url + path, data=body, headers=headers, ssl=self.tls) as answer:
            return answer.status, await answer.read()

    async def connect(self, *, tls: bool = True) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.server.address[1], ssl=self.tls if tls else None)

    async def send(self, content: bytes, *, then_close: bool = False, tls: bool = True) -> bytes:
        """Bytes as they are; whatever comes back until the server closes."""
        reader, writer = await self.connect(tls=tls)
        writer.write(content)
        if then_close:
            writer.close()
            return b""
        with contextlib.suppress(ConnectionError):
            return await asyncio.wait_for(reader.read(), 10)
        return b""

    async def close(self) -> None:
        await self._session.close()


@contextlib.asynccontextmanager
async def listening(
    hooks: Mapping[str, Hook], *, limits: Limits | None = None, client_ca: Path | None = None, **options: Any
) -> AsyncIterator[Peer]:
    material = issue(["127.0.0.1"], time.time())
    context = server_context(client_ca)
    load(context, material.serving)
    recorded = RecordedMetrics()
    server = WebhookServer(hooks, context, limits=limits or QUICK, metrics=recorded, **options)
    await server.start("127.0.0.1:0")
    peer = Peer(server, material.bundle, recorded)
    try:
        yield peer
    finally:
        await peer.close()
        await server.close()
