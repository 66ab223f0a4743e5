"""Admission in a locked namespace: the requests that pass, and the text for the others."""

import asyncio
from typing import Any

import msgspec
import pytest

from kubeloop.api.core import Pod, ResourceQuota, ValidatingWebhookConfiguration
from kubeloop.api.registry import VALIDATING_WEBHOOK_CONFIGURATIONS
from kubeloop.client.errors import Unreachable
from kubeloop.webhook.admission import AdmissionRequest, Decision, deadline
from pkg.util.managedtenantquota.lock import lock_body, lock_webhook
from pkg.util.resourcequota.facts import Facts
from pkg.webhook.resources.lock import Accounts, LockValidator, is_exempt, is_granted
from pkg.webhook.view import NoAnswer
from tests.decisions import sentences
from tests.kinds import Kind
from tests.objects import controlled_by, plain_launcher, pod, quota, vmi, vmim
from tests.pkg.webhook.fake_view import ALICE, FakeView, State
from tests.pkg.webhook.fake_view import KUBEVIRT as VIRT
from tests.pkg.webhook.fake_view import request as review_of

pytestmark = pytest.mark.virtual_time

ME = "system:serviceaccount:headroom:headroom"
NAMESPACES = "system:serviceaccount:kube-system:namespace-controller"
JOB = {"kubevirt.io/migrationJobUID": "uid"}
LAUNCHER = {"kubevirt.io": "virt-launcher"}
SINCE = 1_800_000_000.0
ACCOUNTS = Accounts([ME], lambda: [VIRT])


def granting(answer: bool | None) -> Any:
    """`is_granted` of a window that adds enough for every target, or for none; None: nothing answers."""

    async def is_granted(_namespace: str, _pod: Pod) -> bool:
        if answer is None:
            raise NoAnswer
        return answer

    return is_granted


def request(
    resource: str = "pods",
    operation: str = "CREATE",
    user: str = ALICE,
    *,
    labels: dict[str, str] | None = None,
    owner: str = "",
    **options: Any,
) -> AdmissionRequest:
    """`owner`: the VM instance that controls the pod."""
    owners = controlled_by("VirtualMachineInstance", owner, "") if owner else []
    new = None if operation == "DELETE" else pod(labels=labels or {}, ownerReferences=owners)
    return review_of(new, resource=resource, operation=operation, user=user, **options)


QUOTAS, BUDGETS = "resourcequotas", "virtualmachinemigrationresourcequotas"


@sentences(
    {
        "virt-controller makes a target pod": (request(user=VIRT, labels=JOB), True),
        "virt-controller makes any other pod": (request(user=VIRT), False),
        "a tenant puts a target's label on a pod": (request(labels=JOB), False),
        "a service account of that name in another namespace": (
            request(user="system:serviceaccount:tenant:kubevirt-controller", labels=JOB),
            False,
        ),
        "a cluster admin makes a target pod": (request(groups=("system:masters",), labels=JOB), True),
        "a cluster admin makes any other pod": (request(groups=("system:masters",)), False),
        "the holder makes a pod": (request(user=ME, labels=JOB), False),
        "a tenant makes a pod": (request(), False),
        "virt-controller grows a target pod": (
            request(operation="UPDATE", user=VIRT, labels=JOB, sub_resource="resize"),
            False,
        ),
        "the holder raises a quota": (request(QUOTAS, "UPDATE", ME), True),
        "the holder deletes a quota": (request(QUOTAS, "DELETE", ME), True),
        "a tenant changes a quota": (request(QUOTAS, "UPDATE"), False),
        "a tenant deletes a quota": (request(QUOTAS, "DELETE"), False),
        "a cluster admin changes a quota": (request(QUOTAS, "UPDATE", groups=("system:masters",)), False),
        "virt-controller changes a quota": (request(QUOTAS, "UPDATE", VIRT), False),
        "the holder saves": (request(BUDGETS, "UPDATE", ME, sub_resource="status"), True),
        "a tenant creates a budget": (request(BUDGETS, "CREATE"), False),
        "a tenant changes the budget": (request(BUDGETS, "UPDATE"), False),
        "a tenant deletes the budget": (request(BUDGETS, "DELETE"), False),
        "the namespace is being deleted, and its quota with it": (request(QUOTAS, "DELETE", NAMESPACES), True),
        "the namespace is being deleted, and its budget with it": (request(BUDGETS, "DELETE", NAMESPACES), True),
        "the namespace controller changes a quota": (request(QUOTAS, "UPDATE", NAMESPACES), False),
        "an empty user name": (request(QUOTAS, "UPDATE", ""), False),
    },
    "review, passing",
)
async def test_who_passes(review: AdmissionRequest, passing: bool) -> None:
    assert is_exempt(review, ACCOUNTS) is passing
    assert (await validator(locked=True).validate(review)).allowed is passing


def test_an_operators_pattern() -> None:
    accounts = Accounts(["system:serviceaccount:headroom-*:headroom"], lambda: ["*:virt"])
    assert is_exempt(request(QUOTAS, "UPDATE", "system:serviceaccount:headroom-2:headroom"), accounts)
    assert not is_exempt(request(user="cluster:virt", labels=JOB), accounts), "KubeVirt's are exact"
    assert not is_exempt(request(QUOTAS, "UPDATE", ""), Accounts([""], lambda: [""])), "nobody is unknown and trusted"


class Locked(Kind[ValidatingWebhookConfiguration]):
    """On an API server that may be slow."""

    def __init__(self) -> None:
        super().__init__(VALIDATING_WEBHOOK_CONFIGURATIONS)
        self.server.clock = lambda: SINCE
        self.delay = 0.0
        self.server.reactors.insert(0, lambda _: asyncio.sleep(self.delay))


def server(*, locked: bool, namespace: str = "ns1") -> Locked:
    result = Locked()
    if locked:
        hook = lock_webhook(namespace, {"url": "https://h/lock"}, owners=[ME], virt_controllers=[VIRT])
        result.given(
            lock_body(namespace, hook, now=SINCE, owner=f"headroom ({ME}) on host", reason="vm1, vm2", longest=130)
        )
    return result


def validator(*, locked: bool, age: float = 10.5) -> LockValidator:
    return over(server(locked=locked), age)


def over(kind: Locked, age: float = 10.5, granted: bool | None = True) -> LockValidator:
    return LockValidator(kind.cache, kind.client, lambda: SINCE + age, ACCOUNTS, granting(granted))


async def said(operation: str, resource: str) -> str:
    decision = await validator(locked=True).validate(request(resource, operation))
    return decision.message


async def test_the_denied_are_told_who_since_when_and_what_to_do() -> None:
    assert await said("CREATE", "pods") == (
        "namespace ns1 is locked by headroom (system:serviceaccount:headroom:headroom) on host since "
        "2027-01-15T08:00:00Z for the migration of vm1, vm2: pods other than migration targets can't be created "
        "until the target pods exist (at most 120 s), please try again in a moment"
    )
    assert ": resource quotas can't be deleted until" in await said("DELETE", QUOTAS)
    assert ": migration resource quotas can't be changed until" in await said("UPDATE", BUDGETS)


async def test_a_lock_that_is_gone_refuses_nothing() -> None:
    assert await validator(locked=False).validate(request()) == Decision()


@pytest.mark.parametrize(("age", "allowed"), [(129.0, False), (130.0, True)])
async def test_a_lock_past_its_end_denies_nothing(age: float, allowed: bool) -> None:
    assert (await validator(locked=True, age=age).validate(request())).allowed is allowed


@pytest.mark.parametrize("skew", [-7200.0, -200.0, 200.0, 7200.0])
async def test_the_clock_of_who_made_a_lock_does_not_matter(skew: float) -> None:
    hook = lock_webhook("ns1", {"url": "https://h/lock"}, owners=[ME], virt_controllers=[VIRT])
    for age, allowed in ((128.0, False), (132.0, True)):
        kind = Locked()
        kind.given(lock_body("ns1", hook, now=SINCE + skew, owner="", reason="", longest=130))
        decision = await over(kind, age).validate(request())
        assert decision.allowed is allowed


async def test_a_lock_that_the_cache_does_not_show_yet_is_asked_for() -> None:
    kind = server(locked=True)
    kind.indexer.replace([])
    decision = await over(kind).validate(request())
    assert not decision.allowed
    assert "since 2027-01-15T08:00:00Z" in decision.message


@pytest.mark.parametrize("granted", [True, False, None], ids=["no larger than its source", "larger", "no answer"])
@pytest.mark.parametrize("vm", ["vm1", "vm2"])
async def test_an_unnamed_target_passes_unless_its_vm_has_grown(vm: str, granted: bool | None) -> None:
    """Another VM's launcher may have the label of a migration that the lock names."""
    config = {"url": "https://h/lock"}
    hook = lock_webhook("ns1", config, owners=[ME], virt_controllers=[VIRT], admitted=["uid/vm1"])
    kind = Locked()
    kind.given(lock_body("ns1", hook, now=SINCE, owner="", reason="vm1", longest=130))
    decision = await over(kind, granted=granted).validate(request(user=VIRT, labels={**JOB, **LAUNCHER}, owner=vm))
    assert decision.allowed is (granted is True or vm == "vm1")
    assert decision.allowed or decision.message.startswith("exceeded quota: namespace ns1 is locked")


async def test_an_api_server_that_does_not_answer_leaves_it_locked() -> None:
    kind = server(locked=False)
    result = over(kind)
    kind.errors["get"] = [Unreachable("gone")]
    decision = await result.validate(request())
    assert not decision.allowed
    assert decision.message.startswith("namespace ns1 is locked: pods other than")
    kind.delay = 1.0
    with deadline(0.01):
        assert not (await result.validate(request())).allowed


UID = "uid-migration-of-vm1"
TARGET = plain_launcher(node="node2", target_of=UID)
GROWN = msgspec.structs.replace(TARGET, spec=pod("3", "4Gi").spec)


@sentences(
    {
        "as large as its source": (TARGET, True),
        "larger": (GROWN, False),
        "of a migration that there is not": (plain_launcher(node="node2", target_of="uid-other"), False),
        "a VM that starts, its label is its VMI's": (plain_launcher("vm3", target_of="none"), False),
        "of no VM and no migration that there are": (plain_launcher("vm4", target_of="none"), True),
        "another VM's launcher": (plain_launcher("vm2", node="node2", target_of=UID), False),
    },
    "target, granted",
)
async def test_what_a_window_adds_for_a_target(target: Pod, granted: bool) -> None:
    """A target also passes while the cache does not show its migration yet; without an answer only a named one does."""
    live = State(
        quota({"limits.cpu": "5"}, labels={}),
        migrations=[vmim("Pending")],
        instances=[vmi("vm1", nodeName="node1"), vmi("vm3", phase="Scheduling")],
        pods=[plain_launcher(node="node1")],
    )
    cached = State(*live.quotas, instances=live.instances, pods=live.pods)
    assert await is_granted(FakeView(live, live), "ns1", target) is granted
    assert await is_granted(FakeView(cached, live), "ns1", target) is granted
    with pytest.raises(NoAnswer):
        await is_granted(FakeView(cached, None), "ns1", target)


async def test_a_second_target_of_a_migration_is_not_granted() -> None:
    live = State(
        quota({"limits.cpu": "5"}, labels={}),
        migrations=[vmim("Pending")],
        instances=[vmi("vm1", nodeName="node1")],
        pods=[plain_launcher(node="node1"), TARGET],
    )
    assert not await is_granted(FakeView(live, live), "ns1", TARGET)


class GoneLive(FakeView):
    """A quota of that name is gone by now."""

    async def observe_live(self, quota: ResourceQuota) -> Facts | None:
        return None if quota.name == "gone" else await super().observe_live(quota)


async def test_a_quota_that_is_gone_says_nothing_of_the_others() -> None:
    hard = {"limits.cpu": "5"}
    quotas = [quota(hard, labels={}, name=name) for name in ("gone", "stands")]
    instances, pods = [vmi("vm1", nodeName="node1")], [plain_launcher(node="node1")]
    live = State(*quotas, migrations=[vmim("Pending")], instances=instances, pods=pods)
    cached = State(*quotas, instances=instances, pods=pods)
    assert not await is_granted(GoneLive(cached, live), "ns1", GROWN)
    assert await is_granted(GoneLive(cached, live), "ns1", TARGET)
