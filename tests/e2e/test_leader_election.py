"""Two replicas, one account each: by the API server's audit log there are never two writers, and a new one in time.

Durations are short here; HEADROOM_ELECTION=real (make soak) takes the default ones.
"""

import itertools
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from kubeloop.testing.cluster.cluster import Cluster
from kubeloop.testing.polling import eventually, until
from tests.e2e.accounts import BY_HAND, NAMESPACE, Request, apply, documents, kubeconfig_of, requests, twin
from tests.e2e.api import Api
from tests.e2e.conftest import MakeTenant
from tests.e2e.tenant import HARD, RAISED, Tenant
from tests.program import Program

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("alone")]

REAL = os.environ.get("HEADROOM_ELECTION") == "real"
LEASE_SECONDS, DEADLINE, RETRY = (15.0, 10.0, 2.0) if REAL else (6.0, 5.0, 0.4)
FAILOVER, GRACEFUL = (LEASE_SECONDS + 3.0, 4.0) if REAL else (60.0, 60.0)
"""18 s with the real durations, on a machine that has no other work."""
OF_CANDIDATES = (("leases", NAMESPACE), ("events", NAMESPACE))
"""What those write, too, that do not lead: the Lease, and why they are not elected."""
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/headroom"


class ReplicaPair:
    """Two replicas of `headroom controller`."""

    def __init__(self, cluster: Cluster, api: Api, folder: Path) -> None:
        self.cluster = cluster
        self.api = api
        self.folder = folder
        self.programs: dict[str, Program] = {}
        self._log = cluster.directory / "audit.log"
        self._since = self._log.stat().st_size

    def start(self, name: str) -> Program:
        config = kubeconfig_of(self.api, name, self.folder)
        arguments = ["controller", "--kubeconfig", str(config), "--estimate", "harvester", "--leader-elect"]
        for flag, seconds in (("lease-duration", LEASE_SECONDS), ("renew-deadline", DEADLINE), ("retry-period", RETRY)):
            arguments += [f"--leader-elect-{flag}", str(seconds)]
        program = self.programs[name] = Program(self.folder / f"{name}.log", *arguments)
        return program.start()

    def both(self) -> tuple[str, str]:
        """Start both; the leader's name and the standby's."""
        self.start("replica-a")
        eventually(lambda: "holding the lease" in self.programs["replica-a"].text())
        self.start("replica-b")
        return "replica-a", "replica-b"

    def holder(self) -> str:
        """Returns the holder of the Lease; "" when it is released."""
        return str(self.api.get(LEASE)["spec"].get("holderIdentity") or "")

    def writes(self) -> list[Request]:
        """Returns what a leader alone may write, in the order in which the API server got it."""
        written = [request for request in requests(self.cluster.directory, self._since) if request.writes]
        leader_writes = [each for each in written if (each.resource, each.namespace) not in OF_CANDIDATES]
        return sorted(leader_writes, key=lambda request: request.at)

    def check_one_at_a_time(self, *order: str) -> None:
        """Each had its turn, and none wrote after the next one had begun."""
        assert tuple(account for account, _ in itertools.groupby(w.account for w in self.writes())) == order

    def end(self) -> None:
        for program in self.programs.values():
            if program.process.poll() is None:
                program.process.send_signal(signal.SIGCONT)
                program.kill()
            assert "Traceback" not in program.text()
        self.api.delete(LEASE)


@pytest.fixture
def pair(cluster: Cluster, api: Api, tmp_path: Path) -> Iterator[ReplicaPair]:
    apply(api, documents(*BY_HAND))
    for name in ("replica-a", "replica-b"):
        twin(api, name)
    pair = ReplicaPair(cluster, api, tmp_path)
    yield pair
    pair.end()


class Migrating(NamedTuple):
    """A migration that is under way, the leader that made room for it and the standby."""

    namespace: Tenant
    leader: str
    standby: str


@pytest.fixture
async def migrating(pair: ReplicaPair, tenant: MakeTenant) -> Migrating:
    names = pair.both()
    namespace = await tenant()
    await namespace.vm()
    await namespace.refused(name="first")
    await namespace.until_hard(RAISED)
    # On a busy machine the first may have lost the Lease before.
    leader = (await until(pair.writes, "the writes in the audit log"))[-1].account
    (standby,) = set(names) - {leader}
    return Migrating(namespace, leader, standby)


async def finish(namespace: Tenant, seconds: float, migration: str = "first") -> None:
    """The migration ends while no one may be there to see it; its room is taken back all the same."""
    await namespace.enter(migration, "Succeeded")
    await namespace.until_hard(HARD, seconds=seconds)


async def test_stopped_for_longer_than_its_lease_and_continued(pair: ReplicaPair, migrating: Migrating) -> None:
    namespace, leader, standby = migrating
    stopped = pair.programs[leader]
    stopped.process.send_signal(signal.SIGSTOP)
    await finish(namespace, FAILOVER)
    await namespace.refused()  # work for both of them
    stopped.process.send_signal(signal.SIGCONT)
    assert stopped.process.wait(FAILOVER) == 1
    assert f"headroom: lost the lease {NAMESPACE}/headroom: " in stopped.text()
    await namespace.until_hard(RAISED)
    pair.check_one_at_a_time(leader, standby)


async def test_the_standby_takes_over_and_back(pair: ReplicaPair, migrating: Migrating) -> None:
    """A rolling update: one after the other is replaced."""
    namespace, leader, standby = migrating
    holder = pair.holder()
    assert pair.programs[leader].stop() == 0
    assert pair.holder() != holder, "the Lease is released, not left to expire"
    await finish(namespace, GRACEFUL)
    pair.start(leader)
    again = await namespace.refused()
    await namespace.until_hard(RAISED)
    assert pair.programs[standby].stop() == 0
    await finish(namespace, GRACEFUL, again)
    pair.check_one_at_a_time(leader, standby, leader)
