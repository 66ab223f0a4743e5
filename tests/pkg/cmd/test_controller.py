"""`headroom controller` as a process, against a scripted API server: its life, its health, its writes."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path

import pytest

from kubeloop.testing.scripted_server import GET, LIST, PATCH, POST, raw, silent
from tests.objects import annotated_namespace
from tests.pkg.cmd.rig import ThreadedServer, running
from tests.pkg.cmd.waiting import NAMESPACES, QUOTA, QUOTAS, built, has, quota, seed

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
    has(server, NAMESPACES, built(annotated_namespace()), built(annotated_namespace("{nope", "ns2")))
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
