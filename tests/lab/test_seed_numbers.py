"""Every number of the investigations into quota and migration, computed: what Harvester adds, what KubeVirt renders,
what quota counts, and what is left of a limit that was reverted in between."""

from typing import Any

import msgspec
import pytest

from kubeloop.api.core import Pod
from kubeloop.api.quantity import Quantity
from kubeloop.api.resource_list import ResourceList, add, parse_resource_list, subtract, total
from lab.kubevirt.objects import VirtualMachineInstance
from lab.kubevirt.pod import launcher_pod
from pkg.util.kubevirt.overhead import harvester_delta
from pkg.util.kubevirt.profiles import PROFILES
from pkg.util.kubevirt.rendering import Rendering
from pkg.util.quotacount.usage import pod_usage
from tests.objects import build

LIMITED = {"limits.cpu": "1", "limits.memory": "1Gi"}
"""A quota that limits both."""
SIXTY = parse_resource_list({"limits.cpu": "30", "limits.memory": "60Gi"})
FIVE = parse_resource_list({"limits.cpu": "3", "limits.memory": "5000Mi"})
SIX = parse_resource_list({"limits.cpu": "3", "limits.memory": "6000Mi"})


class Vm:
    """A VM of a seed, on the KubeVirt of its time."""

    def __init__(
        self, cpu: str, memory: str, requests: tuple[str, str], profile: str, ratio: str = "1.0", *, logs: bool = True
    ) -> None:
        """`logs`: the console is logged by a container, as since KubeVirt 1.1."""
        requested = {"cpu": requests[0], "memory": requests[1]}
        resources = {"limits": {"cpu": cpu, "memory": memory}, "requests": requested}
        domain: dict[str, Any] = {"cpu": {"cores": int(cpu), "sockets": 1, "threads": 1}, "resources": resources}
        self.vmi = build(
            VirtualMachineInstance, "vm1", {"domain": domain | {"devices": {"logSerialConsole": logs}}}, namespace="ns1"
        )
        self.profile, self.ratio = PROFILES[profile], ratio

    @property
    def delta(self) -> ResourceList:
        """Harvester's addition for its migration."""
        delta = harvester_delta(self.vmi.spec, LIMITED, self.ratio, profile=self.profile)
        assert delta is not None
        return delta

    @property
    def pod(self) -> ResourceList:
        """The usage of its launcher pod."""
        body = launcher_pod(self.vmi, Rendering(self.ratio, self.profile), "node-1")
        return pod_usage(msgspec.convert(body, Pod))


SEED = Vm("2", "4Gi", ("125m", "2730Mi"), "0.54", logs=False)
"""Harvester 1.2.1 of December 2024: the manual migration."""
SECOND = Vm("1", "2Gi", ("62m", "1365Mi"), "0.54", logs=False)
"""The four VMs that migrate at once."""
SMALL = Vm("1", "1Gi", ("62m", "682Mi"), "0.54", logs=False)
"""The three VMs of the maintenance."""
LOGGED = Vm("4", "8Gi", ("250m", "5461Mi"), "1.3")
"""The VM in the production cluster's log; Harvester 1.4 adds no ratio to what its log shows."""
AT_1_5 = Vm("2", "4Gi", ("125m", "2730Mi"), "1.8", "1.5")
AT_4_5 = Vm("2", "4Gi", ("125m", "2730Mi"), "1.8", "4.5")
"""Harvester 1.7.0, before and after the overhead ratio was raised."""
THREE = total([SMALL.pod] * 3)

Row = tuple[ResourceList, dict[str, str]]
ROWS: dict[str, Row] = {
    "60Gi in bytes": (SIXTY, {"limits.memory": "64424509440"}),
    "the manual migration's entry": (SEED.delta, {"limits.cpu": "2", "limits.memory": "4531245057"}),
    "60Gi raised for it": (add(SIXTY, SEED.delta), {"limits.cpu": "32", "limits.memory": "68955754497"}),
    "what quota counts of its pod": (
        SEED.pod,
        {"limits.cpu": "2", "limits.memory": "4531245057", "requests.cpu": "125m", "requests.memory": "3098890241"},
    ),
    "the entries of four VMs": (SECOND.delta, {"limits.cpu": "1", "limits.memory": "2372577281"}),
    "the three VMs of the maintenance": (
        THREE,
        {
            "limits.cpu": "3",
            "limits.memory": "3892310016",
            "requests.cpu": "186m",
            "requests.memory": "2750460Ki",
            "pods": "3",
        },
    ),
    "one more of them, which quota refuses": (SMALL.pod, {"requests.memory": "916820Ki"}),
    "two pods for one of them": (add(THREE, SMALL.pod), {"requests.memory": "3667280Ki"}),
    "their limit": (parse_resource_list({"limits.memory": "4200Mi"}), {"limits.memory": "4404019200"}),
    "the log's pod": (LOGGED.pod, {"limits.cpu": "4015m", "limits.memory": "8940039936"}),
    "a reverted quota less an entry": (
        subtract(SIXTY, LOGGED.delta),
        {"limits.cpu": "26", "limits.memory": "54242646Ki"},
    ),
    "the entry at ratio 1.5": (AT_1_5.delta, {"limits.cpu": "2", "limits.memory": "4737464313"}),
    "5000Mi raised at ratio 1.5": (add(FIVE, AT_1_5.delta), {"limits.cpu": "5", "limits.memory": "9980344313"}),
    "the pod at ratio 1.5": (AT_1_5.pod, {"limits.cpu": "2015m", "limits.memory": "4797464313"}),
    "the entry at ratio 4.5": (AT_4_5.delta, {"limits.cpu": "2", "limits.memory": "5622461313"}),
    "5000Mi raised at ratio 4.5": (add(FIVE, AT_4_5.delta), {"limits.cpu": "5", "limits.memory": "10865341313"}),
    "6000Mi raised at ratio 4.5": (add(SIX, AT_4_5.delta), {"limits.cpu": "5", "limits.memory": "11913917313"}),
    "the pod at ratio 4.5": (AT_4_5.pod, {"limits.cpu": "2015m", "limits.memory": "5682461313"}),
    "the first migration after the ratio was raised": (
        add(AT_1_5.pod, AT_4_5.pod),
        {"limits.cpu": "4030m", "limits.memory": "10479925626"},
    ),
    "both pods at ratio 4.5": (total([AT_4_5.pod] * 2), {"limits.cpu": "4030m", "limits.memory": "11364922626"}),
}


@pytest.mark.parametrize(("computed", "expected"), ROWS.values(), ids=ROWS.keys())
def test_a_number_of_the_seeds(computed: ResourceList, expected: dict[str, str]) -> None:
    assert {name: computed[name] for name in expected} == parse_resource_list(expected)


def test_the_ratio_s_addition_refuses_the_second_migration() -> None:
    """5682461313 is used, 10865341313 allowed, 5682461313 asked for."""
    unused = add(FIVE, AT_4_5.delta)["limits.memory"] - AT_4_5.pod["limits.memory"]
    assert AT_4_5.pod["limits.memory"] - unused == Quantity.parse("499581313")


def test_four_fifths_of_the_maintained_namespace_are_used() -> None:
    used, limit = THREE["limits.memory"], Quantity.parse("4404019200")
    assert used.value() * 5 > limit.value() * 4
