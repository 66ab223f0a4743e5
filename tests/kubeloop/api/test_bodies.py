"""A field in Python's name is refused in a body, wherever it stands; JSON patches made from `edit` lose nothing."""

import copy
import random
from typing import Any

import msgspec
import pytest

from kubeloop.api import registry
from kubeloop.api.bodies import check_body, check_patch, json_patch, unknown_names
from kubeloop.api.core import ConfigMap, Container, Node, Pod, PodSchedulingGate, Taint
from kubeloop.api.meta import Object, Struct
from kubeloop.api.objects import PartlyDeclared, edit, type_info
from kubeloop.api.workloads import Job, JobSpec
from kubeloop.testing.fake.patches import json_patched
from kubeloop.testing.fake.server import FakeCluster

BODIES: dict[str, tuple[type[Object], Any, str]] = {
    "JSON's names": (Job, {"metadata": {"ownerReferences": []}, "spec": {"backoffLimit": 2}}, ""),
    "a Python name in spec": (Job, {"spec": {"backoff_limit": 2}}, "spec.backoff_limit"),
    "one in metadata": (Job, {"metadata": {"owner_references": []}}, "metadata.owner_references"),
    "one in an item of a list": (
        Pod,
        {"spec": {"containers": [{"name": "a"}, {"name": "b", "restart_policy": "Always"}]}},
        "spec.containers[1].restart_policy",
    ),
    "one at the top": (Job, {"api_version": "batch/v1"}, "api_version"),
    "one of a struct that may be None": (
        Pod,
        {"spec": {"affinity": {"pod_affinity": {}}}},
        "spec.affinity.pod_affinity",
    ),
    "a null": (Job, {"spec": None, "metadata": {"labels": None}}, ""),
    "a field that the struct does not declare": (Job, {"spec": {"some_thing": 1}}, ""),
    "a key of a map": (
        ConfigMap,
        {"data": {"api_version": "v1"}, "metadata": {"labels": {"owner_references": ""}}},
        "",
    ),
    "a struct": (Job, {"spec": JobSpec(backoff_limit=2)}, ""),
    "something that is no mapping": (Job, {"spec": [1]}, ""),
}


@pytest.mark.parametrize(("kind", "body", "wrong"), BODIES.values(), ids=BODIES)
def test_a_body_with(kind: type[Object], body: Any, wrong: str) -> None:
    if not wrong:
        check_body(kind, body)
        return
    with pytest.raises(TypeError) as caught:
        check_body(kind, body)
    assert str(caught.value).startswith(f"{wrong} is Python's name: in a body the field is ")


PATCHES: dict[str, tuple[dict[str, Any], str]] = {
    "a path in JSON's names": ({"op": "add", "path": "/spec/nodeName", "value": "n"}, ""),
    "a path in Python's": ({"op": "replace", "path": "/spec/node_name", "value": "n"}, "spec.node_name"),
    "a path through a list": (
        {"op": "remove", "path": "/spec/containers/0/restart_policy"},
        "spec.containers['0'].restart_policy",
    ),
    "a value": ({"op": "add", "path": "/spec", "value": {"node_name": "n"}}, "spec.node_name"),
    "an item as value": (
        {"op": "add", "path": "/spec/containers/-", "value": {"restart_policy": "A"}},
        "spec.containers['-'].restart_policy",
    ),
    "where a move is from": ({"op": "move", "from": "/spec/node_name", "path": "/spec/nodeName"}, "spec.node_name"),
    "a key of a map": ({"op": "add", "path": "/metadata/labels/node_name", "value": "n"}, ""),
    "a key with a slash": ({"op": "add", "path": "/metadata/annotations/a~1node_name", "value": "n"}, ""),
    "the whole object": ({"op": "test", "path": "", "value": {"spec": {"node_name": "n"}}}, "spec.node_name"),
}


@pytest.mark.parametrize(("operation", "wrong"), PATCHES.values(), ids=PATCHES)
def test_a_json_patch_with(operation: dict[str, Any], wrong: str) -> None:
    if not wrong:
        check_patch(Pod, [operation])
        return
    with pytest.raises(TypeError, match="is Python's name") as caught:
        check_patch(Pod, [{"op": "remove", "path": "/status"}, operation])
    assert str(caught.value).startswith(wrong)


def test_a_message_says_the_right_name() -> None:
    with pytest.raises(TypeError, match=r"^spec.taints\[0\].time_added .* the field is timeAdded$"):
        check_body(Node, {"spec": {"taints": [{"key": "a", "time_added": "now"}]}})
    assert [name.path for name in unknown_names(type_info(Node), {"spec": {"podCIDR": "x", "pod_cidr": "y"}})] == [
        "spec.podCIDR",
        "spec.pod_cidr",
    ]


WRONG = {"spec": {"backoff_limit": 2}}
WHERE = {"name": "j", "namespace": "ns"}


async def test_no_request_with_a_python_name_is_sent() -> None:
    cluster = FakeCluster()
    jobs = cluster.client().resource(registry.JOBS)
    created = await jobs.create({"metadata": WHERE})
    sent = len(cluster.requests)
    body = {"metadata": WHERE, **WRONG}
    for request in (
        lambda: jobs.create(body),
        lambda: jobs.create_or_update(body | {"metadata": {**WHERE, "name": "new"}}, lambda job: job),
        lambda: jobs.merge_patch(WRONG, **WHERE),
        lambda: jobs.patch(created, WRONG),
        lambda: jobs.apply(body, field_manager="m"),
        lambda: jobs.json_patch([{"op": "add", "path": "/spec/backoff_limit", "value": 2}], **WHERE),
    ):
        with pytest.raises(TypeError, match="backoffLimit"):
            await request()
    with pytest.raises(TypeError, match="backoffLimit"):
        cluster.put(registry.JOBS, body)
    assert [r.verb for r in cluster.requests[sent:]] == ["get"]
    assert list(cluster.raw(registry.JOBS)) == ["ns/j"]


class OwnJob(Job):
    """A kind of the user's own."""


OWN_JOBS = registry.Resource("example.org", "v1", "jobs", "Job", OwnJob, status_subresource=True)


async def test_a_strict_client_of_the_fake_refuses_unknown_fields() -> None:
    client = FakeCluster().client(strict=True)
    # Kubernetes' own kinds are declared in part.
    await client.resource(registry.JOBS).create({"metadata": WHERE, "spec": {"template": {}}})
    jobs = client.resource(OWN_JOBS)
    with pytest.raises(Exception, match=r'strict decoding error: unknown field "spec.backofLimit"'):
        await jobs.create({"metadata": WHERE, "spec": {"backofLimit": 2}})
    job = await jobs.create({"metadata": WHERE, "spec": {"backoffLimit": 2}})
    with pytest.raises(Exception, match=r'unknown field "status\.fialed"'):
        await jobs.patch(job, {"status": {"fialed": 2}}, subresource="status")
    await jobs.delete(name="j", namespace="ns", propagation_policy="Background")


SENT: dict[str, Any] = {
    "metadata": {"name": "p", "labels": {"a": "b", "x/y": "z"}, "managedFields": []},
    "spec": {
        "containers": [
            {"name": "one", "image": "i", "command": ["run"]},
            {"name": "two", "ports": [1], "resources": {"limits": {"cpu": "1"}}},
        ],
        "dnsPolicy": "Default",
    },
}
POD = msgspec.convert(SENT, Pod)
ONE, TWO = POD.spec.containers
NEW = Container(name="new", image="j")

EDITS: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {
    "nothing": ({}, []),
    "a label that is there": (
        {"metadata": {"labels": {"a": "c", "x/y": "z"}}},
        [{"op": "replace", "path": "/metadata/labels/a", "value": "c"}],
    ),
    "a new label with a slash": (
        {"metadata": {"labels": {"a": "b", "x/y": "z", "x/n~": "m"}}},
        [{"op": "add", "path": "/metadata/labels/x~1n~0", "value": "m"}],
    ),
    "a label that goes": ({"metadata": {"labels": {"a": "b"}}}, [{"op": "remove", "path": "/metadata/labels/x~1y"}]),
    "all labels": ({"metadata": {"labels": None}}, [{"op": "remove", "path": "/metadata/labels"}]),
    "annotations where there were none": (
        {"metadata": {"annotations": {"a": "b"}}},
        [{"op": "add", "path": "/metadata/annotations", "value": {"a": "b"}}],
    ),
    "a field of spec": ({"spec": {"node_name": "n"}}, [{"op": "add", "path": "/spec/nodeName", "value": "n"}]),
    "a struct where there was none": (
        {"status": {"phase": "Running"}},
        [{"op": "add", "path": "/status", "value": {"phase": "Running"}}],
    ),
    "a field of an item": (
        {"spec": {"containers": [ONE, edit(TWO, image="k")]}},
        [{"op": "add", "path": "/spec/containers/1/image", "value": "k"}],
    ),
    "something deep in an item": (
        {"spec": {"containers": [ONE, edit(TWO, resources={"limits": {"cpu": "2"}})]}},
        [{"op": "replace", "path": "/spec/containers/1/resources/limits/cpu", "value": "2"}],
    ),
    "an item at the end": (
        {"spec": {"containers": [ONE, TWO, NEW]}},
        [{"op": "add", "path": "/spec/containers/2", "value": {"name": "new", "image": "j"}}],
    ),
    "an item at the beginning": (
        {"spec": {"containers": [NEW, ONE, TWO]}},
        [{"op": "add", "path": "/spec/containers/0", "value": {"name": "new", "image": "j"}}],
    ),
    "an item that goes": ({"spec": {"containers": [TWO]}}, [{"op": "remove", "path": "/spec/containers/0"}]),
    "every item": (
        {"spec": {"containers": []}},
        [{"op": "remove", "path": "/spec/containers/1"}, {"op": "remove", "path": "/spec/containers/0"}],
    ),
    "a list where there was none": (
        {"spec": {"scheduling_gates": [PodSchedulingGate(name="g")]}},
        [{"op": "add", "path": "/spec/schedulingGates", "value": [{"name": "g"}]}],
    ),
}


@pytest.mark.parametrize(("changes", "operations"), EDITS.values(), ids=EDITS)
def test_an_edit_of(changes: dict[str, Any], operations: list[dict[str, Any]]) -> None:
    new = edit(POD, **changes)
    patch = json_patch(POD, new, SENT)
    assert patch == operations
    result = json_patched(copy.deepcopy(SENT), patch)
    assert msgspec.convert(result, Pod) == new
    assert result["spec"]["dnsPolicy"] == "Default"
    assert all(item["command"] == ["run"] for item in result["spec"]["containers"] if item["name"] == "one")


@pytest.mark.parametrize("order", [[TWO, ONE], [NEW, ONE], [edit(TWO, image="k")]])
def test_items_that_are_declared_in_part_cannot_be_moved(order: list[Container]) -> None:
    with pytest.raises(PartlyDeclared, match=r"Pod\.spec\.containers"):
        json_patch(POD, edit(POD, spec={"containers": order}), SENT)


def test_two_kinds_are_not_compared() -> None:
    with pytest.raises(TypeError, match="not versions of one object"):
        json_patch(POD, ONE, SENT)


class Words(Struct):
    words: list[str] = msgspec.field(default_factory=list)
    taints: list[Taint] = msgspec.field(default_factory=list)


def test_any_list_of_words_or_of_whole_structs_becomes_any_other() -> None:
    numbers = random.Random(7)
    for _ in range(2000):
        lists = [[numbers.choice("abcd") for _ in range(numbers.randrange(5))] for _ in range(4)]
        old = Words(words=lists[0], taints=[Taint(key=key) for key in lists[1]])
        new = Words(words=lists[2], taints=[Taint(key=key) for key in lists[3]])
        sent = msgspec.to_builtins(old)
        result = json_patched(sent, json_patch(old, new, sent))
        assert msgspec.convert(result, Words) == new, (old, new)
