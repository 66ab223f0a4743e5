"""Entries: every form of an entry's key, whichever controller wrote it, valid whatever the VM's name and told apart;
what they say, and what changes of them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pkg.util.resourcequota.entries import (
    LONGEST,
    changes,
    entries,
    is_by_uid,
    migrating_key,
    migrating_uid_key,
    parse_resources,
    put,
    read,
)
from pkg.util.resourcequota.errors import InvalidEntry
from tests.decisions import by_value, sentences
from tests.objects import COMPENSATION, ENTRY, RESYNC, SKIP, by_name, by_uid

ENTRY_VALUES = by_value({"limits.cpu": "2", "limits.memory": "4737464313"})


GARBAGE = {
    "no JSON": "{nope",
    "a quantity that is none": '{"limits.cpu":"two"}',
    "nested beyond reason": "[" * 1000,
    "longer than any list of limits": ENTRY + " " * LONGEST,
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
    return [(entry.vm, is_by_uid(entry.key)) for entry in entries({key: "{}"})]


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


def test_long_names_with_the_same_beginning_have_different_keys() -> None:
    names = ["a" * 60 + f"-{number:03d}" for number in range(1000)]
    assert len({migrating_key(name) for name in names}) == 1000


def test_a_key_does_not_change_from_one_release_to_the_next() -> None:
    assert migrating_key("a" * 54) == PREFIX + "a" * 36 + "-HUPYBW2JZEVQSOWB"


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


def test_the_uid_form_is_harvesters() -> None:
    assert migrating_uid_key(UID) == f"harvesterhci.io/migratingUID-{UID}"
    assert vms_of_key(migrating_uid_key(UID)) == [(UID, True)]


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
