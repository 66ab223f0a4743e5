"""`--mode takeover` on a real API server: giving back, and default quotas where no Rancher makes them."""

from __future__ import annotations

import pytest

from kubeloop.testing.polling import eventually
from tests.e2e.api import Raw
from tests.e2e.conftest import MakeTenant, StartController
from tests.e2e.tenant import OWNER, RAISED, RESYNC, SKIP, by_value
from tests.program import Program, run

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("alone")]

TEXT = '{"limits.cpu":"2","limits.memory":"4737464313"}'
MARKS = {SKIP: "true", OWNER: "headroom"}


@pytest.fixture(scope="module")
def headroom(shared_controller: StartController) -> Program:
    return shared_controller("takeover")


class TestRelease:
    """`headroom release` after the controller has stopped. The last tests of this file: they stop it."""

    def test_every_quota_is_given_back_as_harvester_expects_it(
        self, headroom: Program, tenant: MakeTenant
    ) -> None:
        busy, quiet, off = tenant(), tenant(), tenant(annotations={SKIP: "true"})
        busy.vm()
        busy.migrate(phase="Running")
        busy.wait_hard(RAISED)
        eventually(lambda: OWNER in quiet.annotations())
        assert headroom.stop() == 0
        released = run("release", "--kubeconfig", str(busy.api.kubeconfig))
        assert released.returncode == 0, released.stderr
        lines = released.stdout.splitlines()
        assert {f"released {each.name}/default-abc" for each in (busy, quiet)} <= set(lines)
        given_back = [line for line in lines if line.startswith("released ")]
        assert lines[-1] == f"{len(given_back)} resource quotas released"
        uid_key = f"harvesterhci.io/migratingUID-{busy.uid()}"
        assert busy.annotations() == {uid_key: TEXT, RESYNC: "true"}
        assert by_value(busy.quota()["spec"]["hard"]) == by_value(RAISED)
        assert quiet.annotations() == {RESYNC: "true"}
        assert off.annotations() == {SKIP: "true"}
        again = run("release", "--kubeconfig", str(busy.api.kubeconfig))
        assert again.stdout == "0 resource quotas released\n"

    def test_rendering_a_default_quota_and_keeping_all_its_limits(
        self, controller: StartController, tenant: MakeTenant
    ) -> None:
        program = controller("takeover", "--render-default-quota")
        namespace = tenant(quota=False, limits={"limitsCpu": "3", "limitsMemory": "5000Mi", "pods": "10"})

        def rendered() -> list[Raw]:
            return namespace.api.items(f"{namespace.path}/resourcequotas")

        (quota,) = eventually(rendered)
        assert quota["metadata"]["name"].startswith("default-")
        assert quota["spec"]["hard"] == {"limits.cpu": "3", "limits.memory": "5000Mi", "pods": "10"}
        namespace.limit({"limitsCpu": "4", "limitsMemory": "5000Mi", "pods": "20"})
        wanted = {"limits.cpu": "4", "limits.memory": "5000Mi", "pods": "20"}
        eventually(lambda: rendered()[0]["spec"]["hard"] == wanted)
        assert len(rendered()) == 1
        assert program.get("/readyz") == (200, "ok")
