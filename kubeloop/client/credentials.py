"""Sources of the Authorization header or a client certificate, and when each is read again."""

from __future__ import annotations

import asyncio
import logging
import math
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from kubeloop.client.connections import in_own_thread
from kubeloop.client.errors import ConfigError

logger = logging.getLogger(__name__)

REREAD_SECONDS = 60.0
"""The time for which a token from a file is used: client-go's `cachingTokenSource` period."""

_NO_HEADER: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class Certificate:
    """A client certificate and its key, both PEM."""

    certificate: str
    key: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Credential:
    """The credential of a request: a whole Authorization header value, a client certificate, both or neither."""

    authorization: str | None = field(default=None, repr=False)
    certificate: Certificate | None = None
    issue: int = 0
    """The number of the credential at its source: one that was fetched anew may have the same token, and is another
    one."""


def header_value(text: str, name: str) -> str:
    """The text, where a header can carry it. Raises ConfigError, without the text."""
    if _NO_HEADER.search(text):
        raise ConfigError(f"{name} has a line break or a control character in it, which no request can carry")
    return text


class CredentialSource(Protocol):
    """A source of credentials."""

    @property
    def refreshable(self) -> bool:
        """Reports whether a 401 may be retried with another credential."""

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
    While reading fails the last credential stays in use, as in client-go: a mounted token is swapped while we look."""

    refreshable = True

    def __init__(self, read: Callable[[], str | None], *, first: str | None = None) -> None:
        """`first` is used until something was read."""
        self._read = read
        self._credential = Credential(first) if first is not None else None
        self._read_at = -math.inf
        self._lock = asyncio.Lock()

    async def get(self, *, refresh: bool = False) -> Credential:
        async with self._lock:
            if self._credential is None or refresh or time.monotonic() - self._read_at >= REREAD_SECONDS:
                self._credential = await self._reread()
            return self._credential

    async def _reread(self) -> Credential:
        try:
            issue = self._credential.issue + 1 if self._credential is not None else 0
            credential = Credential(await in_own_thread(self._read), issue=issue)
        except ConfigError as err:
            if self._credential is None:
                raise
            logger.warning("keeping the credentials in use: %s", err)
            credential = self._credential
        self._read_at = time.monotonic()
        return credential


def read_token(path: Path) -> str:
    """An Authorization value from a token file. Raises ConfigError."""
    try:
        token = path.read_text().strip()
    except OSError as err:
        raise ConfigError(f"token file {path}: {err.strerror or err}") from err
    except UnicodeDecodeError as err:
        raise ConfigError(f"token file {path} is not text") from err
    if not token:
        raise ConfigError(f"token file {path} is empty")
    return f"Bearer {token}"
