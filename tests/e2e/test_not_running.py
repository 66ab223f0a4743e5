"""What the commands say in headroom's own pod: while it runs, after it was killed, and that nothing is released beside
one that runs."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kubeloop.testing.cluster.cluster import Cluster
from kubeloop.testing.polling import eventually
from tests.e2e.accounts import ADMISSION, NAMESPACE, forget, kubeconfig_of
from tests.e2e.api import Api
from tests.e2e.conftest import MakeTenant
from tests.e2e.tenant import OWNER, RAISED
from tests.program import headroom as program_of
from tests.program import program, run

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("alone")]

POD: dict[str, Any] = {"POD_NAME": "headroom-controller-0", "HEADROOM_NAMESPACE": NAMESPACE}
"""A container's environment, as the chart has it."""
ELECTION = ("--leader-elect", "--leader-elect-lease-duration", "8", "--leader-elect-renew-deadline", "6",
            "--leader-elect-retry-period", "0.4")  # fmt: skip


@pytest.fixture(autouse=True)
def nothing_is_left(api: Api) -> Iterator[None]:
    """Removes what a test before left, and what this one leaves: webhooks with Fail that do not answer refuse what
    others write."""
    forget(api)
    yield
    forget(api)


async def test_a_killed_headroom_is_told_a_running_one_not_released(
    cluster: Cluster, api: Api, own_kubeconfig: Path, tenant: MakeTenant, tmp_path: Path
) -> None:
    config_flags = ("--kubeconfig", str(own_kubeconfig))

    def output_of(*command: str, code: int = 0) -> str:
        process = run(*command, *config_flags, **POD)
        assert process.returncode == code, process.stderr
        return process.stdout if code == 0 else process.stderr

    flags = ("--webhook", "--failure-policy", "Fail", "--estimate", "harvester", *ELECTION, *config_flags)
    headroom = program(cluster, "controller", *flags).start()
    try:
        namespace = await tenant()
        await namespace.vm()
        await namespace.refused()
        await namespace.until_hard(RAISED)
        assert f"{namespace.name}/default-abc " in output_of("status")
        document: dict[str, Any] = json.loads(output_of("explain", f"{namespace.name}/vm1", "-o", "json"))
        assert (document["headroom"]["running"], document["headroom"]["unreachable"]) == (True, "")
        assert document["headroom"]["alarms"] == []
        assert output_of("status", "--check", "controller", "--check", "webhooks") == "headroom works\n"
        assert f"runs and holds the Lease {NAMESPACE}/headroom: stop it first" in output_of("release", code=1)
        assert (await namespace.annotations())[OWNER] == "headroom"
    finally:
        headroom.kill()
    eventually(lambda: output_of("status").startswith("headroom has not been running for "))
    assert run("status", "--check", "controller", *config_flags, **POD).returncode == 1
    for command in (("status",), ("explain", f"{namespace.name}/vm1"), ("plan", "-n", namespace.name)):
        first_line, *lines = output_of(*command).splitlines()
        assert re.match(r"headroom has not been running for \d+ s: nothing is raised or given back$", first_line)
        assert any(line.startswith("webhook pods.headroom.harvesterhci.io is registered and does not answer: pods are "
                                   "refused") and "connection refused" in line for line in lines)  # fmt: skip
    with program_of(cluster, "controller", "--remove-webhooks", "--no-leader-elect", *config_flags):
        eventually(lambda: json.loads(output_of("status", "-o", "json"))["headroom"]["webhooks"] == {})
    registrations = [
        configuration["metadata"]["name"]
        for kind in ("validating", "mutating")
        for configuration in api.items(f"{ADMISSION}/{kind}webhookconfigurations")
    ]
    assert [name for name in registrations if "headroom" in name] == []
    process = run("release", "--kubeconfig", str(kubeconfig_of(api, "headroom-release", tmp_path)), **POD)
    assert process.returncode == 0, process.stderr
    output = process.stdout.splitlines()
    assert f"released {namespace.name}/default-abc" in output
    assert "Lease headroom" in "\n".join(output)
    report = json.loads(output_of("status", "-o", "json"))["headroom"]
    assert (report["running"], report["webhooks"]) == (False, {})
    assert output_of("explain", f"{namespace.name}/vm1").startswith("headroom is not running here: ")
