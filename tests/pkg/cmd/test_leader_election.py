"""`headroom controller --leader-elect` as a process, against a scripted API server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kubeloop.api import registry
from kubeloop.testing.polling import PATIENCE
from kubeloop.testing.scripted_server import GET, PATCH, POST, body, raw, status
from tests.pkg.cmd.rig import Call, ThreadedServer, running
from tests.pkg.cmd.waiting import QUOTA, seed

LEASES = registry.LEASES.path("own")
LEASE = registry.LEASES.path("own", "headroom")
ELECTED = ("--leader-elect", "--namespace", "own")


def lease(holder: str | None = None, seconds: int = 3) -> dict[str, Any]:
    spec = {"holderIdentity": holder, "leaseDurationSeconds": seconds} if holder else {}
    return {"metadata": {"name": "headroom", "namespace": "own", "resourceVersion": "1"}, "spec": spec}


@pytest.fixture(autouse=True)
def seeded(server: ThreadedServer) -> None:
    server.server.always(GET, "/version", raw(b'{"gitVersion":"v1.34.0"}'))
    seed(server)


def test_a_lost_lease_ends_it_with_1_and_one_line(server: ThreadedServer, kubeconfig: str, tmp_path: Path) -> None:
    server.server.always(POST, LEASES, body(lease("me")))
    server.server.always(PATCH, LEASE, body(lease("me")))
    lease_flags = ("--leader-elect-lease-duration", "5", "--leader-elect-renew-deadline", "4")
    with running(kubeconfig, tmp_path, *ELECTED, *lease_flags, "--leader-elect-retry-period", "0.5") as program:
        program.until(lambda: server.seen(PATCH, QUOTA))
        server.server.always(PATCH, LEASE, status(500, "InternalError", "etcd is away"))
        assert program.process.wait(PATIENCE) == 1
        lines = [line for line in program.text().splitlines() if line.startswith("headroom: ")]
        assert lines == ["headroom: lost the lease own/headroom: not renewed for 4 s: etcd is away"]
        assert "Traceback" not in program.text()


def test_a_replica_that_may_not_read_its_lease_says_so(server: ThreadedServer, kubeconfig: str, tmp_path: Path) -> None:
    refusal = 'User "u" cannot get leases'
    server.server.always(GET, LEASE, status(403, "Forbidden", refusal))
    server.server.always(POST, registry.EVENTS.path("own"), body({}))
    with running(kubeconfig, tmp_path, *ELECTED) as program:
        program.until(lambda: program.get("/readyz") == (503, f"not ready: lease own/headroom: {refusal}\n"))
        program.until(lambda: server.seen(POST, registry.EVENTS.path("own")))
        assert program.get("/healthz")[0] == 200
    (event,) = [request.json for request in server.seen(POST, registry.EVENTS.path("own"))]
    assert (event["reason"], event["involvedObject"]["name"]) == ("LeaseNotAcquired", "headroom")
    assert refusal in event["message"]


def test_the_lease_says_by_an_event_who_became_leader(server: ThreadedServer, kubeconfig: str, tmp_path: Path) -> None:
    server.server.always(POST, LEASES, body(lease("me")))
    server.server.always(PATCH, LEASE, body(lease("me")))
    events = registry.EVENTS.path("own")
    server.server.always(POST, events, body({}))
    with running(kubeconfig, tmp_path, *ELECTED) as program:
        program.until(lambda: any(request.json["reason"] == "LeaderElection" for request in server.seen(POST, events)))
    elected = next(request.json for request in server.seen(POST, events) if request.json["reason"] == "LeaderElection")
    assert (elected["involvedObject"]["kind"], elected["involvedObject"]["name"]) == ("Lease", "headroom")
    assert elected["message"].endswith(" became leader")


@pytest.mark.parametrize("arguments", [(), ("--leader-elect", "--dry-run")], ids=["outside a cluster", "dry run"])
def test_there_is_no_election(
    server: ThreadedServer, kubeconfig: str, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    with running(kubeconfig, tmp_path, *arguments) as program:
        program.wait_ready()
    assert [request for request in server.server.requests if "leases" in request.path] == []


def test_durations_under_which_two_could_write_are_a_wrong_call(call: Call, kubeconfig: str) -> None:
    result = call("controller", "--kubeconfig", kubeconfig, "--leader-elect-lease-duration", "5")
    assert result.code == 2
    assert "the lease duration must be longer than the renew deadline" in result.said_in_one_line()
