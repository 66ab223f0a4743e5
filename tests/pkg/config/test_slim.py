"""Objects in a cache: what decisions read stays, and what equal ones say is held once."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import pytest

from kubeloop.api.core import Container, ContainerStatus, PersistentVolumeClaim, Pod
from kubeloop.api.meta import Object
from kubeloop.client.decode import decoder_for
from pkg.api.kubevirt import (
    VirtualMachine,
    VirtualMachineInstance,
    VirtualMachineInstanceMigration,
    VirtualMachineInstanceSpec,
    VirtualMachineInstanceStatus,
)
from pkg.config.slim import LARGEST, LONGEST, CacheTransforms
from pkg.util import constants
from pkg.util.kubevirt.compute_container import ANNOTATION_EVEN_PARITY
from pkg.util.kubevirt.evidence import vm_of
from pkg.util.kubevirt.expansion import vmi_of
from pkg.util.kubevirt.launcher import ANNOTATION_HOOK_SIDECARS, MAX_SIDECARS, hook_sidecar_count, rendered_pod
from pkg.util.kubevirt.rendering import Rendering
from pkg.util.quotacount.usage import pod_usage, storage_usage
from tests.bench.objects import vmi

T = TypeVar("T", bound=Object)
RECORDED = sorted((Path(__file__).parents[2] / "vectors" / "recorded").glob("pod-*.json"))
RESIZED: dict[str, Any] = {
    "conditions": [
        {"type": "Ready", "status": "True"},
        {"type": "PodResizePending", "status": "True", "reason": "Infeasible"},
    ],
    "containerStatuses": [{"name": "compute", "resources": {"limits": {"cpu": "1"}, "requests": {"cpu": "1"}}}],
}


def decoded(kind: type[T], body: dict[str, Any]) -> T:
    """Returns the object as a cache gets it."""
    return decoder_for(kind).object(json.dumps(body).encode())


def recorded(path: Path = RECORDED[0], **changes: Any) -> Pod:
    return decoded(Pod, {**json.loads(path.read_text()), **changes})


@pytest.mark.parametrize("changes", [{}, {"status": RESIZED}], ids=["as recorded", "being resized"])
@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_what_decisions_read_stays(path: Path, changes: dict[str, Any]) -> None:
    whole, light = recorded(path, **changes), CacheTransforms().pod(recorded(path, **changes))
    assert pod_usage(light) == pod_usage(whole)
    assert light.labels == {key: text for key, text in whole.labels.items() if key != "vmi.kubevirt.io/id"}
    assert light.metadata.owner_references == whole.metadata.owner_references
    assert light.annotations == {} != whole.annotations
    assert light.spec == whole.spec
    assert light.status.container_statuses == whole.status.container_statuses


def test_a_resize_that_cannot_be_is_still_seen() -> None:
    light = CacheTransforms().pod(recorded(status=RESIZED))
    assert [condition.type for condition in light.status.conditions or ()] == ["PodResizePending"]
    feasible = {**RESIZED, "conditions": []}
    assert pod_usage(light) != pod_usage(CacheTransforms().pod(recorded(status=feasible)))


def test_equal_containers_are_held_once_and_others_apart() -> None:
    slim = CacheTransforms()
    pod, twin, stranger = (slim.pod(recorded(path)) for path in (RECORDED[0], RECORDED[0], RECORDED[-1]))
    assert pod.spec.containers is twin.spec.containers
    assert (pod.spec == stranger.spec) == (recorded().spec == recorded(RECORDED[-1]).spec)


def test_equal_values_of_different_types_are_held_apart() -> None:
    body = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "a"}]}}
    status = {"containerStatuses": [{"name": "a"}]}
    light = CacheTransforms().pod(decoded(Pod, {**body, "status": status}))
    assert isinstance(light.spec.containers[0], Container)
    assert isinstance((light.status.container_statuses or [])[0], ContainerStatus)


def test_the_domains_of_equal_vms_are_held_once() -> None:
    slim, spec = CacheTransforms(), vmi("default", "a")["spec"]
    instances = [slim.instance(decoded(VirtualMachineInstance, vmi("default", name))) for name in ("a", "b")]
    body = {"metadata": {"name": "a"}, "spec": {"template": {"spec": spec}}}
    machine = slim.machine(decoded(VirtualMachine, body))
    assert instances[0].spec.domain is instances[1].spec.domain is machine.spec.template.spec.domain
    assert instances[0].spec == decoded(VirtualMachineInstance, vmi("default", "a")).spec


def test_ever_different_pods_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pkg.config.slim._MOST_SHARED", 10)
    slim = CacheTransforms()
    for number in range(25):
        body = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": f"c{number}"}]}}
        slim.pod(decoded(Pod, body))
    assert len(slim._shared) <= 10


def test_a_pod_without_anything_stays_as_it_is() -> None:
    empty = {"metadata": {"name": "p"}}
    assert CacheTransforms().pod(decoded(Pod, empty)) == decoded(Pod, empty)


VMI_WITH_EVERYTHING: dict[str, Any] = {
    "finalizers": ["kubevirt.io/foreground"],
    "generateName": "vm-",
    "ownerReferences": [{"kind": "VirtualMachine", "name": "vm", "controller": True}, {"kind": "Note", "name": "n"}],
    "labels": {constants.LABEL_OUTDATED_LAUNCHER: "", "team": "a"},
    "annotations": {
        "note": "x",
        constants.ANNOTATION_MIGRATION_UID: "m-1",
        ANNOTATION_EVEN_PARITY: "",
        ANNOTATION_HOOK_SIDECARS: '[{"image": "a"}, null]',
    },
}


def slim_vmi(spec: Mapping[str, Any] | None = None, **metadata: Any) -> VirtualMachineInstance:
    conditions = [{"type": kind, "status": "True", "message": "m"} for kind in ("HotVCPUChange", "LiveMigratable")]
    body = {"metadata": {"name": "vm", **metadata}, "spec": spec or {}, "status": {"conditions": conditions}}
    return CacheTransforms().instance(decoded(VirtualMachineInstance, body))


def test_what_decisions_read_of_a_vmi_stays() -> None:
    light = slim_vmi(**VMI_WITH_EVERYTHING)
    assert light.labels == {constants.LABEL_OUTDATED_LAUNCHER: ""}
    assert light.annotations == {
        constants.ANNOTATION_MIGRATION_UID: "m-1",
        ANNOTATION_EVEN_PARITY: "",
        ANNOTATION_HOOK_SIDECARS: "[{},{}]",
    }
    assert [owner.name for owner in light.metadata.owner_references or ()] == ["vm"]
    assert (light.metadata.finalizers, light.metadata.generate_name) == (None, None)
    assert [(condition.type, condition.message) for condition in light.status.conditions or ()] == [
        ("HotVCPUChange", None)
    ]


def test_a_template_keeps_what_the_vmi_will_be_rendered_from() -> None:
    template = {"metadata": VMI_WITH_EVERYTHING, "spec": {"architecture": "arm64"}}
    own_annotations = {"note": "x", constants.ANNOTATION_INSUFFICIENT_RESOURCE_QUOTA: "cpu"}
    body = {"metadata": {"name": "vm", "annotations": own_annotations}, "spec": {"template": template}}
    whole, light = decoded(VirtualMachine, body), CacheTransforms().machine(decoded(VirtualMachine, body))
    assert light.annotations == {constants.ANNOTATION_INSUFFICIENT_RESOURCE_QUOTA: "cpu"}
    assert set(light.spec.template.metadata.annotations or ()) == {ANNOTATION_EVEN_PARITY, ANNOTATION_HOOK_SIDECARS}
    assert rendered_pod(vmi_of(light), Rendering()) == rendered_pod(vmi_of(whole), Rendering())


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("[{}]", 1),
        ("[" + "{}," * (MAX_SIDECARS - 1) + "{}]", MAX_SIDECARS),
        ("[" + "{}," * MAX_SIDECARS + "{}]", 0),
        ("[" + "{}," * 85_000 + "{}]", 0),
        ("null", 0),
        ('["no object"]', 0),
        ("[" * 5000, 0),
        ("", 0),
    ],
    ids=["one", "most", "one too many", "85,001", "null", "a word", "nesting", "nothing"],
)
def test_a_cached_vmi_has_as_many_sidecars_as_the_vmi(text: str, count: int) -> None:
    own_annotations = {ANNOTATION_HOOK_SIDECARS: text}
    whole = decoded(VirtualMachineInstance, {"metadata": {"name": "vm", "annotations": own_annotations}})
    light = slim_vmi(annotations=own_annotations)
    assert (hook_sidecar_count(whole), hook_sidecar_count(light)) == (count, count)
    assert len(light.annotations[ANNOTATION_HOOK_SIDECARS]) < 3 * MAX_SIDECARS + 2


def test_a_vmi_is_cut_to_what_kubevirt_lets_through() -> None:
    many = {"volumes": [{"name": f"v{n}"} for n in range(300)], "domain": {"devices": {"disks": [{}] * 9999}}}
    spec = slim_vmi(many).spec
    assert (len(spec.volumes or ()), len(spec.domain.devices.disks or ())) == (LONGEST, LONGEST)
    largest = {"volumes": [{"name": f"disk-{n}", "dataVolume": {"name": "d" * 63}} for n in range(LONGEST)]}
    assert len(slim_vmi(largest).spec.volumes or ()) == LONGEST
    light = slim_vmi({"priorityClassName": "x" * LARGEST})
    assert (light.name, light.spec, light.status) == (
        "vm",
        VirtualMachineInstanceSpec(),
        VirtualMachineInstanceStatus(),
    )


def launcher_with(containers: int, resources: int) -> Pod:
    names = {f"example.com/d{number}": "1" for number in range(resources)}
    sidecars = [{"name": f"c{number}", "resources": {"limits": names}} for number in range(containers)]
    body = json.loads(RECORDED[0].read_text())
    return decoded(Pod, {**body, "spec": {**body["spec"], "containers": [*body["spec"]["containers"], *sidecars]}})


@pytest.mark.parametrize(("containers", "resources", "is_a_vms"), [(800, 4, True), (1024, 4, False), (1, 513, False)])
def test_a_pod_larger_than_any_launcher_counts_and_is_no_vms(containers: int, resources: int, is_a_vms: bool) -> None:
    whole, light = launcher_with(containers, resources), CacheTransforms().pod(launcher_with(containers, resources))
    assert pod_usage(light) == pod_usage(whole)
    assert (vm_of(light) == vm_of(whole), constants.LABEL_APP in light.labels) == (is_a_vms, is_a_vms)


def test_of_a_migration_the_tenants_notes_go() -> None:
    metadata = {"name": "m", "uid": "u", **VMI_WITH_EVERYTHING, "ownerReferences": None}
    body = {"metadata": metadata, "spec": {"vmiName": "vm"}, "status": {"phase": "Pending"}}
    light = CacheTransforms().plain(decoded(VirtualMachineInstanceMigration, body))
    assert (light.uid, light.spec.vmi_name, light.phase) == ("u", "vm", "Pending")
    assert [light.metadata.labels, light.metadata.annotations, light.metadata.finalizers] == [None] * 3


def test_a_claims_class_stays_wherever_it_is_named() -> None:
    annotations = {"volume.beta.kubernetes.io/storage-class": "fast", "note": "x"}
    body = {
        "metadata": {"name": "c", "annotations": annotations},
        "spec": {"resources": {"requests": {"storage": "1"}}},
    }
    whole, light = decoded(PersistentVolumeClaim, body), CacheTransforms().claim(decoded(PersistentVolumeClaim, body))
    assert storage_usage(light) == storage_usage(whole)
    assert "note" not in light.annotations


def test_when_a_pod_ended_stays() -> None:
    ready = {"type": "Ready", "status": "False", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    ended_pod, runs = (
        CacheTransforms().pod(recorded(status={"phase": p, "conditions": [ready]})) for p in ("Succeeded", "Running")
    )
    assert [condition.last_transition_time for condition in ended_pod.status.conditions or ()] == [
        "2026-01-01T00:00:00Z"
    ]
    assert runs.status.conditions is None
