"""deploy/rbac.yaml gives what headroom asks for and no more: by the API server's audit log, account by account."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from kubeloop.client.errors import Forbidden
from kubeloop.testing.cluster.cluster import Cluster
from kubeloop.testing.cluster.paths import Paths
from kubeloop.testing.polling import until
from lab import bodies
from lab.namespace import LASTING, PODS, Namespace
from tests.e2e.accounts import NAMESPACE, Request, documents, forget, kubeconfig_of, requests, rights
from tests.e2e.admin import HARD, Admin, admin_of
from tests.e2e.api import Api
from tests.e2e.conftest import frozen
from tests.e2e.mtq_namespace import made
from tests.program import ROOT, headroom, run

pytestmark = pytest.mark.cluster

NO_WATCHLIST = "lists where an API server has no WatchList"
CHANGED = "a quota, a namespace or a VMI as it is now, after a conflict or where a cache may be old"
LIVE = "a pod beside a migration, where what the caches hold does not add up"
LATER = "a kind that is installed after headroom is noticed by its definition"
UNUSED = {
    **{
        f"headroom-webhook: list {name}": NO_WATCHLIST
        for name in (
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
    "headroom: list virtualmachines": NO_WATCHLIST,
    "headroom: list persistentvolumeclaims": NO_WATCHLIST,
    "headroom: list leases headroom in headroom-system": NO_WATCHLIST,
    "headroom: get namespaces": CHANGED,
    "headroom: get resourcequotas": CHANGED,
    "headroom: get virtualmachineinstances": CHANGED,
    "headroom-webhook: get resourcequotas": CHANGED,
    "headroom-webhook: list pods": LIVE,
    "headroom-webhook: list virtualmachineinstancemigrations": LIVE,
    "headroom-webhook: get virtualmachineinstances": CHANGED,
    **{
        f"{account}: {verb} customresourcedefinitions": LATER
        for account in ("headroom", "headroom-webhook")
        for verb in ("list", "watch")
    },
    "headroom: get virtualmachines": "`headroom explain`",
    "headroom: list events": "`headroom explain`",
    "headroom: patch events": "an event that is repeated",
    "headroom-webhook: patch events": "an event that is repeated",
    "headroom: patch configmaps headroom in headroom-system": "other flags than the last time",
    "headroom: patch secrets headroom-webhook-tls in headroom-system": "a certificate that is renewed",
    "headroom-webhook: patch secrets headroom-webhook-tls in headroom-system": "a certificate that is renewed",
}
"""Rights that this run does not use every time, and what they are for."""


async def migrations(admin: Admin) -> None:
    """One that is served, one that is aborted and leaves a pod, one under a migration budget."""
    served = await admin.namespace(HARD)
    await served.machine()
    await served.succeed(await served.migrate(running=0.2, linger=0.2))
    await served.abort(await under_way(served))
    budget = await made(admin)
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


@pytest.fixture(scope="module")
def asked(cluster: Cluster, api: Api, own_kubeconfig: Path) -> list[Request]:
    """Everything that headroom does, each account by itself: the answers to its requests."""
    forget(api)
    log = Paths(cluster.directory).audit_log
    since = log.stat().st_size if log.exists() else 0
    own = ("--kubeconfig", str(own_kubeconfig))
    flags = ("--webhook", "--leader-elect", "--render-default-quota", *own)
    webhooks = kubeconfig_of(api, "headroom-webhook", own_kubeconfig.parent)
    with headroom(cluster, "controller", *flags):
        with frozen(cluster, "rancher"):
            run_as_admin(cluster, a_quota_is_rendered)
        run_as_admin(cluster, migrations)
    with headroom(cluster, "controller", *flags):
        """What it finds it leaves or patches."""
    for command in (("status",), ("plan", "--evacuate", "node-1"), ("release", "--leader-elect")):
        done = run(*command, *own, HEADROOM_NAMESPACE=NAMESPACE)  # as in a pod
        assert done.returncode == 0, done.stderr
    policies: tuple[tuple[str, ...], ...] = (), ("--failure-policy", "Fail")
    for policy in policies:
        with (
            headroom(cluster, "webhook", *policy, "--kubeconfig", str(webhooks)),
            headroom(cluster, "controller", *own),  # what it adds is what the webhook protects
        ):
            run_as_admin(cluster, a_quota_is_lowered)
    run("release", "--only", "webhooks", "--kubeconfig", str(webhooks), HEADROOM_NAMESPACE=NAMESPACE)
    return list(requests(cluster.directory, since))


def run_as_admin(cluster: Cluster, part: Callable[[Admin], Awaitable[None]]) -> None:
    async def as_admin() -> None:
        async with admin_of(cluster) as admin:
            await part(admin)

    asyncio.run(as_admin())


def test_nothing_is_missing(asked: list[Request]) -> None:
    assert asked
    # `release` looks for a controller in the usual namespaces, too, and goes on without those that it may not read.
    elsewhere = {("leases", "harvester-system"), ("leases", "default")}
    assert [each for each in asked if each.is_denied and (each.resource, each.namespace) not in elsewhere] == []


def test_nothing_is_spare(asked: list[Request]) -> None:
    given = rights(documents(ROOT / "deploy" / "rbac.yaml"))
    answered = [request for request in asked if not request.is_denied]
    spare = {str(right) for right in given if not any(right.covers(request) for request in answered)}
    assert not spare - UNUSED.keys(), "not used:\n" + "\n".join(sorted(spare - UNUSED.keys()))
    assert not UNUSED.keys() - set(map(str, given)), "named, and not given"
