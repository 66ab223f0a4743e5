"""A process of `headroom controller` or `headroom webhook`, started and ended in order."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING

from prometheus_client import REGISTRY

from kubeloop.client.client import Client
from kubeloop.client.config import ClientConfig
from kubeloop.client.errors import refuse_write
from kubeloop.controllers.events import WARNING, EventRecorder
from kubeloop.controllers.server import serve_health
from kubeloop.leaderelection.elector import LeaderElectionConfig, LeaderElector
from kubeloop.leaderelection.lease_lock import LeaseLock
from pkg.config.management import Management
from pkg.config.rancher_quotas import RANCHER_SUDO, RancherWrites
from pkg.config.settings import Settings
from pkg.controller.managedtenantquota.managedtenantquota_controller import MANAGED_TENANT_QUOTA_CONTROLLER
from pkg.controller.registry import register_all
from pkg.report.state_metrics import StateMetrics, observe_wait
from pkg.selfcheck.api_server import KubernetesVersion, wait_for_version
from pkg.selfcheck.installation import EVENT_NOT_ELECTED, IN_FORCE, Installation, about
from pkg.selfcheck.troubles import LAST_WRITE, Troubles
from pkg.selfcheck.upkeep import Upkeep
from pkg.util.constants import LEASE, USER_AGENT
from pkg.webhook.registration import Leftovers

if TYPE_CHECKING:
    from kubeloop.webhook.admission_server import AdmissionServer
    from pkg.webhook.register import Webhooks

DRAIN_SECONDS = 7.0
ELECTED_DRAIN_SECONDS = 2.0
"""With other replicas: the next leader has to begin within seconds."""


@dataclass(eq=False)
class HealthChecks:
    """The checks behind /healthz and /readyz, from before their parts exist."""

    management: Management | None = None
    elector: LeaderElector | None = None
    admission: AdmissionServer | None = None
    upkeep: Upkeep | None = None

    def healthy(self) -> list[str]:
        return [problem for part in (self.management, self.admission) if part for problem in part.healthy()]

    def unready(self) -> list[str]:
        if self.management is None:
            return ["the API server has not answered yet"]
        missing = [problem for part in (self.elector, self.admission) if part for problem in part.unready()]
        return self.management.stale() + [f"not ready: {problem}" for problem in missing]

    def faults(self) -> list[str]:
        """Returns the caches that are behind, and a policy that keeps KubeVirt from its work, a line each."""
        return [*(self.management.stale() if self.management else []), *(self.upkeep.refusals if self.upkeep else [])]

    def notes(self) -> list[str]:
        """Returns also what does not take webhooks out of service: requests that are refused or not answered, a handler
        that hangs, what a tenant wrote and does not decode."""
        notes = [*(self.admission.notes() if self.admission else []), *(self.upkeep.refusals if self.upkeep else [])]
        if self.management is not None:
            notes += [f"{controller.name}: {trouble}" for controller, trouble in self.management.troubles()]
            notes += self.management.hanging() + self.management.undecodable()
        return notes


@dataclass(frozen=True, kw_only=True)
class Replica:
    """A process of `headroom controller`, or of `headroom webhook`, which has no `workers`."""

    config: ClientConfig
    settings: Settings
    health_bind_address: str
    metrics_bind_address: str | None = None
    workers: int = 0
    """Of each kind's queue; 0: another process has the controllers."""
    election: LeaderElectionConfig | None = None
    """None: the only replica, or one of which each answers."""
    webhooks: Webhooks | None = None
    webhook_address: str = ""
    remove_webhooks: bool = False
    """No process serves any."""

    async def serve(self, stop: asyncio.Event) -> None:
        """Until `stop` is set. Raises LeaseLost."""
        checks = HealthChecks()
        async with contextlib.AsyncExitStack() as stack:

            def client(config: ClientConfig, before_write: Callable[[], None] | None) -> Awaitable[Client]:
                return stack.enter_async_context(Client(config, user_agent=USER_AGENT, before_write=before_write))

            health = await serve_health(checks, self.health_bind_address, self.metrics_bind_address)
            stack.push_async_callback(health.close)
            refuse = refuse_write if self.settings.dry_run else None
            # What every replica writes: the Lease, the webhooks' certificate and registration.
            replica = await client(self.config, refuse)
            kubernetes = await wait_for_version(replica, stop)
            if kubernetes is None:
                return
            health.log_addresses()
            guard = refuse
            if self.election is not None:
                namespace, events = self.settings.namespace, EventRecorder(replica, "headroom")
                stack.push_async_callback(events.stop)
                elector = checks.elector = LeaderElector(
                    LeaseLock(replica, namespace, LEASE),
                    self.election,
                    tell=lambda message: events.event(about(namespace), WARNING, EVENT_NOT_ELECTED, message),
                    recorder=events,  # its own: the leader's client writes nothing before
                )
                stack.push_async_callback(elector.release)  # after all that writes
                guard = elector.before_write
            leader = await client(self.config, guard)
            rancher = None
            if self.workers:
                owner = await client(self.config.impersonate(*RANCHER_SUDO), guard)
                rancher = RancherWrites(leader, owner, self.settings.rancher_quotas)
            workers, selects = self.workers or 1, self.settings.selects
            management = Management(leader, kubernetes.releases, workers=workers, selects=selects, rancher=rancher)
            await self._run(stop, checks, management, kubernetes, replica)

    async def _run(
        self,
        stop: asyncio.Event,
        checks: HealthChecks,
        management: Management,
        kubernetes: KubernetesVersion,
        replica: Client,
    ) -> None:
        elector, leading = checks.elector, asyncio.Event()
        leads = elector.is_leader if elector else lambda: True
        if elector is None:
            leading.set()
        state = self._register(management, leads) if self.workers else None
        admission = await self.webhooks.server(self.settings, replica, management) if self.webhooks else None
        publishes = bool(self.workers) and not self.settings.dry_run
        upkeep = Upkeep(management, self.settings, lambda: publishes and leading.is_set())
        checks.admission, checks.management, checks.upkeep = admission, management, upkeep
        stopped = asyncio.create_task(stop.wait())
        election = asyncio.create_task(elector.run(leading.set)) if elector else stopped
        tasks = [stopped, asyncio.create_task(kubernetes.run(replica))]
        try:
            if publishes:
                tasks.append(asyncio.create_task(self._publish(management, kubernetes, leading, checks)))
            await management.start(leading)
            tasks.append(asyncio.create_task(self._look_after(management, leading, state, upkeep)))
            if admission is not None:
                await admission.start(self.webhook_address)
            await asyncio.wait([stopped, election], return_when=asyncio.FIRST_COMPLETED)
            if not stopped.done():
                election.result()  # it is lost
        finally:
            for task in tasks:
                task.cancel()
            if admission is not None:
                await admission.stop()
            # Without the Lease nothing can be written any more.
            await management.stop(timeout=(ELECTED_DRAIN_SECONDS if elector else DRAIN_SECONDS) if leads() else 0.0)
            await asyncio.wait(tasks, timeout=LAST_WRITE)  # the last one of the ConfigMap
            election.cancel()
            await asyncio.wait([election])

    def _register(self, management: Management, leads: Callable[[], bool]) -> StateMetrics:
        """Registers the controllers and returns the metrics of what they see; before `management.start`, for caches."""
        register_all(management, management.recorder("headroom"), self.settings)
        # Without them every migration would seem to have ended.
        instances, migrations = management.virtual_machine_instances, management.virtual_machine_instance_migrations
        management.require(instances, migrations, if_defined=True)
        migrations.informer.add_event_handler(observe_wait(leads, management.clock))
        # A dry run needs no rights for what it never writes.
        locks = None if self.settings.dry_run else management.locks.cache()
        return StateMetrics(
            management.source(), locks, lock_limit=self.settings.lock_limit, leads=leads, clock=management.clock
        )

    async def _publish(
        self, management: Management, kubernetes: KubernetesVersion, leading: asyncio.Event, checks: HealthChecks
    ) -> None:
        """Publishes the installation from the election on, also while the caches do not sync: then it says that."""
        policy, own_version = self.settings.policy, version("harvester-headroom")
        await leading.wait()
        troubles = Troubles(
            management,
            self.settings.namespace,
            [MANAGED_TENANT_QUOTA_CONTROLLER],
            lambda: Installation(
                policy.mode,
                policy.estimate,
                own_version,
                " ".join(kubernetes.versions),
                rancher_quotas=management.rancher.way,
                rancher_reason=management.rancher.reason,
                policy=IN_FORCE if management.policy_in_force else "",
                hold_limit=policy.hold_limit,
                only_namespaces=" ".join(self.settings.only_namespaces),
            ),
            checks.faults,
        )
        await troubles.run()

    async def _look_after(
        self, management: Management, leading: asyncio.Event, state: StateMetrics | None, upkeep: Upkeep
    ) -> None:
        """Exports the cluster's state and checks the pod policy, from the first sync on; and, once elected, webhooks
        that this process does not register: another one's, or of before."""
        await management.wait_for_sync()
        async with contextlib.AsyncExitStack() as stack, asyncio.TaskGroup() as tasks:
            if state is not None:
                REGISTRY.register(state)
                stack.callback(REGISTRY.unregister, state)
            tasks.create_task(upkeep.run())
            await leading.wait()
            if not (self.settings.dry_run or (self.webhooks and self.settings.register)):
                namespace, recorder = self.settings.namespace, management.recorder("headroom")
                tell = partial(recorder.event, about(namespace), WARNING)
                leftovers = Leftovers(management.client, namespace, remove=self.remove_webhooks, tell=tell)
                tasks.create_task(leftovers.run())
