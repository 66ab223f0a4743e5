"""Checks that the policies about pods in deploy/policy.yaml do what they are for: at start and every six minutes."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from kubeloop.api.registry import VALIDATING_ADMISSION_POLICIES, VALIDATING_ADMISSION_POLICY_BINDINGS
from kubeloop.client.errors import STATUS_404
from kubeloop.client.resource_client import ResourceClient
from kubeloop.controllers.events import WARNING
from kubeloop.metrics import LateGauge
from pkg.config.management import Management
from pkg.config.metrics import METRICS
from pkg.config.settings import Settings
from pkg.selfcheck.api_server import repeat
from pkg.selfcheck.installation import about
from pkg.util.kubevirt.rendering import virt_controllers

log = logging.getLogger(__name__)

PERIOD: Final = 360.0
RETRY: Final = 30.0
EVENT: Final = "PodPolicyMissing"
_REFUSES: Final = "refuses KubeVirt's own pods"

POLICIES: Final = {"headroom-vm-pods-created": "CREATE", "headroom-vm-pods-changed": "UPDATE"}
"""Name of each policy, which its binding shares, to the operation on pods that it decides about."""
Specs = Mapping[str, Mapping[str, Any]]
_ABSENT: Final = {name: f"there is no ValidatingAdmissionPolicy {name}" for name in POLICIES}

_IN_FORCE = LateGauge(METRICS["headroom_pod_policy_in_force"])


@dataclass(eq=False)
class Upkeep:
    """The check of the policies, in every process: what is believed of pods depends on it. `run` until cancelled."""

    management: Management
    settings: Settings
    reports: Callable[[], bool] = lambda: True
    """Reports whether an event is to be written: one process does so, and none in a dry run."""
    _problems: Sequence[str] | None = field(default=None, init=False)
    _reported_problems: Sequence[str] = field(default=(), init=False)

    @property
    def refusals(self) -> Sequence[str]:
        """The first fault without which KubeVirt could work, if there is one: people have to know of it at once."""
        return [fault for fault in self._problems or () if _REFUSES in fault][:1]

    async def run(self) -> None:
        await repeat(self.check, PERIOD, retry=RETRY, subject="installation check")

    async def check(self) -> None:
        """Checks once. Raises ApiError."""
        faults = await self._policy_problems()
        in_force, effect = not faults, "tenants can create pods that look like a VM's, or KubeVirt none"
        message = f"{'; '.join(faults)}: {effect}: see docs/runbooks/HeadroomPolicyMissing.md"
        _IN_FORCE.set(in_force)
        if in_force != self.management.policy_in_force:
            self.management.policy_in_force = in_force
            self.management.resource_quotas.enqueue_all()
        if faults != self._problems:
            self._problems = faults
            if faults:
                log.warning("%s", message)
            else:
                log.info("the policies about pods of deploy/policy.yaml are in force")
        if faults != self._reported_problems and self.reports():
            self._reported_problems = faults
            if faults:
                self.management.recorder("headroom").event(about(self.settings.namespace), WARNING, EVENT, message)

    async def _policy_problems(self) -> Sequence[str]:
        policies = self.management.client.resource(VALIDATING_ADMISSION_POLICIES)
        if self._problems == [*_ABSENT.values()] and not await _specs(policies, [*POLICIES][:1]):
            return self._problems  # still: one request at rest is enough
        if not await policies.is_served():
            return ["the API server is older than Kubernetes 1.30 and has no ValidatingAdmissionPolicy"]
        bindings = self.management.client.resource(VALIDATING_ADMISSION_POLICY_BINDINGS)
        return problems(await _specs(policies), await _specs(bindings), self.accounts())

    def accounts(self) -> Sequence[str]:
        """Returns virt-controller's user names, which the policies must name: where the KubeVirt object is known, its
        namespace decides, whatever `--kubevirt-user` names; the chart writes policies and flag from one value."""
        kubevirts = self.management.kubevirts.cache().list()
        return virt_controllers(kubevirts, () if kubevirts else self.settings.kubevirt_users)


async def _specs(client: ResourceClient[Any], names: Iterable[str] = POLICIES) -> Specs:
    specs: dict[str, Mapping[str, Any]] = {}
    for name in names:
        with suppress(*STATUS_404):
            specs[name] = (await client.get(name=name)).spec
    return specs


def problems(policies: Specs, bindings: Specs, accounts: Sequence[str]) -> list[str]:
    """Returns what is wrong, by name; nothing if tenants can forge no pod. `accounts` are virt-controller's."""
    faults: list[str] = []
    for name, operation in POLICIES.items():
        policy, binding = policies.get(name), bindings.get(name, {})
        if policy is None:
            faults.append(_ABSENT[name])
            continue
        weaknesses = _weaknesses(policy, operation, accounts)
        faults += [f"ValidatingAdmissionPolicy {name} {weakness}" for weakness in weaknesses]
        narrowing = ("namespaceSelector", "objectSelector", "resourceRules", "excludeResourceRules")
        is_narrow = any((binding.get("matchResources") or {}).get(part) for part in narrowing)
        if is_narrow or binding.get("policyName") != name or "Deny" not in (binding.get("validationActions") or ()):
            faults.append(f"no ValidatingAdmissionPolicyBinding {name} makes it deny everywhere")
    return faults


def _weaknesses(spec: Mapping[str, Any], operation: str, accounts: Sequence[str]) -> list[str]:
    rules = (spec.get("matchConstraints") or {}).get("resourceRules") or []
    about_pods = any("pods" in rule.get("resources", ()) and operation in rule.get("operations", ()) for rule in rules)
    expressions = " ".join(str(validation.get("expression", "")) for validation in spec.get("validations") or [])
    names_account = not accounts or any(f"'{account}'" in expressions for account in accounts)
    weaknesses = {
        "lets pods pass when it fails": spec.get("failurePolicy", "Fail") != "Fail",
        f"is not about {operation} of pods": not about_pods,
        f"{_REFUSES}: it does not name {', '.join(accounts)}": not names_account,
    }
    return [weakness for weakness, is_present in weaknesses.items() if is_present]
