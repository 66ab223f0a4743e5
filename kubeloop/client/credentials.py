"""Sources of the Authorization header or a client certificate, and when each is read again: files, and exec credential
plugins (client.authentication.k8s.io), programs that print a token or a certificate."""

import asyncio
import json
import logging
import math
import os
import re
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from kubeloop.api.meta import from_rfc3339
from kubeloop.client.connections import in_own_thread
from kubeloop.client.errors import ConfigError
from kubeloop.errors import one_line

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
    """The credential of a request: a whole Authorization header value, a client certificate, both or neither. A source
    returns the same object until it fetches another, which may have the same token."""

    authorization: str | None = field(default=None, repr=False)
    certificate: Certificate | None = None


def header_value(text: str, name: str) -> str:
    """The text, where a header can carry it. Raises ConfigError, without the text."""
    if _NO_HEADER.search(text):
        raise ConfigError(f"{name} has a line break or a control character in it, which no request can carry")
    return text


class Static:
    """Never changes: a token in the kubeconfig, a user with a password, or nothing (client certificate only)."""

    def __init__(self, authorization: str | None = None) -> None:
        self._credential = Credential(authorization)

    async def get(self, *, refresh: bool = False) -> Credential:
        """The credential to use now; `refresh`: the last one was refused. Raises ConfigError."""
        return self._credential


class Reread:
    """Read again after a minute: a mounted service-account token, a tokenFile, an auth-provider of the kubeconfig.
    While reading fails the last credential stays in use, as in client-go: a mounted token is swapped while we look."""

    def __init__(self, read: Callable[[], str | None], *, first: str | None = None) -> None:
        """`first` is used until something was read."""
        self._read = read
        self._credential = None if first is None else Credential(first)
        self._read_at = -math.inf
        self._lock = asyncio.Lock()

    async def get(self, *, refresh: bool = False) -> Credential:
        async with self._lock:
            if self._credential is None or refresh or time.monotonic() - self._read_at >= REREAD_SECONDS:
                try:
                    self._credential = Credential(await in_own_thread(self._read))
                except ConfigError as err:
                    if self._credential is None:
                        raise
                    logger.warning("keeping the credentials in use: %s", err)
                self._read_at = time.monotonic()
            return self._credential


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


EXEC_TIMEOUT = 60.0
"""Seconds a plugin may take before it is killed."""
EXPIRY_SKEW = 10.0
"""A plugin's credential is fetched anew these seconds before its expirationTimestamp."""
_AGAIN = 1.0
"""Seconds for which a credential is used that has expired when the plugin gives it."""
_LONGEST = 1024 * 1024
"""Bytes of a plugin's output."""
API_VERSIONS: Final = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
MODES: Final = ("Never", "IfAvailable", "Always")
"""The choices whether a plugin is given standard input."""


@dataclass(frozen=True)
class PluginCommand:
    """A kubeconfig's description of a plugin. `env` is added to this process's own; `mode` is one of MODES; `cluster`
    is what the plugin learns of the cluster, None where it does not ask."""

    api_version: str
    args: list[str]
    env: dict[str, str] = field(repr=False)
    mode: str = "IfAvailable"
    cluster: dict[str, Any] | None = field(default=None, repr=False)
    install_hint: str = ""

    async def run(self) -> tuple[Credential, float]:
        """Runs it once; returns the credential and when it expires, as `parse_answer`. Raises ConfigError."""
        name, timeout = self.args[0], EXEC_TIMEOUT
        try:
            async with asyncio.timeout(timeout):
                return parse_answer(await self._output(), self.api_version)
        except FileNotFoundError as err:
            hint = f": {one_line(self.install_hint)}" if self.install_hint else ""
            raise ConfigError(f"the credential plugin {name!r} is not installed{hint}") from err
        except TimeoutError:
            raise ConfigError(f"the credential plugin {name!r} did not answer within {timeout:g} s") from None
        except (ValueError, OSError, RecursionError) as err:
            raise ConfigError(f"the credential plugin {name!r} failed: {one_line(err)}") from err

    async def _output(self) -> bytes:
        # Asking a person needs a terminal; a service has none.
        terminal = sys.stdin is not None and sys.stdin.isatty()
        if self.mode == "Always" and not terminal:
            raise ValueError("it asks for input (interactiveMode Always), and standard input is not a terminal")
        interactive = terminal and self.mode != "Never"
        spec = {"interactive": interactive} | ({} if self.cluster is None else {"cluster": self.cluster})
        info = {"apiVersion": self.api_version, "kind": "ExecCredential", "spec": spec}
        process = await asyncio.create_subprocess_exec(
            *self.args,
            stdin=None if interactive else DEVNULL,
            stdout=PIPE,
            stderr=None if interactive else PIPE,
            env=os.environ | self.env | {"KUBERNETES_EXEC_INFO": json.dumps(info)},
        )
        try:
            output, errors = await asyncio.gather(_read(process.stdout), _read(process.stderr))
            if code := await process.wait():
                raise ValueError(f"process returned {code}. {errors.decode(errors='replace')}".rstrip(". "))
            return output
        finally:
            # Kills it and closes the pipes: a program that it has started may hold them open, and is not waited for.
            process._transport.close()  # type: ignore[attr-defined]
            await process.wait()


async def _read(stream: asyncio.StreamReader | None) -> bytes:
    output = b""
    while stream is not None and (chunk := await stream.read(_LONGEST)):
        output += chunk
        if len(output) > _LONGEST:
            raise ValueError(f"it prints more than {_LONGEST} bytes")
    return output


class ExecPlugin:
    """The credential of a plugin: it is run when first needed, at expiry and after a 401, once for all who wait. A
    caller may be cancelled: the run goes on for the others."""

    def __init__(self, run: Callable[[], Awaitable[tuple[Credential, float]]]) -> None:
        self._run = run
        self._credential: Credential | None = None
        self._due = math.inf
        self._renewal: asyncio.Task[Credential] | None = None

    async def get(self, *, refresh: bool = False) -> Credential:
        if self._renewal is None:
            if self._credential is not None and not refresh and time.time() < self._due:
                return self._credential
            self._renewal = asyncio.create_task(self._renew(), name="credential plugin")
            self._renewal.add_done_callback(self._end_renewal)
        return await asyncio.shield(self._renewal)

    async def _renew(self) -> Credential:
        self._credential, expiry = await self._run()
        self._due, now = expiry - EXPIRY_SKEW, time.time()
        if self._due <= now:
            # A plugin that caches its token may give the same one until the end: it is not run for each request then.
            self._due = max(expiry, now + _AGAIN)
        return self._credential

    def _end_renewal(self, task: asyncio.Task[Credential]) -> None:
        self._renewal = None
        if not task.cancelled():
            task.exception()  # every waiter may have left: then nothing else retrieves it


CredentialSource = Static | Reread | ExecPlugin


class _Status(msgspec.Struct, rename="camel"):
    token: str | None = None
    client_certificate_data: str | None = None
    client_key_data: str | None = None
    expiration_timestamp: str | None = None


class _Answer(msgspec.Struct, rename="camel"):
    api_version: str
    kind: str
    status: _Status


def parse_answer(output: bytes, api_version: str) -> tuple[Credential, float]:
    """Returns credential and expiry (seconds since 1970, or inf) of an ExecCredential: a token, a certificate with its
    key, or both. Raises ValueError where it holds neither, or half a pair."""
    answer = msgspec.json.decode(output, type=_Answer)
    if answer.api_version != api_version:
        raise ValueError(f"plugin api version {answer.api_version} does not match {api_version}")
    token, pem, key = answer.status.token, answer.status.client_certificate_data, answer.status.client_key_data
    if bool(pem) != bool(key):
        raise ValueError("it returned only one of clientCertificateData and clientKeyData")
    if not token and not pem:
        raise ValueError("it returned neither a token nor a client certificate")
    credential = Credential(f"Bearer {token}" if token else None, Certificate(pem, key) if pem and key else None)
    expiration = answer.status.expiration_timestamp
    return credential, from_rfc3339(expiration) if expiration else math.inf
