"""The ResourceClaims that Kubernetes makes from templates for a VM's pods, one set for each side. Pure.

They are made after the pod, which waits for them without a condition where quota refuses one, and go with it. Believed
is what Kubernetes' own controller writes: the names in the pod's status; and as many of them as the VMI's spec asks
for. What is in a template is the tenant's: the base pays for the source's, a target's counts no more than that.

Source: kubernetes pkg/controller/resourceclaim; KubeVirt pkg/dra (ToPodResourceClaims).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kubeloop.api.core import Pod
from kubeloop.api.devices import ResourceClaim
from pkg.api.kubevirt import VirtualMachineInstance
from pkg.util.kubevirt.backend_storage import NOTHING, SecondClaims
from pkg.util.kubevirt.evidence import Sides
from pkg.util.kubevirt.target import Side
from pkg.util.quotacount.claims import device_usage
from pkg.util.quotacount.releases import Releases
from pkg.util.resource_list import ResourceList, minimum, smallest, total


def device_claims(
    vmi: VirtualMachineInstance | None,
    sides: Sides,
    claims: Mapping[str, ResourceClaim],
    releases: Releases,
    *,
    moving: bool,
) -> SecondClaims:
    """`moving`: a migration of the VM may still go on. Raises QuantityError when a claim's quantity is none."""
    asked = {each.name for each in vmi.spec.resource_claims or () if each.template} if vmi else set()
    if not asked or not claims:
        return NOTHING

    def usages(side: Side) -> Mapping[str, ResourceList]:
        """By the name that the pod has for a claim."""
        made = _made(side.launcher, claims)
        return {name: device_usage(claim, releases) for name, claim in made.items() if name in asked}

    home, targets = ([usages(side) for side in every] for every in (sides.home, sides.target))
    worth = {name: smallest(each.get(name, {}) for each in home) for name in asked}
    old = total(minimum(u, worth[n]) if home else u for side in sides.old for n, u in usages(side).items())
    if not moving:
        return SecondClaims(old=old)
    there = {name for each in targets for name in each}
    return SecondClaims(
        target=total(minimum(smallest(each.get(n, {}) for each in targets), worth[n]) for n in there),
        to_come=total(worth[name] for name in asked - there),
        old=old,
    )


def concerning(pods: Iterable[Pod], claims: Mapping[str, ResourceClaim]) -> Sequence[ResourceClaim]:
    """Every claim that may make a difference to `device_claims`."""
    return [claim for pod in pods for claim in _made(pod, claims).values()]


def _made(pod: Pod, claims: Mapping[str, ResourceClaim]) -> Mapping[str, ResourceClaim]:
    """The claims that were made for a pod, by the name that it has for each."""
    made = {each.name: each.resource_claim_name or "" for each in pod.status.resource_claim_statuses or ()}
    return {name: claims[claim] for name, claim in made.items() if claim in claims}
