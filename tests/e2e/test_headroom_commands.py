"""`--dry-run` decides, logs and counts, and writes nothing; what the reports say is what goes on."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kubeloop.testing.polling import eventually
from pkg.util.quantity import Quantity
from tests.e2e.headroom.amounts import FOUR, ONE, THREE
from tests.e2e.headroom.environment import Environment
from tests.e2e.headroom.namespace import LASTING, QuotaNamespace
from tests.e2e.tenant import by_value
from tests.program import run

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("cleared")]

ENTRY = "harvesterhci.io/migrating-vm1"
MAX_EXTRA = "headroom.harvesterhci.io/max-extra"
PATCHES = "headroom_resourcequota_patches_total"


def test_a_dry_run_says_what_it_would_do_and_does_none_of_it(on: Environment) -> None:
    """The same migration goes through as soon as the controller runs without it."""
    program = on.run("--dry-run")
    namespace = on.namespace(limits=ONE).start("vm1")
    found, vmi = on.api.get(namespace.path), namespace.vmi("vm1")
    migration = namespace.migrate("vm1")
    namespace.stays_refused(migration)
    eventually(lambda: f"{namespace.name}/" in program.text())
    said = [line for line in program.text().splitlines() if "would write" in line and namespace.name in line]
    assert "limits.cpu 2015m -> 4030m, limits.memory 4797464313 -> 9594928626" in said[-1]
    assert program.metric(PATCHES, result="dry-run") >= 1
    assert program.metric(PATCHES, result="written") == 0
    assert namespace.hard() == by_value(ONE)
    assert namespace.annotations().keys() == {"field.cattle.io/resourceQuota"}
    assert on.api.get(namespace.path)["metadata"].get("labels") == found["metadata"].get("labels")
    assert namespace.vmi("vm1")["metadata"].get("annotations") == vmi["metadata"].get("annotations")
    assert program.get("/readyz")[0] == 200

    on.run()
    namespace.succeed(migration)
    namespace.settle(ONE)


@pytest.fixture
def crowded(on: Environment) -> QuotaNamespace:
    """vm1 migrates, vm2 waits, vm3 rests: what may be added is enough for one of them."""
    on.run()
    namespace = on.namespace(limits=THREE, annotations={MAX_EXTRA: json.dumps(ONE)}).start(
        "vm1", "vm2", "vm3"
    )
    namespace.wait_phase(namespace.migrate("vm1", phase_seconds=LASTING), "Running")
    namespace.stays_refused(namespace.migrate("vm2"), 0.5)
    return namespace


def report(namespace: QuotaNamespace, *arguments: str) -> Any:
    """What a command prints for programs."""
    done = run(*arguments, "-o", "json", "--kubeconfig", str(namespace.api.kubeconfig))
    assert (done.returncode, done.stderr) == (0, ""), done
    return json.loads(done.stdout)


def test_status_explain_and_plan_of_a_migration_that_waits(on: Environment, crowded: QuotaNamespace) -> None:
    before = [(q["metadata"]["name"], q["metadata"]["resourceVersion"]) for q in on.api.items(crowded.quotas)]

    (quota,) = report(crowded, "status", "-n", crowded.name)["quotas"]
    for name in ONE:
        shown = by_value(quota["resources"][name])
        assert shown == by_value(
            {"base": THREE[name], "added": ONE[name], "hard": FOUR[name], "used": FOUR[name]}
        )
    (added,) = quota["additions"]
    assert (added["vm"], added["annotation"], added["state"]) == ("vm1", ENTRY, "Running")
    assert by_value(added["resources"]) == by_value(ONE)

    why = report(crowded, "explain", f"{crowded.name}/vm2")
    assert (why["verdict"], why["migration"]["refused"]) == ("waits for quota", True)
    needs = why["quotas"][0]["resources"]
    assert by_value(needs["limits.memory"]) == by_value(
        dict.fromkeys(("used", "limited"), FOUR["limits.memory"])
        | dict.fromkeys(("requested", "missing"), ONE["limits.memory"])
    )
    assert "max-extra" in why["quotas"][0]["action"]

    planned = report(crowded, "plan", "-n", crowded.name, "--overhead-ratio", "4.5")
    assert [(vm["vm"], vm["migrates"]) for vm in planned["vms"]] == [
        ("vm1", True),
        ("vm2", True),
        ("vm3", False),
    ]
    resting = planned["vms"][2]
    needs = resting["quotas"][0]["resources"]
    assert Quantity.parse(needs["limits.memory"]["requested"]) == Quantity.parse("5682461313")
    assert (resting["fitsNow"], resting["fitsWithHeadroom"]) == (False, False), "the cap is for a smaller one"

    after = [(q["metadata"]["name"], q["metadata"]["resourceVersion"]) for q in on.api.items(crowded.quotas)]
    assert after == before, "looking changes nothing"
