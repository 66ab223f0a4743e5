"""Defaults that KubeVirt's webhook sets on a VMI before anything else sees it."""

from typing import Any

import msgspec

from kubeloop.testing.fake.patches import merged
from lab.kubevirt.defaults import defaults
from lab.kubevirt.instance import status_patch
from lab.kubevirt.objects import VirtualMachineInstance
from tests.decisions import sentences

NETWORK = {"interfaces": [{"name": "default"}]}
WHOLE: dict[str, Any] = {
    "architecture": "arm64",
    "networks": [{"name": "default"}],
    "domain": {
        "cpu": {"cores": 2, "sockets": 1, "threads": 1},
        "memory": {"guest": "2Gi"},
        "devices": NETWORK,
        "resources": {"limits": {"cpu": "2", "memory": "4Gi"}, "requests": {"cpu": "1", "memory": "3Gi"}},
    },
}


def vmi(spec: dict[str, Any], **status: Any) -> VirtualMachineInstance:
    return msgspec.convert({"metadata": {"name": "vm"}, "spec": spec, "status": status}, VirtualMachineInstance)


def domain(**changes: Any) -> dict[str, Any]:
    """WHOLE with another domain; None takes a part away."""
    changed: dict[str, Any] = merged(WHOLE, {"domain": changes})
    return changed


ONE_SOCKET = {"domain": {"cpu": {"sockets": 1, "cores": 1, "threads": 1}}}


@sentences(
    {
        "nothing of one that says everything": (WHOLE, {}),
        "the architecture": ({**WHOLE, "architecture": None}, {"architecture": "amd64"}),
        "a request of CPU, from the limit": (
            domain(resources={"requests": {"cpu": None}}),
            {"domain": {"resources": {"requests": {"cpu": "2"}}}},
        ),
        "no request of CPU where there is no limit": (
            domain(resources={"requests": {"cpu": None}, "limits": {"cpu": None}}),
            {},
        ),
        "sockets, from the limit of CPU": (
            domain(cpu=None, resources={"limits": {"cpu": "2500m"}}),
            {"domain": {"cpu": {"sockets": 3, "cores": 1, "threads": 1}}},
        ),
        "else from the request": (
            domain(cpu=None, resources={"limits": {"cpu": None}, "requests": {"cpu": "1500m"}}),
            {"domain": {"cpu": {"sockets": 2, "cores": 1, "threads": 1}}},
        ),
        "else one, also of a CPU that only has a model": (
            domain(
                cpu={"model": "host-model", "cores": None, "sockets": None, "threads": None},
                resources={"limits": {"cpu": None}, "requests": {"cpu": None}},
            ),
            ONE_SOCKET,
        ),
        "the guest's memory, from the request": (domain(memory=None), {"domain": {"memory": {"guest": "3Gi"}}}),
        "else from the limit": (
            domain(memory=None, resources={"requests": {"memory": None}}),
            {"domain": {"memory": {"guest": "4Gi"}}},
        ),
        "else a huge page": (
            domain(
                memory={"guest": None, "hugepages": {"pageSize": "2Mi"}}, resources={"limits": None, "requests": None}
            ),
            {"domain": {"memory": {"guest": "2Mi"}}},
        ),
        "an interface on the pod's network": (
            {**domain(devices={"interfaces": None}), "networks": None},
            {
                "domain": {"devices": {"interfaces": [{"name": "default", "bridge": {}}]}},
                "networks": [{"name": "default", "pod": {}}],
            },
        ),
        "none where there is to be none": (
            {**domain(devices={"interfaces": None, "autoattachPodInterface": False}), "networks": None},
            {},
        ),
    }
)
def test_what_is_completed(case: tuple[dict[str, Any], dict[str, Any]]) -> None:
    spec, patch = case
    assert defaults(vmi(spec)) == patch
    assert defaults(vmi(merged(spec, patch))) == {}


def test_it_is_written_with_the_first_status_and_never_again() -> None:
    new_vmi, pending_vmi = vmi({}), vmi({}, phase="Pending")
    written = status_patch(new_vmi, [], "2026-01-01T00:00:00Z") or {}
    assert written["status"]["phase"] == "Pending"
    assert written["spec"] == {**defaults(new_vmi)} != {}
    assert "spec" not in (status_patch(pending_vmi, [], "2026-01-01T00:00:00Z") or {})
