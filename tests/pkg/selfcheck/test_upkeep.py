"""Checks of deploy/policy.yaml in force: the file as it is shipped passes, a change that weakens it is named, and the
line about it is logged once until it changes."""

import copy
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
import yaml
from prometheus_client import REGISTRY

from kubeloop.api.meta import ObjectMeta
from kubeloop.api.registry import VALIDATING_ADMISSION_POLICIES, VALIDATING_ADMISSION_POLICY_BINDINGS, Resource
from pkg.api.kubevirt import KubeVirt
from pkg.config.management import Management
from pkg.config.settings import Settings
from pkg.process.replica import HealthChecks
from pkg.selfcheck.upkeep import EVENT, POLICIES, Upkeep, problems
from pkg.util.kubevirt.rendering import virt_controllers
from tests.decisions import sentences
from tests.kinds import Events, Server
from tests.program import ROOT

KINDS: tuple[Resource[Any], ...] = (VALIDATING_ADMISSION_POLICIES, VALIDATING_ADMISSION_POLICY_BINDINGS)
SHIPPED: list[dict[str, Any]] = [
    document
    for name in POLICIES
    for kind in KINDS
    for document in yaml.safe_load_all((ROOT / "deploy" / "policy.yaml").read_text("utf-8"))
    if document["kind"] == kind.kind and name == document["metadata"]["name"]
]


def accounts_of(kubevirts: Sequence[KubeVirt], configured: Sequence[str]) -> Sequence[str]:
    management = Management(Server().client())
    for kubevirt in kubevirts:
        management.kubevirts.informer.indexer.add(kubevirt)
    return Upkeep(management, Settings(kubevirt_users=configured)).accounts()


def gaps_of(documents: list[dict[str, Any]], accounts: Sequence[str] | None = None) -> list[str]:
    policies, bindings = (
        {d["metadata"]["name"]: msgspec.convert(d, kind.type).spec for d in documents if d["kind"] == kind.kind}
        for kind in KINDS
    )
    return problems(policies, bindings, virt_controllers([]) if accounts is None else accounts)


def test_the_shipped_file_is_in_force_with_the_usual_accounts() -> None:
    assert gaps_of(SHIPPED) == []
    created = SHIPPED[0]["spec"]["validations"][0]["expression"]
    assert [name.strip(" '") for name in created.split("[")[1].rstrip("]").split(",")] == virt_controllers([])


@pytest.mark.parametrize("configured", [[], virt_controllers([])], ids=["nothing configured", "the chart's default"])
def test_where_kubevirt_is_elsewhere_its_account_has_to_be_named(configured: list[str]) -> None:
    elsewhere = "system:serviceaccount:virt:kubevirt-controller"
    kubevirt = KubeVirt(metadata=ObjectMeta(name="kubevirt", namespace="virt"))
    assert gaps_of(SHIPPED, accounts_of([kubevirt], configured)) == [
        f"ValidatingAdmissionPolicy {name} refuses KubeVirt's own pods: it does not name {elsewhere}"
        for name in POLICIES
    ]
    assert accounts_of([], ["me"]) == ["me"]


def test_nothing_is_there() -> None:
    assert gaps_of([]) == [f"there is no ValidatingAdmissionPolicy {name}" for name in POLICIES]


WEAKER: dict[str, tuple[int, dict[str, Any], str]] = {
    "a policy that passes what it cannot decide": (0, {"failurePolicy": "Ignore"}, "lets pods pass"),
    "a policy about other objects": (0, {"matchConstraints": {"resourceRules": []}}, "is not about CREATE of pods"),
    "a binding that only warns": (1, {"validationActions": ["Warn", "Audit"]}, "makes it deny everywhere"),
    "a binding of another policy": (1, {"policyName": "other"}, "makes it deny everywhere"),
    "a binding for some namespaces": (
        3, {"matchResources": {"namespaceSelector": {"matchLabels": {"a": "b"}}}}, "makes it deny everywhere",
    ),
}  # fmt: skip


@sentences(WEAKER)
def test_what_takes_the_sting_out_of_it_is_named(case: tuple[int, dict[str, Any], str]) -> None:
    number, change, expected = case
    documents = copy.deepcopy(SHIPPED)
    documents[number]["spec"] |= change
    (problem,) = gaps_of(documents)
    assert expected in problem


class PolicyCluster(Server):
    def __init__(self) -> None:
        super().__init__()
        self.event_log = Events()

    def upkeep(self, *, reports: bool = True) -> Upkeep:
        management = Management(self.client())
        management._recorders["headroom"] = self.event_log.recorder
        return Upkeep(management, Settings(namespace="own"), lambda: reports)

    def apply(self) -> None:
        for document in SHIPPED:
            binding = document["kind"].endswith("Binding")
            self.put(KINDS[binding], document)


async def test_a_missing_policy_is_said_once_and_its_return_too(caplog: pytest.LogCaptureFixture) -> None:
    cluster = PolicyCluster()
    upkeep = cluster.upkeep()
    caplog.set_level("INFO")
    await cluster.upkeep(reports=False).check()
    for _ in range(3):
        await upkeep.check()
    assert REGISTRY.get_sample_value("headroom_pod_policy_in_force") == 0
    ((_, kind, reason, message),) = cluster.event_log.recorded
    assert (kind, reason) == ("Warning", EVENT)
    assert "there is no ValidatingAdmissionPolicy headroom-vm-pods-created" in message
    cluster.apply()
    for _ in range(2):
        await upkeep.check()
    assert REGISTRY.get_sample_value("headroom_pod_policy_in_force") == 1
    assert caplog.text.count("in force") == 1
    assert len(cluster.event_log.recorded) == 1


async def test_a_policy_that_refuses_kubevirts_own_pods_is_in_the_first_line_of_status() -> None:
    cluster, checks = PolicyCluster(), HealthChecks()
    cluster.apply()
    checks.upkeep = upkeep = cluster.upkeep()
    await upkeep.check()
    assert checks.faults() == checks.notes() == []
    upkeep.settings = Settings(kubevirt_users=["system:serviceaccount:virt:kubevirt-controller"])
    await upkeep.check()
    assert (
        checks.faults()
        == checks.notes()
        == [
            "ValidatingAdmissionPolicy headroom-vm-pods-created refuses KubeVirt's own pods: "
            "it does not name system:serviceaccount:virt:kubevirt-controller"
        ]
    )


async def test_a_policy_that_is_repaired_while_another_is_missing_is_not_named_any_longer() -> None:
    cluster, checks = PolicyCluster(), HealthChecks()
    for document in SHIPPED[2:]:
        cluster.put(KINDS[document["kind"].endswith("Binding")], document)
    checks.upkeep = upkeep = cluster.upkeep()
    upkeep.settings = Settings(kubevirt_users=["system:serviceaccount:virt:kubevirt-controller"])
    await upkeep.check()
    (fault,) = checks.faults()
    assert fault.startswith("ValidatingAdmissionPolicy headroom-vm-pods-changed refuses KubeVirt's own pods")
    upkeep.settings = Settings()
    await upkeep.check()
    assert checks.faults() == []


async def test_every_process_learns_of_it_and_the_leader_says_it() -> None:
    cluster, leads = PolicyCluster(), [False]
    upkeep = cluster.upkeep()
    upkeep.reports = lambda: leads[0]
    await upkeep.check()
    assert not cluster.event_log.recorded
    leads[0] = True
    for _ in range(2):
        await upkeep.check()
    assert len(cluster.event_log.recorded) == 1
    cluster.apply()
    await upkeep.check()
    assert upkeep.management.policy_in_force


async def test_an_api_server_that_is_too_old_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    cluster = PolicyCluster()
    for kind in KINDS:
        cluster.install(kind, installed=False)
    upkeep = cluster.upkeep()
    for _ in range(2):
        await upkeep.check()
    assert caplog.text.count("older than Kubernetes 1.30") == 1
    assert "tenants can create pods" in caplog.text
