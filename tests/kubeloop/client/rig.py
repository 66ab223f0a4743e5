"""What the client's tests share: a transport and its scripted server, configurations, a service account in a folder."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kubeloop.api import registry
from kubeloop.api.core import ResourceQuota
from kubeloop.client import loading
from kubeloop.client.config import ClientConfig
from kubeloop.client.loading import load_config
from kubeloop.client.resource_client import ResourceClient
from kubeloop.client.retry import RetryPolicy
from kubeloop.client.transport import Transport
from kubeloop.testing.scripted_server import ScriptedServer
from kubeloop.testing.scripted_steps import obj
from tests.kubeloop.client.pki import Authority

Quotas = ResourceClient[ResourceQuota]

PATH = "/api/v1/pods"
WATCHED = {"watch": "true"}


class Sleeps(list[float]):
    """Stands in for asyncio.sleep: notes the waits, takes no time."""

    async def __call__(self, seconds: float) -> None:
        self.append(seconds)
        await asyncio.sleep(0)


@dataclass
class Rig:
    server: ScriptedServer
    transport: Transport
    sleeps: Sleeps
    others: list[Transport] = field(default_factory=list)

    def another(self, config: ClientConfig, **options: Any) -> Transport:
        """One more transport, closed with the rig; it retries without waiting."""
        options.setdefault("retry", RetryPolicy(sleep=self.sleeps))
        self.others.append(Transport(config, **options))
        return self.others[-1]


async def read_stream(transport: Transport, read_timeout: float = 5.0, got: list[bytes] | None = None) -> list[bytes]:
    """The stream's lines; those before a break stand in `got`."""
    got = [] if got is None else got
    async with transport.stream(PATH, WATCHED, read_timeout) as lines:
        async for each in lines:
            got.append(each)
    return got


ONE = registry.RESOURCE_QUOTAS.path("ns", "q")


QUOTA = obj("q", "5", "ns", spec={"hard": {"limits.cpu": "3"}})


def load(path: str, context: str | None = None, **environ: str) -> ClientConfig:
    return load_config(path, context, environ=environ)


async def token_of(config: ClientConfig) -> str | None:
    return (await config.authenticate())[0].get("Authorization")


def service_account(folder: Path) -> Path:
    account = folder / "account"
    account.mkdir()
    (account / "token").write_text("pod-token\n")
    (account / "ca.crt").write_text(Authority().pem)
    (account / "namespace").write_text("cattle\n")
    return account


POD = {"KUBERNETES_SERVICE_HOST": "10.53.0.1", "KUBERNETES_SERVICE_PORT": "443"}


def load_account(account: Path, environ: dict[str, str] | None = None) -> ClientConfig:
    return loading.in_cluster_config(
        POD if environ is None else environ, str(account / "token"), str(account / "ca.crt")
    )
