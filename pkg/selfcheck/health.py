"""Answers /healthz and /readyz of a long-running command, and waits for an API server that answers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from kubeloop.client.client import Client
from kubeloop.leaderelection.elector import LeaderElector
from pkg.config.management import Management
from pkg.selfcheck.kubernetes_version import KubernetesVersion, ask

if TYPE_CHECKING:
    from kubeloop.webhook.admission_server import AdmissionServer


class HealthChecks:
    """The checks behind /healthz and /readyz: the caches, the Lease and the webhooks together, from before they
    exist."""

    def __init__(self) -> None:
        self.management: Management | None = None
        self.elector: LeaderElector | None = None
        self.admission: AdmissionServer | None = None

    def healthy(self) -> list[str]:
        return [problem for part in (self.management, self.admission) if part for problem in part.healthy()]

    def unready(self) -> list[str]:
        if self.management is None:
            return ["the API server has not answered yet"]
        missing = self.elector.unready() if self.elector else []
        missing += self.admission.unready() if self.admission else []
        return self.management.stale() + [f"not ready: {problem}" for problem in missing]

    def faults(self) -> list[str]:
        """Returns the caches that are behind, a line each."""
        return self.management.stale() if self.management else []

    def notes(self) -> list[str]:
        """Returns also what does not take webhooks out of service: requests that are refused or not answered, a handler
        that hangs, what a tenant wrote and does not decode."""
        notes = self.admission.notes() if self.admission else []
        if self.management is not None:
            notes += [f"{controller.name}: {trouble}" for controller, trouble in self.management.troubles()]
            notes += self.management.hanging() + self.management.undecodable()
        return notes


async def wait_for_version(client: Client, stop: asyncio.Event) -> KubernetesVersion | None:
    """Waits until the API server has said its version; returns None when `stop` is set first. Raises ApiError,
    ConfigError."""
    version = asyncio.create_task(ask(client))
    try:
        await wait_for_either(stop, version)
        return KubernetesVersion(version.result()) if version.done() else None
    finally:
        version.cancel()
        await asyncio.wait([version])


async def wait_for_either(stop: asyncio.Event, task: asyncio.Task[Any]) -> None:
    """Waits until `stop` is set or the task has ended. Raises what the task raised."""
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([stopped, task], return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopped.cancel()
    if not stop.is_set():
        task.result()
