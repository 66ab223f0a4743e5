"""`headroom release` at work: every quota that is ours, whatever happens to one of them."""

from __future__ import annotations

from typing import Any

import pytest

from kubeloop.api.registry import NAMESPACES, RESOURCE_QUOTAS
from kubeloop.client.errors import Forbidden, NotFound
from pkg.api.kubevirt import VIRTUAL_MACHINE_INSTANCE_MIGRATIONS, VIRTUAL_MACHINE_INSTANCES
from pkg.cmd.giving_back import release_all
from tests.decisions import by_value
from tests.kinds import Kind, Server
from tests.objects import BASE, DEFAULT_LABELS, ENTRY, HARD, MARKS, RAISED, RESYNC, SKIP, by_name, by_uid, vmi, vmim


class Cluster(Server):
    """Namespaces with a quota each."""

    def __init__(self) -> None:
        super().__init__()
        kinds = (NAMESPACES, RESOURCE_QUOTAS, VIRTUAL_MACHINE_INSTANCE_MIGRATIONS, VIRTUAL_MACHINE_INSTANCES)
        self.kinds: dict[str, Kind[Any]] = {kind.plural: self.kind(kind) for kind in kinds}
        self.quotas = self.kinds["resourcequotas"]
        self.namespaces = self.kinds["namespaces"]

    def quota(self, namespace: str, annotations: dict[str, str], hard: dict[str, str] | None = None) -> None:
        annotation = {"field.cattle.io/resourceQuota": BASE}
        self.namespaces.given({"metadata": {"name": namespace, "uid": namespace, "annotations": annotation}})
        metadata = {"name": "q", "namespace": namespace, "uid": f"q-{namespace}", "labels": DEFAULT_LABELS}
        self.quotas.given({"metadata": metadata | {"annotations": annotations}, "spec": {"hard": hard or dict(HARD)}})


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


async def test_a_migration_under_way_goes_over_in_one_patch(cluster: Cluster) -> None:
    cluster.quota("ns1", {**MARKS, by_name(): ENTRY}, RAISED)
    cluster.kinds["virtualmachineinstances"].given(vmi())
    cluster.kinds["virtualmachineinstancemigrations"].given(vmim("Running"))
    await release_all(cluster.client())
    quota = cluster.quotas.now("ns1/q")
    assert quota.annotations == {by_uid(): ENTRY, RESYNC: "true"}
    assert by_value(quota.hard) == by_value(RAISED)


async def test_what_another_process_released_meanwhile_is_nothing_to_do(cluster: Cluster) -> None:
    cluster.quota("ns1", dict(MARKS))
    cluster.quotas.before = [
        lambda: cluster.quotas.edited("ns1/q", {"metadata": {"annotations": dict.fromkeys(MARKS)}})
    ]
    assert await release_all(cluster.client()) == []


async def test_a_quota_or_namespace_that_goes_away_does_not_keep_the_others(cluster: Cluster) -> None:
    for name in ("a", "b", "c"):
        cluster.quota(name, dict(MARKS))
    cluster.namespaces.gone("a")
    cluster.quotas.before = [lambda: cluster.quotas.gone("b/q")]
    cluster.quotas.errors["patch"] = [NotFound("gone", status=404)]
    assert await release_all(cluster.client()) == ["c/q"]


async def test_what_may_not_be_written_is_an_error_and_keeps_no_other_from_it(cluster: Cluster) -> None:
    for name in ("a", "b", "c"):
        cluster.quota(name, dict(MARKS))
    cluster.quotas.errors["patch"] = [Forbidden("no", status=403), None, Forbidden("nor this", status=403)]
    with pytest.raises(Forbidden, match=r"^no$"):
        await release_all(cluster.client())
    marked = [key for key in ("a/q", "b/q", "c/q") if SKIP in cluster.quotas.now(key).annotations]
    assert marked == ["a/q", "c/q"]
