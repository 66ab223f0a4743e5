"""The chart on a cluster: accepted by the API server, installed, seen at work, removed without a trace.

kwok has no kubelet: the test starts what the Deployments and the hook's Job say, with their accounts and arguments. The
webhook is registered by URL, for there is no kube-proxy: the Service's path is rendered and untested.
"""

import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.render import CHART, DEPLOY, FILES, template
from kubeloop.testing.cluster.binaries import ensure_helm
from kubeloop.testing.cluster.cluster import Cluster
from kubeloop.testing.cluster.paths import free_ports
from kubeloop.testing.polling import eventually
from tests.deploy.renderings import RENDERINGS
from tests.e2e.accounts import NAMESPACE, apply, documents, forget, is_served, kubeconfig_of, remove, requests
from tests.e2e.api import CORE, Api, Raw
from tests.e2e.conftest import MakeTenant
from tests.e2e.tenant import HARD, RAISED, SKIP
from tests.program import ROOT, Program, run

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("alone")]

DEPLOYMENTS = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"
JOB = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs/headroom-release"
MADE = [file for file in FILES if file.parent == DEPLOY]
DEFINED_ELSEWHERE = {
    "cert-manager.io": ("v1", {"certificates": "Certificate", "issuers": "Issuer"}),
    "monitoring.coreos.com": ("v1", {"servicemonitors": "ServiceMonitor", "prometheusrules": "PrometheusRule"}),
}


def definitions() -> list[Raw]:
    """cert-manager's and the Prometheus Operator's kinds, by name alone."""
    return [
        {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{plural}.{group}"},
            "spec": {
                "group": group,
                "scope": "Namespaced",
                "names": {"plural": plural, "kind": kind},
                "versions": [
                    {
                        "name": version,
                        "served": True,
                        "storage": True,
                        "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
                    }
                ],
            },
        }
        for group, (version, kinds) in DEFINED_ELSEWHERE.items()
        for plural, kind in kinds.items()
    ]


@pytest.fixture
def own_namespace(api: Api) -> None:
    """And Rancher's, where a right of its is."""
    for name in (NAMESPACE, "cattle-system"):
        apply(api, [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}])


def test_the_api_server_accepts_every_rendering(api: Api, own_namespace: None) -> None:
    apply(api, definitions())
    for group, (version, kinds) in DEFINED_ELSEWHERE.items():
        for plural in kinds:
            path = f"/apis/{group}/{version}/namespaces/{NAMESPACE}/{plural}"
            eventually(partial(is_served, api, path), 20)
    try:
        for values in RENDERINGS.values():
            arguments = [word for value in values for word in ("--set", value)]
            apply(api, [word for word in yaml.safe_load_all(template(*arguments)) if word], dry_run=True)
    finally:
        remove(api, definitions())


@pytest.mark.parametrize("file", MADE, ids=lambda file: file.name)
def test_the_api_server_accepts_what_is_applied_by_hand(api: Api, own_namespace: None, file: Path) -> None:
    apply(api, documents(file), dry_run=True)


class Node:
    """Runs the containers of Deployments and of a Job as processes, with the pod's account and arguments."""

    def __init__(self, api: Api, folder: Path, port: int) -> None:
        self.api = api
        self.folder = folder
        self.port = port
        self.programs: list[Program] = []
        self.kubeconfigs: dict[str, Path] = {}

    def start(self, deployment: str) -> list[Program]:
        """Starts as many as `replicas` says."""
        spec = self.api.get(f"{DEPLOYMENTS}/{deployment}")["spec"]
        started = [self._run(spec["template"]["spec"], number) for number in range(spec["replicas"])]
        self.programs += started
        return [program.wait_ready() for program in started]

    def _run(self, pod: Raw, number: int) -> Program:
        log = self.folder / f"{pod['serviceAccountName']}-{number}.log"
        return Program(log, *self._arguments(pod), env=self._environment(pod, number)).start(ready=False)

    def _environment(self, pod: Raw, number: int) -> dict[str, Any]:
        """The downward API's fields."""
        fields = {"metadata.name": f"{pod['serviceAccountName']}-{number}", "metadata.namespace": NAMESPACE}
        (container,) = pod["containers"]
        return {
            variable["name"]: fields[variable["valueFrom"]["fieldRef"]["fieldPath"]] for variable in container["env"]
        }

    def _arguments(self, pod: Raw) -> list[str]:
        """The container's own; addresses are those of this machine, and the kubeconfig stands for the token file."""
        (container,) = pod["containers"]
        kubeconfig = self._kubeconfig(pod["serviceAccountName"])
        set_arguments = [
            argument for argument in container["args"] if not argument.startswith(("--metrics-bind", "--health-bind"))
        ]
        here = {"--bind-address=:9443": f"--bind-address=127.0.0.1:{self.port}"}
        arguments = [here.get(argument, argument) for argument in set_arguments]
        return [*arguments, f"--kubeconfig={kubeconfig}"]

    def _kubeconfig(self, account: str) -> Path:
        """Written once: replicas share it, and the first of them may be reading it."""
        if account not in self.kubeconfigs:
            self.kubeconfigs[account] = kubeconfig_of(self.api, account, self.folder)
        return self.kubeconfigs[account]

    def test(self) -> str:
        """Returns what the Job of `helm test` prints."""
        hooks = helm(self.api, "get", "hooks", "headroom").stdout
        (job,) = [hook for hook in yaml.safe_load_all(hooks) if hook and hook["metadata"]["name"] == "headroom-test"]
        pod = job["spec"]["template"]["spec"]
        process = run(*self._arguments(pod), **self._environment(pod, 0))
        return process.stdout + process.stderr

    def hook(self) -> str:
        """Plays the Job controller once the pre-delete hook is there; what it printed."""
        job = eventually(lambda: self.api.find(JOB), 60)
        with ThreadPoolExecutor() as pool:
            pool.submit(self._stop_scaled_down)
            pod = job["spec"]["template"]["spec"]
            process = run(*self._arguments(pod), timeout=300, **self._environment(pod, 0))
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        condition = {"status": "True", "lastTransitionTime": now, "reason": "CompletionsReached", "message": ""}
        conditions = [{"type": kind, **condition} for kind in ("SuccessCriteriaMet", "Complete")]
        status = {"startTime": now, "completionTime": now, "succeeded": 1, "conditions": conditions}
        assert process.returncode == 0, process.stderr
        self.api.patch(f"{JOB}/status", {"status": status})
        return process.stdout

    def _is_scaled_down(self, name: str) -> bool:
        return bool(self.api.get(f"{DEPLOYMENTS}/{name}")["spec"]["replicas"] == 0)

    def _stop_scaled_down(self) -> None:
        for name in ("headroom-controller", "headroom-webhook"):
            eventually(partial(self._is_scaled_down, name), 30)
        for program in reversed(self.programs):  # the webhook first: the Lease shows that the others have ended
            program.stop()


def helm(api: Api, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(ensure_helm()), *arguments, "--namespace", NAMESPACE, "--kubeconfig", str(api.kubeconfig)]
    process = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    assert process.returncode == 0, process.stderr
    return process


def traces(api: Api) -> set[str]:
    """Whatever of headroom is left on the cluster; the CRD is kept on purpose."""
    plurals = ("roles", "rolebindings", "serviceaccounts", "secrets", "configmaps", "services")
    paths = [f"{CORE}/namespaces/{NAMESPACE}/{plural}" for plural in plurals[2:]]
    paths += [f"/apis/rbac.authorization.k8s.io/v1/{plural}" for plural in ("clusterroles", "clusterrolebindings")]
    paths += [f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}/{plural}" for plural in plurals[:2]]
    paths += [f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"]
    paths += [
        f"/apis/admissionregistration.k8s.io/v1/{plural}"
        for plural in (
            "validatingwebhookconfigurations",
            "mutatingwebhookconfigurations",
            "validatingadmissionpolicies",
            "validatingadmissionpolicybindings",
        )
    ]
    names = [f"{path}/{plural['metadata']['name']}" for path in paths for plural in api.items(path)]
    return {name for name in names if "headroom" in name.rpartition("/")[2] or "lock." in name}


async def test_installed_at_work_and_removed_without_a_trace(
    cluster: Cluster, api: Api, tenant: MakeTenant, tmp_path: Path
) -> None:
    port = free_ports(1)[0]
    since = (cluster.directory / "audit.log").stat().st_size
    remove(api, documents(ROOT / "deploy" / "rbac.yaml", ROOT / "deploy" / "policy.yaml"))  # what another test left
    forget(api)
    traces_at_start = traces(api)
    values = [
        *("--set", f"image.repository=registry.example.org/headroom,webhook.url=https://127.0.0.1:{port}"),
        *("--set", "webhook.replicas=1,estimate=harvester,policy.enabled=true"),
        *("--set", "controller.leaderElection.leaseDuration=3,controller.leaderElection.renewDeadline=2"),
        *("--set-json", "controller.leaderElection.retryPeriod=0.5"),
    ]
    helm(api, "install", "headroom", str(CHART), "--create-namespace", *values)
    node = Node(api, tmp_path, port)
    try:
        first_process, second = node.start("headroom-controller")
        node.start("headroom-webhook")
        leader = eventually(lambda: next((p for p in (first_process, second) if "holding the lease" in p.text()), None))
        namespace = await tenant()
        await namespace.vm()
        migration = await namespace.refused()
        await namespace.until_hard(RAISED)
        assert len(traces(api) - traces_at_start) > 15
        assert node.test() == "headroom works\n"
        leader.kill()
        await namespace.enter(migration, "Succeeded")
        await namespace.until_hard(HARD, seconds=60.0)
        node.programs.remove(leader)
        with ThreadPoolExecutor() as pool:
            uninstall = pool.submit(helm, api, "uninstall", "headroom", "--timeout", "120s")
            assert "released" in node.hook()
            uninstall.result()
    finally:
        for program in node.programs:
            program.kill()
    assert traces(api) == traces_at_start
    assert SKIP not in await namespace.annotations()
    assert [r for r in requests(cluster.directory, since) if r.is_denied] == []
