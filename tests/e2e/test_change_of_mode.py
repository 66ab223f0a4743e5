"""`--mode` of the installation is changed while VMs migrate: no namespace is stranded. And what takeover alone does:
giving back, and default quotas where no Rancher makes them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kubeloop.testing.polling import eventually
from tests.e2e.accounts import NAMESPACE
from tests.e2e.api import Raw
from tests.e2e.conftest import MakeTenant, StartController
from tests.e2e.tenant import HARD, OWNER, RAISED, RESYNC, SKIP, Tenant, by_value
from tests.program import run

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("alone")]


def kept_by(namespace: Tenant, kubeconfig: Path) -> str:
    """What `status` says of the namespace's one quota. Other tests' controllers publish their mode elsewhere."""
    own = ["--headroom-namespace", NAMESPACE, "--kubeconfig", str(kubeconfig)]
    done = run("status", "-n", namespace.name, "-o", "json", *own)
    (quota,) = json.loads(done.stdout)["quotas"]
    return str(quota["keptBy"])


def test_takeover_becomes_assist_and_takeover_again_under_migrations(
    controller: StartController, tenant: MakeTenant, kubeconfig: Path
) -> None:
    namespace = tenant()
    namespace.vm()
    by_uid = f"harvesterhci.io/migratingUID-{namespace.uid()}"

    takeover = controller("takeover")
    first = namespace.migrate(phase="Pending", refused=True)
    namespace.wait_hard(RAISED)
    assert {SKIP, OWNER, "harvesterhci.io/migrating-vm1"} <= namespace.annotations().keys()
    assert takeover.stop() == 0

    assist = controller("assist")
    eventually(lambda: namespace.annotations().keys() == {by_uid})
    assert by_value(namespace.quota()["spec"]["hard"]) == by_value(RAISED)
    # The mode is published by a task of its own, which may be later than the first patch.
    eventually(lambda: kept_by(namespace, kubeconfig) == "harvester and headroom")
    namespace.phase(first, "Succeeded")
    namespace.wait_hard(HARD)
    assert namespace.annotations() == {}
    second = namespace.migrate(name="second", phase="Pending", refused=True)
    namespace.wait_hard(RAISED)
    assert assist.stop() == 0

    controller("takeover")
    eventually(lambda: {SKIP, OWNER} <= namespace.annotations().keys())
    assert by_value(namespace.quota()["spec"]["hard"]) == by_value(RAISED)
    namespace.phase(second, "Succeeded")
    namespace.wait_hard(HARD)
    assert namespace.annotations().keys() == {SKIP, OWNER}


TEXT = '{"limits.cpu":"2","limits.memory":"4737464313"}'


def test_every_quota_is_given_back_as_harvester_expects_it(
    controller: StartController, tenant: MakeTenant
) -> None:
    headroom = controller("takeover")
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
    controller: StartController, tenant: MakeTenant
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
