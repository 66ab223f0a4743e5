"""The scenario's numbers against the product's own arithmetic and the seed's."""

from __future__ import annotations

import msgspec
import pytest

from lab import bodies
from lab.demo import seed
from lab.kubevirt.objects import VirtualMachineInstanceMigration
from lab.kubevirt.options import Options, migration_options
from lab.record import Amounts
from pkg.api.kubevirt import DomainSpec, VirtualMachineInstanceSpec
from pkg.util.kubevirt.overhead import harvester_delta


def spec(domain: object) -> VirtualMachineInstanceSpec:
    return VirtualMachineInstanceSpec(domain=msgspec.convert(domain, DomainSpec))


@pytest.mark.parametrize(
    ("domain", "raised"),
    [(seed.FIRST_DOMAIN, seed.HARVESTER), (seed.SECOND_DOMAIN, seed.SECOND_RAISED)],
    ids=["the seed's VM", "the small second one"],
)
def test_harvesters_estimate_on_top_of_the_base(domain: object, raised: Amounts) -> None:
    hard = {"limits.cpu": "3", "limits.memory": "5000Mi"}
    delta = harvester_delta(spec(domain), hard, ratio=seed.RATIO, arch="amd64")
    assert delta is not None
    assert seed.BASE + delta == raised


@pytest.mark.parametrize(
    ("total", "parts"),
    [
        pytest.param(seed.BOTH_PODS, (seed.POD, seed.POD), id="both pods of the first VM"),
        pytest.param(seed.EXACT, (seed.BASE, seed.POD), id="the base and one more pod"),
        pytest.param(seed.BASE, (seed.POD, seed.SECOND_POD), id="the two VMs fill the base to the byte"),
        pytest.param(seed.BOTH_MOVE, (seed.BASE, seed.BASE), id="both VMs twice: twice the base"),
        pytest.param(seed.BOTH_MOVE, (seed.EXACT, seed.SECOND_POD), id="one held, the other on top"),
    ],
)
def test_the_numbers_fit_together(total: Amounts, parts: tuple[Amounts, ...]) -> None:
    assert sum(parts, Amounts()) == total


def test_the_stand_in_reads_the_pace_of_a_migration() -> None:
    marks = {"phase_seconds": bodies.pace(0.04, 2.5), "source_linger_seconds": 8.0}
    body = bodies.migration("m1", "vm1", **marks)
    migration = msgspec.convert(body, VirtualMachineInstanceMigration)
    asked = migration_options(Options(), migration)
    assert (asked.hold("Running"), asked.hold("Scheduling"), asked.source_linger) == (2.5, 0.04, 8.0)
