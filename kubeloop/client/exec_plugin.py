"""Exec credential plugins (client.authentication.k8s.io): programs that print a token or a client certificate."""

from __future__ import annotations

import asyncio
import json
import math
import os
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from kubeloop.api.meta import from_rfc3339
from kubeloop.client.credentials import Certificate, Credential
from kubeloop.client.errors import ConfigError
from kubeloop.errors import one_line

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

    async def run(self) -> dict[str, Any]:
        """Runs it once; returns the ExecCredential's status. Raises ConfigError."""
        name, timeout = self.args[0], EXEC_TIMEOUT
        try:
            async with asyncio.timeout(timeout):
                return self._status(*await self._output())
        except FileNotFoundError as err:
            hint = f": {one_line(self.install_hint)}" if self.install_hint else ""
            raise ConfigError(f"the credential plugin {name!r} is not installed{hint}") from err
        except TimeoutError:
            raise ConfigError(f"the credential plugin {name!r} did not answer within {timeout:g} s") from None
        except (ValueError, OSError) as err:
            raise ConfigError(f"the credential plugin {name!r} failed: {one_line(err)}") from err

    async def _output(self) -> tuple[int, bytes, bytes]:
        # Asking a person needs a terminal; a service has none.
        terminal = sys.stdin is not None and sys.stdin.isatty()
        if self.mode == "Always" and not terminal:
            raise ValueError("it asks for input (interactiveMode Always), and standard input is not a terminal")
        interactive = terminal and self.mode != "Never"
        process = await asyncio.create_subprocess_exec(
            *self.args,
            stdin=None if interactive else asyncio.subprocess.DEVNULL,
            stdout=PIPE,
            stderr=None if interactive else PIPE,
            env=os.environ | self.env | {"KUBERNETES_EXEC_INFO": json.dumps(self._info(interactive))},
        )
        try:
            output, *errors = await asyncio.gather(*map(_read, filter(None, (process.stdout, process.stderr))))
            return await process.wait(), output, b"".join(errors)
        except BaseException:
            # Kills it and closes the pipes: a program that it has started may hold them open, and is not waited for.
            process._transport.close()  # type: ignore[attr-defined]
            await process.wait()
            raise

    def _info(self, interactive: bool) -> dict[str, Any]:
        spec: dict[str, Any] = {"interactive": interactive}
        if self.cluster is not None:
            spec["cluster"] = self.cluster
        return {"apiVersion": self.api_version, "kind": "ExecCredential", "spec": spec}

    def _status(self, code: int, output: bytes, errors: bytes) -> dict[str, Any]:
        if code:
            raise ValueError(f"process returned {code}. {errors.decode(errors='replace')}".rstrip(". "))
        try:
            answer = json.loads(output)
        except (ValueError, RecursionError) as err:
            raise ValueError(f"failed to decode process output: {err}") from err
        for key in ("apiVersion", "kind", "status"):
            if not isinstance(answer, dict) or key not in answer:
                raise ValueError(f"malformed response. missing key {key!r}")
        if answer["apiVersion"] != self.api_version:
            raise ValueError(f"plugin api version {answer['apiVersion']} does not match {self.api_version}")
        status: dict[str, Any] = answer["status"]
        return status


async def _read(stream: asyncio.StreamReader) -> bytes:
    """Returns all that comes. Raises ValueError where that has no end."""
    output = b""
    while chunk := await stream.read(_LONGEST):
        output += chunk
        if len(output) > _LONGEST:
            raise ValueError(f"it prints more than {_LONGEST} bytes")
    return output


class ExecPlugin:
    """The credential of a plugin: it is run when first needed, at expiry and after a 401, once for all who wait. A
    caller may be cancelled: the run goes on for the others."""

    refreshable = True

    def __init__(self, run: Callable[[], Awaitable[dict[str, Any]]]) -> None:
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
        credential, expiry = parse_exec_status(await self._run())
        previous, now = self._credential, time.time()
        self._credential = replace(credential, issue=0 if previous is None else previous.issue + 1)
        self._due = math.inf if expiry is None else expiry - EXPIRY_SKEW
        if self._due <= now:
            # A plugin that caches its token may give the same one until the end: it is not run for each request then.
            self._due = max(expiry or 0.0, now + _AGAIN)
        return self._credential

    def _end_renewal(self, task: asyncio.Task[Credential]) -> None:
        self._renewal = None
        if not task.cancelled():
            task.exception()  # every waiter may have left: then nothing else retrieves it


def parse_exec_status(status: Any) -> tuple[Credential, float | None]:
    """Returns credential and expiry (seconds since 1970) of an ExecCredential's status; a token, a certificate with its
    key, or both. Raises ConfigError where it holds neither, or half a pair."""
    if not isinstance(status, dict):
        raise ConfigError("the credential plugin's status is not an object")
    token = status.get("token")
    pem, key = status.get("clientCertificateData"), status.get("clientKeyData")
    if bool(pem) != bool(key):
        raise ConfigError("the credential plugin returned only one of clientCertificateData and clientKeyData")
    if not token and not pem:
        raise ConfigError("the credential plugin returned neither a token nor a client certificate")
    credential = Credential(f"Bearer {token}" if token else None, Certificate(str(pem), str(key)) if pem else None)
    text = status.get("expirationTimestamp")
    try:
        return credential, from_rfc3339(str(text)) if text else None
    except ValueError as err:
        raise ConfigError(f"the credential plugin's expirationTimestamp {err}") from None
