"""A VM is as large as its instancetype and its preference make it."""

from collections.abc import Mapping
from typing import Any

import msgspec

from pkg.api.instancetype import INSTANCETYPES
from pkg.api.kubevirt import VirtualMachine
from pkg.util.kubevirt.expansion import Instancetypes, missing_instancetype
from tests.decisions import sentences

TYPES = {resource.kind: resource.type for resource in INSTANCETYPES}
TWO = {"cpu": {"guest": 2}, "memory": {"guest": "4Gi"}}
FOUR = {"cpu": {"guest": 4}, "memory": {"guest": "8Gi"}}


def known(**specs: Mapping[str, Any]) -> Instancetypes:
    """Returns the objects, each named `x`, by the short name of its kind; a namespaced one is of ns1."""
    kinds = {
        "cluster_type": "VirtualMachineClusterInstancetype",
        "type": "VirtualMachineInstancetype",
        "cluster_preference": "VirtualMachineClusterPreference",
        "preference": "VirtualMachinePreference",
    }
    instancetypes = Instancetypes()
    for short, spec in specs.items():
        metadata = {"name": "x", "namespace": "" if "cluster" in short else "ns1"}
        body = {"spec": spec}
        instancetypes.add(msgspec.convert({"metadata": metadata, **body}, TYPES[kinds[short]]))
    return instancetypes


def vm(domain: Mapping[str, Any] | None = None, **spec: Any) -> VirtualMachine:
    template = {"spec": {"domain": domain or {}}}
    body = {"metadata": {"name": "vm1", "namespace": "ns1"}, "spec": {"template": template, **spec}}
    return msgspec.convert(body, VirtualMachine)


def domain_of(machine: VirtualMachine) -> dict[str, Any]:
    document: dict[str, Any] = msgspec.to_builtins(machine.spec.template.spec.domain)
    return {name: part for name, part in document.items() if part}


CPU = {"cores": 1, "sockets": 2, "threads": 1}
BY_NAME: Mapping[str, Any] = {"name": "x"}
NAMESPACED: Mapping[str, Any] = {"name": "x", "kind": "VirtualMachineInstancetype"}
SIZED = {"cpu": CPU, "memory": {"guest": "4Gi"}}
SIZES: dict[str, tuple[Instancetypes, Any, dict[str, Any] | None]] = {
    "of the cluster": (known(cluster_type=TWO, type=FOUR), BY_NAME, SIZED),
    "of the namespace": (known(cluster_type=FOUR, type=TWO), NAMESPACED, SIZED),
    "by a kind in plural": (known(type=TWO), {**NAMESPACED, "kind": "virtualmachineinstancetypes"}, SIZED),
    "one that is not there": (known(type=FOUR), {"name": "y"}, None),
    "its revision is not read": (known(cluster_type=TWO), {**BY_NAME, "revisionName": "y"}, SIZED),
    "memory overcommitted": (
        known(cluster_type={**TWO, "memory": {"guest": "4Gi", "overcommitPercent": 15}}), BY_NAME,
        {**SIZED, "resources": {"requests": {"memory": "3650722304"}}},
    ),
    "pinned, in huge pages, with a device": (
        known(
            cluster_type={
                "cpu": {"guest": 2, "dedicatedCPUPlacement": True, "isolateEmulatorThread": True},
                "memory": {"guest": "4Gi", "hugepages": {"pageSize": "1Gi"}},
                "gpus": [{"name": "g", "deviceName": "nvidia.com/a"}],
                "launchSecurity": {"sev": {}},
            }
        ), BY_NAME,
        {
            "cpu": {**CPU, "dedicatedCpuPlacement": True, "isolateEmulatorThread": True},
            "memory": {"guest": "4Gi", "hugepages": {"pageSize": "1Gi"}},
            "devices": {"gpus": [{"deviceName": "nvidia.com/a"}]},
            "launchSecurity": {"sev": {}},
        },
    ),
}  # fmt: skip


@sentences(SIZES, "instancetypes, matcher, domain")
def test_the_size_of_an_instancetype(instancetypes: Instancetypes, matcher: Any, domain: dict[str, Any] | None) -> None:
    expanded = instancetypes.expanded(vm(instancetype=matcher))
    assert domain_of(expanded) == (domain or {})
    assert missing_instancetype(expanded) == ("" if domain else "instancetype y")


PREFERRED = {
    "devices": {"preferredAutoattachGraphicsDevice": False, "preferredTPM": {"persistent": True}},
    "firmware": {"preferredEfi": {"persistent": True}},
    "preferredArchitecture": "arm64",
    "annotations": {"a": "preferred"},
}


def test_a_preference_holds_where_the_vm_says_nothing() -> None:
    instancetypes = known(cluster_preference=PREFERRED)
    plain = instancetypes.expanded(vm(preference=BY_NAME))
    assert domain_of(plain) == {
        "devices": {"autoattachGraphicsDevice": False, "tpm": {"persistent": True}},
        "firmware": {"bootloader": {"efi": {"persistent": True}}},
    }
    template = plain.spec.template
    assert (template.spec.architecture, template.metadata.annotations) == ("arm64", {"a": "preferred"})
    own = {"devices": {"autoattachGraphicsDevice": True, "tpm": {"enabled": False}}, "firmware": {"bootloader": {}}}
    assert domain_of(instancetypes.expanded(vm(own, preference=BY_NAME))) == own


UNREAD = {
    "an instancetype": ({"instancetype": BY_NAME}, "instancetype x"),
    "one that a volume names": ({"instancetype": {"inferFromVolume": "root"}}, "instancetype that a volume names"),
    "a preference": ({"instancetype": NAMESPACED, "preference": BY_NAME}, "preference x"),
}


@sentences(UNREAD, "spec, text")
def test_what_is_not_read_is_named(spec: dict[str, Any], text: str) -> None:
    instancetypes = known(type=TWO)
    assert missing_instancetype(instancetypes.expanded(vm(**spec))) == text
