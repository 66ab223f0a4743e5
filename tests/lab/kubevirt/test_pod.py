"""Launcher and attachment pods, compared with those that KubeVirt's own controllers left."""

import re
from typing import Any

import msgspec
import pytest

from kubeloop.api.core import Pod
from lab.kubevirt.objects import VirtualMachineInstance, VirtualMachineInstanceMigration
from lab.kubevirt.pod import attachment_pod, generated_names, host_name, hotplugged_volumes, launcher_pod, vmi_id
from lab.namespace import by_value
from lab.record import RESOURCES
from pkg.util.kubevirt.profiles import PROFILES
from pkg.util.kubevirt.rendering import Rendering
from pkg.util.quotacount.usage import pod_usage
from tests.lab.kubevirt.samples import HOTPLUG_VOLUME, launcher, running, vmi, vmim
from tests.pkg.util.vectors import recorded

VM1 = recorded("virtualmachineinstance-t1-vm1")
M1 = recorded("virtualmachineinstancemigration-t1-m1")
BEFORE = {**VM1, "metadata": {**VM1["metadata"], "labels": {}, "annotations": {}}}
"""The VMI as it was when its first pod was rendered."""
DURING = {
    **VM1,
    "metadata": {
        **VM1["metadata"],
        "labels": {"kubevirt.io/nodeName": "node-1"},
        "annotations": {
            **VM1["metadata"]["annotations"],
            "harvesterhci.io/migrationState": "Pending migration",
            "harvesterhci.io/migrationUID": M1["metadata"]["uid"],
        },
    },
}
"""The VMI as it was when the target's pod was rendered."""
SPEC = (
    "nodeName restartPolicy hostname automountServiceAccountToken enableServiceLinks readinessGates"
    " terminationGracePeriodSeconds"
)
CASES: dict[str, tuple[dict[str, Any], str, str, bool]] = {
    "the source": (BEFORE, "pod-t1-virt-launcher-vm1-t8vc9", "node-1", False),
    "the target": (DURING, "pod-t1-virt-launcher-vm1-hq9zx", "node-2", True),
}


def rendered(
    body: dict[str, Any], node: str, *, target: bool, ratio: str = "", profile: str = "main"
) -> dict[str, Any]:
    instance = msgspec.convert(body, VirtualMachineInstance)
    migration = msgspec.convert(M1, VirtualMachineInstanceMigration) if target else None
    return launcher_pod(instance, Rendering(ratio, PROFILES[profile]), node, migration)


@pytest.mark.parametrize(("body", "name", "node", "target"), CASES.values(), ids=CASES.keys())
def test_a_launcher_is_kubevirt_s(body: dict[str, Any], name: str, node: str, target: bool) -> None:
    pod_here, kubevirt_pod = rendered(body, node, target=target), recorded(name)
    expected = dict(kubevirt_pod["metadata"]["annotations"])
    expected.pop("kubevirt.io/migration-target-ready-timestamp", None)  # Written later, by the migration.
    assert pod_here["metadata"]["annotations"] == expected
    for field in ("labels", "ownerReferences", "generateName"):
        assert pod_here["metadata"][field] == kubevirt_pod["metadata"][field], field
    for field in SPEC.split():
        assert pod_here["spec"][field] == kubevirt_pod["spec"][field], field
    assert pod_here["spec"]["nodeSelector"].items() <= kubevirt_pod["spec"]["nodeSelector"].items()
    containers, usage = zip(*(counted(pod) for pod in (pod_here, kubevirt_pod)), strict=True)
    assert containers[0] == containers[1]
    assert usage[0] == usage[1]


def counted(pod: dict[str, Any]) -> tuple[list[tuple[str, Any]], Any]:
    """Its containers, and what quota counts. Without a status: a recorded source has ended, and does not count."""
    groups = (pod["spec"]["containers"], pod["spec"]["initContainers"])
    containers = [(container["name"], container.get("restartPolicy")) for group in groups for container in group]
    return containers, pod_usage(msgspec.convert({**pod, "status": {}}, Pod))


def test_the_ratio_raises_the_overhead_as_recorded() -> None:
    expected = recorded("pod-t2-virt-launcher-vm2-gcg5l")["metadata"]["annotations"]
    annotations = rendered(BEFORE, "node-1", target=False, ratio="1.5")["metadata"]["annotations"]
    assert annotations["kubevirt.io/memory-overhead-bytes"] == expected["kubevirt.io/memory-overhead-bytes"]


@pytest.mark.parametrize(("ratio", "memory"), [("1.5", "4797464313"), ("4.5", "5682461313")])
def test_the_pod_counts_what_the_seeds_saw(ratio: str, memory: str) -> None:
    usage = pod_usage(msgspec.convert(rendered(BEFORE, "node-1", target=False, ratio=ratio, profile="1.8"), Pod))
    assert {name: usage[name] for name in RESOURCES} == by_value({"limits.cpu": "2015m", "limits.memory": memory})


def test_what_a_vmi_says_about_scheduling_is_kept() -> None:
    spec = {
        "nodeSelector": {"zone": "a"},
        "tolerations": [{"operator": "Exists"}],
        "priorityClassName": "high",
        "hostname": "host.example",
        "subdomain": "sub",
        "terminationGracePeriodSeconds": 0,
    }
    instance = vmi(spec=spec)
    migration = vmim(spec={"addedNodeSelector": {"kubernetes.io/hostname": "node-3"}})
    pod = launcher_pod(instance, Rendering(), "node-3", migration)["spec"]
    assert pod["nodeSelector"] == {
        "kubernetes.io/hostname": "node-3",
        "kubernetes.io/arch": "amd64",
        "kubevirt.io/schedulable": "true",
        "zone": "a",
    }
    assert (pod["tolerations"], pod["priorityClassName"]) == (spec["tolerations"], "high")
    assert (pod["hostname"], pod["subdomain"], pod["terminationGracePeriodSeconds"]) == ("host", "sub", 30)


def test_the_longest_vm_name_gives_valid_names_and_labels() -> None:
    instance = vmi("v" * 250)
    pod = launcher_pod(instance, Rendering(), "node-1")
    assert len(pod["metadata"]["name"]) == 63
    assert len(pod["spec"]["hostname"]) == 63
    labels = {key: value for key, value in pod["metadata"]["labels"].items() if key != "kubevirt.io/created-by"}
    assert all(len(value) <= 63 for value in labels.values())
    assert pod["metadata"]["annotations"]["kubevirt.io/domain"] == "v" * 250


def test_an_attachment_pod_belongs_to_its_launcher_and_migration() -> None:
    target = launcher("target", node="node-2", job="m1")
    pod = attachment_pod(target, [], Rendering(), vmim())
    meta = pod["metadata"]
    assert meta["name"].startswith("hp-volume-")
    assert meta["labels"] == {"kubevirt.io": "hotplug-disk", "kubevirt.io/migrationJobUID": "uid-m1"}
    assert meta["annotations"] == {"kubevirt.io/migrationJobName": "m1"}
    assert [(ref["kind"], ref["name"], ref["uid"]) for ref in meta["ownerReferences"]] == [
        ("Pod", "target", "uid-target")
    ]
    assert pod["spec"]["nodeName"] == "node-2"


HOTPLUG: dict[str, tuple[dict[str, Any], list[str]]] = {
    "a hotplugged claim": (HOTPLUG_VOLUME, ["extra-claim"]),
    "a hotplugged DataVolume: its claim has its name": (
        {"name": "v", "dataVolume": {"name": "d", "hotpluggable": True}},
        ["d"],
    ),
    "a claim that was there from the start": ({"name": "root", "persistentVolumeClaim": {"claimName": "c"}}, []),
    "another volume": ({"name": "cloudinit", "cloudInitNoCloud": {}}, []),
}


@pytest.mark.parametrize(("volume", "claims"), HOTPLUG.values(), ids=HOTPLUG.keys())
def test_the_claims_of_what_was_plugged_in(volume: dict[str, Any], claims: list[str]) -> None:
    body = attachment_pod(launcher(), hotplugged_volumes(running(spec={"volumes": [volume]})), Rendering())["spec"][
        "volumes"
    ]
    assert body == [{"name": volume["name"], "persistentVolumeClaim": {"claimName": claim}} for claim in claims]


# ---- names


def test_generated_names_follow_from_the_uid() -> None:
    names, again = ([generated_names("a-", f"uid-{number}")["name"] for number in range(500)] for _ in range(2))
    assert names == again
    assert len(set(names)) == 500
    assert all(re.fullmatch(r"a-[bcdfghjklmnpqrstvwxz2456789]{5}", name) for name in names)
    assert len(generated_names("b" * 70, "uid")["name"]) == 63


@pytest.mark.parametrize(
    ("name", "host"),
    [("vm1", "vm1"), ("vm1.example", "vm1"), ("v" * 70, "v" * 63), ("v" * 62 + "-w", "v" * 62)],
    ids=["a name", "the first part of one with dots", "a long one", "a long one whose cut would end in a hyphen"],
)
def test_host_name(name: str, host: str) -> None:
    assert host_name(name) == host


def test_a_long_vmi_name_s_id_is_kubevirt_s() -> None:
    """KubeVirt 1.7: 54 characters, a hyphen, and eight of the name's SHA-1."""
    assert vmi_id("a" * 64) == "a" * 54 + "-0098ba82"
