"""`--dry-run` decides, logs and counts, and writes nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pkg.testcluster.cluster import Cluster
from tests.e2e.api import Api, eventually
from tests.e2e.conftest import StartController
from tests.e2e.headroom.stage import Stage, stage
from tests.e2e.tenant import by_value

pytestmark = pytest.mark.cluster

ONE = {"limits.cpu": "2015m", "limits.memory": "4797464313"}
PATCHES = "headroom_resourcequota_patches_total"


@pytest.fixture(scope="module")
def on(cluster: Cluster, api: Api, shared_controller: StartController) -> Iterator[Stage]:
    with stage(cluster, api, shared_controller) as made:
        yield made
        made.clear()


def test_a_dry_run_says_what_it_would_do_and_does_none_of_it(on: Stage) -> None:
    """The same migration goes through as soon as the controller runs without it."""
    program = on.run("--dry-run")
    scene = on.scene(limits=ONE).start("vm1")
    namespace, vmi = on.api.get(scene.path), scene.vmi("vm1")
    migration = scene.migrate("vm1")
    scene.stays_refused(migration)
    eventually(lambda: f"{scene.name}/" in program.text())
    said = [line for line in program.text().splitlines() if "would write" in line and scene.name in line]
    assert "limits.cpu 2015m -> 4030m, limits.memory 4797464313 -> 9594928626" in said[-1]
    assert program.metric(PATCHES, result="dry-run") >= 1
    assert program.metric(PATCHES, result="written") == 0
    assert scene.hard() == by_value(ONE)
    assert scene.annotations().keys() == {"field.cattle.io/resourceQuota"}
    assert on.api.get(scene.path)["metadata"].get("labels") == namespace["metadata"].get("labels")
    assert scene.vmi("vm1")["metadata"].get("annotations") == vmi["metadata"].get("annotations")
    assert program.get("/readyz")[0] == 200

    on.run()
    scene.succeed(migration)
    scene.settle(ONE)
