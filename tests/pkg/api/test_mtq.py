"""Objects of an existing installation are read as they are."""

from typing import Any

import msgspec
import pytest
import yaml

from pkg.api.mtq import VirtualMachineMigrationResourceQuota
from pkg.util.managedtenantquota.model import Observed, is_in_use

EXAMPLE = """
apiVersion: mtq.kubevirt.io/v1alpha1
kind: VirtualMachineMigrationResourceQuota
metadata:
  name: my-vmmrq
spec:
  additionalMigrationResources:
    requests.cpu: 500m
    requests.memory: 512Mi
"""
"""Upstream's own."""

IN_USE: dict[str, Any] = {
    "metadata": {"name": "v", "namespace": "ns1", "generation": 1, "managedFields": [{"manager": "mtq"}]},
    "spec": {"additionalMigrationResources": {"requests.memory": "512Mi", "pods": 2}},
    "status": {
        "creationTime": None,
        "additionalMigrationResources": {"requests.memory": "512Mi", "pods": 2},
        "migrationsToBlockingResourceQuotas": {"one": ["a", "b"], "two": None},
        "originalBlockingResourceQuotas": [
            {
                "name": "a",
                "spec": {
                    "hard": {"requests.memory": "1Gi"},
                    "scopes": ["NotTerminating"],
                    "scopeSelector": {
                        "matchExpressions": [{"scopeName": "PriorityClass", "operator": "In", "values": ["high"]}]
                    },
                },
            },
            {"name": "b", "spec": {"hard": {"pods": "3"}}},
        ],
    },
}


def read(body: Any) -> VirtualMachineMigrationResourceQuota:
    return msgspec.json.decode(msgspec.json.encode(body), type=VirtualMachineMigrationResourceQuota)


def test_upstreams_example() -> None:
    mtq = read(yaml.safe_load(EXAMPLE))
    assert mtq.additional == {"requests.cpu": "500m", "requests.memory": "512Mi"}


@pytest.mark.parametrize("body", [{}, {"spec": {}}, {"spec": {}, "status": {}}], ids=["bare", "no budget", "idle"])
def test_one_that_grants_nothing(body: dict[str, Any]) -> None:
    mtq = read({"metadata": {"name": "v"}, **body})
    assert mtq.additional == {}


def test_a_budget_at_work_and_the_saved_specs_are_whole() -> None:
    mtq = read(IN_USE)
    _, status_records, members = Observed("ns1", exists=True, budgets=[mtq], quotas=[], now=0.0).recorded()
    assert members == {"one": ["a", "b"], "two": ()}
    assert set(status_records) == {"a", "b"}
    assert status_records["b"].additional == {"requests.memory": "512Mi", "pods": 2}
    assert is_in_use(mtq)
    saved = mtq.status.original_blocking_resource_quotas
    assert msgspec.to_builtins(saved) == IN_USE["status"]["originalBlockingResourceQuotas"]
