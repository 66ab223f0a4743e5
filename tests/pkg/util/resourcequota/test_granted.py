"""What a quota grants without migrations, under the names of its spec.hard."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from pkg.util.constants import ANNOTATION_APPLIED as APPLIED
from pkg.util.resourcequota.base import (
    counts_of_pods,
    granted_by_namespace,
    granted_by_record,
    scaled_base,
)
from pkg.util.resourcequota.errors import InvalidBaseQuantity
from pkg.util.resourcequota.policy import EstimateKind, Mode, Policy
from tests.decisions import by_value, sentences
from tests.objects import COMPENSATION, ENTRY, by_name, quota

EXACT = Policy(Mode.TAKEOVER, EstimateKind.EXACT)
HARVESTER = Policy(Mode.TAKEOVER, EstimateKind.HARVESTER)
RENDER = Policy(Mode.TAKEOVER, EstimateKind.EXACT, render=True)
BASE = "headroom.harvesterhci.io/base"

COUNTED = {
    "limits.cpu": True,
    "limits.memory": True,
    "limits.ephemeral-storage": True,
    "cpu": True,
    "requests.cpu": True,
    "memory": True,
    "requests.memory": True,
    "ephemeral-storage": True,
    "requests.ephemeral-storage": True,
    "hugepages-2Mi": True,
    "requests.hugepages-1Gi": True,
    "requests.devices.kubevirt.io/kvm": True,
    "requests.nvidia.com/A100": True,
    "pods": True,
    "count/pods": True,
    "requests.storage": False,
    "gold.storageclass.storage.k8s.io/requests.storage": False,
    "persistentvolumeclaims": False,
    "services": False,
    "count/secrets": False,
    "count/deployments.apps": False,
    "": False,
}


@pytest.mark.parametrize(("name", "counts"), COUNTED.items())
def test_what_pods_use_up(name: str, counts: bool) -> None:
    assert counts_of_pods(name) is counts


@dataclass(frozen=True)
class Scaled:
    """What is granted and what spec.hard names; the base that entries are added to."""

    granted: Mapping[str, str]
    hard: Mapping[str, str]
    base: Mapping[str, str]
    policy: Policy = EXACT


LIMITS = {"limits.cpu": "3", "limits.memory": "5000Mi"}
SCALED = {
    "the two limits": Scaled(LIMITS, LIMITS, LIMITS),
    "spec.hard as another client has raised it is not the base": Scaled(LIMITS, {"limits.cpu": "9"}, LIMITS),
    "a limit that spec.hard has lost comes back": Scaled(LIMITS, {}, LIMITS),
    "every counted resource that both name": Scaled(
        {**LIMITS, "requests.cpu": "1", "requests.memory": "4Gi", "pods": "10"},
        {**LIMITS, "requests.cpu": "1", "requests.memory": "4Gi", "pods": "10"},
        {**LIMITS, "requests.cpu": "1", "requests.memory": "4Gi", "pods": "10"},
    ),
    "Harvester's estimate scales the two limits only": Scaled(
        {**LIMITS, "requests.cpu": "1"}, {**LIMITS, "requests.cpu": "1"}, LIMITS, HARVESTER
    ),
    "the granted requests count under their other name": Scaled(
        {"requests.cpu": "1", "requests.memory": "4Gi"},
        {"cpu": "1", "memory": "4Gi"},
        {"cpu": "1", "memory": "4Gi"},
    ),
    "and the other way round": Scaled({"cpu": "1"}, {"requests.cpu": "1"}, {"requests.cpu": "1"}),
    "under both names at once": Scaled(
        {"requests.cpu": "1"}, {"cpu": "1", "requests.cpu": "1"}, {"cpu": "1", "requests.cpu": "1"}
    ),
    "its own name beats the other": Scaled(
        {"cpu": "2", "requests.cpu": "1"},
        {"cpu": "1", "requests.cpu": "1"},
        {"cpu": "2", "requests.cpu": "1"},
    ),
    "an extended resource": Scaled(
        {"requests.devices.kubevirt.io/kvm": "5"},
        {"requests.devices.kubevirt.io/kvm": "5"},
        {"requests.devices.kubevirt.io/kvm": "5"},
    ),
    "what spec.hard names and the annotation does not grant is left alone": Scaled({}, {"pods": "10"}, {}),
    "what is granted and spec.hard does not name is not added": Scaled({"pods": "10"}, {}, {}),
    "unless the quota is ours to render": Scaled({"pods": "10"}, {}, {"pods": "10"}, RENDER),
    "what is granted and no pod uses up is left alone": Scaled({"services": "5"}, {"services": "5"}, {}),
    "zero is no base": Scaled({**LIMITS, "pods": "0"}, {**LIMITS, "pods": "7"}, LIMITS),
}


@sentences(SCALED)
def test_scaled_base(case: Scaled) -> None:
    found = scaled_base(by_value(dict(case.granted)), dict(case.hard), case.policy)
    assert found == by_value(dict(case.base))


def test_without_an_annotation_nothing_is_granted() -> None:
    assert granted_by_namespace("") == {}


# ---- quotas without Rancher ----------------------------------------------------------------------------------

HARD = {"limits.cpu": "4", "services": "3"}
RECORD = '{"limits.cpu":"2"}'


@dataclass(frozen=True)
class Recorded:
    """The annotations of a managed quota whose spec.hard is HARD; its base."""

    annotations: Mapping[str, str]
    base: Mapping[str, str]


RECORDS = {
    "at adoption its spec.hard": Recorded({}, HARD),
    "outside migrations its spec.hard, whatever the record says": Recorded({BASE: RECORD}, HARD),
    "while an entry stands the record of what pods use up": Recorded(
        {BASE: RECORD, by_name(): ENTRY}, {"limits.cpu": "2", "services": "3"}
    ),
    "while a compensation stands the record": Recorded(
        {BASE: RECORD, COMPENSATION: ENTRY}, {"limits.cpu": "2", "services": "3"}
    ),
    "an entry of Harvester's, but no record yet": Recorded({by_name(): ENTRY}, HARD),
    "a record that was removed: what was applied without what was added": Recorded(
        {
            APPLIED: '{"limits.cpu":"4"}',
            by_name(): '{"limits.cpu":"1"}',
            COMPENSATION: '{"limits.cpu":"500m"}',
        },
        {"limits.cpu": "2500m", "services": "3"},
    ),
    "and a limit that was edited since: as written": Recorded(
        {APPLIED: '{"limits.cpu":"3"}', by_name(): '{"limits.cpu":"1"}'}, HARD
    ),
    "a record that is garbage does not matter outside migrations": Recorded({BASE: "{nope"}, HARD),
}


@sentences(RECORDS)
def test_the_base_of_a_quota_without_rancher(case: Recorded) -> None:
    assert granted_by_record(quota(HARD, case.annotations)) == by_value(dict(case.base))


@sentences(
    {
        "a record that is garbage while an entry stands": quota(HARD, {BASE: "{nope", by_name(): ENTRY}),
        "a spec.hard that is garbage": quota({"limits.cpu": "lots"}),
    }
)
def test_a_base_that_cannot_be_told_is_an_error(case: object) -> None:
    with pytest.raises(InvalidBaseQuantity):
        granted_by_record(case)  # type: ignore[arg-type]
