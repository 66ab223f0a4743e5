"""The base of a quota: the namespace annotation, read as Rancher's Go code reads it, and the record of a quota without
Rancher."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeloop.api.core import ResourceQuota
from pkg.util.resourcequota.base import RESOURCE_NAMES, counts_of_pods, granted_by_record, parse_base, parse_limits
from pkg.util.resourcequota.errors import InvalidBaseQuantity, InvalidNamespaceAnnotation
from tests.decisions import drawn, sentences
from tests.objects import ENTRY, by_name, quota

RECORD = "headroom.harvesterhci.io/base"
LIMITS = {
    "the two limits": (
        '{"limit":{"limitsCpu":"3000m","limitsMemory":"5000Mi"}}',
        {"limits.cpu": "3000m", "limits.memory": "5000Mi"},
    ),
    "every name of Rancher's is mapped": (
        json.dumps({"limit": dict.fromkeys(RESOURCE_NAMES, "1")}),
        dict.fromkeys(RESOURCE_NAMES.values(), "1"),
    ),
    "names match whatever their case, as Go's decoder matches": (
        '{"LIMIT":{"LimitsCPU":"3","LIMITSMEMORY":"5Gi","requestscpu":"1"}}',
        {"limits.cpu": "3", "limits.memory": "5Gi", "requests.cpu": "1"},
    ),
    "of two spellings of a name the last one counts": (
        '{"limit":{"limitsCpu":"3","LIMITSCPU":"4"}}',
        {"limits.cpu": "4"},
    ),
    "of the same name twice the last one counts": ('{"limit":{"limitsCpu":"3","limitsCpu":"4"}}', {"limits.cpu": "4"}),
    "a limit that is null is none": ('{"limit":{"limitsCpu":null,"limitsMemory":"1"}}', {"limits.memory": "1"}),
    "a limit that is empty is none": ('{"limit":{"limitsCpu":"","limitsMemory":"1"}}', {"limits.memory": "1"}),
    "limit null is no limit": ('{"limit":null}', {}),
    "null is no limit": ("null", {}),
    "no limit is no limit": ("{}", {}),
    "names that Rancher does not know are left out": ('{"limit":{"cpu":"3","limits.cpu":"3","foo":7}}', {}),
    "other fields beside limit are left out": ('{"usedLimit":{"limitsCpu":"3"},"limit":{}}', {}),
    "extended resources keep their names": (
        '{"limit":{"extended":{"requests.nvidia.com/gpu":"2"},"limitsCpu":"3"}}',
        {"requests.nvidia.com/gpu": "2", "limits.cpu": "3"},
    ),
    "an empty extended resource is none": ('{"limit":{"extended":{"requests.nvidia.com/gpu":""}}}', {}),
    "white space around is JSON's": (' \n{"limit" : {"limitsCpu" :\t"3"} } ', {"limits.cpu": "3"}),
}


@sentences(LIMITS)
def test_limits(case: tuple[str, dict[str, str]]) -> None:
    annotation, limits = case
    assert dict(parse_limits(annotation)) == limits


GARBAGE = {
    "not JSON": "{nope",
    "nothing": "",
    "two documents": "{}{}",
    "a list": "[]",
    "a string": '"limits"',
    "a number": "7",
    "true": "true",
    "limit is a list": '{"limit":["limitsCpu"]}',
    "limit is a string": '{"limit":"3"}',
    "a limit is a number": '{"limit":{"limitsCpu":3}}',
    "a limit is an object": '{"limit":{"limitsMemory":{}}}',
    "a limit that headroom does not scale is a number": '{"limit":{"pods":10}}',
}


@sentences(GARBAGE)
def test_what_rancher_does_not_write_is_refused_in_one_line(case: str) -> None:
    with pytest.raises(InvalidNamespaceAnnotation) as caught:
        parse_limits(case)
    assert str(caught.value).startswith("field.cattle.io/resourceQuota")
    assert "\n" not in str(caught.value)
    assert caught.value.reason == "InvalidResourceQuotaAnnotation"


def test_quantities_are_parsed_by_value() -> None:
    base = parse_base('{"limit":{"limitsCpu":"3000m","limitsMemory":"5e9","requestsStorage":"1Ti","pods":"010"}}')
    assert {name: quantity.milli_value() for name, quantity in base.items()} == {
        "limits.cpu": 3000,
        "limits.memory": 5 * 10**12,
        "requests.storage": 2**40 * 1000,
        "pods": 10_000,
    }


@sentences({"cpu": "limitsCpu", "memory": "limitsMemory", "memory in capitals": "LIMITSMEMORY"})
def test_a_scaled_limit_must_parse_and_the_error_names_it(case: str) -> None:
    with pytest.raises(InvalidBaseQuantity, match=r"limits\.(cpu|memory) is '5 GB'"):
        parse_base(json.dumps({"limit": {case: "5 GB"}}))


def test_a_limit_that_is_not_scaled_may_be_strange() -> None:
    assert set(parse_base('{"limit":{"secrets":"many","limitsCpu":"3"}}')) == {"limits.cpu"}


@drawn
@given(
    st.text(max_size=40)
    | st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["limit", "limitsCpu", "limitsMemory", "extended", "x"]), inner, max_size=4
            )
        ),
        max_leaves=10,
    ).map(json.dumps)
)
def test_whatever_stands_there_it_is_limits_or_an_error_of_ours(annotation: str) -> None:
    try:
        limits = parse_limits(annotation)
    except InvalidNamespaceAnnotation:
        return
    assert all(isinstance(text, str) and text for text in limits.values())


def test_a_document_nested_beyond_reason_is_an_error_of_ours() -> None:
    with pytest.raises(InvalidNamespaceAnnotation):
        parse_limits('{"limit":' + "[" * 100_000)


USED_UP_BY_PODS = {
    "limits": "limits.cpu limits.memory limits.ephemeral-storage",
    "requests": "requests.cpu requests.memory requests.ephemeral-storage",
    "short names": "cpu memory ephemeral-storage",
    "huge pages": "hugepages-2Mi requests.hugepages-1Gi",
    "devices": "requests.devices.kubevirt.io/kvm requests.nvidia.com/A100",
    "pods": "pods count/pods",
}
NOT_BY_PODS = {
    "storage": "requests.storage gold.storageclass.storage.k8s.io/requests.storage persistentvolumeclaims",
    "other objects": "services count/secrets count/deployments.apps",
}


@sentences(USED_UP_BY_PODS | NOT_BY_PODS)
def test_what_pods_use_up(case: str) -> None:
    assert {counts_of_pods(name) for name in case.split()} == {case in USED_UP_BY_PODS.values()}
    assert not counts_of_pods("")


def test_without_an_annotation_nothing_is_granted() -> None:
    assert parse_base("") == {}


@sentences(
    {
        "a record, while an entry stands": quota(annotations={RECORD: "{nope", by_name(): ENTRY}),
        "a spec.hard": quota({"limits.cpu": "lots"}),
    }
)
def test_a_base_without_rancher_that_is_garbage_is_an_error(case: ResourceQuota) -> None:
    with pytest.raises(InvalidBaseQuantity):
        granted_by_record(case)
