"""`kubeloop structs`: what it writes decodes what the schema describes, is typed and formatted."""

import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from kubeloop.api.objects import difference, edit
from kubeloop.generate.__main__ import formatted
from kubeloop.generate.structs import Kind, kind_of_crd, structs
from kubeloop.testing.cluster.cluster import Cluster
from kubeloop.testing.schemas import check_struct, crd_schema

TEXT: dict[str, Any] = {"type": "string"}
PART = {"type": "object", "properties": {"name": TEXT}, "description": "A part. More of it."}
SPEC: dict[str, Any] = {
    "publicKey": TEXT,
    "podIP": TEXT,
    "templateId": TEXT,
    "global": TEXT,
    "IPv6-only": {"type": "boolean"},
    "port": {"x-kubernetes-int-or-string": True},
    "size": {"x-kubernetes-int-or-string": True, "pattern": "^[0-9](([KMGTPE]i)|[numkMGTPE])$"},
    "parts": {"type": "array", "items": PART},
    "byName": {"type": "object", "additionalProperties": PART},
    "other": {"type": "object", "properties": {"name": {"type": "integer"}}},
    "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
    "selector": {
        "type": "object",
        "properties": {"matchLabels": {"type": "object"}, "matchExpressions": {"type": "array"}},
    },
}
CONDITION = {"type": "object", "properties": {"type": TEXT, "status": TEXT, "reason": TEXT}}
CRD: dict[str, Any] = {
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "policies.example.org"},
    "spec": {
        "group": "example.org",
        "names": {"kind": "VMPolicy", "plural": "vmpolicies"},
        "scope": "Cluster",
        "versions": [
            {"name": "v1alpha1", "storage": False},
            {
                "name": "v1",
                "storage": True,
                "subresources": {"status": {}},
                "schema": {
                    "openAPIV3Schema": {
                        "properties": {
                            "apiVersion": TEXT,
                            "kind": TEXT,
                            "metadata": {"type": "object"},
                            "spec": {"type": "object", "properties": SPEC, "required": ["publicKey", "parts"]},
                            "status": {
                                "type": "object",
                                "properties": {"conditions": {"type": "array", "items": CONDITION}},
                            },
                            "data": {"type": "object", "additionalProperties": TEXT},
                            "key": TEXT,
                        }
                    }
                },
            },
        ],
    },
}
ROOT = Path(__file__).parents[3]
CRDS = sorted(path for path in (ROOT / "lab").rglob("*.yaml") if "kind: CustomResourceDefinition" in path.read_text())


def module(text: str) -> types.ModuleType:
    generated = types.ModuleType("generated")
    sys.modules["generated"] = generated  # msgspec looks annotations up there
    exec(compile(text, "generated.py", "exec"), generated.__dict__)
    return generated


def fields_of(text: str, struct: str) -> list[str]:
    lines = text.partition(f"class {struct}(")[2].partition("\n\n\n")[0].splitlines()[1:]
    return [line.strip() for line in lines if " = " in line and "ClassVar" not in line]


def test_each_type_of_field() -> None:
    text = formatted(structs([kind_of_crd(CRD)]))
    assert fields_of(text, "VMPolicySpec") == [
        'public_key: str = ""',
        "pod_ip: str | None = None",
        'template_id: str | None = msgspec.field(default=None, name="templateId")',
        "global_: str | None = None",
        'ipv6_only: bool | None = msgspec.field(default=None, name="IPv6-only")',
        "port: int | str | None = None",
        "size: RawQuantity | None = None",
        "parts: list[VMPolicyParts] = msgspec.field(default_factory=list)",
        "by_name: dict[str, VMPolicyParts] | None = None",
        "other: VMPolicyOther | None = None",
        "free: dict[str, Any] | None = None",
        "selector: LabelSelector | None = None",
    ]
    assert fields_of(text, "VMPolicy") == [
        "spec: VMPolicySpec = VMPolicySpec()",
        "status: VMPolicyStatus = VMPolicyStatus()",
        "data: dict[str, str] | None = None",
        "key_: str | None = None",
    ]
    assert '"""A part."""' in text
    assert fields_of(text, "VMPolicyStatus") == ["conditions: list[Condition] | None = None"]


def test_what_is_written_decodes_and_changes_as_the_schema_says() -> None:
    generated = module(structs([kind_of_crd(CRD)]))
    assert check_struct(generated.VMPolicy, crd_schema(CRD, "v1")) == []
    resource = generated.VM_POLICIES
    assert (resource.path("", "a"), resource.namespaced, resource.status_subresource) == (
        "/apis/example.org/v1/vmpolicies/a",
        False,
        True,
    )
    body = {"spec": {"global": "x", "IPv6-only": True, "parts": [{"name": "p"}]}, "key": "k"}
    policy = msgspec.json.decode(msgspec.json.encode(body), type=generated.VMPolicy)
    assert (policy.spec.global_, policy.spec.ipv6_only, policy.key_) == ("x", True, "k")
    parts = [*policy.spec.parts, generated.VMPolicyParts(name="q")]
    assert difference(policy, edit(policy, spec={"parts": parts})) == {
        "spec": {"parts": [{"name": "p"}, {"name": "q"}]}
    }, "all of a part is declared, so that a list of them can be written"


def test_only_some_fields() -> None:
    paths = ["VMPolicy.spec.publicKey", "spec.parts.name", "status"]
    text = structs([kind_of_crd(CRD)], paths)
    assert fields_of(text, "VMPolicySpec") == [
        'public_key: str = ""',
        "parts: list[VMPolicyParts] = msgspec.field(default_factory=list)",
    ]
    assert "whole" not in text.partition("class VMPolicySpec")[2].partition("\n\n\n")[0]
    assert fields_of(text, "VMPolicyStatus") == ["conditions: list[Condition] | None = None"]
    with pytest.raises(ValueError, match=r"not in the schema: spec\.publicKeys, Other\.spec"):
        structs([kind_of_crd(CRD)], ["spec.publicKeys", "Other.spec", "spec"])


def test_a_schema_that_refers_to_itself() -> None:
    definitions: dict[str, Any] = {
        "a.Props": {"properties": {"not": {"$ref": "#/a.Props"}, "size": {"allOf": [{"$ref": "#/a.Quantity"}]}}},
        "a.Quantity": {"oneOf": [TEXT, {"type": "number"}]},
    }
    schema = {"properties": {"spec": {"$ref": "#/a.Props"}}}
    generated = module(structs([Kind("", "v1", "things", "Thing", True, False, schema, definitions)]))
    thing = msgspec.json.decode(b'{"spec": {"not": {"not": {"size": 1}}}}', type=generated.Thing)
    assert thing.spec.not_.not_.size == 1


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kubeloop.generate", "structs", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_command_says_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "crd.yaml").write_text(yaml.safe_dump(CRD))
    for arguments, message in (
        (["-f", str(tmp_path / "none.yaml")], "No such file"),
        (["-f", str(tmp_path / "crd.yaml"), "--fields", "spec.x"], "not in the schema: spec.x"),
        (["-f", str(tmp_path / "crd.yaml"), "--kinds", "Other"], "no kind was found"),
    ):
        process = run(*arguments)
        assert (process.returncode > 0, process.stdout) == (True, "")
        assert message in process.stderr.splitlines()[-1]


SERVED = (
    "v1/Node",
    "v1/PersistentVolumeClaim",
    "v1/Service",
    "apps/v1/DaemonSet",
    "apps/v1/Deployment",
    "batch/v1/CronJob",
    "batch/v1/Job",
    "storage.k8s.io/v1/StorageClass",
    "apiextensions.k8s.io/v1/CustomResourceDefinition",
)


@pytest.mark.cluster
def test_structs_of_a_server_and_of_crds_are_typed(cluster: Cluster, tmp_path: Path) -> None:
    served = run("--kubeconfig", str(cluster.kubeconfig), "--served", ",".join(SERVED))
    assert served.returncode == 0, served.stderr
    (tmp_path / "served.py").write_text(served.stdout)
    files = [argument for path in CRDS for argument in ("-f", str(path))]
    text = run(*files)
    assert text.returncode == 0, text.stderr
    (tmp_path / "crds.py").write_text(text.stdout)
    for kind in SERVED:
        assert f"class {kind.rpartition('/')[2]}(Object):" in served.stdout
    assert len(CRDS) > 3
    for command in (["mypy", "--strict", "--cache-dir", str(tmp_path / ".mypy")], ["ruff", "check", "--isolated"]):
        options = ["--line-length", "200"] if command[0] == "ruff" else []
        process = subprocess.run(
            [sys.executable, "-m", *command, *options, tmp_path / "served.py", tmp_path / "crds.py"],
            cwd=ROOT, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert process.returncode == 0, process.stdout + process.stderr
    assert formatted(served.stdout) == served.stdout
    generated = module(served.stdout)
    assert generated.CRON_JOBS.status_subresource
    assert not generated.STORAGE_CLASSES.namespaced
