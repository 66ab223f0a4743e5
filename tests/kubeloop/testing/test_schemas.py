"""Structs beside the schemas of what they are decoded from."""

import re
from typing import Any, ClassVar

import kubernetes.client
import msgspec
import pytest

from kubeloop.api.meta import Object, Struct, wire_name
from kubeloop.testing.schemas import check_struct, crd_schema

TEXT, NUMBER = {"type": "string"}, {"type": "integer", "format": "int64"}
CONDITION = {"type": "object", "properties": {"type": TEXT, "status": TEXT, "color": TEXT}}
SPEC: dict[str, Any] = {
    "podIP": TEXT,
    "sourceUID": TEXT,
    "size": NUMBER,
    "ratio": {"type": "number"},
    "port": {"x-kubernetes-int-or-string": True},
    "labels": {"type": "object", "additionalProperties": TEXT},
    "parts": {"type": "array", "items": {"type": "object", "properties": {"name": TEXT}}},
    "conditions": {"type": "array", "items": CONDITION},
    "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
}
KIND = {"apiVersion": TEXT, "kind": TEXT, "metadata": {"type": "object"}, "spec": {"properties": SPEC}}
CRD: dict[str, Any] = {
    "spec": {"versions": [{"name": "v1", "schema": {"openAPIV3Schema": {"properties": KIND}}}, {"name": "v2"}]}
}


class SchemaPart(Struct):
    name: str = ""


class Whole(Struct):
    whole: ClassVar[bool] = True
    type: str = ""
    status: str = ""
    reason: str = ""


def struct_of(**fields: Any) -> type[Object]:
    """A kind whose spec has fields of these types."""
    spec = msgspec.defstruct(
        "Spec", [(name, kind, None) for name, kind in fields.items()], bases=(Struct,), kw_only=True
    )
    struct: Any = msgspec.defstruct("Thing", [("spec", spec | None, None)], bases=(Object,), kw_only=True)
    return struct


CASES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "right": (
        {
            "pod_ip": str,
            "source_uid": str | None,
            "size": int,
            "ratio": float,
            "port": int | str,
            "labels": dict[str, str] | None,
            "parts": list[SchemaPart],
            "free": dict[str, Any],
        },
        [],
    ),
    "a name in another spelling": (
        {"podip": str, "sourceUid": str},
        [
            "spec.podip is not in the schema, which has podIP",
            "spec.sourceUid is not in the schema, which has sourceUID",
        ],
    ),
    "a name that is not there": ({"other": str}, ["spec.other is not in the schema"]),
    "another type": (
        {"size": str, "pod_ip": int | None, "parts": dict[str, str]},
        [
            "spec.size is declared as string, the schema says integer",
            "spec.podIP is declared as integer, the schema says string",
            "spec.parts is declared as object, the schema says array",
        ],
    ),
    "another type within": (
        {"labels": dict[str, int], "parts": list[str]},
        [
            "spec.labels.* is declared as integer, the schema says string",
            "spec.parts[] is declared as string, the schema says object",
        ],
    ),
    "all is declared, they say": (
        {"conditions": list[Whole]},
        ["Whole says that it declares all, and lacks spec.conditions[].color"],
    ),
    "structs without a schema": ({"free": SchemaPart}, []),
}


@pytest.mark.parametrize("case", CASES)
def test_a_struct_beside_a_crd(case: str) -> None:
    fields, problems = CASES[case]
    assert check_struct(struct_of(**fields), crd_schema(CRD, "v1")) == problems


def test_a_version_without_a_schema() -> None:
    for version in ("v2", "v3"):
        with pytest.raises((KeyError, ValueError)):
            crd_schema(CRD, version)


def names_of_kubernetes() -> set[str]:
    """Every field's name of Kubernetes' own kinds."""
    models = (getattr(kubernetes.client, name) for name in dir(kubernetes.client))
    names = {name for model in models for name in getattr(model, "attribute_map", {}).values()}
    return {name for name in names if name.isalnum()}


_WORD = re.compile(r"[A-Z]{2,}s?(?![a-z])|[A-Z]{2,}(?=[A-Z][a-z])|[A-Z]?[a-z0-9]+")


def test_names_are_derived_as_kubernetes_writes_them() -> None:
    names = names_of_kubernetes()
    assert len(names) > 500
    wrong = {name for name in names if wire_name("_".join(_WORD.findall(name)).lower()) != name}
    assert wrong <= {"stubPKCS10Request", "scaleIO", "openAPIV3Schema", "Port"}
