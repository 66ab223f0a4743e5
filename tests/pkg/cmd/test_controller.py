"""`headroom controller` as a process, against a scripted API server: its life, health, writes and election."""

import re
import signal
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kubeloop.api import registry
from kubeloop.api.meta import Object
from kubeloop.testing.polling import PATIENCE
from kubeloop.testing.scripted_server import GET, LIST, PATCH, POST, WATCH, body, listing, raw, silent, status, watch
from kubeloop.testing.scripted_steps import hang
from pkg.api.kubevirt import VIRTUAL_MACHINE_INSTANCE_MIGRATIONS, VIRTUAL_MACHINE_INSTANCES
from tests import objects as builders
from tests.pkg.cmd.rig import Call, ThreadedServer, running

QUOTAS = registry.RESOURCE_QUOTAS.path()
NAMESPACES = registry.NAMESPACES.path()
QUOTA = registry.RESOURCE_QUOTAS.path("ns1", "default-abc")


def has(server: ThreadedServer, path: str, *objects: dict[str, Any]) -> None:
    """The kind is installed, with these objects, and nothing happens to them."""
    server.server.always(LIST, path, listing(objects, "10"))
    server.server.always(WATCH, path, watch(hang()))


def quota(version: str = "7") -> dict[str, Any]:
    return built(builders.quota(version=version))


def built(obj: Object) -> dict[str, Any]:
    """Returns the object as JSON has it."""
    content: dict[str, Any] = msgspec.to_builtins(obj)
    content["metadata"].setdefault("resourceVersion", "9")
    return content


def seed(server: ThreadedServer) -> None:
    """The seed's namespace with a migration that waits."""
    vmi = built(builders.vmi())
    has(server, NAMESPACES, built(builders.annotated_namespace()))
    has(server, QUOTAS, quota())
    has(server, VIRTUAL_MACHINE_INSTANCES.path(), vmi)
    has(server, VIRTUAL_MACHINE_INSTANCE_MIGRATIONS.path(), built(builders.vmim(name="m1")))
    server.server.always(PATCH, QUOTA, body(quota(version="11")))
    server.server.always(PATCH, VIRTUAL_MACHINE_INSTANCES.path("ns1", "vm1"), body(vmi))
    server.server.always(POST, registry.EVENTS.path("ns1"), raw(b"{}"))


DRY = ("--dry-run", "--leader-elect", "--render-default-quota")


@pytest.fixture(autouse=True)
def version(server: ThreadedServer) -> None:
    server.server.always(GET, "/version", raw(b'{"gitVersion":"v1.34.0"}'))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_runs_until_a_signal_and_exits_0(kubeconfig: str, tmp_path: Path, number: signal.Signals) -> None:
    with running(kubeconfig, tmp_path) as program:
        program.wait_ready()
        assert program.stop(number) == 0
        assert "Traceback" not in program.text()


def test_a_signal_while_the_server_does_not_answer_at_all(
    server: ThreadedServer, kubeconfig: str, tmp_path: Path
) -> None:
    server.server.always(GET, "/version", silent())
    with running(kubeconfig, tmp_path) as program:
        program.until(lambda: server.seen(GET, "/version"))
        assert program.stop() == 0
        assert "not drained" not in program.text(), "there is nothing to drain yet"


def test_a_signal_while_a_write_hangs(server: ThreadedServer, kubeconfig: str, tmp_path: Path) -> None:
    """The next start writes what is not written."""
    seed(server)
    server.server.always(PATCH, QUOTA, silent())
    with running(kubeconfig, tmp_path) as program:
        program.until(lambda: server.seen(PATCH, QUOTA))
        assert program.stop() == 0


def test_a_second_signal_ends_it_at_once(server: ThreadedServer, kubeconfig: str, tmp_path: Path) -> None:
    seed(server)
    server.server.always(PATCH, QUOTA, silent())
    with running(kubeconfig, tmp_path) as program:
        program.until(lambda: server.seen(PATCH, QUOTA))
        program.process.send_signal(signal.SIGTERM)
        program.until(lambda: "draining" in program.text())
        assert program.stop() == 128 + signal.SIGTERM


def test_it_is_alive_first_and_ready_once_its_caches_have_synced(
    server: ThreadedServer, kubeconfig: str, tmp_path: Path
) -> None:
    server.server.always(LIST, QUOTAS, silent())
    with running(kubeconfig, tmp_path) as program:
        program.until(lambda: server.seen(LIST, QUOTAS))
        assert program.get("/healthz") == (200, "ok")
        program.until(lambda: program.get("/readyz") == (503, "not synced: resourcequotas\n"))
        server.stop()
        has(server, QUOTAS)
        server.start()
        program.wait_ready()


def test_the_names_that_dashboards_know(server: ThreadedServer, kubeconfig: str, tmp_path: Path) -> None:
    seed(server)
    with running(kubeconfig, tmp_path) as program:
        program.until(lambda: server.seen(PATCH, QUOTA))
        written = 'headroom_resourcequota_patches_total{result="written"} 1.0'
        program.until(lambda: written in program.get("/metrics")[1])
        _code, text = program.get("/metrics")
        for name in (
            'workqueue_depth{name="resourcequotas"}',
            'workqueue_adds_total{name="resourcequotas"}',
            'workqueue_queue_duration_seconds_bucket{le="+Inf",name="resourcequotas"}',
            'rest_client_requests_total{code="200",',
            "rest_client_request_duration_seconds_count{",
            'controller_runtime_reconcile_total{controller="resourceQuotaController",result="success"}',
            'controller_runtime_reconcile_errors_total{controller="resourceQuotaController"}',
            'controller_runtime_active_workers{controller="resourceQuotaController"}',
        ):
            assert name in text, name


def test_the_metrics_may_have_an_address_of_their_own(kubeconfig: str, tmp_path: Path) -> None:
    with running(kubeconfig, tmp_path, "--metrics-bind-address", "127.0.0.1:0") as program:
        program.wait_ready()
        assert program.get("/metrics")[0] == 404
        assert program.text().count("serving on 127.0.0.1:") == 2


def test_a_dry_run_with_webhooks_writes_nothing(server: ThreadedServer, kubeconfig: str, tmp_path: Path) -> None:
    """No quota, event, Secret, configuration or Lease."""
    seed(server)
    elsewhere = {**quota(), "metadata": {**quota()["metadata"], "namespace": "ns2", "uid": "uid-2"}}
    has(server, NAMESPACES, *map(built, (builders.annotated_namespace(), builders.annotated_namespace("{nope", "ns2"))))
    has(server, QUOTAS, quota(), elsewhere)
    webhook = ["--webhook", "--bind-address", "127.0.0.1:0", "--webhook-url", "https://127.0.0.1:1"]
    with running(kubeconfig, tmp_path, *DRY, "--estimate", "harvester", *webhook) as program:
        program.until(lambda: "would write" in program.text())
        program.until(lambda: "dry run: Warning InvalidResourceQuotaAnnotation" in program.text())
        program.until(lambda: "serving certificate loaded" in program.text())
        time.sleep(0.3)
        assert "limits.cpu 3 -> 5, limits.memory 5000Mi -> 9980344313" in program.text()
        written = re.findall(r'resourcequota_patches_total{result="(.*)"} [1-9]', program.get("/metrics")[1])
        assert written == ["dry-run"]
        assert not [request for verb in (POST, PATCH, "PUT", "DELETE") for request in server.seen(verb)]


LEASES = registry.LEASES.path("own")
LEASE = registry.LEASES.path("own", "headroom")
ELECTED = ("--leader-elect", "--namespace", "own")


def lease(holder: str | None = None, seconds: int = 3) -> dict[str, Any]:
    spec = {"holderIdentity": holder, "leaseDurationSeconds": seconds} if holder else {}
    return {"metadata": {"name": "headroom", "namespace": "own", "resourceVersion": "1"}, "spec": spec}


def test_a_lost_lease_ends_it_with_1_and_one_line(server: ThreadedServer, kubeconfig: str, tmp_path: Path) -> None:
    seed(server)
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
    seed(server)
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
    seed(server)
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
