"""`headroom release` against a scripted API server: what it asks, what it writes, what it says."""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from kubeloop.api import registry
from kubeloop.testing.fake.patches import json_patched
from kubeloop.testing.scripted_server import DELETE, GET, LIST, PATCH, POST, PUT, Reply, body, listing, slow, status
from pkg.api.kubevirt import VIRTUAL_MACHINE_INSTANCES
from tests.decisions import sentences
from tests.pkg.cmd.rig import Call, ThreadedServer

QUOTAS = registry.RESOURCE_QUOTAS.path()
LOCKS = registry.VALIDATING_WEBHOOK_CONFIGURATIONS.path()
SKIP = "harvesterhci.io/skipResourceQuotaAutoScaling"
MARKS = {SKIP: "true", "headroom.harvesterhci.io/owner": "headroom"}
LIMITS = '{"limit":{"limitsCpu":"3","limitsMemory":"5000Mi"}}'


def quota(namespace: str, annotations: dict[str, str], hard: dict[str, str] | None = None) -> dict[str, Any]:
    labels = {"resourcequota.management.cattle.io/default-resource-quota": "true"}
    metadata = {"name": "q", "namespace": namespace, "uid": f"uid-{namespace}", "resourceVersion": "7"}
    return {
        "metadata": metadata | {"labels": labels, "annotations": annotations},
        "spec": {"hard": hard or {"limits.cpu": "3", "limits.memory": "5000Mi"}},
    }


def serve_quotas(server: ThreadedServer, *quotas: dict[str, Any]) -> None:
    """A cluster with these quotas, without KubeVirt."""
    server.server.always(LIST, QUOTAS, listing(quotas, "10"))
    server.server.always(LIST, registry.NAMESPACES.path(), listing([], "10"))
    server.server.always(LIST, registry.VALIDATING_WEBHOOK_CONFIGURATIONS.path(), listing([], "10"))
    for rq in quotas:
        name = rq["metadata"]["namespace"]
        annotations = {"field.cattle.io/resourceQuota": LIMITS}
        stored = {"metadata": {"name": name, "uid": name, "resourceVersion": "1", "annotations": annotations}}
        server.server.always(GET, registry.NAMESPACES.path(name=name), body(stored))
        server.server.always(PATCH, registry.RESOURCE_QUOTAS.path(name, "q"), body(rq))


def test_what_is_ours_is_given_back_with_one_patch_each(server: ThreadedServer, call: Call, kubeconfig: str) -> None:
    raised = {"limits.cpu": "5", "limits.memory": "9980344313"}
    entry = {"harvesterhci.io/migrating-gone": '{"limits.cpu":"2","limits.memory":"4737464313"}'}
    quotas = {"a": quota("a", MARKS), "b": quota("b", {}), "c": quota("c", MARKS | entry, raised)}
    quotas["d"] = quota("d", {SKIP: "true"})
    serve_quotas(server, *quotas.values())
    result = call("release", "--kubeconfig", kubeconfig)
    assert result.code == 0, result.err
    assert result.out.splitlines() == ["released a/q", "released c/q", "2 resource quotas released"]
    patches = {request.path.split("/")[4]: request.json for request in server.seen(PATCH)}
    assert len(server.seen(PATCH)) == len(patches)
    order = {"harvesterhci.io/migratingScalingResyncNeeded": "true"}
    patched_quotas = {name: json_patched(quotas[name], operations) for name, operations in patches.items()}
    assert patched_quotas == {"a": quota("a", order), "c": quota("c", order)}


@pytest.mark.parametrize("arguments", [[], ["--namespace", "typo"]], ids=["none", "another"])
def test_a_controller_is_looked_for_in_the_usual_namespaces(
    arguments: list[str], server: ThreadedServer, call: Call, kubeconfig: str
) -> None:
    serve_quotas(server, quota("a", MARKS))
    usual = registry.LEASES.path("headroom-system", "headroom")
    server.server.always(GET, usual, body(lease("pod-0", 1)))
    result = call("release", *arguments, "--kubeconfig", kubeconfig)
    assert (result.code, server.seen(PATCH)) == (1, [])
    lines = result.said_in_one_line()
    assert "pod-0 runs and holds the Lease headroom-system/headroom" in lines
    assert "--namespace headroom-system" in lines


LEASE = registry.LEASES.path("own", "headroom")


def lease(holder: str | None, ago: float) -> dict[str, Any]:
    renewed = datetime.fromtimestamp(time.time() - ago, UTC).isoformat()
    spec = {"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": renewed}
    metadata = {"name": "headroom", "namespace": "own", "resourceVersion": "1"}
    return {"metadata": metadata, "spec": {name: value for name, value in spec.items() if value}}


def test_the_lease_stays_removed(server: ThreadedServer, call: Call, kubeconfig: str) -> None:
    """It is renewed while the last event is written, and would be made anew after it was removed."""
    raised = {"limits.cpu": "5", "limits.memory": "9980344313"}
    entry = {"harvesterhci.io/migrating-vm1": '{"limits.cpu":"2","limits.memory":"4737464313"}'}
    serve_quotas(server, quota("a", MARKS | entry, raised))
    server.lists(VIRTUAL_MACHINE_INSTANCES, {"metadata": {"name": "vm1", "namespace": "a", "uid": "u"}}, namespace="a")
    server.server.always(POST, registry.EVENTS.path("a"), slow(0.5, body({"metadata": {"name": "e"}})))
    server.server.always(GET, LEASE, status(404, "NotFound"))
    server.server.always(POST, registry.LEASES.path("own"), body(lease(None, 0)))
    server.server.always(PUT, LEASE, status(404, "NotFound"))
    server.server.always(DELETE, LEASE, body({}))
    flags = ["--namespace", "own", "--leader-elect", "--leader-elect-retry-period", "0.1"]
    result = call("release", *flags, "--kubeconfig", kubeconfig)
    assert "removed Lease headroom" in result.out, result.err
    (removed,) = server.seen(DELETE, LEASE)
    assert server.seen(POST, registry.EVENTS.path("a"))
    assert max(request.at for request in server.seen(POST, registry.LEASES.path("own"))) < removed.at + 0.1


UNKNOWN = "whether a controller runs is not known: there is no Lease headroom in own, "
RUNS = "pod-0 runs and holds the Lease own/headroom: stop it first"
BESIDE: dict[str, tuple[Callable[[], Reply], list[str], int, str]] = {
    "one runs": (lambda: body(lease("pod-0", 1)), [], 1, RUNS),
    "one runs, and only the webhooks shall go": (lambda: body(lease("pod-0", 1)), ["--only", "webhooks"], 1, RUNS),
    "one runs, whatever": (lambda: body(lease("pod-0", 1)), ["--force"], 0, ""),
    "one ran": (lambda: body(lease("pod-0", 20)), [], 0, ""),
    "one has ended": (lambda: body(lease(None, 1)), [], 0, ""),
    "there is no Lease": (lambda: status(404, "NotFound"), [], 0, UNKNOWN),
    "the Lease may not be read": (lambda: status(403, "Forbidden"), [], 0, UNKNOWN),
}


@sentences(BESIDE)
def test_beside_a_controller_that_runs_nothing_is_released(
    case: tuple[Callable[[], Reply], list[str], int, str], server: ThreadedServer, call: Call, kubeconfig: str
) -> None:
    lease_reply, flags, code, lines = case
    serve_quotas(server, quota("a", MARKS))
    server.server.always(GET, LEASE, lease_reply())
    result = call("release", *flags, "-v", "--namespace", "own", "--kubeconfig", kubeconfig)
    assert (result.code, lines in result.err) == (code, True), result.err
    assert bool(server.seen(PATCH)) is (code == 0)
    assert (UNKNOWN in result.err) is (lines == UNKNOWN)


def test_an_account_that_may_not_read_is_one_line_and_exit_1(
    server: ThreadedServer, call: Call, kubeconfig: str
) -> None:
    serve_quotas(server, quota("a", MARKS))
    server.server.always(LIST, QUOTAS, status(403, "Forbidden", 'User "u" cannot do that'))
    result = call("release", "--kubeconfig", kubeconfig)
    assert (result.code, result.said_in_one_line()) == (1, 'User "u" cannot do that')


def test_a_quota_that_may_not_be_written_is_named(server: ThreadedServer, call: Call, kubeconfig: str) -> None:
    serve_quotas(server, quota("a", MARKS), quota("b", MARKS))
    server.server.always(PATCH, "/api/v1/namespaces/a/resourcequotas/q", status(403, "Forbidden", "nobody may"))
    result = call("release", "--kubeconfig", kubeconfig)
    assert result.code == 1
    assert result.out.splitlines() == ["released b/q", "1 resource quotas released"]
    assert "not released a/q: nobody may" in result.err.splitlines()


PARTS: dict[str, tuple[list[str], set[str]]] = {
    "webhooks": (["nothing to release"], set()),
    "locks": (["nothing to release"], {LOCKS, QUOTAS}),
    "quotas": (["released a/q", "1 resource quotas released"], {LOCKS, QUOTAS}),
}


@pytest.mark.parametrize("only", PARTS)
def test_one_part_alone(only: str, server: ThreadedServer, call: Call, kubeconfig: str) -> None:
    lines, paths = PARTS[only]
    serve_quotas(server, quota("a", MARKS))
    result = call("release", "--only", only, "--kubeconfig", kubeconfig)
    assert (result.code, result.out.splitlines()) == (0, lines), result.err
    assert {request.path for request in server.seen(LIST)} & {LOCKS, QUOTAS} == paths


SECRETS: dict[str, tuple[dict[str, str], list[str], str, bool]] = {
    "headroom's own": ({"app.kubernetes.io/managed-by": "headroom"}, [], "headroom-webhook-tls", True),
    "headroom's own, by another name": (
        {"app.kubernetes.io/managed-by": "headroom"}, ["--secret-name", "tls"], "tls", True,
    ),
    "somebody else's, by the usual name": ({"made-by": "hand"}, [], "headroom-webhook-tls", False),
}  # fmt: skip


@sentences(SECRETS)
def test_only_the_secret_that_headroom_made_is_removed(
    case: tuple[dict[str, str], list[str], str, bool], server: ThreadedServer, call: Call, kubeconfig: str
) -> None:
    labels, flags, name, removed = case
    serve_quotas(server)
    path = registry.SECRETS.path("own", name)
    server.server.always(GET, path, body({"metadata": {"name": name, "uid": "u", "labels": labels}}))
    server.server.always(DELETE, path, body({}))
    result = call("release", *flags, "--namespace", "own", "--kubeconfig", kubeconfig)
    assert (result.code, f"removed Secret {name}" in result.out.splitlines()) == (0, removed), result.err
    assert [request.json["preconditions"] for request in server.seen(DELETE, path)] == [{"uid": "u"}] * removed


def test_the_replicas_are_stopped_first(server: ThreadedServer, call: Call, kubeconfig: str) -> None:
    serve_quotas(server, quota("a", MARKS))
    scale, pods = "/apis/apps/v1/namespaces/own/deployments/it/scale", registry.PODS.path("own")
    server.server.always(PATCH, scale, body({"metadata": {"name": "it"}}))
    server.server.always(LIST, pods, listing([], "10"))
    server.server.script(LIST, pods, listing([{"metadata": {"name": "p", "namespace": "own"}}], "10"))
    stopped = ("--scale-down", "it", "--scale-down", "gone", "--namespace", "own")
    result = call("release", *stopped, "--kubeconfig", kubeconfig)
    assert result.code == 0, result.err
    assert "there is no deployment own/gone" in result.err
    assert [request.json for request in server.seen(PATCH, scale)] == [{"spec": {"replicas": 0}}]
    paths = [request.path for request in server.server.requests]
    assert paths.count(pods) == 2
    assert paths.index(scale) < paths.index(pods) < paths.index(registry.RESOURCE_QUOTAS.path("a", "q"))
