"""AdmissionServer, one replica: starts, watches and ends listener, certificate and registration."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import KW_ONLY, dataclass, field

from kubeloop.api.meta import rfc3339
from kubeloop.client.errors import ApiError, ConfigError
from kubeloop.controllers.enqueue import check_handler
from kubeloop.webhook.admission import REVIEW_SECONDS, AdmissionRequest, Decision, Hook
from kubeloop.webhook.registration import NotReached, Registration
from kubeloop.webhook.server import ServerMetrics, WebhookServer
from kubeloop.webhook.serving_certificate import ServingCertificate

log = logging.getLogger(__name__)

POLL_SECONDS = 60.0
"""The interval at which the Secret, the files and the configurations are looked at, and the API server is asked whether
it reaches the webhooks. A look costs it six requests."""
FIRST_SECONDS, RETRY_SECONDS = 0.25, 10.0
"""The same while something is wrong: twice as long each time."""


@dataclass(eq=False, repr=False)
class AdmissionServer:
    """`start`, and `stop` at the end, when `stopped` is called too. `synced` returns when the caches have; only then
    reviews are answered and the webhooks registered, for before that no request could be answered. What fails later is
    logged and tried again. Raises TypeError for a hook that is a plain `def`."""

    hooks: Mapping[str, Hook]
    certificate: ServingCertificate
    registration: Registration | None
    """None: another program registers the webhooks, without a key."""
    _: KW_ONLY
    client_names: Collection[str] = ()
    """See WebhookServer."""
    synced: Callable[[], Awaitable[object]]
    stopped: Callable[[], Awaitable[None]] | None = None
    metrics: ServerMetrics = field(default_factory=ServerMetrics)

    def __post_init__(self) -> None:
        for hook in self.hooks.values():
            check_handler(hook)
        self._ready = asyncio.Event()
        self._server = WebhookServer(
            {path: self._when_synced(hook) for path, hook in self.hooks.items()},
            self.certificate.context,
            client_names=self.client_names,
            knows_key=self.registration.knows if self.registration else None,
            metrics=self.metrics,
        )
        self._not_registered = "the caches have not synced yet"
        """The reason for which the webhooks are not registered; "" once they are."""
        self._task: asyncio.Task[None] | None = None

    @property
    def address(self) -> tuple[str, int]:
        """The address on which the server listens."""
        return self._server.address

    async def start(self, bind_address: str) -> None:
        """Loads certificate and registered key, and listens. Raises ApiError, ConfigError, BindError."""
        await self._refresh()
        if self.registration is not None:
            await self.registration.adopt()
        await self._server.start(bind_address)
        self._task = asyncio.create_task(self._run(), name="webhook upkeep")

    async def stop(self) -> None:
        """Stops listening. The registration stays: other replicas need it."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        await self._server.close()
        if self.stopped is not None:
            await self.stopped()

    def unready(self) -> list[str]:
        """Returns the reasons for which calls cannot be answered yet, a line each."""
        missing, expires = [], self.certificate.expires
        if expires is None:
            missing.append("webhook certificate")
        elif expires <= time.time():
            missing.append(f"webhook certificate: expired {time.time() - expires:.0f} s ago")
        if self._not_registered:
            missing.append(f"webhook registration: {self._not_registered}")
        return missing

    def notes(self) -> list[str]:
        """Returns a line with the certificate's expiry."""
        expires = self.certificate.expires
        return [f"webhook certificate: valid until {rfc3339(expires)}"] if expires is not None else []

    def healthy(self) -> list[str]:
        """Returns the problems, a line each."""
        if self._task is None or not self._task.done():
            return []
        return ["the webhook's background task ended"]

    def _when_synced(self, hook: Hook) -> Hook:
        """Holds reviews until the caches have synced; after the review's time the failurePolicy decides."""

        async def answer(request: AdmissionRequest) -> Decision:
            async with asyncio.timeout(REVIEW_SECONDS):
                await self._ready.wait()
            return await hook(request)

        return answer

    async def _run(self) -> None:
        await self.synced()
        self._ready.set()
        pause = FIRST_SECONDS
        while True:
            pause = POLL_SECONDS if await self._look() else min(2 * pause, RETRY_SECONDS)
            await asyncio.sleep(pause)

    async def _refresh(self) -> None:
        await self.certificate.refresh()
        if self.certificate.expires is not None:
            self.metrics.certificate(self.certificate.expires)

    async def _look(self) -> bool:
        """Renews and registers what is due, and reports whether all is well."""
        try:
            await self._refresh()
            if self.registration is not None:
                await self.registration.ensure(self.certificate.bundle)
        except NotReached as exc:
            if self._not_registered != str(exc):
                log.warning("webhooks are not registered: %s", exc)
            self._not_registered = str(exc)
        except (ApiError, ConfigError) as exc:
            log.warning("webhook upkeep: %s", exc)
            # An API server that is away for a moment says nothing about webhooks that are registered.
            self._not_registered = self._not_registered and str(exc)
        except Exception as exc:
            log.error("webhook upkeep: %s: %s", type(exc).__name__, exc)
            log.debug("webhook upkeep: traceback", exc_info=exc)
        else:
            self._not_registered = ""
            return True
        return False
