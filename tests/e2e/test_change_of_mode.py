"""`--mode` of the installation is changed while VMs migrate: no namespace is stranded. And what takeover alone does:
default quotas where no Rancher makes them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kubeloop.api.core import ResourceQuota
from kubeloop.testing.polling import eventually, until
from lab.namespace import QUOTAS, becomes, by_value
from pkg.util.constants import ANNOTATION_TOUCHED
from tests.e2e.accounts import NAMESPACE
from tests.e2e.conftest import MakeTenant, StartController
from tests.e2e.tenant import HARD, OWNER, RAISED, SKIP, Tenant
from tests.program import run

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("alone")]

MARKS = {SKIP: "true", OWNER: "headroom"}
TEXT = '{"limits.cpu":"2","limits.memory":"4737464313"}'


def kept_by(namespace: Tenant, kubeconfig: Path) -> str:
    """What `status` says of the namespace's one quota. Other tests' controllers publish their mode elsewhere."""
    own = ["--headroom-namespace", NAMESPACE, "--kubeconfig", str(kubeconfig)]
    done = run("status", "-n", namespace.name, "-o", "json", *own)
    (quota,) = json.loads(done.stdout)["quotas"]
    return str(quota["keptBy"])


async def test_takeover_becomes_assist_and_takeover_again_under_migrations(
    controller: StartController, tenant: MakeTenant, kubeconfig: Path
) -> None:
    namespace = await tenant()
    await namespace.vm()
    by_uid = f"harvesterhci.io/migratingUID-{(await namespace.vmi()).uid}"
    by_name = "harvesterhci.io/migrating-vm1"

    async def kept() -> dict[str, str]:
        """Annotations, without the mark that the migration had to be woken meanwhile."""
        return {key: text for key, text in (await namespace.annotations()).items() if key != ANNOTATION_TOUCHED}

    takeover = controller("takeover")
    first = await namespace.refused()
    await namespace.until_hard(RAISED)
    assert {SKIP, OWNER, by_name} <= (await namespace.annotations()).keys()
    assert takeover.stop() == 0

    assist = controller("assist")
    await becomes(kept, {by_uid: TEXT})
    assert await namespace.hard() == by_value(RAISED)

    # The mode is published by a task of its own, which may be later than the first patch.
    eventually(lambda: kept_by(namespace, kubeconfig) == "harvester and headroom")
    await namespace.enter(first, "Succeeded")
    await namespace.until_hard(HARD)
    assert await namespace.annotations() == {}
    second = await namespace.refused()
    await namespace.until_hard(RAISED)
    assert assist.stop() == 0

    controller("takeover")
    await becomes(kept, {**MARKS, by_name: TEXT})
    assert await namespace.hard() == by_value(RAISED)
    await namespace.enter(second, "Succeeded")
    await namespace.until_hard(HARD)
    assert await namespace.annotations() == MARKS


async def test_rendering_a_default_quota_and_keeping_all_its_limits(
    controller: StartController, tenant: MakeTenant
) -> None:
    program = controller("takeover", "--render-default-quota")
    limits = {"limitsCpu": "3", "limitsMemory": "5000Mi", "pods": "10"}
    namespace = await tenant(quota=False, limits=limits)

    async def rendered() -> list[ResourceQuota]:
        return await namespace.items(QUOTAS)

    (quota,) = await until(rendered, "the quota")
    assert quota.name.startswith("default-")
    assert quota.hard == {"limits.cpu": "3", "limits.memory": "5000Mi", "pods": "10"}
    await namespace.limit({**limits, "limitsCpu": "4", "pods": "20"})
    wanted = {"limits.cpu": "4", "limits.memory": "5000Mi", "pods": "20"}

    async def is_changed() -> bool:
        return (await rendered())[0].hard == wanted

    await until(is_changed, "the change")
    assert len(await rendered()) == 1
    assert program.get("/readyz") == (200, "ok")
