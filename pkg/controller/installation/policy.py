"""Whether the objects of deploy/policy.yaml are there and do what they are for. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from kubeloop.api.admissionregistration import ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding

POLICIES: Final = {"headroom-vm-pods-created": "CREATE", "headroom-vm-pods-changed": "UPDATE"}
"""Name of each policy, which its binding shares, to the operation on pods that it decides about."""
_NARROWING: Final = ("namespaceSelector", "objectSelector", "resourceRules", "excludeResourceRules")
"""What leaves pods out of a binding."""


def problems(
    policies: Mapping[str, ValidatingAdmissionPolicy],
    bindings: Mapping[str, ValidatingAdmissionPolicyBinding],
    accounts: Sequence[str],
) -> list[str]:
    """What is wrong, by name; empty when tenants can forge no pod. `accounts` are virt-controller's."""
    found: list[str] = []
    for name, operation in POLICIES.items():
        policy, binding = policies.get(name), bindings.get(name)
        if policy is None:
            found.append(f"there is no ValidatingAdmissionPolicy {name}")
            continue
        found += [f"ValidatingAdmissionPolicy {name} {what}" for what in _weaknesses(policy.spec, operation, accounts)]
        if binding is None or not _binds(binding.spec, name):
            found.append(f"no ValidatingAdmissionPolicyBinding {name} makes it deny everywhere")
    return found


def _weaknesses(spec: Mapping[str, Any], operation: str, accounts: Sequence[str]) -> list[str]:
    found = []
    if spec.get("failurePolicy", "Fail") != "Fail":
        found.append("lets pods pass when it fails")
    rules = (spec.get("matchConstraints") or {}).get("resourceRules") or []
    if not any("pods" in rule.get("resources", ()) and operation in rule.get("operations", ()) for rule in rules):
        found.append(f"is not about {operation} of pods")
    expressions = " ".join(str(each.get("expression", "")) for each in spec.get("validations") or [])
    missing = [account for account in accounts if f"'{account}'" not in expressions]
    if missing and len(missing) == len(accounts):
        found.append(f"refuses KubeVirt's own pods: it does not name {', '.join(missing)}")
    return found


def _binds(spec: Mapping[str, Any], name: str) -> bool:
    return (
        spec.get("policyName") == name
        and "Deny" in (spec.get("validationActions") or ())
        and not any((spec.get("matchResources") or {}).get(part) for part in _NARROWING)
    )
