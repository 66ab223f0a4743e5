"""What a replica looks after while it serves: its certificate and the configurations."""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from kubeloop.client.errors import ApiError, ConfigError
from pkg.config.probe import NotReached
from pkg.webhook.certificates import CertificateError
from pkg.webhook.registration import Registrar

log = logging.getLogger(__name__)

POLL_SECONDS = 60.0
"""How often the Secret, the files and the configurations are looked at, and the API server is asked whether it reaches
the webhooks. A look costs it five requests."""
FIRST_SECONDS, RETRY_SECONDS = 0.25, 10.0
"""The same while something is wrong: twice as long each time."""


class Certificates(Protocol):
    """Where the serving certificate comes from."""

    @property
    def bundle(self) -> bytes | None:
        """PEM of the CAs to trust; None when cert-manager tells the API server."""

    @property
    def expires(self) -> float | None:
        """When the certificate that the listener has ends, seconds since 1970; None without one."""

    async def refresh(self) -> None:
        """Find out what is current, renew what is due, serve it."""


class Upkeep:
    """`load` once, then `run` until cancelled. What fails in `run` is logged and tried again."""

    def __init__(self, certificates: Certificates, registrar: Registrar | None, *, poll: float = POLL_SECONDS) -> None:
        """`registrar` None: another program registers the webhooks."""
        self._certificates = certificates
        self._registrar = registrar
        self._poll = poll
        self.not_registered = "the caches have not synced yet"
        """Why the webhooks are not registered; "" once they are."""

    async def load(self) -> None:
        """Get a certificate, and the key by which the API server is known. Raises ApiError, ConfigError,
        CertificateError: without them nothing can be served."""
        await self._certificates.refresh()
        if self._registrar is not None:
            await self._registrar.adopt()

    async def register(self) -> None:
        """Tell the API server; not before there is something that answers. What fails stands in `not_registered`, but
        an API server that is away for a moment says nothing about webhooks that are registered."""
        try:
            if self._registrar is not None:
                await self._registrar.ensure(self._certificates.bundle)
        except NotReached as exc:
            if self.not_registered != str(exc):
                log.warning("webhooks are not registered: %s", exc)
            self.not_registered = str(exc)
            return
        except ApiError as exc:
            log.warning("webhook registration: %s", exc)
            self.not_registered = self.not_registered and str(exc)
            return
        self.not_registered = ""

    async def run(self) -> None:
        """Register at once, and look after it. Sooner while something is wrong."""
        pause = FIRST_SECONDS
        while True:
            well = await self._look()
            pause = self._poll if well else min(2 * pause, RETRY_SECONDS)
            await asyncio.sleep(pause)

    async def _look(self) -> bool:
        """Whether all is well."""
        try:
            await self._certificates.refresh()
            await self.register()
            return not self.not_registered
        except (ApiError, ConfigError, CertificateError, OSError) as exc:
            log.warning("webhook upkeep: %s", exc)
        except Exception as exc:
            log.error("webhook upkeep: %s: %s", type(exc).__name__, exc)
            log.debug("webhook upkeep: traceback", exc_info=exc)
        return False
