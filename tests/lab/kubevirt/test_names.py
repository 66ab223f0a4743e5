"""Generated names and label values."""

from __future__ import annotations

import re

import pytest

from lab.kubevirt.names import generate_name, generated_name, host_name, instance_id


def test_a_name_follows_from_the_uid() -> None:
    assert generated_name("a-", "uid-1") == generated_name("a-", "uid-1")
    assert generated_name("a-", "uid-1") != generated_name("a-", "uid-2")


def test_names_look_as_the_api_server_generates_them() -> None:
    generated = {generated_name("a-", f"uid-{number}") for number in range(500)}
    assert len(generated) == 500
    assert all(re.fullmatch(r"a-[bcdfghjklmnpqrstvwxz2456789]{5}", name) for name in generated)


def test_a_long_base_is_cut_as_the_api_server_cuts_it() -> None:
    assert generate_name("b" * 70) == "b" * 58
    assert len(generated_name("b" * 70, "uid")) == 63


HOSTS = {
    "a name": ("vm1", "vm1"),
    "the first part of a name with dots": ("vm1.example", "vm1"),
    "a long name": ("v" * 70, "v" * 63),
    "a long name whose cut would end in a hyphen": ("v" * 62 + "-w", "v" * 62),
}


@pytest.mark.parametrize(("name", "host"), HOSTS.values(), ids=HOSTS.keys())
def test_host_name(name: str, host: str) -> None:
    assert host_name(name) == host


def test_a_long_vmi_name_s_id_is_kubevirt_s() -> None:
    """KubeVirt 1.7: 54 characters, a hyphen, and eight of the name's SHA-1."""
    assert instance_id("a" * 64) == "a" * 54 + "-0098ba82"
