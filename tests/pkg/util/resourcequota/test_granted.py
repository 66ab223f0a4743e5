"""What a quota grants without migrations, under the names of its spec.hard."""

from __future__ import annotations

import pytest

from pkg.util.resourcequota.base import (
    counts_of_pods,
    granted_by_namespace,
    granted_by_record,
)
from pkg.util.resourcequota.errors import InvalidBaseQuantity
from pkg.util.resourcequota.policy import EstimateKind, Mode, Policy
from tests.decisions import sentences
from tests.objects import ENTRY, by_name, quota

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


def test_without_an_annotation_nothing_is_granted() -> None:
    assert granted_by_namespace("") == {}


# ---- quotas without Rancher ----------------------------------------------------------------------------------

HARD = {"limits.cpu": "4", "services": "3"}


@sentences(
    {
        "a record that is garbage while an entry stands": quota(HARD, {BASE: "{nope", by_name(): ENTRY}),
        "a spec.hard that is garbage": quota({"limits.cpu": "lots"}),
    }
)
def test_a_base_that_cannot_be_told_is_an_error(case: object) -> None:
    with pytest.raises(InvalidBaseQuantity):
        granted_by_record(case)  # type: ignore[arg-type]
