"""The parts of the framework that the stand-in's handlers are given."""

from __future__ import annotations

from kubeloop.api.registry import NODES, PODS, RESOURCE_QUOTAS
from lab.kubevirt.creation import Clock, Creator, Placement, Refusals
from lab.kubevirt.lookup import Migrations, Pods
from lab.kubevirt.objects import INSTANCES, MIGRATIONS
from lab.kubevirt.quota_lag import QuotaLag
from tests.kinds import Events, Kind
from tests.lab.kubevirt.samples import node


class FakeClock(Clock):
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1_000.0
        super().__init__(wall=lambda: self.now, loop=lambda: self.now)


class Cluster:
    """Everything that a handler can be given, around one set of fake kinds."""

    def __init__(self) -> None:
        self.instances = Kind(INSTANCES)
        self.migrations = Kind(MIGRATIONS)
        self.pods = Kind(PODS)
        self.nodes = Kind(NODES)
        self.nodes.indexer.replace([node("node-1"), node("node-2"), node("node-3")])
        self.clock = FakeClock()
        self.events = Events()
        self.found_pods = Pods(self.pods.cache)
        self.found_migrations = Migrations(self.migrations.cache)
        self.placement = Placement(self.nodes.cache, self.found_pods)
        self.quotas = Kind(RESOURCE_QUOTAS)
        self.lag = QuotaLag(0.0, self.quotas.cache, self.clock.loop)

    def creator(self) -> Creator:
        return Creator(
            self.pods.client, self.placement, Refusals(), self.events.recorder, self.clock, self.lag
        )
