"""The programs that run in the simulation: headroom as its command wires it, KubeVirt's and Rancher's stand-ins."""

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kubeloop.client.errors import refuse_write
from kubeloop.leaderelection.elector import LeaderElectionConfig, LeaderElector
from kubeloop.leaderelection.lease_lock import LeaseLock
from kubeloop.webhook.admission import Hook
from kubeloop.webhook.registration import Endpoint
from lab.kubevirt import options as kubevirt_options
from lab.kubevirt.register import register as register_kubevirt
from lab.rancher.agent import Agent
from lab.rancher.agent import register as register_rancher
from pkg.config.management import Management
from pkg.config.settings import WEBHOOKS as ALL
from pkg.config.settings import Settings
from pkg.controller.registry import register_all
from pkg.selfcheck.api_server import KubernetesVersion
from pkg.util.resourcequota.policy import EstimateKind, Mode, Policy
from pkg.webhook.register import hooks
from pkg.webhook.view import View
from tests.simulation.admission import HEADROOM, KUBEVIRT, RANCHER
from tests.simulation.process import SimulatedProcess
from tests.simulation.server import ApiServer, client

NAMESPACE = "headroom-system"
ENDPOINT = Endpoint(url="https://headroom.invalid:9443")
POLICY = Policy(Mode.TAKEOVER, EstimateKind.EXACT)
LOCK_LIMIT = 20.0
"""Shorter than the default: a story is."""
WEBHOOKS = Settings(policy=POLICY, own_user=HEADROOM, namespace=NAMESPACE, strict=ALL)

PLANTED: list[Callable[[Mapping[str, Hook], Management], Mapping[str, Hook]]] = []
"""What takes the place of the webhooks (planted.py)."""
DRY_RUN: dict[str, Any] = {"dry_run": True}


class Programs:
    """Each method is a program's main."""

    def __init__(self, servers: Sequence[ApiServer], source_linger: float) -> None:
        self._servers = servers
        self._source_linger = source_linger
        self.agent: Agent | None = None
        """Rancher's, while it runs."""

    async def headroom(self, process: SimulatedProcess) -> None:
        """`headroom controller --webhook --leader-elect`."""
        replica = client(self._servers, HEADROOM, process)
        lock = LeaseLock(replica, NAMESPACE, "headroom", f"{process.name}-{process.life()}")
        elector = LeaderElector(lock, LeaderElectionConfig())
        leader = client(self._servers, HEADROOM, process, elector.before_write)
        management = Management(leader, KubernetesVersion("v1.34.0").releases)
        options = Settings(POLICY, reserve=True, namespace=NAMESPACE, lock_limit=LOCK_LIMIT)
        register_all(management, management.recorder("headroom"), options)
        view = View(replica, management.source(), management.clock, management.slim)
        served = hooks(view, WEBHOOKS, ENDPOINT, management)
        for plant in PLANTED:
            served = plant(served, management)
        leading = asyncio.Event()
        election = asyncio.create_task(elector.run(leading.set))
        await management.start(leading)
        await management.wait_for_sync()
        process.hooks = served
        await election

    async def dry_run(self, process: SimulatedProcess) -> None:
        """`headroom controller --dry-run`, by an account of its own."""
        connection = client(self._servers, f"{HEADROOM}-dry-run", process, refuse_write if DRY_RUN else None)
        management = Management(connection, KubernetesVersion("v1.34.0").releases)
        register_all(management, management.recorder("headroom"), Settings(POLICY, reserve=True, **DRY_RUN))
        await management.start()
        await asyncio.Event().wait()

    async def kubevirt(self, process: SimulatedProcess) -> None:
        management = Management(client(self._servers, KUBEVIRT, process), whole=True)
        options = kubevirt_options.StandInOptions(
            source_linger=self._source_linger,
            phase_delay=0.2,
            parallel_migrations=20,
            parallel_outbound=20,
            first_retry=1.0,
            max_retry=10.0,
            finished_linger=5.0,
        )
        register_kubevirt(management, options)
        await management.start()
        await asyncio.Event().wait()

    async def rancher(self, process: SimulatedProcess) -> None:
        management = Management(client(self._servers, RANCHER, process), whole=True)
        self.agent = register_rancher(management)
        await management.start()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
