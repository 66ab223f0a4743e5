"""Whether deploy/policy.yaml is in force: the file as it is shipped is, and what takes the sting out of it is named."""

from __future__ import annotations

import copy
from typing import Any

import msgspec
import pytest

from kubeloop.api.admissionregistration import ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding
from pkg.config.upkeep import POLICIES, problems
from pkg.util.kubevirt.rendering import virt_controllers
from tests.pkg.config.shipped import SHIPPED

CREATED, CHANGED = POLICIES


def found(documents: list[dict[str, Any]], accounts: list[str] | None = None) -> list[str]:
    of = {
        kind: {d["metadata"]["name"]: d for d in documents if d["kind"] == kind}
        for kind in ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
    }
    return problems(
        {n: msgspec.convert(d, ValidatingAdmissionPolicy) for n, d in of["ValidatingAdmissionPolicy"].items()},
        {
            n: msgspec.convert(d, ValidatingAdmissionPolicyBinding)
            for n, d in of["ValidatingAdmissionPolicyBinding"].items()
        },
        virt_controllers([]) if accounts is None else accounts,
    )


def test_the_shipped_file_is_in_force_and_names_exactly_the_usual_accounts() -> None:
    assert found(SHIPPED) == []
    created = SHIPPED[0]["spec"]["validations"][0]["expression"]
    assert [name.strip(" '") for name in created.split("[")[1].rstrip("]").split(",")] == virt_controllers([])


def test_where_kubevirt_is_elsewhere_its_account_has_to_be_named() -> None:
    elsewhere = "system:serviceaccount:virt:kubevirt-controller"
    assert found(SHIPPED, [elsewhere]) == [
        f"ValidatingAdmissionPolicy {name} refuses KubeVirt's own pods: it does not name {elsewhere}"
        for name in POLICIES
    ]


def test_nothing_is_there() -> None:
    assert found([]) == [f"there is no ValidatingAdmissionPolicy {name}" for name in POLICIES]


WEAKER: dict[str, tuple[int, dict[str, Any], str]] = {
    "a policy that passes what it cannot decide": (0, {"failurePolicy": "Ignore"}, "lets pods pass"),
    "a policy about other objects": (0, {"matchConstraints": {"resourceRules": []}}, "is not about CREATE of pods"),
    "a binding that only warns": (1, {"validationActions": ["Warn", "Audit"]}, "makes it deny everywhere"),
    "a binding of another policy": (1, {"policyName": "other"}, "makes it deny everywhere"),
    "a binding for some namespaces": (
        3, {"matchResources": {"namespaceSelector": {"matchLabels": {"a": "b"}}}}, "makes it deny everywhere",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", list(WEAKER.values()), ids=list(WEAKER))
def test_what_takes_the_sting_out_of_it_is_named(case: tuple[int, dict[str, Any], str]) -> None:
    number, change, said = case
    documents = copy.deepcopy(SHIPPED)
    documents[number]["spec"] |= change
    (problem,) = found(documents)
    assert said in problem
