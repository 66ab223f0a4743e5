"""`headroom delta`: the seeds' numbers, all flags, and one clear line for whatever is wrong."""

import json
import subprocess
import sys
from typing import Any

import pytest

from pkg.util.resourcequota.policy import EstimateKind
from tests.decisions import sentences
from tests.pkg.cmd.delta_rig import Call, call
from tests.pkg.util import vectors

__all__ = ["call"]

RECORDED = vectors.FOLDER / "recorded" / f"{vectors.VMI}.json"


def vmi(name: str = "vm1", **domain: Any) -> str:
    metadata = {"namespace": "ns", "name": name}
    return json.dumps({"kind": "VirtualMachineInstance", "metadata": metadata, "spec": {"domain": domain}})


@pytest.mark.parametrize(
    ("flags", "overhead", "memory"),
    [
        pytest.param({}, 442497017, "4737464313", id="Harvester's default ratio"),
        pytest.param({"overhead_ratio": "4.5"}, 1327494017, "5622461313", id="ratio 4.5"),
        pytest.param({"kubevirt_profile": "v1.2.0"}, 401603041, "4696570337", id="a KubeVirt by its version"),
        pytest.param({"kubevirt_profile": "main"}, 473954537, "4768921833", id="a KubeVirt to come"),
        pytest.param({"arch": "arm64"}, 442497017, "4737464313", id="the VMI's own architecture beats it"),
    ],
)
def test_the_seeds_vm(call: Call, flags: dict[str, Any], overhead: int, memory: str) -> None:
    delta = {"limits.cpu": "2", "limits.memory": memory}
    expected = {"namespace": "t1", "name": "vm1", "overhead": overhead, "delta": delta}
    assert call(file=str(RECORDED), **flags) == [expected]
    assert (call.code, call.stderr) == (0, "")


def test_the_exact_estimate_is_what_the_seed_saw_quota_count(call: Call) -> None:
    (line,) = call(file=str(RECORDED), estimate=EstimateKind.EXACT)
    assert line["overhead"] == 442497017
    assert line["delta"] == {
        "count/pods": "1",
        "limits.cpu": "2015m",
        "limits.memory": "4797464313",
        "pods": "1",
        "requests.cpu": "130m",
        "requests.devices.kubevirt.io/kvm": "1",
        "requests.devices.kubevirt.io/tun": "1",
        "requests.devices.kubevirt.io/vhost-net": "1",
        "requests.ephemeral-storage": "50M",
        "requests.memory": "3340109497",
    }


def test_harvesters_overhead_leaves_networks_out(call: Call) -> None:
    bound: dict[str, Any] = {"devices": {"interfaces": [{"name": "a", "passtBinding": {}}]}}
    overheads = [
        call(vmi(**domain), estimate=estimate, overhead_ratio="1.0")[0]["overhead"]
        for domain in ({}, bound)
        for estimate in (EstimateKind.HARVESTER, EstimateKind.EXACT)
    ]
    assert [overhead - overheads[0] for overhead in overheads] == [0, 0, 0, 250 * 1024**2]


def test_the_vmis_own_architecture_counts_first(call: Call) -> None:
    document = json.loads(vmi())
    document["spec"]["architecture"] = "arm64"
    (of_its_own,) = call(json.dumps(document))
    (of_the_flag,) = call(json.dumps(document), arch="amd64")
    (of_arm,) = call(vmi(), arch="arm64")
    (usual,) = call(vmi())
    assert of_its_own["overhead"] == of_arm["overhead"] == of_the_flag["overhead"] > usual["overhead"]


def test_an_object_without_a_kind_that_looks_like_a_vmi_is_one(call: Call) -> None:
    (line,) = call('{"metadata": {"name": "a"}, "spec": {"domain": {}}}')
    assert line["name"] == "a"
    assert line["namespace"] == ""


def test_several_objects_come_out_in_their_order(call: Call) -> None:
    stdin = json.dumps({"kind": "List", "items": [json.loads(vmi(f"vm{n}")) for n in range(50)]})
    assert [line["name"] for line in call(stdin)] == [f"vm{n}" for n in range(50)]


NO_VM, VMI = "not VirtualMachineInstance or VirtualMachine", "VirtualMachineInstance ns/vm1: "
WORD_FOR_NUMBER = "Expected `int`, got `str` - at `$.spec.domain.cpu.cores`"
BAD: dict[str, tuple[str | bytes, str]] = {
    "another kind": ("kind: Secret\nmetadata: {namespace: ns, name: p}\n", f"Secret ns/p: {NO_VM}"),
    "a kind that is none": ("kind: 7\n", f"document 1: {NO_VM}"),
    "some other mapping": ("a: b\n", "document 1: not VirtualMachineInstance or"),
    "no spec": ('{"kind":"VirtualMachineInstance","spec":[]}', "document 1: no spec.domain"),
    "a quantity that is none": (
        vmi(resources={"limits": {"memory": "4 Gi"}}), f"{VMI}memory: '4 Gi' is not a quantity",
    ),
    "a quantity beyond reason": (
        vmi(resources={"requests": {"cpu": "1e9999999999999999999"}}),
        f"{VMI}cpu: '1e9999999999999999999' is out of range",
    ),
    "a word for a number": (vmi(cpu={"cores": "two"}), f"{VMI}{WORD_FOR_NUMBER}"),
    "a number beyond reason": (vmi(cpu={"cores": 10**400}), f"{VMI}int"),
    "half a document": ("{", "neither JSON nor YAML"),
    "binary garbage": (bytes(range(128, 256)), "not UTF-8 text"),
    "endless nesting": ("[" * 100_000, "nested too deeply"),
}  # fmt: skip


@sentences(BAD)
@pytest.mark.parametrize("estimate", list(EstimateKind))
def test_bad_input_is_one_line_that_names_the_object(
    call: Call, case: tuple[str | bytes, str], estimate: EstimateKind
) -> None:
    stdin, expected = case
    assert call(stdin, estimate=estimate) == []
    assert (call.code, call.stderr.count("\n")) == (1, 1)
    assert expected in call.stderr


def test_a_bad_vmi_does_not_end_a_run(call: Call) -> None:
    printed = call(f"{vmi('good')}\n{vmi('bad', resources={'limits': {'cpu': 'x'}})}\n{vmi('after')}\n")
    assert [line["name"] for line in printed] == ["good", "after"]
    assert call.code == 1
    assert "ns/bad" in call.stderr


def test_foreign_objects_are_skipped_with_one_note(call: Call) -> None:
    printed = call("kind: Secret\nmetadata: {name: a}\n---\n" + vmi() + "\n---\nkind: Service\nmetadata: {name: b}\n")
    assert [line["name"] for line in printed] == ["vm1"]
    assert call.stderr == "headroom: skipped: Secret a and 1 more, not VirtualMachineInstance or VirtualMachine\n"
    assert call.code == 0


def test_a_file_without_vms_says_so(call: Call) -> None:
    assert call(json.dumps({"kind": "ResourceQuota", "spec": {"hard": {"limits.cpu": "4"}}})) == []
    assert (call.code, call.stderr) == (1, "headroom: -: it has no VirtualMachineInstance or VirtualMachine\n")


SIZE = {"limits": {"cpu": "2", "memory": "4Gi"}, "requests": {"memory": "2730Mi"}}


def vm(**spec: Any) -> str:
    domain = {} if "instancetype" in spec else {"cpu": {"cores": 2}, "resources": SIZE}
    template = {"spec": {"domain": domain}}
    body = {"kind": "VirtualMachine", "metadata": {"name": "vm1"}, "spec": {"template": template, **spec}}
    return json.dumps({"apiVersion": "kubevirt.io/v1", **body})


@pytest.mark.parametrize("estimate", list(EstimateKind))
def test_a_vm_counts_as_the_vmi_that_it_becomes(call: Call, estimate: EstimateKind) -> None:
    (of_vm,) = call(vm(), estimate=estimate)
    (of_vmi,) = call(vmi(cpu={"cores": 2}, resources=SIZE), estimate=estimate)
    assert of_vm["delta"] == of_vmi["delta"]


def test_a_vm_of_an_instancetype_is_named_and_not_guessed(call: Call) -> None:
    assert call(vm(instancetype={"name": "u1.small"})) == []
    assert "VirtualMachine vm1: its instancetype u1.small is not before it: put it there" in call.stderr
    assert call.code == 1


def test_a_vm_counts_with_the_instancetype_before_it(call: Call) -> None:
    version, kind = "instancetype.kubevirt.io/v1beta1", "VirtualMachineClusterInstancetype"
    spec = {"cpu": {"guest": 2}, "memory": {"guest": "4Gi"}}
    small = {"apiVersion": version, "kind": kind, "metadata": {"name": "u1.small"}, "spec": spec}
    foreign = {**small, "apiVersion": "example.org/v1", "spec": {"cpu": {"guest": 64}}}
    given = "\n".join([json.dumps(small), json.dumps(foreign), vm(instancetype={"name": "u1.small"})])
    for release in ("1.5", "1.8"):  # virt-api filled in the request of memory, or virt-controller does
        (line,) = call(given, estimate=EstimateKind.EXACT, kubevirt_profile=release)
        (by_hand,) = call(
            vmi(cpu={"cores": 2}, memory={"guest": "4Gi"}), estimate=EstimateKind.EXACT, kubevirt_profile=release
        )
        assert line["delta"] == by_hand["delta"]
        assert int(line["delta"]["requests.memory"]) > 4 << 30


@sentences(
    {
        "its own": ("4Gi, overcommitPercent: 15", ".inf", "VirtualMachine vm1: cpu: 'inf' is not a quantity"),
        "the instancetype's": (".inf", "1", "VirtualMachine vm1: 'inf' is not a quantity"),
    },
    "guest, requested, fault",
)
def test_an_infinite_amount_costs_that_vm_alone(call: Call, guest: str, requested: str, fault: str) -> None:
    size = "kind: VirtualMachineClusterInstancetype\nmetadata: {name: x}\n"
    size += f"spec: {{cpu: {{guest: 2}}, memory: {{guest: {guest}}}}}\n"
    domain = f"{{resources: {{requests: {{cpu: {requested}}}}}}}"
    infinite = "kind: VirtualMachine\nmetadata: {name: vm1}\n"
    infinite += f"spec: {{instancetype: {{name: x}}, template: {{spec: {{domain: {domain}}}}}}}\n"
    lines = call("---\n".join([size, infinite, vmi("vm2")]), estimate=EstimateKind.EXACT)
    assert [line["name"] for line in lines] == ["vm2"]
    assert fault in call.stderr


@sentences(
    {
        "a model": ({"cpu": {"model": "host-passthrough"}}, "1015m"),
        "a model and requests": ({"cpu": {"model": "h"}, "resources": {"requests": {"cpu": "3"}}}, "3015m"),
        "limits": ({"resources": {"limits": {"cpu": "2"}}}, "2015m"),
        "nothing": ({}, "1015m"),
    }
)
def test_a_vmi_without_a_topology_gets_the_one_of_kubevirt(call: Call, case: tuple[dict[str, Any], str]) -> None:
    (line,) = call(vmi(**case[0]), estimate=EstimateKind.EXACT)
    assert line["delta"]["limits.cpu"] == case[1]


@pytest.mark.parametrize("text", ["utf-16", "utf-8-sig"])
def test_a_file_may_be_in_utf_16(call: Call, text: str) -> None:
    assert [line["name"] for line in call(vmi().encode(text))] == ["vm1"]


def test_fields_that_are_null_are_absent(call: Call) -> None:
    assert call(vmi(devices=None, cpu=None, resources=SIZE)) == call(vmi(resources=SIZE))


@pytest.mark.parametrize(
    "foreign",
    [
        {"apiVersion": "longhorn.io/v1beta2", "kind": "Setting", "value": "12"},
        {"apiVersion": "harvesterhci.io/v1beta1", "kind": "ResourceQuota", "spec": {"hard": {"pods": "1"}}},
        {"apiVersion": "example.org/v1", "kind": "Namespace"},
    ],
    ids=lambda foreign: foreign["kind"],
)
def test_kinds_are_told_apart_by_their_group(call: Call, foreign: dict[str, Any]) -> None:
    foreign["metadata"] = {"name": "additional-guest-memory-overhead-ratio", "namespace": "ns"}
    (alone,) = call(vmi(resources=SIZE), estimate=EstimateKind.EXACT)
    (estimated,) = call(json.dumps(foreign) + "\n" + vmi(resources=SIZE), estimate=EstimateKind.EXACT)
    assert estimated == alone


@sentences(
    {
        "a small ratio": ({"overhead_ratio": "0.9"}, 2, "from 1.0 to 10.0, not '0.9'"),
        "a large ratio": ({"overhead_ratio": "10.5"}, 2, "from 1.0 to 10.0, not '10.5'"),
        "a profile that is none": ({"kubevirt_profile": "newest"}, 2, "'newest'"),
        "an empty profile": ({"kubevirt_profile": ""}, 2, "''"),
        "a file that is not there": ({"file": "/no/missing.yaml"}, 1, "No such file"),
        "a directory": ({"file": "/"}, 1, "Is a directory"),
    }
)
def test_a_flag_that_cannot_be_is_one_line(call: Call, case: tuple[dict[str, str], int, str]) -> None:
    flags, code, expected = case
    assert call(vmi(), **flags) == []
    assert (call.code, call.stderr.count("\n")) == (code, 1)
    assert expected in call.stderr


@pytest.mark.parametrize("command", [["delta", "-f", "-"], ["usage", "-f", "-"], ["quantity"]], ids=lambda c: c[0])
def test_the_offline_commands_load_none_of_the_clients_libraries(command: list[str]) -> None:
    code = f"import sys; from pkg.cmd.main import run; run({command!r}); print(*sys.modules)"
    completed = subprocess.run([sys.executable, "-c", code], input="", capture_output=True, text=True, check=True)
    assert not {"aiohttp", "kubernetes", "yaml", "cryptography", "rich"} & set(completed.stdout.split())
