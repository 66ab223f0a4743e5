"""The check whether a VM can start within its namespace's quota, and what it lacks. Pure.

Source: Harvester pkg/util/resourcequota/calculator.go (CheckIfVMCanStartByResourceQuota). Upstream measures a VM by its
limits alone, and finds out from quota admission what else its pod has; here the need is what quota will count of the
launcher pod, rendered from the VM's whole template."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from kubeloop.api.core import Pod
from kubeloop.api.quantity import Quantity, QuantityError
from kubeloop.api.resource_list import maximum, total
from pkg.api.kubevirt import VirtualMachine
from pkg.util import constants
from pkg.util.constants import LIMITS_CPU, LIMITS_MEMORY, REQUESTS_CPU, REQUESTS_MEMORY, REQUESTS_STORAGE
from pkg.util.kubevirt.evidence import vm_of
from pkg.util.kubevirt.expansion import vmi_of
from pkg.util.kubevirt.target import launcher_usage
from pkg.util.resourcequota.balance import Balance
from pkg.util.resourcequota.base import base_of, parse_base, parse_limits, quantity_of, within_grant
from pkg.util.resourcequota.entries import added
from pkg.util.resourcequota.errors import InsufficientResources, InvalidEntry, ResourceQuotaError
from pkg.util.resourcequota.facts import Facts
from pkg.util.resourcequota.policy import EXACT
from pkg.util.resourcequota.vm import vms_of

_CHECKED: Final = ((LIMITS_CPU, "cpu"), (REQUESTS_CPU, "cpu"), (LIMITS_MEMORY, "memory"), (REQUESTS_MEMORY, "memory"))
"""Resource, and what the reason calls it; the first that is short is named."""
_LIMITING: Final = (LIMITS_CPU, LIMITS_MEMORY, REQUESTS_STORAGE)
"""A namespace annotation with none of these is no quota to check (upstream)."""
_ALWAYS: Final = "Always"


def run_strategy(vm: VirtualMachine) -> str:
    """Returns KubeVirt's VirtualMachine.RunStrategy()."""
    if vm.spec.running is not None:
        return _ALWAYS if vm.spec.running else constants.RUN_STRATEGY_HALTED
    return vm.spec.run_strategy or constants.RUN_STRATEGY_HALTED


def wants_to_run(vm: VirtualMachine) -> bool:
    """Reports whether the VM shall run. Without a status KubeVirt has not processed the VM: then it is unknown."""
    return bool(vm.status.printable_status) and run_strategy(vm) != constants.RUN_STRATEGY_HALTED


def has_pod(vm: VirtualMachine, pods: Iterable[Pod]) -> bool:
    """Reports whether any of these launcher pods, finished ones included, is the VM's."""
    return any(vm_of(pod) == vm.name for pod in pods)


def shortage_of(vm: VirtualMachine, observed: Facts) -> InsufficientResources | None:
    """Returns what the VM lacks to start under `observed.quota`, its namespace's default quota; None when it can, or
    when nothing readable limits it."""
    try:
        if not any(name in parse_limits(observed.limits) for name in _LIMITING if observed.limits):
            return None
        base = within_grant(dict(parse_base(observed.limits)), observed.rancher.granted)
        need = need_of(vm, observed)
    except (ResourceQuotaError, QuantityError):  # the quota's own controller reports it
        return None
    limits = {name: base[name] for name, _ in _CHECKED if base.get(name)}
    used = {name: quantity_of(observed.quota.used, name) for name in limits}
    missing = Balance(limits, used, held_by_migrations(observed)).lacking_resources(need)
    for name, word in _CHECKED:
        if name in missing:
            return InsufficientResources(word)
    return None


def need_of(vm: VirtualMachine, observed: Facts) -> Mapping[str, Quantity]:
    """Returns what quota will count of the VM's launcher pod. Raises QuantityError."""
    return launcher_usage(vmi_of(vm), None, observed.rendering, observed.quota.spec)


def held_by_migrations(observed: Facts) -> Mapping[str, Quantity]:
    """Returns what goes when the migrations are over: their entries, or their pods' usage where that is more."""
    base = base_of(observed.quota, observed.limits, EXACT, observed.rancher.granted)
    pods = total(vm.used_headroom for vm in vms_of(observed, EXACT, base)[0])
    try:
        return maximum(added(observed.quota.annotations), pods)
    except InvalidEntry:
        return pods
