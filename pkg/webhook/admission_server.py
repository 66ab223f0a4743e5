"""One replica: listener, certificate and registration, started and ended in the right order."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from ssl import SSLContext

from kubeloop.api.meta import rfc3339
from pkg.webhook.admission import AdmissionRequest, Decision
from pkg.webhook.caller import Caller
from pkg.webhook.deadline import REVIEW_SECONDS
from pkg.webhook.registration import Registrar
from pkg.webhook.server import Hook, WebhookServer
from pkg.webhook.upkeep import POLL_SECONDS, Certificates, Upkeep


class AdmissionServer:
    """`start`, and `stop` at the end, when `stopped` is called too. `synced` returns when the caches have; only then
    reviews are answered and the webhooks registered, for before that no request could be answered."""

    def __init__(
        self,
        hooks: Mapping[str, Hook],
        certificates: Certificates,
        context: SSLContext,
        registrar: Registrar | None,
        *,
        client_names: Collection[str] = (),
        caller: Caller | None = None,
        synced: Callable[[], Awaitable[object]],
        stopped: Callable[[], Awaitable[None]] | None = None,
        poll: float = POLL_SECONDS,
    ) -> None:
        self._ready = asyncio.Event()
        self._server = WebhookServer(
            {path: self._when_synced(hook) for path, hook in hooks.items()},
            context,
            client_names=client_names,
            caller=caller,
        )
        self._certificates = certificates
        self._upkeep = Upkeep(certificates, registrar, poll=poll)
        self._synced = synced
        self._stopped = stopped
        self._task: asyncio.Task[None] | None = None

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""
        return self._server.address

    async def start(self, bind_address: str) -> None:
        """Load the certificate and listen. Raises ApiError, ConfigError, CertificateError, BindError."""
        await self._upkeep.load()
        await self._server.start(bind_address)
        self._task = asyncio.create_task(self._run(), name="webhook upkeep")

    async def stop(self) -> None:
        """Stop listening. The registration stays: other replicas need it."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        await self._server.close()
        if self._stopped is not None:
            await self._stopped()

    def unready(self) -> list[str]:
        """What is missing until calls can be answered, a line each."""
        missing, expires, why = [], self._certificates.expires, self._upkeep.not_registered
        if expires is None:
            missing.append("webhook certificate")
        elif expires <= time.time():
            missing.append(f"webhook certificate: expired {time.time() - expires:.0f} s ago")
        return [*missing, f"webhook registration: {why}"] if why else missing

    def notes(self) -> list[str]:
        """When the certificate expires."""
        expires = self._certificates.expires
        return [f"webhook certificate: valid until {rfc3339(expires)}"] if expires is not None else []

    def healthy(self) -> list[str]:
        """What is wrong, a line each."""
        if self._task is None or not self._task.done():
            return []
        return ["the webhook's background task ended"]

    def _when_synced(self, hook: Hook) -> Hook:
        """A replica that starts gets reviews at once where the webhooks are registered already. It holds them until the
        caches have synced: half of them would be misleading. After the review's time the failurePolicy decides."""

        async def answer(request: AdmissionRequest) -> Decision:
            async with asyncio.timeout(REVIEW_SECONDS):
                await self._ready.wait()
            return await hook(request)

        return answer

    async def _run(self) -> None:
        await self._synced()
        self._ready.set()
        await self._upkeep.run()
