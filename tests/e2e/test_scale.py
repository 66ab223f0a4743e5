"""`headroom scale` on a cluster of one's own: its figures are what others count, and nothing of it is left."""

import json
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kubeloop.testing.cluster.cluster import Cluster
from kubeloop.testing.cluster.control_plane import fake_node
from kubeloop.testing.polling import eventually
from lab import bodies
from lab.cluster import CRDS as CRD_FILES
from lab.cluster import EmbeddedCluster, Options
from lab.headroom import samples
from tests.e2e.api import CORE, Api
from tests.e2e.tenant import HARD
from tests.program import COMMAND, ROOT, environment, run

pytestmark = pytest.mark.cluster

SIZE = ["--nodes", "3", "--vms", "9", "--namespaces", "2", "--evacuate", "1"]
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
VMIMS = "/apis/kubevirt.io/v1/virtualmachineinstancemigrations"


@pytest.fixture(scope="module")
def bare() -> Iterator[Cluster]:
    """A cluster with a node of another kwok and no stand-ins, where two CRDs are missing."""
    with EmbeddedCluster(options=Options(kwok=False, kubevirt=False, rancher=False)) as cluster:
        api = Api(cluster.kubeconfig)
        api.create(f"{CORE}/nodes", fake_node("node-1"))
        for name in ("kubevirts.kubevirt.io", "virtualmachines.kubevirt.io"):
            api.delete(f"{CRDS}/{name}")
        eventually(lambda: len(names(api, CRDS)) == len(CRD_FILES) - 2)
        yield cluster


@pytest.fixture(scope="module")
def bare_api(bare: Cluster) -> Api:
    return Api(bare.kubeconfig)


def names(api: Api, path: str) -> set[str]:
    return {item["metadata"]["name"] for item in api.get(path)["items"]}


def refused_patches(api: Api) -> float:
    """Changes of quotas that the API server did not make: another writer was first."""
    text = api.request("GET", "/metrics").data.decode()
    return sum(
        value
        for labels, value in samples(text, "apiserver_request_total")
        if (labels["verb"], labels["resource"]) == ("PATCH", "resourcequotas") and labels["code"] != "200"
    )


def everything(api: Api) -> dict[str, set[str]]:
    """Returns what a run could leave behind."""
    paths = [f"{CORE}/{kind}" for kind in ("nodes", "namespaces")]
    paths += [f"{ADMISSION}/{kind}webhookconfigurations" for kind in ("mutating", "validating")]
    return {path: names(api, path) for path in (*paths, "/apis/coordination.k8s.io/v1/leases", CRDS)}


def nothing_is_left(api: Api, objects: dict[str, set[str]]) -> None:
    eventually(lambda: everything(api) == objects)


class Onlooker(threading.Thread):
    """Counts by itself, by asking again and again while the run goes on."""

    def __init__(self, api: Api) -> None:
        super().__init__(daemon=True)
        self.migrations: dict[str, str] = {}
        self.over = threading.Event()
        self._api = api

    def run(self) -> None:
        while not self.over.wait(0.2):
            try:
                items = self._api.get(VMIMS)["items"]
            except Exception:  # the CRD comes and goes
                continue
            self.migrations |= {item["metadata"]["uid"]: item.get("status", {}).get("phase", "") for item in items}


def test_its_figures_are_what_others_count_and_nothing_is_left(bare: Cluster, bare_api: Api, tmp_path: Path) -> None:
    tenant = f"{CORE}/namespaces/tenant"
    bare_api.create(f"{CORE}/namespaces", bodies.namespace("tenant", bodies.granting(HARD)))
    standing_quota = bare_api.create(f"{tenant}/resourcequotas", bodies.default_quota("default-abc", HARD))
    objects, onlooker = everything(bare_api), Onlooker(Api(bare.kubeconfig))
    refused_before = refused_patches(bare_api)
    onlooker.start()
    program = started(bare, tmp_path, "removing")
    program.send_signal(signal.SIGINT)  # which changes the exit code alone
    printed, errors = program.communicate(timeout=300)
    onlooker.over.set()
    onlooker.join()
    assert program.returncode == 130, errors
    report: dict[str, Any] = json.loads((tmp_path / "report.json").read_text("utf-8"))
    assert report["migrations"] == report["succeeded"] == len(onlooker.migrations) == 3
    assert report["refused_after_raise"] == 0
    assert report["restored"]
    requests = report["api_server_requests_per_migration"]
    refused = report["refused_before_raise"] + report["refused_after_raise"]
    assert requests["POST pods"] * 3 == pytest.approx(3 + refused, abs=0.01)
    conflicts = refused_patches(bare_api) - refused_before
    assert -0.01 <= requests["PATCH resourcequotas"] * 3 - report["quota_writes"] <= conflicts + 0.01
    assert report["headroom"]["rss_peak_bytes"] > 2**20
    assert "<svg" in (tmp_path / "report.html").read_text("utf-8")
    assert "migrations a minute" in printed
    nothing_is_left(bare_api, objects)
    quota = bare_api.get(f"{tenant}/resourcequotas/default-abc")
    assert (quota["metadata"].get("annotations"), quota["spec"]) == (
        standing_quota["metadata"].get("annotations"),
        standing_quota["spec"],
    )
    bare_api.delete(tenant)
    eventually(lambda: "tenant" not in names(bare_api, f"{CORE}/namespaces"))


def started(bare: Cluster, folder: Path, stage: str, *words: str) -> subprocess.Popen[str]:
    """A run that has come to a stage."""
    # In the background of a shell a program would start deaf to SIGINT; it sets its own handler once it runs.
    program = subprocess.Popen(
        [*COMMAND, "scale", *SIZE, "--kubeconfig", str(bare.kubeconfig), "--out", str(folder), *words],
        env=environment() | {"CI": "true"},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert program.stderr is not None
    assert any(stage in line for line in program.stderr)
    return program


SLOWLY = ("--rate", "0.2/s", "--strategy", "vmmrq")


def test_ctrl_c_cleans_up(bare: Cluster, bare_api: Api, tmp_path: Path) -> None:
    objects = everything(bare_api)
    program = started(bare, tmp_path, "migrating", *SLOWLY)
    program.send_signal(signal.SIGINT)
    errors = program.communicate(timeout=300)[1]
    assert program.returncode == 130, errors
    assert "Traceback" not in errors
    nothing_is_left(bare_api, objects)


def test_what_a_killed_run_leaves_is_removed_by_clean(bare: Cluster, bare_api: Api, tmp_path: Path) -> None:
    objects = everything(bare_api)
    program = started(bare, tmp_path, "migrating", *SLOWLY)
    program.kill()
    program.communicate(timeout=300)
    assert everything(bare_api) != objects
    registered = bare_api.get(f"{ADMISSION}/validatingwebhookconfigurations/headroom.harvesterhci.io")
    for hook in registered["webhooks"]:
        assert "headroom\\-scale\\-" in hook["matchConditions"][0]["expression"], "tenants' objects are not asked about"
    process = run("scale", "--clean", "--kubeconfig", str(bare.kubeconfig), timeout=300, CI="true")
    assert (process.returncode, "Traceback" in process.stderr) == (0, False), process.stderr
    nothing_is_left(bare_api, objects)


def test_a_cluster_with_nodes_for_vms_is_refused(bare: Cluster, bare_api: Api, tmp_path: Path) -> None:
    node = {"metadata": {"name": "metal", "labels": {"kubevirt.io/schedulable": "true"}}}
    bare_api.create(f"{CORE}/nodes", node)
    objects = everything(bare_api)
    process = run("scale", *SIZE, "--kubeconfig", str(bare.kubeconfig), "--out", str(tmp_path))
    bare_api.delete(f"{CORE}/nodes/metal")
    assert process.returncode == 2
    assert "metal" in process.stderr.splitlines()[-1]
    assert len(process.stderr.splitlines()) == 1
    assert everything(bare_api) == {**objects, f"{CORE}/nodes": objects[f"{CORE}/nodes"] - {"metal"}}
