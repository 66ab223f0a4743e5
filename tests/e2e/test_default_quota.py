"""Default quotas, where no Rancher makes them."""

from __future__ import annotations

import pytest

from kubeloop.api.core import ResourceQuota
from kubeloop.testing.polling import until
from lab.namespace import QUOTAS
from tests.e2e.conftest import MakeTenant, StartController

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("alone")]


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
