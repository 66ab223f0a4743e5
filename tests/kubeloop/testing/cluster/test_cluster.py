"""The real thing: etcd, kube-apiserver, kube-controller-manager and kwok."""

import ssl
import subprocess
import time
import urllib.error
import urllib.request
from typing import Any

import pytest

from kubeloop.api.registry import CONFIG_MAPS, ROLE_BINDINGS, ROLES, SECRETS
from kubeloop.client.client import Client, own_user
from kubeloop.client.errors import Forbidden
from kubeloop.client.loading import load_config
from kubeloop.testing.cluster import processes
from kubeloop.testing.cluster.binaries import components_of
from kubeloop.testing.cluster.cluster import Cluster, status
from kubeloop.testing.cluster.control_plane import SERVERS
from kubeloop.testing.cluster.versions import ETCD, KWOK, minor_release
from kubeloop.testing.polling import eventually
from tests.e2e.api import Api, ApiFailure

pytestmark = pytest.mark.cluster


@pytest.fixture
def api(cluster: Cluster) -> Api:
    return Api(cluster.kubeconfig)


@pytest.fixture
def namespace(api: Api, request: pytest.FixtureRequest) -> str:
    name: str = "t-" + str(abs(hash(request.node.nodeid)))[:12]
    api.create("/api/v1/namespaces", {"metadata": {"name": name}})
    # A pod is refused before the service-account controller has been round, as in any cluster.
    assert eventually(lambda: api.find(f"/api/v1/namespaces/{name}/serviceaccounts/default"))
    return name


def _pod(name: str, cpu: str, **metadata: Any) -> dict[str, Any]:
    container = {"name": "compute", "image": "virt-launcher", "resources": {"limits": {"cpu": cpu}}}
    return {
        "metadata": {"name": name, **metadata},
        "spec": {
            "nodeName": "node-1",
            "containers": [container],
            "readinessGates": [{"conditionType": "kubevirt.io/virtual-machine-unpaused"}],
        },
    }


def _used(api: Api, namespace: str) -> str:
    quota = api.get(f"/api/v1/namespaces/{namespace}/resourcequotas/q")
    used: str = quota.get("status", {}).get("used", {}).get("limits.cpu", "")
    return used


def test_it_is_ready_and_says_what_runs(cluster: Cluster, api: Api) -> None:
    state = status(cluster.directory)
    assert (state.ready, state.url) == (True, cluster.url)
    assert {*SERVERS} <= state.processes.keys()
    assert state.kubeconfig == str(cluster.kubeconfig)
    _, kubernetes, _ = components_of()
    version = api.get("/version")
    assert (
        minor_release(version["gitVersion"])
        == minor_release(kubernetes.version)
        == f"{version['major']}.{version['minor']}"
    )
    assert cluster.versions == state.versions == {"kubernetes": version["gitVersion"], "etcd": ETCD, "kwok": KWOK}


def test_it_listens_on_loopback_only(cluster: Cluster) -> None:
    port = int(cluster.url.rpartition(":")[2])
    listening = subprocess.run(["cat", "/proc/net/tcp", "/proc/net/tcp6"], capture_output=True, text=True).stdout
    on_port = [line.split()[1] for line in listening.splitlines() if f":{port:04X} " in line and " 0A " in line]
    assert on_port == [f"0100007F:{port:04X}"]


def test_without_a_certificate_nothing_is_shown(cluster: Cluster) -> None:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(f"{cluster.url}/api/v1/namespaces", context=context)
    assert caught.value.code == 403
    caught.value.close()


def test_kwok_runs_a_pod_and_quota_counts_it_until_its_end(api: Api, namespace: str) -> None:
    pods = f"/api/v1/namespaces/{namespace}/pods"
    quota = {"metadata": {"name": "q"}, "spec": {"hard": {"limits.cpu": "3"}}}
    api.create(f"/api/v1/namespaces/{namespace}/resourcequotas", quota)
    assert eventually(lambda: _used(api, namespace) == "0")
    api.create(pods, _pod("first", "2"))
    assert eventually(lambda: api.get(f"{pods}/first")["status"]["phase"] == "Running")
    pod = api.get(f"{pods}/first")
    unpaused = {"Ready", "kubevirt.io/virtual-machine-unpaused"}
    assert unpaused <= {c["type"] for c in pod["status"]["conditions"] if c["status"] == "True"}
    with pytest.raises(ApiFailure, match=r"exceeded quota: q, requested: limits.cpu=2, used: limits.cpu=2") as caught:
        api.create(pods, _pod("second", "2"))
    assert caught.value.status == 403
    pod["status"]["phase"] = "Succeeded"
    api.replace(f"{pods}/first/status", pod)
    assert eventually(lambda: _used(api, namespace) == "0")
    time.sleep(0.3)
    assert api.get(f"{pods}/first")["status"]["phase"] == "Succeeded"


def test_a_deleted_pod_is_gone_unless_a_finalizer_holds_it(api: Api, namespace: str) -> None:
    pods = f"/api/v1/namespaces/{namespace}/pods"
    api.create(pods, _pod("free", "1"))
    api.create(pods, _pod("held", "1", finalizers=["example.org/held"]))
    for name in ("free", "held"):
        api.delete(f"{pods}/{name}")
    assert eventually(lambda: api.find(f"{pods}/free") is None)
    time.sleep(0.3)
    assert api.get(f"{pods}/held")["metadata"]["finalizers"] == ["example.org/held"]


def test_the_nodes_asked_for_are_ready(api: Api) -> None:
    nodes = {node["metadata"]["name"]: node for node in api.get("/api/v1/nodes")["items"]}
    assert {"node-1", "node-2", "node-3"} <= nodes.keys()
    assert nodes["node-1"]["status"]["allocatable"]["pods"] == "1k"
    assert "taints" not in nodes["node-1"]["spec"]


def test_a_restarted_process_is_another_one_and_does_its_work(cluster: Cluster, api: Api) -> None:
    """The parameters leave kwok out: 0.7.0 can crash as it starts, when its first node and its first pod come at the
    same moment."""
    name = "kube-controller-manager"
    old_process = processes.find(cluster.directory, name)
    new_process = cluster.restart(name)
    assert (old_process.alive(), new_process.alive()) == (False, True)
    api.create("/api/v1/namespaces", {"metadata": {"name": "after-restart"}})
    account = "/api/v1/namespaces/after-restart/serviceaccounts/default"
    assert eventually(lambda: api.find(account))


async def test_a_user_has_the_rights_of_his_name_and_groups_alone(cluster: Cluster, namespace: str) -> None:
    role = {
        "metadata": {"name": "reads"},
        "rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list"]}],
    }
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "dev"}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reads"}
    binding = {"metadata": {"name": "reads"}, "subjects": [subject], "roleRef": reference}
    async with Client(load_config(str(cluster.kubeconfig))) as admin:
        await admin.resource(ROLES).create(role, namespace=namespace)
        await admin.resource(ROLE_BINDINGS).create(binding, namespace=namespace)
    async with (
        Client(load_config(str(cluster.user("bob", groups=["dev"])))) as bob,
        Client(load_config(str(cluster.user("bob")))) as alone,
    ):
        assert await own_user(bob) == await own_user(alone) == "bob"
        await bob.resource(CONFIG_MAPS).list(namespace)
        for refused in (bob.resource(SECRETS).list(namespace), alone.resource(CONFIG_MAPS).list(namespace)):
            with pytest.raises(Forbidden, match='User "bob" cannot list'):
                await refused
