"""The check whether a VM wants to start, and what it lacks for that within its namespace's quota. Pure.

Source: Harvester pkg/util/resourcequota/calculator.go (CheckIfVMCanStartByResourceQuota). Upstream measures a VM by its
limits alone, and finds out from quota admission what else its pod has; here the need is what quota will count of the
launcher pod, rendered from the VM's whole template."""

from typing import Final

from kubeloop.api.quantity import QuantityError
from kubeloop.api.resource_list import maximum, total
from pkg.api.kubevirt import VirtualMachine
from pkg.util import constants
from pkg.util.kubevirt.expansion import vmi_of
from pkg.util.kubevirt.target import launcher_usage
from pkg.util.problems import ResourceQuotaError, insufficient
from pkg.util.resourcequota.base import base_of, parse_base, parse_limits, quantity_of, within_grant
from pkg.util.resourcequota.entries import read
from pkg.util.resourcequota.facts import Facts
from pkg.util.resourcequota.policy import EXACT
from pkg.util.resourcequota.room import lacking_resources
from pkg.util.resourcequota.vm import vms_of

_CHECKED: Final = {
    constants.LIMITS_CPU: "cpu",
    "requests.cpu": "cpu",
    constants.LIMITS_MEMORY: "memory",
    constants.REQUESTS_MEMORY: "memory",
}
"""Resource, and what the reason calls it; the first that is short is named."""
_LIMITING: Final = (constants.LIMITS_CPU, constants.LIMITS_MEMORY, constants.REQUESTS_STORAGE)
"""A namespace annotation with none of these is no quota to check (upstream)."""


def run_strategy(vm: VirtualMachine) -> str:
    """Returns KubeVirt's VirtualMachine.RunStrategy()."""
    if vm.spec.running is not None:
        return "Always" if vm.spec.running else constants.RUN_STRATEGY_HALTED
    return vm.spec.run_strategy or constants.RUN_STRATEGY_HALTED


def wants_to_run(vm: VirtualMachine) -> bool:
    """Reports whether the VM shall run. Without a status KubeVirt has not processed the VM: then it is unknown."""
    return bool(vm.status.printable_status) and run_strategy(vm) != constants.RUN_STRATEGY_HALTED


def shortage_of(vm: VirtualMachine, observed: Facts) -> str | None:
    """Returns what the VM lacks to start under `observed.quota`, its namespace's default quota; None when it can, or
    when nothing readable limits it."""
    quota, granted = observed.quota, observed.rancher.granted
    try:
        if not any(name in parse_limits(observed.limits) for name in _LIMITING):
            return None
        base = within_grant(dict(parse_base(observed.limits)), granted)
        need = launcher_usage(vmi_of(vm), None, observed.rendering, quota.spec)
    except (ResourceQuotaError, QuantityError):  # the quota's own controller reports it
        return None
    limits = {name: base[name] for name in _CHECKED if base.get(name)}
    used = {name: quantity_of(quota.used, name) for name in limits}
    # What goes when the migrations are over: their entries, or their pods' usage where that is more.
    vms, _ = vms_of(observed, EXACT, base_of(quota, observed.limits, EXACT, granted))
    entries = total(read(quota.annotations).by_key.values())
    promised = maximum(entries, total(vm.used_headroom for vm in vms))
    lacking = lacking_resources(need, limits, used, promised)
    return next((insufficient(word) for name, word in _CHECKED.items() if name in lacking), None)
