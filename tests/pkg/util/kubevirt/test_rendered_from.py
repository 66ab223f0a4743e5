"""What a rendering depends on: a migration's progress is not in it, whatever changes an amount is."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kubeloop.api.core import Pod, ResourceQuotaSpec
from kubeloop.client.decode import decoder_for
from pkg.api.kubevirt import VirtualMachineInstance
from pkg.util import constants
from pkg.util.kubevirt.launcher import rendered_from
from pkg.util.kubevirt.rendering import Rendering
from pkg.util.kubevirt.target import Side, bound_of, target_usage

RECORDED = Path(__file__).parents[3] / "vectors" / "recorded"
VMI = json.loads((RECORDED / "virtualmachineinstance-t1-vm1.json").read_text())
POD = json.loads((RECORDED / "pod-t1-virt-launcher-vm1-t8vc9.json").read_text())
STATE = constants.ANNOTATION_MIGRATION_STATE
HOOKS, OVERHEAD = "hooks.kubevirt.io/hookSidecars", "kubevirt.io/memory-overhead-bytes"
RESIZED = {"type": "HotVCPUChange", "status": "True"}
Change = Callable[[dict[str, Any], dict[str, Any]], object]


PROGRESS: dict[str, Change] = {
    "a new version": lambda vmi, pod: [each["metadata"].update(resourceVersion="9") for each in (vmi, pod)],
    "the VM's node": lambda vmi, pod: vmi["status"].update(nodeName="node-9"),
    "the node's label": lambda vmi, pod: vmi["metadata"]["labels"].update({"kubevirt.io/nodeName": "node-9"}),
    "the state that we let it show": lambda vmi, pod: vmi["metadata"]["annotations"].update({STATE: "x"}),
    "the next launcher": lambda vmi, pod: [pod["metadata"].update(uid="u9"), pod["spec"].update(nodeName="node-9")],
    "how the migration goes on": lambda vmi, pod: vmi["status"]["migrationState"].update(completed=False),
}  # fmt: skip
MATTERS: dict[str, Change] = {
    "CPUs": lambda vmi, pod: vmi["spec"]["domain"]["cpu"].update(sockets=4),
    "a limit": lambda vmi, pod: vmi["spec"]["domain"]["resources"]["limits"].update(memory="9Gi"),
    "an annotation": lambda vmi, pod: vmi["metadata"]["annotations"].update({HOOKS: "[{}]"}),
    "a label": lambda vmi, pod: vmi["metadata"]["labels"].update({"kubevirt.io/outdatedLauncherImage": ""}),
    "a resize under way": lambda vmi, pod: vmi["status"]["conditions"].append(RESIZED),
    "a hotplugged volume": lambda vmi, pod: vmi["status"].update(volumeStatus=[{"name": "d", "hotplugVolume": {}}]),
    "the source's resources": lambda vmi, pod: pod["spec"]["containers"][0]["resources"]["limits"].update(memory="9Gi"),
    "the source's overhead": lambda vmi, pod: pod["metadata"]["annotations"].update({OVERHEAD: "1"}),
    "the source's end": lambda vmi, pod: pod.update(status={"phase": "Succeeded"}),
}  # fmt: skip


def changed(change: Change) -> tuple[VirtualMachineInstance, Pod]:
    vmi, pod = copy.deepcopy(VMI), copy.deepcopy(POD)
    change(vmi, pod)
    return (
        decoder_for(VirtualMachineInstance).object(json.dumps(vmi).encode()),
        decoder_for(Pod).object(json.dumps(pod).encode()),
    )


BEFORE, SOURCE = changed(lambda vmi, pod: None)


@pytest.mark.parametrize("name", PROGRESS)
def test_a_migrations_progress_changes_no_rendering(name: str) -> None:
    vmi, pod = changed(PROGRESS[name])
    assert (vmi, pod) != (BEFORE, SOURCE)
    assert rendered_from(vmi) == rendered_from(BEFORE)
    rendering, spec = Rendering(), ResourceQuotaSpec()
    assert target_usage(vmi, Side(pod), rendering, spec) == target_usage(BEFORE, Side(SOURCE), rendering, spec)
    assert bound_of(vmi, rendering, spec) == bound_of(BEFORE, rendering, spec)


@pytest.mark.parametrize("name", MATTERS)
def test_what_may_change_an_amount_is_rendered_anew(name: str) -> None:
    vmi, pod = changed(MATTERS[name])
    assert (rendered_from(vmi), pod) != (rendered_from(BEFORE), SOURCE)
