"""deploy/rbac.yaml gives what headroom asks for and no more: by the API server's audit log, account by account."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from kubeloop.api.registry import RESOURCE_QUOTAS
from kubeloop.client.errors import Forbidden
from kubeloop.testing.cluster.cluster import Cluster
from kubeloop.testing.cluster.paths import Paths
from kubeloop.testing.polling import eventually, until
from lab import bodies
from lab.namespace import LASTING, PODS, Namespace
from pkg.api.kubevirt import VIRTUAL_MACHINES
from pkg.selfcheck.api_server import PROBE_CONFIGURATION
from pkg.util.constants import ANNOTATION_BASE
from tests.e2e.accounts import (
    ADMISSION,
    BY_HAND,
    NAMESPACE,
    Request,
    apply,
    bindings,
    documents,
    forget,
    is_served,
    kubeconfig_of,
    remove,
    requests,
    rights,
    rules,
)
from tests.e2e.admin import HARD, Admin, admin_of
from tests.e2e.api import Api, Raw
from tests.e2e.conftest import frozen
from tests.e2e.hostile_tenant import applied_policy
from tests.e2e.mtq_namespace import BUDGETS, make_budgeted
from tests.program import ROOT, headroom, run

pytestmark = pytest.mark.cluster

RENDERS = ROOT / "deploy" / "render-default-quota.yaml"
DEFINITION = ROOT / "deploy" / "charts" / "headroom" / "crds" / f"{BUDGETS.group}_{BUDGETS.plural}.yaml"
READER = "reader"
DEPLOYMENT: Raw = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "headroom-controller", "namespace": NAMESPACE},
    "spec": {
        "replicas": 0,
        "selector": {"matchLabels": {"a": "b"}},
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "none"}]}},
    },
}
"""A Deployment that `release` scales down."""
LOGGED: Raw = {
    "metadata": {"name": "headroom-controller-0", "labels": {"app.kubernetes.io/name": "headroom"}},
    "spec": {
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [
            {
                "name": "headroom",
                "image": "none",
                "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
            }
        ],
    },
}
"""A pod whose log `collect` reads."""

NO_WATCHLIST = "lists where an API server has no WatchList, and after a watch that stayed silent"
CHANGED = "a quota, a namespace or a VMI as it is now, after a conflict or where a cache may be old"
LIVE = "a pod beside a migration, where what the caches hold does not add up"
WAITS = "while another has the Lease"
UNUSED = {
    **{
        f"headroom-webhook: list {name}": NO_WATCHLIST
        for name in (
            "customresourcedefinitions",
            "kubevirts",
            "limitranges",
            "namespaces",
            "resourcequotas",
            "settings additional-guest-memory-overhead-ratio",
            "validatingwebhookconfigurations",
            "virtualmachineinstances",
            "virtualmachinemigrationresourcequotas",
        )
    },
    **{
        f"headroom: list {name}": NO_WATCHLIST
        for name in (
            "customresourcedefinitions",
            "kubevirts",
            "leases headroom in headroom-system",
            "limitranges",
            "namespaces",
            "persistentvolumeclaims",
            "settings additional-guest-memory-overhead-ratio",
            "validatingwebhookconfigurations",
            "virtualmachineinstancemigrations",
            "virtualmachineinstances",
            "virtualmachinemigrationresourcequotas",
            "virtualmachines",
        )
    },
    **{f"headroom-release: {verb} leases headroom in headroom-system": WAITS for verb in ("list", "watch")},
    "headroom: list events": "a migration that stays refused though its quota was touched",
    "headroom: list pods": "before a VM is halted",
    "headroom: get namespaces": CHANGED,
    "headroom: get resourcequotas": CHANGED,
    "headroom: get virtualmachineinstances": CHANGED,
    "headroom-webhook: get resourcequotas": CHANGED,
    "headroom-webhook: get virtualmachineinstances": CHANGED,
    "headroom-release: get resourcequotas": CHANGED,
    "headroom-webhook: list pods": LIVE,
    "headroom-webhook: list virtualmachineinstancemigrations": LIVE,
    "headroom: patch events": "an event that is repeated",
    "headroom-webhook: patch events": "an event that is repeated",
    "headroom: patch configmaps headroom in headroom-system": "other flags than the last time",
    "headroom: patch secrets headroom-webhook-tls in headroom-system": "a certificate that is renewed",
    "headroom-webhook: patch secrets headroom-webhook-tls in headroom-system": "a certificate that is renewed",
    "headroom-release: patch validatingwebhookconfigurations": "a lock with a finalizer",
}
"""Verbs that this run does not use every time, and what they are for."""


async def migrations(admin: Admin) -> None:
    """Runs three: one that is served, one that is aborted and leaves a pod, one under a migration budget."""
    served = await admin.namespace(HARD)
    await served.machine()
    await served.succeed(await served.migrate(running=0.2, linger=0.2))
    await served.abort(await under_way(served))
    budget = await make_budgeted(admin)
    await budget.make_quota("quota", {"limits.cpu": "8", "limits.memory": "8Gi", "pods": "20"})
    await budget.machine()
    hard = await budget.fill()
    await budget.budget()
    await budget.succeed(await budget.migrate())
    await budget.at_rest(hard)


async def under_way(namespace: Namespace) -> str:
    migration = await namespace.migrate(running=LASTING)
    await namespace.until_phase(migration, "Running")
    return migration


async def a_quota_is_lowered(admin: Admin) -> None:
    """Under a migration: the webhook refuses, and says so."""
    namespace = await admin.namespace({"limits.cpu": "9", "limits.memory": "20000Mi"})
    await namespace.machine()
    base = await namespace.hard()
    await under_way(namespace)

    async def is_raised() -> bool:
        return (await namespace.hard())["limits.cpu"] > base["limits.cpu"]

    await until(is_raised, "the raise")
    with pytest.raises(Forbidden):
        await namespace.set_hard({"limits.cpu": "1"})
    await namespace.by(admin.by("alice")).create(PODS, bodies.pod())


async def a_quota_is_rendered(admin: Admin) -> None:
    await admin.namespace(HARD)


async def reports_are_asked_for(kubeconfig: Path, admin: Admin) -> None:
    """Asks as somebody who has headroom-reports."""
    namespace = await admin.namespace({**HARD, "persistentvolumeclaims": "5"})
    await namespace.machine()
    await namespace.create_machine("vm2", strategy="Halted")
    sized = {"instancetype": {"name": "small"}}
    await namespace.patch(VIRTUAL_MACHINES, "vm2", {"spec": sized})
    await admin.client.resource(PODS).create(LOGGED, namespace=NAMESPACE)
    of_one = ("-n", namespace.name)
    for command in (
        ("status", "--check", "webhooks"),
        ("explain", f"{namespace}/vm1"),
        ("explain", f"{namespace}/vm2"),
        ("plan", "--evacuate", "node-1"),
        ("plan", "--size", *of_one),
        ("collect", "-o", str(kubeconfig.parent / "collected"), *of_one),
    ):
        await called(*command, "--kubeconfig", str(kubeconfig))
    await admin.client.resource(PODS).delete(name=LOGGED["metadata"]["name"], namespace=NAMESPACE)


async def everything_is_released(kubeconfig: Path, admin: Admin) -> None:
    """Before an uninstallation; a controller that was killed has left a window open."""
    budget = await make_budgeted(admin)
    await budget.make_quota("quota", {"pods": "20"})
    await budget.make_quota("marked", {"pods": "20"})
    await budget.patch(RESOURCE_QUOTAS, "marked", {"metadata": {"annotations": {ANNOTATION_BASE: '{"pods":"20"}'}}})
    await budget.budget({"pods": "1"})
    window = {
        "originalBlockingResourceQuotas": [{"name": "quota", "spec": {"hard": {"pods": "19"}}}],
        "migrationsToBlockingResourceQuotas": {"migration": ["quota"]},
        "additionalMigrationResources": {"pods": "1"},
    }
    await budget.patch(BUDGETS, "budget", {"status": window}, "status")
    for deployment in ("headroom-controller", "headroom-webhook"):  # the second finds neither its Lease nor that
        await called("release", "--leader-elect", "--scale-down", deployment, "--kubeconfig", str(kubeconfig))
    assert not (await budget.get(BUDGETS, "budget")).status.original_blocking_resource_quotas


async def a_project_has_no_room(reader: Path, admin: Admin) -> None:
    namespace = await (await admin.project(HARD, default=HARD)).namespace(HARD)
    await namespace.machine()
    await namespace.migrate()
    event = await namespace.told("ProjectQuotaExceeded")
    assert "; left 0 of limits.cpu" in event.message, event.message
    await called("explain", f"{namespace.name}/vm1", "--kubeconfig", str(reader))


async def called(*command: str) -> None:
    process = await asyncio.to_thread(run, *command, HEADROOM_NAMESPACE=NAMESPACE)
    assert process.returncode == 0, process.stderr


@pytest.fixture(scope="module")
def api_requests(cluster: Cluster, api: Api, own_kubeconfig: Path) -> Iterator[list[Request]]:
    """Everything that headroom does, each account by itself: the answers to its requests."""
    forget(api)
    apply(api, [*documents(RENDERS), *bindings(READER, "headroom-reports"), DEPLOYMENT])
    log = Paths(cluster.directory).audit_log
    since = log.stat().st_size if log.exists() else 0
    try:
        with applied_policy(api):  # which lets pass all of it
            controllers_run(cluster, api, own_kubeconfig)
            webhooks_run(cluster, api, own_kubeconfig)
        yield list(requests(cluster.directory, since))
    finally:
        remove(api, [DEPLOYMENT, *documents(RENDERS), *bindings(READER, "headroom-reports")])


def controllers_run(cluster: Cluster, api: Api, kubeconfig: Path) -> None:
    """And what others ask for meanwhile, and what is released afterwards."""
    flags = ("--webhook", "--leader-elect", "--render-default-quota", "--kubeconfig", str(kubeconfig))
    reader, releases = (kubeconfig_of(api, account, kubeconfig.parent) for account in (READER, "headroom-release"))
    with without_budgets(api), headroom(cluster, "controller", *flags):
        """It has to learn of a kind that is installed later."""
    with headroom(cluster, "controller", *flags):
        with frozen(cluster, "rancher"):
            run_as_admin(cluster, a_quota_is_rendered)
        run_as_admin(cluster, migrations)
        run_as_admin(cluster, partial(reports_are_asked_for, reader))
    with headroom(cluster, "controller", *flags):
        """It leaves or patches what it finds."""
    with headroom(cluster, "controller", "--remove-webhooks", "--kubeconfig", str(kubeconfig)):
        eventually(lambda: api.find(f"{ADMISSION}/mutatingwebhookconfigurations/{PROBE_CONFIGURATION}") is None, 20)
    # Last: what it asks Rancher for is left to be released.
    with headroom(cluster, "controller", *flags, "--rancher-quotas", "annotation"):
        run_as_admin(cluster, partial(a_project_has_no_room, reader))
    run_as_admin(cluster, partial(everything_is_released, releases))


def webhooks_run(cluster: Cluster, api: Api, kubeconfig: Path) -> None:
    """Runs the webhooks beside a controller: what that one adds is what they protect."""
    flags = ("--kubeconfig", str(kubeconfig_of(api, "headroom-webhook", kubeconfig.parent)))
    policies: tuple[tuple[str, ...], ...] = (), ("--failure-policy", "Fail")
    for policy in policies:
        with (
            headroom(cluster, "webhook", *policy, *flags),
            headroom(cluster, "controller", "--kubeconfig", str(kubeconfig)),
        ):
            run_as_admin(cluster, a_quota_is_lowered)
    with without_budgets(api), headroom(cluster, "webhook", *flags):
        """It has to learn of that kind, too."""
    run("release", "--only", "webhooks", *flags, HEADROOM_NAMESPACE=NAMESPACE)


@contextlib.contextmanager
def without_budgets(api: Api) -> Iterator[None]:
    """The kind of migration budgets is not installed meanwhile."""
    remove(api, documents(DEFINITION))
    yield
    apply(api, documents(DEFINITION))
    eventually(partial(is_served, api, BUDGETS.path("default")), 20)


def run_as_admin(cluster: Cluster, part: Callable[[Admin], Awaitable[None]]) -> None:
    async def as_admin() -> None:
        async with admin_of(cluster) as admin:
            await part(admin)

    asyncio.run(as_admin())


GIVEN = [*documents(*BY_HAND, RENDERS), *bindings(READER, "headroom-reports")]


def test_nothing_is_missing(api_requests: list[Request]) -> None:
    assert api_requests
    # `release` looks for a controller in the usual namespaces, too, and goes on without those that it may not read.
    elsewhere = {("leases", "harvester-system"), ("leases", "default")}
    assert [
        request
        for request in api_requests
        if request.is_denied and (request.resource, request.namespace) not in elsewhere
    ] == []


def test_every_rule_is_used(api_requests: list[Request]) -> None:
    answered = [request for request in api_requests if not request.is_denied]
    used = [
        rule
        for rule, rights_of_rule in rules(GIVEN).items()
        if any(right.covers(request) for right in rights_of_rule for request in answered)
    ]
    assert sorted(rules(GIVEN).keys() - set(used)) == []


def test_no_verb_is_spare(api_requests: list[Request]) -> None:
    granted = rights(GIVEN)
    answered = [request for request in api_requests if not request.is_denied]
    spare = {str(right) for right in granted if not any(right.covers(request) for request in answered)}
    assert not spare - UNUSED.keys(), "not used:\n" + "\n".join(sorted(spare - UNUSED.keys()))
    assert not UNUSED.keys() - set(map(str, granted)), "named, and not given"
