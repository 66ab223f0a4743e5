"""What the commands say in headroom's own pod: while it runs, after it was killed, and that nothing is released beside
one that runs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from kubeloop.testing.cluster.cluster import Cluster
from kubeloop.testing.polling import eventually
from tests.e2e.accounts import NAMESPACE, forget
from tests.e2e.api import Api
from tests.e2e.conftest import MakeTenant
from tests.e2e.tenant import RAISED
from tests.program import program, run

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("alone")]

POD = {"POD_NAME": "headroom-controller-0", "HEADROOM_NAMESPACE": NAMESPACE}
"""A container's environment, as the chart has it."""
ELECTION = ("--leader-elect", "--leader-elect-lease-duration", "3", "--leader-elect-renew-deadline", "2",
            "--leader-elect-retry-period", "0.4")  # fmt: skip


def test_a_killed_headroom_is_the_first_line_and_a_running_one_is_not_released(
    cluster: Cluster, api: Api, own_kubeconfig: Path, tenant: MakeTenant
) -> None:
    forget(api)
    own = ("--kubeconfig", str(own_kubeconfig))

    def said(*command: str, code: int = 0) -> str:
        done = run(*command, *own, **POD)
        assert done.returncode == code, done.stderr
        return done.stdout if code == 0 else done.stderr

    flags = ("--webhook", "--failure-policy", "Fail", "--estimate", "harvester", *ELECTION, *own)
    headroom = program(cluster, "controller", *flags).start()
    try:
        namespace = tenant()
        namespace.vm()
        namespace.migrate(phase="Pending", refused=True)
        namespace.wait_hard(RAISED)
        assert said("status").startswith(f"{namespace.name}/default-abc ")
        document: dict[str, Any] = json.loads(said("explain", f"{namespace.name}/vm1", "-o", "json"))
        assert (document["headroom"]["running"], document["headroom"]["unreachable"]) == (True, "")
        assert document["headroom"]["alarms"] == []
        assert f"runs and holds the Lease {NAMESPACE}/headroom: stop it first" in said("release", code=1)
        assert namespace.quota()["metadata"]["annotations"]["headroom.harvesterhci.io/owner"] == "headroom"
    finally:
        headroom.kill()
    eventually(lambda: said("status").startswith("headroom has not been running for "))
    for command in (("status",), ("explain", f"{namespace.name}/vm1"), ("plan", "-n", namespace.name)):
        first, *others = said(*command).splitlines()
        assert re.match(r"headroom has not been running for \d+ s: nothing is raised or given back$", first)
        assert others[0].startswith("webhook ")
        assert any(each.startswith("webhook pods.headroom.harvesterhci.io is registered and does not answer: pods are "
                                   "refused") and "connection refused" in each for each in others)  # fmt: skip
    released = said("release").splitlines()
    assert f"released {namespace.name}/default-abc" in released
    assert "Lease headroom" in "\n".join(released)
    after = json.loads(said("status", "-o", "json"))["headroom"]
    assert (after["running"], after["webhooks"], after["alarms"]) == (None, {}, [])
