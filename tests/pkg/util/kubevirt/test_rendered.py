"""A migration's target as quota will count it, against what KubeVirt's own template service rendered."""

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import pytest

from kubeloop.api.core import Namespace, Pod, ResourceQuota, ResourceQuotaSpec
from kubeloop.api.meta import Object
from kubeloop.api.quantity import ZERO
from kubeloop.api.resource_list import ResourceList
from pkg.api.kubevirt import KubeVirt, VirtualMachineInstance
from pkg.util.kubevirt.profiles import DEFAULT_PROFILE
from pkg.util.kubevirt.rendering import Rendering, limited_resources, rendering
from pkg.util.kubevirt.target import Side, bound_of, target_usage
from pkg.util.quotacount.pod_resources import apply_limit_ranges
from tests.pkg.util.rendered import MODES, RenderedCase, cases, counted, of_kind

T = TypeVar("T", bound=Object)
RELEASES = ["v1.3.1", "v1.4.1", "v1.5.3", "v1.6.6", "v1.7.4", "v1.8.3", "v1.9.0"]


Computed = Callable[[VirtualMachineInstance, Side | None, Rendering, ResourceQuotaSpec], ResourceList]


def computed(case: RenderedCase, compute: Computed) -> ResourceList:
    (vmi,) = of_kind(VirtualMachineInstance, case.documents)
    (namespace,) = of_kind(Namespace, case.documents)
    limits = limited_resources(name for quota in of_kind(ResourceQuota, case.documents) for name in quota.hard)
    kubevirts = list(of_kind(KubeVirt, case.documents))
    current_rendering = rendering(kubevirts, None, namespace_labels=namespace.labels)
    nads = [d["metadata"] for d in case.documents if d["kind"] == "NetworkAttachmentDefinition"]
    resources = {f"{m['namespace']}/{m['name']}": next(iter(m["annotations"].values())) for m in nads}
    pods = [apply_limit_ranges(pod, ()) for pod in of_kind(Pod, case.documents)]
    source = Side(pods[0], tuple(pods[1:])) if pods else None
    return compute(
        vmi, source, replace(current_rendering, network_resources=resources, quota_limits=limits), ResourceQuotaSpec()
    )


@pytest.mark.parametrize("mode", MODES)
def test_every_target_counts_to_the_byte_what_kubevirt_renders(mode: str) -> None:
    """Every release, every name that quota counts."""
    counts: Counter[str] = Counter()
    for case in cases(mode):
        assert computed(case, target_usage) == counted(case.pods), (mode, case.id)
        counts[case.release] += 1
    assert counts.total() == MODES[mode]
    assert sorted(counts) == RELEASES


def largest(
    vmi: VirtualMachineInstance, source: Side | None, current_rendering: Rendering, spec: ResourceQuotaSpec
) -> ResourceList:
    """Whatever release is configured."""
    return bound_of(vmi, replace(current_rendering, profile=DEFAULT_PROFILE), spec).launcher


def test_no_launcher_is_larger_than_the_largest_of_its_spec() -> None:
    for case in itertools.islice(cases("ratio"), 0, None, 3):
        most = computed(case, largest)
        real = counted(case.pods[:1])
        assert {name for name in real if real[name] > most.get(name, ZERO)} == set(), case.id
