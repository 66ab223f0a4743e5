"""Objects in a cache: what decisions read stays, and what equal ones say is held once."""

from __future__ import annotations

import json
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

import pytest

from kubeloop.api.core import Container, ContainerStatus, Pod
from kubeloop.api.meta import Object
from kubeloop.client.decode import decoder_for
from pkg.api.kubevirt import VirtualMachine, VirtualMachineInstance
from pkg.config.slim import Slim
from pkg.util import constants
from pkg.util.quotacount.usage import pod_usage
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


def running_vmi(name: str) -> dict[str, Any]:
    conditions = [{"type": "LiveMigratable", "status": "True"}]
    metadata = {"finalizers": ["foregroundDeleteVirtualMachine"], "labels": {constants.LABEL_NODE_NAME: "n-1"}}
    body: dict[str, Any] = vmi("default", name)
    body["metadata"] |= metadata
    return {**body, "status": {"phase": "Running", "nodeName": "n-1", "conditions": conditions}}


def decoded(kind: type[T], body: dict[str, Any]) -> T:
    """As a cache gets it."""
    return decoder_for(kind).object(json.dumps(body).encode())


def recorded(path: Path = RECORDED[0], **changes: Any) -> Pod:
    return decoded(Pod, {**json.loads(path.read_text()), **changes})


@pytest.mark.parametrize("changes", [{}, {"status": RESIZED}], ids=["as recorded", "being resized"])
@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_what_decisions_read_stays(path: Path, changes: dict[str, Any]) -> None:
    whole, light = recorded(path, **changes), Slim().pod(recorded(path, **changes))
    assert pod_usage(light) == pod_usage(whole)
    assert light.labels == whole.labels
    assert light.metadata.owner_references == whole.metadata.owner_references
    name = constants.ANNOTATION_MEMORY_OVERHEAD
    assert light.annotations == {name: whole.annotations[name]} != whole.annotations
    assert light.spec == whole.spec
    assert light.status.container_statuses == whole.status.container_statuses


def test_a_resize_that_cannot_be_is_still_seen() -> None:
    light = Slim().pod(recorded(status=RESIZED))
    assert [condition.type for condition in light.status.conditions or ()] == ["PodResizePending"]
    feasible = {**RESIZED, "conditions": []}
    assert pod_usage(light) != pod_usage(Slim().pod(recorded(status=feasible)))


def test_equal_containers_are_held_once_and_others_are_not_mixed_up() -> None:
    slim = Slim()
    one, same, other = (slim.pod(recorded(path)) for path in (RECORDED[0], RECORDED[0], RECORDED[-1]))
    assert one.spec.containers is same.spec.containers
    assert (one.spec == other.spec) == (recorded().spec == recorded(RECORDED[-1]).spec)


def test_what_reads_the_same_but_is_of_another_type_is_not_mixed_up() -> None:
    body = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "a"}]}}
    status = {"containerStatuses": [{"name": "a"}]}
    light = Slim().pod(decoded(Pod, {**body, "status": status}))
    assert isinstance(light.spec.containers[0], Container)
    assert isinstance((light.status.container_statuses or [])[0], ContainerStatus)


def test_the_domains_of_equal_vms_are_held_once() -> None:
    slim, spec = Slim(), vmi("default", "a")["spec"]
    instances = [slim.instance(decoded(VirtualMachineInstance, vmi("default", name))) for name in ("a", "b")]
    body = {"metadata": {"name": "a"}, "spec": {"template": {"spec": spec}}}
    machine = slim.machine(decoded(VirtualMachine, body))
    assert instances[0].spec.domain is instances[1].spec.domain is machine.spec.template.spec.domain
    whole = decoded(VirtualMachineInstance, vmi("default", "a"))
    assert instances[0] == whole


def test_words_that_many_objects_say_are_held_once() -> None:
    slim = Slim()
    one, other = (slim.pod(recorded(path)) for path in RECORDED[:2])
    assert one.name != other.name
    for read in ("kind", "metadata.namespace", "spec.node_name", "status.phase", "metadata.annotations"):
        (a, b) = (attrgetter(read)(pod) for pod in (one, other))
        assert (a is b) == (a == b), read
    vmis = [slim.instance(decoded(VirtualMachineInstance, running_vmi(name))) for name in ("a", "b")]
    for read in ("metadata.finalizers", "status.phase", "status.node_name"):
        (a, b) = (attrgetter(read)(each) for each in vmis)
        assert a is b, read
    labels = [each.metadata.labels or {} for each in vmis]
    assert labels[0][constants.LABEL_NODE_NAME] is labels[1][constants.LABEL_NODE_NAME]
    conditions = [(each.status.conditions or [])[0] for each in vmis]
    assert conditions[0].type is conditions[1].type
    assert vmis[0] == decoded(VirtualMachineInstance, running_vmi("a"))


def test_tenants_who_write_ever_different_pods_do_not_fill_the_memory() -> None:
    slim = Slim(most=10)
    for number in range(25):
        body = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": f"c{number}"}]}}
        slim.pod(decoded(Pod, body))
    assert len(slim._shared) <= 10


def test_a_pod_without_anything_stays_as_it_is() -> None:
    empty = {"metadata": {"name": "p"}}
    assert Slim().pod(decoded(Pod, empty)) == decoded(Pod, empty)
