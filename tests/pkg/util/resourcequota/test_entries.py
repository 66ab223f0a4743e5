"""What annotations say: entries, in every form of an entry's key, whichever controller wrote it, valid whatever the
VM's name and told apart; and the base of a quota."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeloop.api.core import ResourceQuota
from pkg.util.problems import InvalidBaseQuantity, InvalidEntry, InvalidNamespaceAnnotation
from pkg.util.resourcequota.base import RESOURCE_NAMES, counts_of_pods, granted_by_record, parse_base, parse_limits
from pkg.util.resourcequota.entries import (
    MAX_LENGTH,
    changes,
    entry_keys,
    is_by_uid,
    migrating_key,
    migrating_uid_key,
    parse_resources,
    put,
    read,
    vm_in_key,
)
from tests.decisions import by_value, drawn, sentences
from tests.objects import COMPENSATION, ENTRY, RESYNC, SKIP, by_name, by_uid, quota

ENTRY_VALUES = by_value({"limits.cpu": "2", "limits.memory": "4737464313"})


GARBAGE = {
    "no JSON": "{nope",
    "a quantity that is none": '{"limits.cpu":"two"}',
    "nested beyond reason": "[" * 1000,
    "longer than any list of limits": ENTRY + " " * MAX_LENGTH,
}


@sentences(GARBAGE)
def test_garbage_is_told_with_its_key_in_one_line(case: str) -> None:
    with pytest.raises(InvalidEntry, match="annotation example/key is not a resource list") as caught:
        parse_resources("example/key", case)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


@sentences(GARBAGE)
def test_what_cannot_be_read_adds_nothing_and_is_told(case: str) -> None:
    result = read({by_uid(): ENTRY, by_name(): case, RESYNC: "true"})
    assert result.by_key == {by_uid(): ENTRY_VALUES}
    assert list(result.invalid) == [by_name()]


def test_an_entry_that_says_the_same_keeps_its_spelling() -> None:
    old = {by_uid(): '{ "limits.memory": 4737464313, "limits.cpu": "2e0" }'}
    new = dict(old)
    put(new, by_uid(), ENTRY_VALUES)
    assert new == old


def test_changes_are_what_differs() -> None:
    old = {by_uid(): ENTRY, RESYNC: "true", SKIP: "true"}
    assert changes(old, {RESYNC: "false", SKIP: "true", COMPENSATION: "{}"}) == {
        RESYNC: "false",
        COMPENSATION: "{}",
        by_uid(): None,
    }


def test_a_compensation_that_is_garbage() -> None:
    by_key, compensation, invalid = read({COMPENSATION: "128Mi", by_uid(): ENTRY})
    assert by_key == {by_uid(): ENTRY_VALUES}
    assert not compensation
    with pytest.raises(InvalidEntry, match="migratingCompensation"):
        raise invalid[COMPENSATION]


# ---- their keys ----------------------------------------------------------------------------------------------

PREFIX = "harvesterhci.io/migrating-"
VALID_NAME_PART = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
UID = "5700f8be-87ba-4bdf-a332-a8b30c68e717"
LABEL = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,80}[a-z0-9])?", fullmatch=True)


def vms_of_key(key: str) -> list[tuple[str, bool]]:
    """Returns the VM of an annotation's key and whether it is by its VMI's uid, if the key is an entry."""
    return [(vm_in_key(name), is_by_uid(name)) for name in entry_keys([key])]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("vm1", id="a short name"),
        pytest.param("a" * 53, id="the longest name that fits"),
        pytest.param("web.prod-1", id="a name with a dot"),
        pytest.param("x-aaaaaaaaaaaaaaaa", id="a name that ends like a hash in small letters"),
    ],
)
def test_a_name_that_fits_is_in_the_key_as_in_harvesters(name: str) -> None:
    assert migrating_key(name) == PREFIX + name
    assert vms_of_key(PREFIX + name) == [(name, False)]


@pytest.mark.parametrize(
    ("name", "readable"),
    [
        pytest.param("a" * 54, "a" * 36, id="one letter too long"),
        pytest.param("b" * 63, "b" * 36, id="as long as a name can be"),
        pytest.param("c" * 35 + "." * 10 + "d" * 18, "c" * 35, id="a cut behind a dot"),
        pytest.param("e" * 30 + "-" * 20 + "f" * 13, "e" * 30, id="a cut within dashes"),
        pytest.param("g" * 253, "g" * 36, id="as long as a subdomain can be"),
        pytest.param("-", "vm", id="a name that is no name"),
        pytest.param("", "vm", id="no name at all"),
        pytest.param("ü" * 10, "vm", id="letters that no key may hold"),
    ],
)
def test_a_name_that_does_not_fit_is_cut_and_hashed(name: str, readable: str) -> None:
    key = migrating_key(name)
    assert key.startswith(f"{PREFIX}{readable}-H")
    assert VALID_NAME_PART.fullmatch(key.removeprefix("harvesterhci.io/"))
    assert vms_of_key(key) == [(key.removeprefix(PREFIX), False)]
    assert migrating_key(key.removeprefix(PREFIX)) != key, "a VM of that very name has another"


def test_long_names_have_keys_of_their_own_in_every_release() -> None:
    names = ["a" * 60 + f"-{number:03d}" for number in range(1000)]
    assert len({migrating_key(name) for name in names}) == 1000
    assert migrating_key("a" * 54) == PREFIX + "a" * 36 + "-HUPYBW2JZEVQSOWB"
    assert migrating_uid_key(UID) == f"harvesterhci.io/migratingUID-{UID}"
    assert vms_of_key(migrating_uid_key(UID)) == [(UID, True)]


@given(st.text(max_size=300))
def test_the_key_is_valid_whatever_the_name(name: str) -> None:
    key = migrating_key(name)
    assert VALID_NAME_PART.fullmatch(key.removeprefix("harvesterhci.io/"))
    assert migrating_key(name) == key


@given(LABEL, LABEL)
def test_two_vms_never_share_a_key(one: str, other: str) -> None:
    assert (migrating_key(one) == migrating_key(other)) == (one == other)


@given(LABEL)
def test_no_vm_can_be_named_like_another_ones_hash(name: str) -> None:
    hashed = migrating_key(name + "x" * 60).removeprefix(PREFIX)
    assert hashed != hashed.lower()


@pytest.mark.parametrize(
    "key",
    [
        pytest.param("harvesterhci.io/migratingCompensation", id="the compensation"),
        pytest.param("harvesterhci.io/migratingScalingResyncNeeded", id="the resync flag"),
        pytest.param("harvesterhci.io/skipResourceQuotaAutoScaling", id="the off switch"),
        pytest.param("harvesterhci.io/migrating-", id="a name key without a name"),
        pytest.param("harvesterhci.io/migratingUID-", id="a uid key without a uid"),
        pytest.param("example.com/migrating-vm1", id="another prefix"),
        pytest.param("migrating-vm1", id="no prefix"),
        pytest.param("", id="nothing"),
    ],
)
def test_other_annotations_are_no_entries(key: str) -> None:
    assert not vms_of_key(key)


# ---- the base: the namespace annotation, read as Rancher's Go code reads it, and a record --------------------

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
    "nothing is no limit": ("", {}),
    "names that Rancher does not know are left out": ('{"limit":{"cpu":"3","limits.cpu":"3","foo":7}}', {}),
    "other fields beside limit are left out": ('{"usedLimit":{"limitsCpu":"3"},"limit":{}}', {}),
    "extended resources keep their names": (
        '{"limit":{"extended":{"requests.nvidia.com/gpu":"2"},"limitsCpu":"3"}}',
        {"requests.nvidia.com/gpu": "2", "limits.cpu": "3"},
    ),
    "an empty extended resource is none": ('{"limit":{"extended":{"requests.nvidia.com/gpu":""}}}', {}),
    "white space around is JSON's": (' \n{"limit" : {"limitsCpu" :\t"3"} } ', {"limits.cpu": "3"}),
}


@sentences(LIMITS, "annotation, limits")
def test_limits(annotation: str, limits: dict[str, str]) -> None:
    assert dict(parse_limits(annotation)) == limits


GARBAGE_LIMITS = {
    "not JSON": "{nope",
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
    "nested beyond reason": '{"limit":' + "[" * 100_000,
}


@sentences(GARBAGE_LIMITS)
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
    assert parse_base('{"limit":{"secrets":"many","pods":"3"}}').keys() == {"pods"}, "what is not scaled may be strange"
    assert parse_base("") == {}


@sentences({"cpu": "limitsCpu", "memory": "limitsMemory", "memory in capitals": "LIMITSMEMORY"})
def test_a_scaled_limit_must_parse_and_the_error_names_it(case: str) -> None:
    with pytest.raises(InvalidBaseQuantity, match=r"limits\.(cpu|memory) is '5 GB'"):
        parse_base(json.dumps({"limit": {case: "5 GB"}}))


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


@sentences(
    {
        "a record, while an entry stands": quota(annotations={RECORD: "{nope", by_name(): ENTRY}),
        "a spec.hard": quota({"limits.cpu": "lots"}),
    }
)
def test_a_base_without_rancher_that_is_garbage_is_an_error(case: ResourceQuota) -> None:
    with pytest.raises(InvalidBaseQuantity):
        granted_by_record(case)
