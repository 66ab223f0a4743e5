"""Objects that differ: edit, and the merge patch between two of them; the kinds' definitions."""

from types import MappingProxyType
from typing import Any, ClassVar

import pytest

from kubeloop.api import registry
from kubeloop.api.core import Container, Pod, PodSpec, ResourceQuota, ResourceQuotaSpec
from kubeloop.api.meta import Condition, Object, ObjectMeta, Struct
from kubeloop.api.objects import (
    PartlyDeclared,
    by_creation,
    condition_is_true,
    difference,
    edit,
    find_condition,
    guarded,
    metadata_difference,
    owner_reference,
    set_condition,
)
from kubeloop.api.registry import Resource
from kubeloop.client.decode import decoder_for


class Port(Struct):
    """Known whole."""

    whole: ClassVar[bool] = True

    number: int = 0


class Box(Struct):
    """Whole, but for what is in it."""

    whole: ClassVar[bool] = True

    containers: dict[str, list[Container]] | None = None
    boxes: "list[Box] | None" = None


class Spec(Struct):
    text: str = ""
    maybe: int | None = None
    size: Port = Port()
    port: Port | None = None
    ports: list[Port] | None = None
    containers: list[Container] | None = None
    boxes: list[Box] | None = None
    names: list[str] | None = None
    labels: dict[str, str] | None = None
    nested: dict[str, Any] | None = None


class Thing(Object):
    spec: Spec = Spec()


def thing(**spec: Any) -> Thing:
    return Thing(metadata=ObjectMeta(name="a", namespace="ns", uid="1", resource_version="7"), spec=Spec(**spec))


DIFFERENCES: dict[str, tuple[Spec, Spec, dict[str, Any]]] = {
    "equal objects give nothing": (Spec(text="x", names=["a"]), Spec(text="x", names=["a"]), {}),
    "a field that changed": (Spec(text="x", maybe=1), Spec(text="y", maybe=1), {"text": "y"}),
    "a field that is gone is null": (Spec(maybe=1), Spec(), {"maybe": None}),
    "a text that is empty is sent as that": (Spec(text="x"), Spec(), {"text": ""}),
    "a struct's fields one by one": (Spec(size=Port(number=1)), Spec(size=Port(number=2)), {"size": {"number": 2}}),
    "an empty struct that comes": (Spec(), Spec(port=Port()), {"port": {}}),
    "an empty struct that goes": (Spec(port=Port()), Spec(), {"port": None}),
    "an empty mapping that comes": (Spec(), Spec(nested={}), {"nested": {}}),
    "an empty mapping within one": (
        Spec(nested={"a": {"b": 1}}),
        Spec(nested={"a": {"b": 1, "c": {}}}),
        {"nested": {"a": {"c": {}}}},
    ),
    "a struct that comes": (Spec(), Spec(port=Port(number=1)), {"port": {"number": 1}}),
    "a struct that goes": (Spec(port=Port(number=1)), Spec(), {"port": None}),
    "a mapping key by key": (
        Spec(labels={"same": "1", "gone": "1", "new": "1"}),
        Spec(labels={"same": "1", "new": "2", "more": "3"}),
        {"labels": {"gone": None, "new": "2", "more": "3"}},
    ),
    "mappings in mappings": (
        Spec(nested={"a": {"b": 1, "c": 2}}),
        Spec(nested={"a": {"b": 1, "d": [1]}}),
        {"nested": {"a": {"c": None, "d": [1]}}},
    ),
    "a list of texts is written whole": (Spec(names=["a"]), Spec(names=["a", "b"]), {"names": ["a", "b"]}),
    "a list of whole structs is written whole": (
        Spec(ports=[Port(number=1)]),
        Spec(ports=[Port(number=2)]),
        {"ports": [{"number": 2}]},
    ),
}


@pytest.mark.parametrize("case", DIFFERENCES)
def test_difference(case: str) -> None:
    old, new, expected = DIFFERENCES[case]
    assert difference(old, new) == expected


@pytest.mark.parametrize("containers", [None, [], [Container(name="b")]])
def test_a_list_of_partly_declared_items_is_not_rewritten(containers: list[Container] | None) -> None:
    boxes = Spec(boxes=[Box(containers={"a": [Container()]})])
    with pytest.raises(PartlyDeclared, match=r"Spec\.boxes .* Box declares only a part"):
        difference(Spec(), boxes)
    with pytest.raises(PartlyDeclared, match=r"Spec\.containers .* Container declares only a part"):
        difference(Spec(containers=[Container(name="a")]), Spec(containers=containers))
    unchanged = Spec(text="new", containers=[Container(name="a")])
    assert difference(Spec(containers=[Container(name="a")]), unchanged) == {"text": "new"}


def test_two_types_are_not_two_versions() -> None:
    with pytest.raises(TypeError, match="not versions of one object"):
        difference(Spec(), Port())


def test_of_metadata_only_what_may_be_written_is() -> None:
    old = thing()
    new = edit(old, metadata={"labels": {"a": "b"}, "resource_version": "8", "creation_timestamp": "now"})
    assert metadata_difference(old, new) == {"labels": {"a": "b"}}
    assert metadata_difference(old, edit(old, metadata={"labels": {}, "annotations": None})) == {}
    with pytest.raises(ValueError, match="differ in name"):
        metadata_difference(old, edit(old, metadata={"name": "b"}))


def test_edit_changes_nested_fields_of_a_new_object() -> None:
    old = thing(text="x", size=Port(number=1))
    new = edit(old, spec={"text": "y", "port": {"number": 5}, "labels": {"k": "v"}})
    assert (new.spec.text, new.spec.size, new.spec.port, new.spec.labels) == (
        "y",
        Port(number=1),
        Port(number=5),
        {"k": "v"},
    )
    assert old == thing(text="x", size=Port(number=1))
    quota = edit(ResourceQuota(), spec=ResourceQuotaSpec(hard={"pods": "1"}))
    assert quota.hard == {"pods": "1"}


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a misspelt name": ({"spek": {}}, "Thing has no field spek"),
    "a name as it stands in JSON": ({"spec": {"runStrategy": "Halted"}}, "Spec has no field runStrategy"),
    "a misspelt name further in": ({"spec": {"port": {"nr": 1}}}, "Port has no field nr"),
    "a value of another type": ({"spec": {"maybe": "twelve"}}, r"Spec\.maybe: Expected `int | null`, got `str`"),
    "a list of another type": ({"spec": {"names": ["a", 2]}}, r"Spec\.names: .* `\$\[1\]`"),
    "a label that is not a text": ({"metadata": {"labels": {"a": 1}}}, r"ObjectMeta\.labels: Expected `str`"),
    "None where there is always something": ({"spec": {"text": None}}, r"Spec\.text: Expected `str`"),
    "a mapping for a struct in a list": ({"spec": {"ports": [{"nr": 1}]}}, r"Spec\.ports: within a list or dict write"),
}


@pytest.mark.parametrize("case", WRONG)
def test_edit_takes_only_declared_fields_and_types(case: str) -> None:
    changes, problem = WRONG[case]
    with pytest.raises(TypeError, match=problem):
        edit(thing(), **changes)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("names", ("a", "b"), ["a", "b"]),
        ("ports", [Port(number=1), Port()], [Port(number=1), Port()]),
        ("labels", MappingProxyType({"a": "b"}), {"a": "b"}),
        ("nested", {"a": [None, 1.5]}, {"a": [None, 1.5]}),
        ("port", Port(), Port()),
        ("maybe", None, None),
    ],
)
def test_edit_keeps_a_copy_of_the_value(name: str, value: Any, expected: Any) -> None:
    got = getattr(edit(thing(maybe=1), spec={name: value}).spec, name)
    assert got == expected
    assert got is not value or not isinstance(value, list | dict)


def test_a_guarded_patch_keeps_its_own_metadata() -> None:
    patch = guarded(thing(), {"metadata": {"labels": {"a": "b"}}, "spec": {}})
    assert patch == {"metadata": {"labels": {"a": "b"}, "resourceVersion": "7"}, "spec": {}}


CONDITIONS: dict[str, tuple[list[Condition] | None, Condition]] = {
    "a condition that comes": (None, Condition(type="Ready", status="True", last_transition_time="T")),
    "a condition without the time of its update gets none": (
        [Condition(type="Ready", status="False", severity="Error", last_transition_time="0")],
        Condition(type="Ready", status="True", severity="Error", last_transition_time="T"),
    ),
    "a status that changes moves both times": (
        [Condition(type="Ready", status="False", last_transition_time="0", last_update_time="0")],
        Condition(type="Ready", status="True", last_transition_time="T", last_update_time="T"),
    ),
    "a reason that goes moves the update alone": (
        [Condition(type="Ready", status="True", reason="x", last_transition_time="0", last_update_time="0")],
        Condition(type="Ready", status="True", last_transition_time="0", last_update_time="T"),
    ),
    "what stands stays": (
        [Condition(type="Ready", status="True", last_transition_time="0", last_probe_time="0")],
        Condition(type="Ready", status="True", last_transition_time="0", last_probe_time="0"),
    ),
}


@pytest.mark.parametrize("case", CONDITIONS)
def test_set_condition(case: str) -> None:
    conditions, expected = CONDITIONS[case]
    unknown_condition = Condition(type="Other", status="Unknown")
    result = set_condition(
        [unknown_condition, *conditions] if conditions else [unknown_condition], "Ready", "True", now="T"
    )
    assert result == [unknown_condition, expected]
    assert find_condition(result, "Ready") == expected
    assert find_condition(result, "Gone") is find_condition(None, "Ready") is None
    assert condition_is_true(result, "Ready")


def test_the_time_of_an_update_is_written_where_it_is_asked_for() -> None:
    (condition,) = set_condition(None, "Ready", "True", now="T", last_update=True)
    assert condition.last_update_time == "T"
    (condition,) = set_condition([Condition(type="Ready")], "Ready", "True", now="T", last_update=True)
    assert condition.last_update_time == "T"


def test_an_owner_reference_names_the_kind_of_any_object() -> None:
    pod = Pod(metadata=ObjectMeta(name="a", uid="u"), spec=PodSpec())
    owner = owner_reference(pod, controller=True)
    assert (owner.api_version, owner.kind, owner.name, owner.uid) == ("v1", "Pod", "a", "u")
    assert (owner.controller, owner.block_owner_deletion) == (True, True)
    assert owner_reference(pod).controller is None
    with pytest.raises(ValueError, match="no kind"):
        owner_reference(thing())


def test_the_oldest_comes_first_then_the_name_decides() -> None:
    times = {"c": "2026-01-01T00:00:00Z", "b": "2026-01-01T00:00:01Z", "a": "2026-01-01T00:00:01Z", "d": None}
    pods = [Pod(metadata=ObjectMeta(name=name, creation_timestamp=created_at)) for name, created_at in times.items()]
    assert [pod.name for pod in sorted(pods, key=by_creation)] == ["d", "c", "a", "b"]


POD = decoder_for(Pod).object(b'{"metadata":{"name":"a","labels":{"k":"v"},"annotations":{"k":"v"}}}')


@pytest.mark.parametrize("obj", [POD, Pod()], ids=["with some", "without any"])
@pytest.mark.parametrize("field", ["annotations", "labels"])
def test_labels_of_cached_objects_cannot_be_changed(obj: Pod, field: str) -> None:
    cached: Any = getattr(obj, field)
    content = dict(cached)
    with pytest.raises(TypeError):
        cached["oops"] = "1"
    for method in ("update", "pop", "setdefault", "clear"):
        assert not hasattr(cached, method)
    assert getattr(obj, field) == content
    assert {**cached, "more": "1"} == content | {"more": "1"}, "a copy may be changed"


KINDS: list[Resource[Any]] = [kind for kind in vars(registry).values() if isinstance(kind, Resource)]
WITHOUT_STATUS = """limitranges configmaps secrets events storageclasses leases validatingwebhookconfigurations
mutatingwebhookconfigurations endpointslices serviceaccounts roles rolebindings clusterroles clusterrolebindings
subjectaccessreviews selfsubjectaccessreviews"""
CLUSTER_WIDE = """namespaces nodes storageclasses customresourcedefinitions validatingwebhookconfigurations
mutatingwebhookconfigurations validatingadmissionpolicies validatingadmissionpolicybindings persistentvolumes
clusterroles clusterrolebindings subjectaccessreviews selfsubjectaccessreviews"""


def test_which_have_no_status_and_which_no_namespace() -> None:
    assert {kind.plural for kind in KINDS if kind.status_subresource is False} == set(WITHOUT_STATUS.split())
    assert {kind.plural for kind in KINDS if not kind.namespaced} == set(CLUSTER_WIDE.split())
