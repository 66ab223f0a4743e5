"""`--mode` of the installation is changed while VMs migrate: no namespace is stranded, and nobody runs `release`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kubeloop.testing.polling import eventually
from tests.e2e.accounts import NAMESPACE
from tests.e2e.conftest import MakeTenant, StartController
from tests.e2e.tenant import HARD, OWNER, RAISED, SKIP, Tenant, by_value
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
