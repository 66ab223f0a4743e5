"""`headroom delta` with the cluster in its input: what KubeVirt rendered, and which object holds for which VMI."""

import itertools
import json
from collections.abc import Sequence
from typing import Any

import pytest

from kubeloop.api.core import Pod
from kubeloop.api.quantity import Quantity
from pkg.util.kubevirt.sides import ControlledPods
from pkg.util.resourcequota.policy import EstimateKind
from tests.decisions import sentences
from tests.pkg.cmd.delta_rig import Call, call
from tests.pkg.util.rendered import MODES, cases, counted

__all__ = ["call"]
Document = dict[str, Any]
VERSION = "v1.8.3"


@pytest.mark.parametrize("mode", MODES)
def test_the_target_is_what_kubevirt_renders(call: Call, mode: str) -> None:
    """Each VMI by the objects before it, in one input. The library's own test takes every case, this every fifth."""
    examples = list(itertools.islice(cases(mode), 0, None, 5))
    stdin = "".join(json.dumps(document) + "\n" for case in examples for document in case.documents)
    printed = call(stdin, estimate=EstimateKind.EXACT)
    assert (call.code, call.stderr) == (0, "")
    for case, line in zip(examples, printed, strict=True):
        quantities = {name: Quantity.parse(text) for name, text in line["target"].items()}
        assert quantities == counted(case.pods), case.id


def document(kind: str, name: str, namespace: str = "ns", **body: Any) -> Document:
    return {"kind": kind, "metadata": {"name": name, "namespace": namespace}, **body}


def kubevirt(version: str = VERSION, phase: str | None = "Deployed", **configuration: Any) -> Document:
    status = {"observedKubeVirtVersion": version} | ({"phase": phase} if phase else {})
    return document("KubeVirt", "kubevirt", "k", spec={"configuration": configuration}, status=status)


def ratio(value: str) -> Document:
    return {"kind": "Setting", "metadata": {"name": "additional-guest-memory-overhead-ratio"}, "value": value}


def quota(*names: str, name: str = "q", namespace: str = "ns") -> Document:
    return document("ResourceQuota", name, namespace, spec={"hard": dict.fromkeys(names, "1")})


def vmi(name: str = "vm1", namespace: str = "ns", limits: bool = True, **spec: Any) -> Document:
    resources = {"requests": {"cpu": "1", "memory": "1Gi"}}
    if limits:
        resources["limits"] = {"cpu": "2", "memory": "1Gi"}
    body = document("VirtualMachineInstance", name, namespace, spec={"domain": {"resources": resources}, **spec})
    body["metadata"]["uid"] = f"uid-{name}"
    return body | {"status": {"phase": "Running", "nodeName": "node1"}}


def pod(name: str = "p", *, node: str = "node1", cpu: str = "7", **metadata: Any) -> Document:
    """A launcher with one container of `cpu`; vm1 controls it unless another `owner` (a uid) or no `controller` is
    given. One of a pod is an attachment pod."""
    owner, controller = metadata.pop("owner", "uid-vm1"), metadata.pop("controller", True)
    is_attachment = owner == "uid-p"
    kind = "Pod" if is_attachment else "VirtualMachineInstance"
    body = document("Pod", name, spec={"nodeName": node}, status={"phase": metadata.pop("phase", "Running")})
    body["metadata"]["ownerReferences"] = [{"kind": kind, "name": "x", "uid": owner, "controller": controller}]
    body["metadata"]["labels"] = {"kubevirt.io": "hotplug-disk" if is_attachment else "virt-launcher"}
    body["metadata"].update(metadata)
    container = {"name": "injected", "resources": {"limits": {"cpu": cpu}, "requests": {"cpu": "1"}}}
    body["spec"]["containers"] = [container]
    return body


def targets(call: Call, *documents: Document, **flags: Any) -> list[dict[str, str]]:
    stdin = json.dumps({"kind": "List", "items": list(documents)})
    return [line["target"] for line in call(stdin, estimate=EstimateKind.EXACT, **flags)]


def overheads(call: Call, *documents: Document, **flags: Any) -> list[int]:
    stdin = json.dumps({"kind": "List", "items": list(documents)})
    return [line["overhead"] for line in call(stdin, **({"estimate": EstimateKind.EXACT} | flags))]


def test_an_object_holds_until_a_later_one_of_its_name(call: Call) -> None:
    limited = [
        "limits.memory" in target
        for target in targets(
            call,
            kubevirt(virtualMachineOptions={"disableSerialConsoleLog": {}}),
            vmi(limits=False),
            quota("limits.memory"),
            vmi(limits=False),
            quota("pods"),
            vmi(limits=False),
            quota("limits.memory", name="other"),
            vmi(limits=False),
            quota("limits.memory", namespace="elsewhere"),
            vmi(limits=False),
            vmi(limits=False, namespace="free"),
        )
    ]
    assert limited == [False, True, False, True, True, False]


def test_without_a_cluster_the_quota_limits_cpu_and_memory(call: Call) -> None:
    (alone,) = targets(call, vmi(limits=False))
    assert {"limits.cpu", "limits.memory"} <= alone.keys()


def test_where_the_ratio_comes_from(call: Call) -> None:
    """The KubeVirt object's, else the Setting's, else none where there is a KubeVirt object, else Harvester's."""
    lines = overheads(
        call, vmi(), ratio("3"), vmi(), kubevirt(additionalGuestMemoryOverheadRatio="2"), vmi(), kubevirt(), vmi()
    )
    (plain,) = overheads(call, kubevirt(), vmi())
    assert [round(overhead / plain, 3) for overhead in lines] == [1.5, 3.0, 2.0, 3.0]
    assert overheads(call, kubevirt(), vmi(), overhead_ratio="4")[0] // plain in (3, 4)


def test_harvesters_estimate_knows_the_setting_alone(call: Call) -> None:
    harvester = {"estimate": EstimateKind.HARVESTER}
    configured = kubevirt(additionalGuestMemoryOverheadRatio="2")
    with_setting = overheads(call, configured, ratio("3"), vmi(), **harvester)
    assert with_setting == overheads(call, vmi(), overhead_ratio="3", **harvester)
    assert overheads(call, configured, vmi(), **harvester) == overheads(call, vmi(), **harvester)


OLDER, NEWER = ({"creationTimestamp": f"2026-01-0{day}T00:00:00Z"} for day in (1, 2))


@pytest.mark.parametrize(
    ("documents", "counts"),
    [
        pytest.param([pod(), vmi()], True, id="the pod that the VMI controls, on its node"),
        pytest.param([pod(node="node2"), vmi()], False, id="a pod on another node: a target"),
        pytest.param([pod(owner="uid-other"), vmi()], False, id="another VMI's pod"),
        pytest.param([pod(controller=False), vmi()], False, id="a pod that it owns but does not control"),
        pytest.param([pod(phase="Succeeded"), vmi()], False, id="a pod that is over"),
        pytest.param([pod(namespace="other"), vmi()], False, id="a pod in another namespace"),
        pytest.param([pod(), vmi() | {"status": {"phase": "Scheduled", "nodeName": "node1"}}], False, id="none runs"),
        pytest.param([pod(), pod(owner="uid-other"), vmi()], False, id="a later pod of its name is there instead"),
        pytest.param([pod("new", **NEWER), pod("old", cpu="5", **OLDER), vmi()], True, id="the newest of two"),
        pytest.param([pod("new", cpu="5", **NEWER), pod("old", **OLDER), vmi()], False, id="not the older one"),
    ],
)
def test_which_pod_is_the_source(call: Call, documents: list[Document], counts: bool) -> None:
    (target,) = targets(call, *documents)
    assert (target["limits.cpu"] == "7") is counts


def test_the_attachment_pods_of_the_source_count(call: Call) -> None:
    volume = {"name": "d", "dataVolume": {"name": "c", "hotpluggable": True}}
    plugged = pod("hp", owner="uid-p", cpu="3")
    (target,) = targets(call, pod(uid="uid-p"), plugged, vmi(volumes=[volume]))
    assert (target["limits.cpu"], target["pods"]) == ("10", "2")


def test_pods_and_vmis_in_turn_take_no_longer_each(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """For each VMI its own pods alone are looked at."""
    looked_at: list[str] = []

    def counted(pods: Sequence[Pod]) -> ControlledPods:
        looked_at.extend(pod.name for pod in pods)
        return ControlledPods(pods)

    monkeypatch.setattr("pkg.cmd.delta.ControlledPods", counted)
    names = [f"vm{number}" for number in range(50)]
    pairs = [(pod(f"pod-of-{name}", owner=f"uid-{name}"), vmi(name)) for name in names]
    assert {target["limits.cpu"] for target in targets(call, *itertools.chain(*pairs))} == {"7"}
    assert looked_at == [f"pod-of-{name}" for name in names]


def test_limit_ranges_and_a_namespaces_label(call: Call) -> None:
    item = {"type": "Container", "default": {"memory": "5Gi"}}
    label = document("Namespace", "ns")
    label["metadata"] = {"name": "ns", "labels": {"alpha.kubevirt.io/auto-memory-limits-ratio": "3"}}
    quiet = kubevirt(virtualMachineOptions={"disableSerialConsoleLog": {}})
    ranged, limited = targets(
        call,
        quiet,
        document("LimitRange", "l", spec={"limits": [item]}),
        vmi(limits=False),
        quota("limits.memory"),
        label,
        vmi(limits=False),
    )
    assert ranged["limits.memory"] == "5Gi"
    assert Quantity.parse(limited["limits.memory"]) == Quantity.of(3 * Quantity.parse(limited["memory"]).value())


def test_a_runtime_class_adds_its_overhead(call: Call) -> None:
    kata = {"kind": "RuntimeClass", "metadata": {"name": "kata"}, "overhead": {"podFixed": {"cpu": "250m"}}}
    with_it, without = targets(call, kata, kubevirt(defaultRuntimeClass="kata"), vmi(), kubevirt(), vmi())
    difference = Quantity.parse(with_it["limits.cpu"]) - Quantity.parse(without["limits.cpu"])
    assert difference == Quantity.parse("250m")


def test_the_profile_follows_the_version(call: Call) -> None:
    earlier, since = overheads(call, kubevirt("v1.5.2"), vmi(), kubevirt("v1.6.0"), vmi())
    assert since - earlier == 16 * 1024**2
    forced = overheads(call, kubevirt("v1.5.2"), vmi(), kubevirt_profile="1.6")
    assert forced == [since]


def test_an_unknown_newer_version_is_named(call: Call) -> None:
    newer = kubevirt("v1.11.2")
    at_known_ratio = overheads(call, vmi(), kubevirt_profile="main", overhead_ratio="1.0")
    assert overheads(call, newer, vmi()) == at_known_ratio
    overheads(call, newer, vmi(), vmi())
    assert call.stderr == "headroom: KubeVirt v1.11.2 is not known, profile 'main' is used\n"


def test_a_kubevirt_counts_without_a_phase_and_deployed(call: Call) -> None:
    by_hand, deploying = overheads(
        call,
        kubevirt(phase=None, additionalGuestMemoryOverheadRatio="2"),
        vmi(),
        kubevirt(phase="Deploying", additionalGuestMemoryOverheadRatio="2"),
        vmi(),
    )
    assert by_hand > deploying


WRONG = {
    "a quota": (document("ResourceQuota", "q", spec={"hard": []}), "ResourceQuota ns/q: Expected `object"),
    "a KubeVirt": (kubevirt(supportContainerResources=7), "KubeVirt k/kubevirt: Expected `array"),
    "a pod": (pod(cpu="lots"), "Pod ns/p: 'lots' is not a quantity"),
}


@sentences(WRONG)
def test_a_wrong_object_of_the_cluster_is_one_line(call: Call, case: tuple[Document, str]) -> None:
    document, expected = case
    assert targets(call, document, vmi()) == []
    assert (call.code, call.stderr.count("\n")) == (1, 1)
    assert expected in call.stderr
