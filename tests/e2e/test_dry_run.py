"""`--dry-run` writes nothing at all, says the API server's audit log: not one request of any kind."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kubeloop.testing.cluster.cluster import Cluster
from kubeloop.testing.polling import until
from lab.namespace import LASTING
from pkg.util import constants
from tests.e2e.accounts import forget, requests
from tests.e2e.admin import HARD, admin_of
from tests.e2e.api import Api
from tests.e2e.mtq_namespace import made
from tests.program import headroom

pytestmark = pytest.mark.cluster


async def test_with_everything_switched_on_and_everything_to_do_it_asks_for_no_write(
    cluster: Cluster, own_kubeconfig: Path
) -> None:
    async with admin_of(cluster) as admin:
        managed, garbage, windowed = (await admin.namespace(HARD), await admin.namespace(HARD), await made(admin))
        await managed.machine()
        await managed.migrate(running=LASTING)
        await garbage.annotate("{nope")
        await windowed.make_quota("quota", {"limits.cpu": "8", "pods": "20"})
        await windowed.machine()
        await windowed.fill()
        await windowed.until_refused(await windowed.migrate())
        await windowed.budget()
        since = (cluster.directory / "audit.log").stat().st_size
        flags = (
            "--kubeconfig",
            str(own_kubeconfig),
            "--webhook",
            "--dry-run",
            "--leader-elect",
            "--render-default-quota",
        )
        with headroom(cluster, "controller", *flags, ready=False) as process:

            async def decided() -> bool:
                said = process.text()
                return "would write" in said and "InvalidResourceQuotaAnnotation" in said

            await until(decided, "the decisions")
            await asyncio.sleep(3.0)
        asked = [each for each in requests(cluster.directory, since) if each.account == "headroom"]
        assert asked
        assert not [each for each in asked if each.writes]
        annotations = await managed.annotations()
        assert annotations.keys() == {constants.ANNOTATION_RANCHER_RESOURCE_QUOTA}
        assert await windowed.lock() is None


async def test_the_webhooks_alone_ask_for_no_write_either(cluster: Cluster, api: Api, own_kubeconfig: Path) -> None:
    forget(api)
    since = (cluster.directory / "audit.log").stat().st_size
    with headroom(cluster, "webhook", "--kubeconfig", str(own_kubeconfig), "--dry-run"):
        await asyncio.sleep(1.0)
    asked = [each for each in requests(cluster.directory, since) if each.account == "headroom"]
    assert asked
    assert not [each for each in asked if each.writes]
