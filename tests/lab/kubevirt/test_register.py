"""Which change of one object has which others handled."""

from __future__ import annotations

import pytest

from kubeloop.api.core import Pod
from kubeloop.api.registry import PODS
from lab.kubevirt import objects as kinds
from lab.kubevirt.lookup import Migrations, Pods
from lab.kubevirt.register import (
    active_migrations,
    instances_of,
    migrations_of,
)
from tests.kinds import Kind
from tests.lab.kubevirt.samples import (
    attachment,
    launcher,
    made,
    running,
    vmim,
)

PLAIN = made(Pod, "web")


PODS_FOUND, MIGRATIONS_FOUND = Kind(PODS), Kind(kinds.MIGRATIONS)
for each in (launcher(), launcher("target", job="m1")):
    PODS_FOUND.given(each)
for name, phase, vm in (
    ("m1", "Scheduling", "vm1"),
    ("m2", "Pending", "vm1"),
    ("m0", "Succeeded", "vm1"),
    ("other", "Pending", "vm2"),
):
    MIGRATIONS_FOUND.given(vmim(name, phase=phase, vmi_name=vm))
FOUND = Pods(PODS_FOUND.cache), Migrations(MIGRATIONS_FOUND.cache)

INSTANCES = {
    "a launcher's VMI": (launcher(), ["t1/vm1"]),
    "the VMI of the launcher that an attachment pod belongs to": (attachment(), ["t1/vm1"]),
    "none of an attachment pod whose launcher is gone": (attachment("gone"), []),
    "none of a foreign pod": (PLAIN, []),
}


@pytest.mark.parametrize(("pod", "keys"), INSTANCES.values(), ids=INSTANCES.keys())
def test_instances_of(pod: Pod, keys: list[str]) -> None:
    assert instances_of(FOUND[0])(pod) == keys


MIGRATIONS = {
    "those that wait for a source to end": (launcher(), {"t1/m1", "t1/m2"}),
    "a target's own and those that wait for it": (launcher("target", job="m1"), {"t1/m1", "t1/m2"}),
    "an attachment pod's own": (
        attachment("target", annotations={"kubevirt.io/migrationJobName": "m1"}),
        {"t1/m1"},
    ),
    "none of a foreign pod": (PLAIN, set()),
}


@pytest.mark.parametrize(("pod", "keys"), MIGRATIONS.values(), ids=MIGRATIONS.keys())
def test_migrations_of(pod: Pod, keys: set[str]) -> None:
    assert set(migrations_of(*FOUND)(pod)) == keys


def test_a_vmi_concerns_its_migrations_that_have_not_ended() -> None:
    assert set(active_migrations(FOUND[1])(running())) == {"t1/m1", "t1/m2"}
