"""`headroom status`, `explain` and `plan`: what they say is what then happens."""

import json
from pathlib import Path
from typing import Any

import pytest

from lab.namespace import LASTING, by_value
from tests.e2e.conftest import ONE_LOOP
from tests.e2e.headroom.amounts import AT_4_5, ONE, plus
from tests.e2e.headroom.environment import Environment
from tests.program import run

pytestmark = [pytest.mark.cluster, ONE_LOOP]


@pytest.fixture
def ask(kubeconfig: Path) -> Any:
    """A reading command's document."""

    def answer(*arguments: str) -> Any:
        # Whatever mode an earlier controller has published.
        mode = ("--mode", "takeover", "--estimate", "exact")
        result = run(*arguments, *mode, "--output", "json", "--kubeconfig", str(kubeconfig))
        assert (result.returncode, result.stderr) == (0, "")
        return json.loads(result.stdout)

    return answer


async def test_what_the_commands_say_is_what_then_happens(on: Environment, ask: Any) -> None:
    namespace = await on.running("vm1", limits=ONE)

    # Before headroom runs: the plan.
    (planned,) = ask("plan", "-n", namespace.name)["vms"]
    assert (planned["vm"], planned["fitsNow"], planned["fitsWithHeadroom"]) == ("vm1", False, True)
    assert planned["quotas"][0]["raisedBy"] == ONE
    (larger,) = ask("plan", "-n", namespace.name, "--overhead-ratio", "4.5")["vms"]
    assert larger["quotas"][0]["raisedBy"] == AT_4_5
    (of_node,) = ask("plan", "-n", namespace.name, "--evacuate", planned["node"])["together"]
    assert of_node["raisedBy"] == ONE

    # A migration is refused, and it is explained with quota's own numbers.
    migration = await namespace.migrate(running=LASTING)
    await namespace.stays_refused(migration)
    used = await namespace.used()
    explained = ask("explain", f"{namespace.name}/vm1")
    assert (explained["verdict"], explained["migration"]["refused"]) == ("waits for quota", True)
    (quota,) = explained["quotas"]
    memory = quota["resources"]["limits.memory"]
    assert by_value({n: memory[n] for n in ("requested", "used", "limited", "missing")}) == by_value(
        dict.fromkeys(("requested", "used", "limited", "missing"), "4797464313")
    )
    assert quota["keptBy"] == "harvester"

    # Headroom does what was said; the target counts what was said.
    on.run()
    await namespace.until_phase(migration, "Running")
    assert await namespace.hard() == plus(by_value(ONE), by_value(quota["raisedBy"]))
    await namespace.until_used(plus(used, by_value(ONE)))
    assert ask("explain", f"{namespace.name}/vm1")["verdict"] == "is under way"
    (quota_status,) = ask("status", "-n", namespace.name)["quotas"]
    (addition,) = quota_status["additions"]
    created = (await namespace.migration(migration)).metadata.creation_timestamp
    assert (addition["vm"], addition["state"], addition["since"]) == ("vm1", "Running", created)
    assert quota_status["resources"]["limits.memory"]["added"] == "4797464313"
    assert (quota_status["keptBy"], quota_status["problems"]) == ("headroom", [])

    # And at the ratio that was asked about, it is what was planned.
    await namespace.hurry(migration)
    await namespace.settle(ONE)
    await on.ratio("4.5")
    at_4_5 = await namespace.migrate(running=LASTING)
    await namespace.until_phase(at_4_5, "Running")
    assert await namespace.hard() == plus(by_value(ONE), by_value(larger["quotas"][0]["raisedBy"]))
    await namespace.hurry(at_4_5)
    await namespace.settle(ONE)
    assert ask("status", "-n", namespace.name)["quotas"][0]["additions"] == []
