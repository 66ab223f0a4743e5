"""`headroom status`, `explain` and `plan`: what they say is what then happens."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pkg.testcluster.cluster import Cluster
from tests.e2e.api import Api
from tests.e2e.conftest import StartController
from tests.e2e.headroom.scene import LASTING, plus
from tests.e2e.headroom.stage import Stage, stage
from tests.e2e.program import run
from tests.e2e.tenant import by_value

pytestmark = pytest.mark.cluster

ONE = {"limits.cpu": "2015m", "limits.memory": "4797464313"}
"""What quota counts of one launcher pod of the seed's VM at ratio 1.5."""
AT_4_5 = {"limits.cpu": "2015m", "limits.memory": "5682461313"}


@pytest.fixture(scope="module")
def on(cluster: Cluster, api: Api, shared_controller: StartController) -> Iterator[Stage]:
    with stage(cluster, api, shared_controller) as made:
        yield made


@pytest.fixture
def ask(kubeconfig: Path) -> Any:
    """A reading command's document."""

    def asked(*arguments: str) -> Any:
        # Whatever mode an earlier controller has published.
        mode = ("--mode", "takeover", "--estimate", "exact")
        result = run(*arguments, *mode, "--output", "json", "--kubeconfig", str(kubeconfig))
        assert (result.returncode, result.stderr) == (0, "")
        return json.loads(result.stdout)

    return asked


def test_what_the_commands_say_is_what_then_happens(on: Stage, ask: Any) -> None:
    scene = on.scene(limits=ONE).start("vm1")

    # Before headroom runs: the plan.
    (planned,) = ask("plan", "-n", scene.name)["vms"]
    assert (planned["vm"], planned["fitsNow"], planned["fitsWithHeadroom"]) == ("vm1", False, True)
    assert planned["quotas"][0]["raisedBy"] == ONE
    (larger,) = ask("plan", "-n", scene.name, "--overhead-ratio", "4.5")["vms"]
    assert larger["quotas"][0]["raisedBy"] == AT_4_5
    (of_node,) = ask("plan", "-n", scene.name, "--evacuate", planned["node"])["together"]
    assert of_node["raisedBy"] == ONE

    # A migration is refused, and it is explained with quota's own numbers.
    migration = scene.migrate("vm1", phase_seconds=LASTING)
    scene.stays_refused(migration)
    before = scene.used()
    explained = ask("explain", f"{scene.name}/vm1")
    assert (explained["verdict"], explained["migration"]["refused"]) == ("waits for quota", True)
    (quota,) = explained["quotas"]
    memory = quota["resources"]["limits.memory"]
    assert by_value({n: memory[n] for n in ("requested", "used", "limited", "missing")}) == by_value(
        dict.fromkeys(("requested", "used", "limited", "missing"), "4797464313")
    )
    assert quota["keptBy"] == "harvester"

    # Headroom does what was said; the target counts what was said.
    on.run()
    scene.wait_phase(migration, "Running")
    assert scene.hard() == plus(by_value(ONE), by_value(quota["raisedBy"]))
    scene._wait(lambda: scene.used() == plus(before, by_value(ONE)), lambda: f"used is {scene.used()}")
    assert ask("explain", f"{scene.name}/vm1")["verdict"] == "is under way"
    (shown,) = ask("status", "-n", scene.name)["quotas"]
    (addition,) = shown["additions"]
    created = scene.migration(migration)["metadata"]["creationTimestamp"]
    assert (addition["vm"], addition["state"], addition["since"]) == ("vm1", "Running", created)
    assert shown["resources"]["limits.memory"]["added"] == "4797464313"
    assert (shown["keptBy"], shown["problems"]) == ("headroom", [])

    # And at the ratio that was asked about, it is what was planned.
    scene.hurry(migration)
    scene.settle(ONE)
    on.ratio("4.5")
    at_4_5 = scene.migrate("vm1", phase_seconds=LASTING)
    scene.wait_phase(at_4_5, "Running")
    assert scene.hard() == plus(by_value(ONE), by_value(larger["quotas"][0]["raisedBy"]))
    scene.hurry(at_4_5)
    scene.settle(ONE)
    assert ask("status", "-n", scene.name)["quotas"][0]["additions"] == []


def test_what_is_not_there_is_one_line(kubeconfig: Path) -> None:
    for arguments in (["status", "-n", "gone"], ["explain", "default/gone"], ["plan", "--evacuate", "gone"]):
        result = run(*arguments, "--kubeconfig", str(kubeconfig))
        assert result.returncode == 1
        assert result.stdout == ""
        (line,) = result.stderr.splitlines()
        assert line.startswith("headroom: there is no ")
