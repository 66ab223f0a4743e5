"""What an existing launcher pod says of its memory overhead, and how much more a pod rendered now has. Pure.

An observed pod beats the formula, for the formula's constants move between releases. The overhead of a pod is known
exactly; what has to be found out is under which constants and which ratio it comes out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from kubeloop.api.core import Container, Pod
from kubeloop.api.quantity import NANOS, ZERO, Quantity
from kubeloop.api.resource_list import parse_resource_list
from pkg.api.kubevirt import VirtualMachineInstance
from pkg.util import constants
from pkg.util.constants import MEMORY
from pkg.util.kubevirt.compute_container import compute_resources
from pkg.util.kubevirt.launcher import COMPUTE, is_resized
from pkg.util.kubevirt.overhead import Parts, at_ratio, overhead_of, overhead_parts
from pkg.util.kubevirt.profiles import MI, PROFILES
from pkg.util.kubevirt.rendering import MAX_RATIO, Rendering, parse_ratio

_KILO = 1000
_MAX_ANNOTATION_DIGITS = 15
"""A petabyte of overhead is none: nothing longer is read as a number."""
_RATIO_DECIMALS = range(5)
"""People choose ratios like 1.5 or 1.0625; for unknown constants only such a ratio is taken for an explanation."""
_PERIOD = 125
"""So many MiB are the least that are whole thousands of bytes."""
_PERIODS = range(-2, 8)
"""How far unknown constants are taken to have moved from the known ones, which are whole MiB all."""
_NEAR = 64 * MI
"""How far an overhead that nothing explains may be from today's, before the ratio, to count as unchanged; and how far
unknown constants may be, where the ratio has to be guessed as well."""


def compute_container(pod: Pod) -> Container | None:
    return next((c for c in pod.spec.containers if c.name == COMPUTE), None)


def rendered_overhead(vmi: VirtualMachineInstance, pod: Pod, rendering: Rendering) -> int | None:
    """Bytes of overhead in a launcher pod; None where it does not tell."""
    return next(_told(vmi, pod, rendering), None)


def overhead_difference(vmi: VirtualMachineInstance, pod: Pod, rendering: Rendering) -> int:
    """Bytes by which a launcher pod rendered now has more overhead than `pod` was rendered with.

    Zero when the ratio has not changed since, whatever the release's constants are. A launcher that KubeVirt calls
    outdated is followed by one of the installed release. An overhead that nothing explains is raised to what the
    installed release gives now at most, and never lowered; nothing is added to one that is as large already: others
    may have given the pod more. What the annotation says is believed only as far as the
    compute container bears it out: a tenant who wrote a smaller number there would be given the difference.
    """
    now, told = overhead_of(vmi, rendering), list(_told(vmi, pod, rendering))
    if not told:
        return 0
    grown = now - told[0]
    if constants.LABEL_OUTDATED_LAUNCHER in vmi.labels:
        return grown
    difference = _explained(vmi, told[0], rendering)
    if difference is None and len(told) > 1:
        annotated = _explained(vmi, told[1], rendering)
        difference = None if annotated is None else min(annotated, max(grown, 0))
    if difference is not None:
        return difference if grown > 0 else min(difference, 0)
    near = int(_NEAR * (parse_ratio(rendering.ratio) or 1))
    return grown if grown > near else 0


def _told(vmi: VirtualMachineInstance, pod: Pod, rendering: Rendering) -> Iterator[int]:
    """What the compute container has more than it would have without overhead, then what the annotation says: a
    tenant can write that one, where KubeVirt does not."""
    # A limit that KubeVirt sets for a quota is a multiple of the request, overhead included: it tells nothing.
    unlimited = replace(rendering, quota_limits=frozenset())
    limits, requests = compute_resources(vmi, unlimited, ZERO)
    compute = compute_container(pod)
    resources = [(compute.resources.limits, limits), (compute.resources.requests, requests)] if compute else []
    for of_pod, without in resources:
        have = parse_resource_list(of_pod).get(MEMORY, ZERO)
        if MEMORY in without and have > without[MEMORY]:
            # The nearest whole number: the API server has rounded the pod's memory up to thousandths.
            yield ((have - without[MEMORY]).nanos + NANOS // 2) // NANOS
            break
    annotated = pod.annotations.get(constants.ANNOTATION_MEMORY_OVERHEAD, "")
    readable = annotated.isascii() and annotated.isdecimal() and len(annotated) <= _MAX_ANNOTATION_DIGITS
    if readable and not is_resized(vmi):  # else the container is of another shape, and bears nothing out
        yield int(annotated)


def _explained(vmi: VirtualMachineInstance, rendered: int, rendering: Rendering) -> int | None:
    """The difference by the first explanation of `rendered`; None if there is none.

    First the constants of the installed release, with the ratio of now or any other. Then the ratio of now with any
    constants, the other releases' at any ratio, and last unknown constants near the installed ones' at the plainest
    ratio.
    """
    plugins = rendering.kubevirt.binding_plugins

    def more(parts: Parts) -> int:
        return at_ratio(parts, rendering.factor).value() - rendered

    installed = overhead_parts(vmi.spec, rendering.profile, plugins)
    if not more(installed) or _ratio_then(installed, rendered) is not None:
        return more(installed)
    # A release that knows no ratio gives any VM what a newer one gives it without.
    known = [each for each in PROFILES.values() if each.has_ratio or not rendering.ratio]
    others = [overhead_parts(vmi.spec, each, plugins) for each in known]
    moved = list(_moved(installed, rendered))
    if not all(map(more, (*others, *moved))):
        return 0
    for parts in others:
        if _ratio_then(parts, rendered) is not None:
            return more(parts)
    near = [each for each in moved if -_NEAR <= (each[0] - installed[0]).value() <= _NEAR]
    ratios = [(parts, then) for parts in near if (then := _ratio_then(parts, rendered)) is not None]
    for decimals in _RATIO_DECIMALS:
        for parts, then in ratios:
            if at_ratio(parts, round(then, decimals)).value() == rendered:
                return more(parts)
    return None


def _ratio_then(parts: Parts, rendered: int) -> float | None:
    """The ratio at which these parts come to `rendered`: it adds whole kilobytes, and at most nine times as much."""
    multiplied, on_top = (part.value() for part in parts)
    added = rendered - multiplied - on_top
    if not multiplied or added % _KILO or not 0 <= added <= (MAX_RATIO - 1) * multiplied:
        return None
    return 1 + added / multiplied


def _moved(parts: Parts, rendered: int) -> Iterator[Parts]:
    """The parts with unknown constants, nearest to the known ones first.

    What the ratio adds is whole kilobytes, so the last three digits say by how many MiB the constants moved, but for
    multiples of 125 MiB.
    """
    multiplied, on_top = parts
    last_digits = rendered - multiplied.value() - on_top.value()
    first = next((mib for mib in range(_PERIOD) if (last_digits - mib * MI) % _KILO == 0), None)
    moves = [] if first is None else [first + n * _PERIOD for n in _PERIODS]
    for mib in sorted(moves, key=abs):
        yield multiplied + Quantity.of(mib * MI), on_top
