"""`headroom collect`: what it writes is what `explain --from` and `delta -f` read, and no secret is in it."""

import io
import json
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import to_builtins

from kubeloop.api import registry
from kubeloop.testing.scripted_server import GET, LIST, body, listing, raw, status
from pkg.api.harvesterhci import SETTINGS
from pkg.api.kubevirt import KUBEVIRTS, VIRTUAL_MACHINE_INSTANCE_MIGRATIONS, VIRTUAL_MACHINE_INSTANCES, VIRTUAL_MACHINES
from pkg.util.constants import WEBHOOK_CONFIGURATION_NAME
from tests.decisions import charged
from tests.fork_server import ForkedProcess
from tests.objects import HARD, MARKS, launcher, quota, vmi, vmim
from tests.pkg.cmd.rig import Call, Result, ThreadedServer
from tests.program import environment

NS = "ns1"
SECRET = "hunter2"
"""Planted wherever a tenant, or another program, can write."""
OWN = "headroom-system"
EARLIER = "2026-01-01T11:58:00Z"

LIMITED = HARD | {"requests.storage": "10Gi"}


def poisoned(document: dict[str, Any]) -> dict[str, Any]:
    """Returns the object with the secret in every place that is nobody's business here."""
    metadata = {**document.get("metadata", {})}
    metadata["annotations"] = {
        **(metadata.get("annotations") or {}),
        "kubectl.kubernetes.io/last-applied-configuration": json.dumps({"userData": SECRET}),
        "hooks.kubevirt.io/hookSidecars": json.dumps([{"args": [SECRET]}]),
        "harvesterhci.io/volumeClaimTemplates": SECRET,
        SECRET: SECRET,
    }
    metadata["labels"] = {**(metadata.get("labels") or {}), "tenant": SECRET}
    metadata["managedFields"] = [{"manager": SECRET}]
    condition = {"type": "Ready", "status": "True", "message": f"the guest said {SECRET}"}
    status_fields = {**document.get("status", {})}
    status_fields["conditions"] = [*(status_fields.get("conditions") or ()), condition]
    return {**document, "metadata": metadata, "status": status_fields, "data": {"password": SECRET}}


def instance() -> dict[str, Any]:
    document = poisoned(to_builtins(vmi(nodeName="node-1")))
    spec = document["spec"]
    cloud_init = {"userData": f"#cloud-config\npassword: {SECRET}", "secretRef": {"name": SECRET}}
    spec["volumes"] = [
        {"name": "cloudinit", "cloudInitNoCloud": cloud_init},
        {"name": "sysprep", "sysprep": {"secret": {"name": SECRET}}},
        {"name": "env", "secret": {"secretName": SECRET}},
        disk("old"),
    ]
    spec["accessCredentials"] = [{"userPassword": {"source": {"secret": {"secretName": SECRET}}}}]
    spec["livenessProbe"] = {"exec": {"command": ["login", SECRET]}}
    spec["domain"]["firmware"] = {"serial": SECRET, "kernelBoot": {"kernelArgs": SECRET}}
    return document


def disk(claim: str) -> dict[str, Any]:
    return {"name": "root", "persistentVolumeClaim": {"claimName": claim}}


def machine() -> dict[str, Any]:
    """It asks for its disk on another claim, which KubeVirt has not recorded yet."""
    template = poisoned({"spec": {**instance()["spec"], "volumes": [disk("new")]}})
    metadata = {"namespace": NS, "name": "vm1"}
    return poisoned({"metadata": metadata, "spec": {"updateVolumesStrategy": "Migration", "template": template}})


def claim(name: str) -> dict[str, Any]:
    resources = {"requests": {"storage": "10Gi"}}
    return poisoned({"metadata": {"namespace": NS, "name": name}, "spec": {"resources": resources}})


def pod() -> dict[str, Any]:
    document = poisoned(to_builtins(launcher()))
    for container in document["spec"]["containers"]:
        container["env"] = [{"name": "PASSWORD", "value": SECRET}]
        container["command"] = container["args"] = [SECRET]
    return document


def event(kind: str, message: str) -> dict[str, Any]:
    return {
        "metadata": {"name": f"of-{kind.lower()}", "namespace": NS},
        "involvedObject": {"kind": kind, "name": "vm1", "namespace": NS},
        "reason": "FailedCreate",
        "message": message,
        "lastTimestamp": "2026-01-01T11:59:00Z",
    }


def configuration(name: str) -> dict[str, Any]:
    webhook = {
        "name": f"pods.{WEBHOOK_CONFIGURATION_NAME}",
        "failurePolicy": "Fail",
        "clientConfig": {"url": f"https://127.0.0.1/validate-pod/{SECRET}"},
    }
    return {"metadata": {"name": name, "annotations": {"note": SECRET}}, "webhooks": [webhook]}


@pytest.fixture(autouse=True)
def scripted(server: ThreadedServer) -> None:
    script = server.server
    kubevirt = {
        "metadata": {"name": "kubevirt", "namespace": "kubevirt"},
        "spec": {"configuration": {"additionalGuestMemoryOverheadRatio": "1.5"}},
        "status": {"phase": "Deployed"},
    }
    annotation = '{"limit":{"limitsCpu":"3000m","limitsMemory":"9000Mi"}}'  # of which Rancher has granted 5000Mi
    annotations = {"field.cattle.io/resourceQuota": annotation, "field.cattle.io/projectId": "local:p-abcde"}
    namespace = {"metadata": {"name": NS, "annotations": annotations}}
    other_object = {"metadata": {"name": "other", "annotations": {"note": SECRET}}}
    own_pod = {"metadata": {"name": "headroom-controller-x", "namespace": OWN}}
    script.always(GET, "/version", body({"gitVersion": "v1.37.2"}))
    events = (
        event("VirtualMachineInstance", "exceeded quota: default-abc"),
        event("Pod", f"Liveness probe failed: {SECRET}"),
        event("VirtualMachineImage", f"cannot import from https://user:{SECRET}@example.org"),
    )
    server.lists(registry.RESOURCE_QUOTAS, poisoned(to_builtins(charged(quota(LIMITED, MARKS), [launcher()]))))
    server.lists(registry.PERSISTENT_VOLUME_CLAIMS, claim("old"), claim("new"), claim("another"))
    server.lists(VIRTUAL_MACHINES, machine())
    server.lists(VIRTUAL_MACHINE_INSTANCES, instance())
    server.lists(registry.PODS, pod())
    server.lists(registry.LIMIT_RANGES)
    server.lists(registry.EVENTS, *events)
    server.lists(VIRTUAL_MACHINE_INSTANCE_MIGRATIONS, poisoned(to_builtins(vmim(refused=True, created=EARLIER))))
    server.lists(registry.NAMESPACES, poisoned(namespace), other_object)
    script.always(GET, registry.NAMESPACES.path(name=NS), body(poisoned(namespace)))
    server.lists(KUBEVIRTS, poisoned(kubevirt))
    server.lists(SETTINGS)
    configurations = [configuration(WEBHOOK_CONFIGURATION_NAME), configuration("another")]
    server.lists(registry.VALIDATING_WEBHOOK_CONFIGURATIONS, *configurations)
    script.always(LIST, registry.PODS.path(OWN), listing([own_pod], "10"))
    script.always(LIST, registry.EVENTS.path(OWN), listing([], "10"))
    script.always(GET, f"{registry.PODS.path(OWN, 'headroom-controller-x')}/log", raw(b"a line\n"))


@pytest.fixture
def call(call: Call, kubeconfig: str) -> Call:
    def with_own(*arguments: str, **env: str) -> Result:
        own_arguments = ("--headroom-namespace", OWN) if arguments[0] in ("collect", "explain") else ()
        cluster = () if arguments[0] == "delta" else ("--kubeconfig", kubeconfig)
        return call(*arguments, *own_arguments, *cluster, **env)

    return with_own


def content(path: Path) -> dict[str, str]:
    """Returns the text of an archive or folder, by file name."""
    if path.is_dir():
        return {str(member.relative_to(path)): member.read_text() for member in path.rglob("*") if member.is_file()}
    with tarfile.open(path) as archive:
        members = [(member, archive.extractfile(member)) for member in archive.getmembers()]
        return {member.name.partition("/")[2]: (opened or io.BytesIO()).read().decode() for member, opened in members}


@pytest.mark.parametrize("name", ["folder", "archive.tar.gz"])
@pytest.mark.parametrize("namespaces", [(), ("-n", NS)], ids=["all", "one"])
def test_no_secret_is_in_it_and_all_that_is_needed_is(
    name: str, namespaces: tuple[str, ...], call: Call, server: ThreadedServer, tmp_path: Path
) -> None:
    result = call("collect", "-o", str(tmp_path / name), *namespaces)
    assert (result.code, result.err) == (0, "")
    files = content(tmp_path / name)
    assert files.keys() == {"about.json", "objects.jsonl", "more.jsonl", f"logs/{OWN}-headroom-controller-x.log"}
    for file, text in files.items():
        assert SECRET not in text, file
    kinds = {json.loads(line)["kind"] for file in files for line in files[file].splitlines() if "jsonl" in file}
    assert {"ResourceQuota", "VirtualMachineInstance", "VirtualMachineInstanceMigration", "Pod"} <= kinds
    assert "another" not in files["more.jsonl"] + files["objects.jsonl"]
    assert json.dumps("hooks.kubevirt.io/hookSidecars") + ':"[{}]"' in files["objects.jsonl"]  # they count
    requests = {(request.verb, request.path) for request in server.server.requests}
    assert {verb for verb, _ in requests} <= {GET, LIST, "create"}
    assert not any("secrets" in path for _, path in requests)


def test_it_can_be_read_by_its_owner_alone(call: Call, tmp_path: Path) -> None:
    for name in ("folder", "archive.tar.gz"):
        assert call("collect", "-o", str(tmp_path / name)).code == 0
        assert (tmp_path / name).stat().st_mode & 0o077 == 0


def test_it_leaves_a_pod_as_a_stream_with_a_page_beside_it(kubeconfig: str, tmp_path: Path) -> None:
    """`kubectl exec … -- headroom collect -o - > file`: nothing else is in it."""
    page, archive_path, err = tmp_path / "page.html", tmp_path / "out.tar.gz", tmp_path / "err"
    own_arguments = ("--headroom-namespace", OWN, "--kubeconfig", kubeconfig)
    arguments = ("collect", "-o", "-", "--html", str(page), *own_arguments)
    with archive_path.open("wb") as stream, err.open("wb") as errors:
        process = ForkedProcess(arguments, stream, errors, environment())
        assert process.wait() == 0, err.read_text()
    with tarfile.open(archive_path) as archive:
        assert "headroom-collect/about.json" in archive.getnames()
    assert page.read_text("utf-8").startswith("<!doctype html>")


def test_explain_says_the_same_of_the_folder_as_of_the_cluster(call: Call, tmp_path: Path) -> None:
    folder = tmp_path / "collected"
    assert call("collect", "-o", str(folder)).code == 0
    live, read = call("explain", f"{NS}/vm1"), call("explain", f"{NS}/vm1", "--from", str(folder))
    assert (read.code, read.out) == (0, live.out)
    assert "does not fit" in read.out
    assert "its volumes root move, so that 10.0Gi count twice" in read.out
    basis = json.loads(call("explain", f"{NS}/vm1", "--from", str(folder), "--mode", "assist", "-o", "json").out)[
        "basis"
    ]
    assert (basis["mode"], basis["source"]) == ("assist", "flags")


def test_kinds_that_another_version_collects_are_left_out(call: Call, tmp_path: Path) -> None:
    """Version 0.1.0 has ResourceClaims."""
    folder = tmp_path / "collected"
    assert call("collect", "-o", str(folder)).code == 0
    first_answer = call("explain", f"{NS}/vm1", "--from", str(folder))
    with (folder / "more.jsonl").open("a") as extra_file:
        extra_file.write('{"apiVersion":"resource.k8s.io/v1","kind":"ResourceClaim","metadata":{"name":"net"}}\n')
    assert call("explain", f"{NS}/vm1", "--from", str(folder)).out == first_answer.out != ""


def test_delta_reads_the_folder(call: Call, tmp_path: Path) -> None:
    folder = tmp_path / "collected"
    assert call("collect", "-o", str(folder)).code == 0
    result = call("delta", "-f", str(folder), "--estimate", "exact")
    assert (result.code, result.err) == (0, "")
    (line,) = [json.loads(line) for line in result.out.splitlines()]
    assert (line["namespace"], line["name"]) == (NS, "vm1")
    assert "limits.memory" in line["target"]


def test_logs_that_may_not_be_read_are_named(call: Call, server: ThreadedServer, tmp_path: Path) -> None:
    server.server.always(LIST, registry.PODS.path(OWN), status(403, "Forbidden", "pods is forbidden"))
    folder = tmp_path / "collected"
    assert call("collect", "-o", str(folder)).code == 0
    (missing,) = json.loads((folder / "about.json").read_text())["headroom"]["missing"]
    assert "logs of headroom-system: " in missing


WRONG = {
    "what is there is not overwritten": (["collect", "-o", "{folder}"], 2, "exists"),
    "a place that cannot be made": (["collect", "-o", "/dev/null/c.tar.gz"], 1, "/dev/null: File exists"),
    "a folder of something else": (["explain", f"{NS}/vm1", "--from", "{folder}"], 1, "holds no about.json"),
    "a namespace that is none": (["collect", "-n", "Not a name"], 2, "a namespace's name"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_call_is_one_line(case: str, call: Call, tmp_path: Path) -> None:
    arguments, code, message = WRONG[case]
    result = call(*(argument.format(folder=tmp_path) for argument in arguments))
    assert result.code == code
    assert message in result.said_in_one_line()


ODD: dict[str, Callable[[Path], None]] = {
    "a pipe": os.mkfifo,
    "a link to a device": lambda path: path.symlink_to("/dev/zero"),
}


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("name", ["about.json", "objects.jsonl", "more.jsonl"])
def test_a_folder_is_read_to_its_end(name: str, kind: str, call: Call, tmp_path: Path) -> None:
    """Nobody writes into the pipe, and the device has no end."""
    folder = tmp_path / "collected"
    assert call("collect", "-o", str(folder)).code == 0
    (folder / name).unlink()
    ODD[kind](folder / name)
    message = call("explain", f"{NS}/vm1", "--from", str(folder)).said_in_one_line()
    assert "holds no about.json" in message or f"{name}: it is missing, or a link, a pipe or a device" in message


@pytest.mark.parametrize("about", ["{}", "[" * 100_000], ids=["nothing in it", "nested beyond reason"])
def test_a_folder_that_was_edited_is_one_line(about: str, call: Call, tmp_path: Path) -> None:
    folder = tmp_path / "collected"
    assert call("collect", "-o", str(folder)).code == 0
    (folder / "about.json").write_text(about)
    assert (
        "not what `headroom collect` writes" in call("explain", f"{NS}/vm1", "--from", str(folder)).said_in_one_line()
    )
