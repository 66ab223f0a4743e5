"""The ResourceClaims of a VM's devices: nothing is added for those of a target, because nothing could reserve it."""

from __future__ import annotations

from dataclasses import dataclass, field

from kubeloop.api.resource_list import marshal, parse_resource_list
from tests.decisions import after, by_value, entry, namespace, sentences
from tests.objects import MARKS, Resources, by_name, launcher, limits_text, quota, running_vmi, vmim

ALL, NICS = "count/resourceclaims.resource.k8s.io", "nic.deviceclass.resource.k8s.io/devices"
HARD = {"limits.cpu": "3", ALL: "1", NICS: "4"}
BASE = limits_text("3")[:-2] + f',"extended":{{"{ALL}":"1","{NICS}":"4"}}}}}}'
RAISED = {"limits.cpu": "5015m", ALL: "2", NICS: "6"}
BY_0_1_0 = {by_name(): f'{{"{ALL}":"1","{NICS}":"2","limits.cpu":"2015m"}}'}
LABELLED = {"headroom.harvesterhci.io/managed": "true"}
RECORDS = {
    "headroom.harvesterhci.io/base": marshal(parse_resource_list(dict(HARD))),
    "headroom.harvesterhci.io/applied": marshal(parse_resource_list(dict(RAISED))),
}


@dataclass(frozen=True)
class DeviceCase:
    """The quota as it is found, of a VM that migrates."""

    hard: Resources
    annotations: dict[str, str]
    labels: dict[str, str] | None = None
    limits: str = field(default=BASE)


CASES = {
    "a quota at its base": DeviceCase(HARD, MARKS),
    "one that version 0.1.0 has raised": DeviceCase(RAISED, MARKS | BY_0_1_0),
    "a quota without Rancher": DeviceCase(HARD, {}, LABELLED, ""),
    "one without Rancher that version 0.1.0 has raised": DeviceCase(RAISED, BY_0_1_0 | RECORDS, LABELLED, ""),
}


@sentences(CASES)
def test_the_pods_are_added_and_no_claim_of_a_device(case: DeviceCase) -> None:
    home = running_vmi()
    rq = quota(case.hard, case.annotations, labels=case.labels)
    result, _plan = after(namespace(rq, [vmim()], [launcher(home)], [home], limits=case.limits))
    assert by_value(entry(result.annotations[by_name()])) == by_value({"limits.cpu": "2015m"})
    assert by_value(result.hard) == by_value(HARD | {"limits.cpu": "5015m"})
