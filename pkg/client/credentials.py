"""Where the Authorization header (or a client certificate) comes from, and when it is fetched anew."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, NamedTuple, Protocol, TypeVar

from pkg.client.errors import ConfigError

logger = logging.getLogger(__name__)

R = TypeVar("R")

REREAD_SECONDS = 60.0
"""How long a token that was read from a file is used: client-go's `cachingTokenSource` period."""
EXEC_TIMEOUT = 60.0
"""Seconds a credential plugin may take."""
EXPIRY_SKEW = 10.0
"""A plugin's credential is fetched anew these seconds before its expirationTimestamp."""


class Certificate(NamedTuple):
    """A client certificate and its key, both PEM."""

    certificate: str
    key: str


class Credential(NamedTuple):
    """What one request carries: a whole Authorization header value, a client certificate, both or neither."""

    authorization: str | None = None
    certificate: Certificate | None = None


class CredentialSource(Protocol):
    """A source of credentials."""

    @property
    def refreshable(self) -> bool:
        """Whether asking again after a 401 can give another credential."""

    async def get(self, *, refresh: bool = False) -> Credential:
        """The credential to use now; `refresh`: the last one was refused. Raises ConfigError."""


class Static:
    """Never changes: a token in the kubeconfig, a user with a password, or nothing (client certificate only)."""

    refreshable = False

    def __init__(self, authorization: str | None = None) -> None:
        self._credential = Credential(authorization)

    async def get(self, *, refresh: bool = False) -> Credential:
        return self._credential


class Reread:
    """Read again after a minute: a mounted service-account token, a tokenFile, an auth-provider of the kubeconfig.

    While reading fails the last credential stays in use, as in client-go: a mounted token is swapped while
    we look.
    """

    refreshable = True

    def __init__(
        self,
        read: Callable[[], str | None],
        *,
        period: float = REREAD_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read = read
        self._period = period
        self._clock = clock
        self._credential: Credential | None = None
        self._read_at = 0.0
        self._lock = asyncio.Lock()

    async def get(self, *, refresh: bool = False) -> Credential:
        async with self._lock:
            if self._credential is None or refresh or self._clock() - self._read_at >= self._period:
                self._credential = await self._reread()
            return self._credential

    async def _reread(self) -> Credential:
        try:
            credential = Credential(await asyncio.to_thread(self._read))
        except ConfigError as err:
            if self._credential is None:
                raise
            logger.warning("keeping the credentials in use: %s", err)
            credential = self._credential
        self._read_at = self._clock()
        return credential


class ExecPlugin:
    """An exec credential plugin (client.authentication.k8s.io): run when first needed, at expiry and after a 401.

    `run` blocks and returns the ExecCredential's status; it runs in a daemon thread, so that a plugin that
    waits for a login in a browser stops neither the event loop nor the end of the process.
    """

    refreshable = True

    def __init__(
        self,
        run: Callable[[], dict[str, Any]],
        *,
        timeout: float = EXEC_TIMEOUT,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._run = run
        self._timeout = timeout
        self._now = now
        self._credential: Credential | None = None
        self._expiry: datetime | None = None
        self._runs = 0
        self._lock = asyncio.Lock()

    async def get(self, *, refresh: bool = False) -> Credential:
        seen = self._runs
        async with self._lock:
            # Of many requests that are refused together one runs the plugin, the others take its result.
            refused = refresh and seen == self._runs
            if self._credential is None or refused or self._expired():
                await self._renew()
            assert self._credential is not None
            return self._credential

    def _expired(self) -> bool:
        return self._expiry is not None and (self._expiry - self._now()).total_seconds() <= EXPIRY_SKEW

    async def _renew(self) -> None:
        try:
            status = await asyncio.wait_for(in_daemon_thread(self._run), self._timeout)
        except TimeoutError:
            raise ConfigError(f"the credential plugin did not answer within {self._timeout:g} s") from None
        self._credential, self._expiry = parse_exec_status(status)
        self._runs += 1


def parse_exec_status(status: Any) -> tuple[Credential, datetime | None]:
    """Credential and expiry of an ExecCredential's status; a token, a certificate with its key, or both.

    Raises ConfigError where it holds neither, or half a pair.
    """
    if not isinstance(status, dict):
        raise ConfigError("the credential plugin's status is not an object")
    token = status.get("token")
    pem, key = status.get("clientCertificateData"), status.get("clientKeyData")
    if bool(pem) != bool(key):
        raise ConfigError("the credential plugin gave only one of clientCertificateData and clientKeyData")
    if not token and not pem:
        raise ConfigError("the credential plugin gave neither a token nor a client certificate")
    certificate = Certificate(str(pem), str(key)) if pem else None
    return Credential(f"Bearer {token}" if token else None, certificate), _parse_expiry(status)


def _parse_expiry(status: dict[str, Any]) -> datetime | None:
    text = status.get("expirationTimestamp")
    if not text:
        return None
    try:
        expiry = datetime.fromisoformat(str(text))
    except ValueError:
        raise ConfigError(
            f"the credential plugin's expirationTimestamp {text!r} is not an RFC 3339 time"
        ) from None
    return expiry if expiry.tzinfo else expiry.replace(tzinfo=UTC)


def in_daemon_thread(run: Callable[[], R]) -> asyncio.Future[R]:
    """The result of `run`, which blocks. Unlike the default executor's, the thread does not hold up the exit."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[R] = loop.create_future()

    def settle(set_result: Callable[[Any], None], value: Any) -> None:
        if not future.done():
            set_result(value)

    def target() -> None:
        try:
            outcome: tuple[Callable[[Any], None], Any] = (future.set_result, run())
        except Exception as err:
            outcome = (future.set_exception, err)
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, *outcome)

    threading.Thread(target=target, name="credential-plugin", daemon=True).start()
    return future
