"""What /healthz and /readyz of a long-running command say, and the wait for an API server that answers."""

from __future__ import annotations

import asyncio
from typing import Protocol

from kubeloop.client.client import Client
from kubeloop.leaderelection.elector import LeaderElector
from pkg.config.management import Management
from pkg.selfcheck.kubernetes_version import KubernetesVersion, ask


class Admission(Protocol):
    """The webhooks of a process, which the controllers know nothing else of."""

    async def start(self, bind_address: str) -> None: ...

    async def stop(self) -> None: ...

    def healthy(self) -> list[str]: ...

    def unready(self) -> list[str]: ...

    def notes(self) -> list[str]: ...


class Checks:
    """What /healthz and /readyz ask: the caches, the Lease and the webhooks together, from before they are there."""

    def __init__(self) -> None:
        self.management: Management | None = None
        self.elector: LeaderElector | None = None
        self.admission: Admission | None = None

    def healthy(self) -> list[str]:
        return [problem for part in (self.management, self.admission) if part for problem in part.healthy()]

    def unready(self) -> list[str]:
        if self.management is None:
            return ["the API server has not answered yet"]
        missing = self.elector.unready() if self.elector else []
        missing += self.admission.unready() if self.admission else []
        return self.management.stale() + [f"not ready: {what}" for what in missing]

    def faults(self) -> list[str]:
        """Which caches are behind."""
        return self.management.stale() if self.management else []

    def notes(self) -> list[str]:
        """Also what does not take webhooks out of service: requests that are refused or not answered, a handler that
        hangs, what a tenant wrote and does not decode."""
        notes = self.admission.notes() if self.admission else []
        if self.management is not None:
            notes += [f"{who.name}: {trouble}" for who, trouble in self.management.troubles()]
            notes += self.management.hanging() + self.management.undecodable()
        return notes


async def answer(client: Client, stop: asyncio.Event) -> KubernetesVersion | None:
    """Wait until the API server has said its version; None when `stop` is set first. Raises ApiError, ConfigError."""
    version = asyncio.create_task(ask(client))
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([version, stopped], return_when=asyncio.FIRST_COMPLETED)
        return KubernetesVersion(version.result()) if version.done() else None
    finally:
        for task in (version, stopped):
            task.cancel()
        await asyncio.wait([version, stopped])
