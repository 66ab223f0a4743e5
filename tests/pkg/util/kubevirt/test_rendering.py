"""Rendering of launcher pods by installation and namespace; which pods are KubeVirt's: exact names only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from kubeloop.client.errors import ConfigError
from pkg.api.kubevirt import HypervisorConfiguration, KubeVirt
from pkg.cmd.settings import exact_user
from pkg.util import constants
from pkg.util.kubevirt.launcher import render_containers
from pkg.util.kubevirt.rendering import rendering, virt_controllers
from tests.decisions import sentences
from tests.objects import machine

WITH_CONTAINER_DISK = machine(
    {"resources": {"requests": {"memory": "1Gi"}}},
    volumes=[{"name": "disk", "containerDisk": {"image": "registry/disk:1"}}],
)


def installed(version: str, developer: Mapping[str, Any], phase: str = "Deployed") -> KubeVirt:
    body = {
        "spec": {"configuration": {"developerConfiguration": developer}},
        "status": {"phase": phase, "observedKubeVirtVersion": version},
    }
    return msgspec.convert(body, KubeVirt)


ON = {"featureGates": ["ImageVolume"]}
OFF = {"disabledFeatureGates": ["ImageVolume"]}
OTHERS = {"featureGates": ["A"], "disabledFeatureGates": ["B"]}
GATED: dict[str, tuple[str, Mapping[str, Any], bool]] = {
    "1.8 leaves beta gates off": ("v1.8.4", {}, False),
    "1.8 with the gate named": ("v1.8.4", ON, True),
    "1.9 switches beta gates on": ("v1.9.0", {}, True),
    "1.10, with a suffix": ("v1.10.0-alpha.0.55", {}, True),
    "1.9 with the gate disabled": ("v1.9.0", OFF, False),
    "named beats disabled": ("v1.9.0", ON | OFF, True),
    "other gates change nothing": ("v1.9.0", OTHERS, True),
    "1.5 has not that gate, whatever its CR names": ("v1.5.3", ON, False),
    "an unknown version leaves them off": ("latest", {}, False),
}
"""A release and its gates; whether a container disk is an image volume there, without a container of its own."""


@sentences(GATED)
def test_container_disks_by_release_and_gates(case: tuple[str, Mapping[str, Any], bool]) -> None:
    version, developer, image_volume = case
    rendered = render_containers(WITH_CONTAINER_DISK, rendering([installed(version, developer)], None, ()), overhead=0)
    assert ("volumedisk" in [c.name for c in rendered.containers]) is not image_volume


HYPERVISOR = {"featureGates": ["ConfigurableHypervisor"]}
HYPERVISORS: dict[str, tuple[str, Mapping[str, Any], list[str], str]] = {
    "none is named": ("v1.9.0", HYPERVISOR, [], "kvm"),
    "KVM by name": ("v1.9.0", HYPERVISOR, ["kvm", "hyperv-direct"], "kvm"),
    "Hyper-V, the first that is named": ("v1.9.0", HYPERVISOR, ["hyperv-direct", "kvm"], "mshv"),
    "since 1.8": ("v1.8.0", HYPERVISOR, ["hyperv-direct"], "mshv"),
    "without the gate": ("v1.9.0", {}, ["hyperv-direct"], "kvm"),
    "1.7 has not that gate": ("v1.7.0", HYPERVISOR, ["hyperv-direct"], "kvm"),
    "one that is not known": ("v1.9.0", HYPERVISOR, ["another"], "kvm"),
    "emulated: no device": ("v1.9.0", {**HYPERVISOR, "useEmulation": True}, ["hyperv-direct"], ""),
}


@sentences(HYPERVISORS)
def test_the_device_of_the_hypervisor(case: tuple[str, Mapping[str, Any], list[str], str]) -> None:
    version, developer, names, device = case
    cr = installed(version, developer)
    configuration = msgspec.structs.replace(
        cr.spec.configuration, hypervisors=[HypervisorConfiguration(name=name) for name in names]
    )
    cr = msgspec.structs.replace(cr, spec=msgspec.structs.replace(cr.spec, configuration=configuration))
    rendered = render_containers(WITH_CONTAINER_DISK, rendering([cr], None, ()), overhead=0)
    (compute,) = [container for container in rendered.containers if container.name == "compute"]
    limits = compute.resources.limits or {}
    devices = {f"devices.kubevirt.io/{name}" for name in ("kvm", "mshv")}
    assert devices & limits.keys() == ({f"devices.kubevirt.io/{device}"} if device else set())


def test_a_cr_that_is_not_deployed_says_nothing() -> None:
    assert rendering([installed("v1.9.0", {}, phase="Deploying")], None, ()).kubevirt.developer_configuration is None


@pytest.mark.parametrize(
    ("label", "ratio"),
    [("1.3", 1.3), ("4", 4.0), ("20.5", 20.5), ("1", 1.0), ("0.9", 2.0), ("-3", 2.0), ("much", 2.0), ("", 2.0)],
)
def test_a_namespaces_ratio_of_limits_to_requests(label: str, ratio: float) -> None:
    labels = {constants.LABEL_AUTO_MEMORY_LIMITS_RATIO: label}
    assert rendering([], None, (), namespace_labels=labels).memory_limits_ratio == ratio


def test_without_a_label_limits_are_twice_the_requests() -> None:
    assert rendering([], None, ()).memory_limits_ratio == 2.0


# ---- its accounts --------------------------------------------------------------------------------------------

IN_KUBEVIRT = "system:serviceaccount:kubevirt:kubevirt-controller"
IN_HARVESTER = "system:serviceaccount:harvester-system:kubevirt-controller"


def kubevirt(namespace: str, phase: str = "", day: int = 1) -> KubeVirt:
    created = f"2026-01-{day:02}T00:00:00Z"
    metadata = {"name": "kubevirt", "namespace": namespace, "creationTimestamp": created}
    return msgspec.convert({"metadata": metadata, "status": {"phase": phase}}, KubeVirt)


WHERE = {
    "the only one, which is being deployed": ([kubevirt("virt", "Deploying")], "virt"),
    "the deployed one beside a tenant's": ([kubevirt("tenant"), kubevirt("virt", "Deployed", 2)], "virt"),
    "the older one if a tenant says that its own is deployed": (
        [kubevirt("tenant", "Deployed", 2), kubevirt("virt", "Deployed")],
        "virt",
    ),
    "the older one as long as none is deployed": ([kubevirt("tenant", "", 2), kubevirt("virt")], "virt"),
}


@sentences(WHERE)
def test_the_account_is_where_the_kubevirt_cr_that_counts_is(case: tuple[list[KubeVirt], str]) -> None:
    kubevirts, namespace = case
    for ordered in (kubevirts, kubevirts[::-1]):
        assert virt_controllers(ordered) == [f"system:serviceaccount:{namespace}:kubevirt-controller"]


def test_without_a_cr_it_is_where_kubevirt_is_usually_installed() -> None:
    assert virt_controllers([]) == [IN_HARVESTER, IN_KUBEVIRT]


def test_an_operator_s_choice_replaces_both() -> None:
    assert virt_controllers([kubevirt("virt")], ["me"]) == ["me"]


@pytest.mark.parametrize("user", ["", "system:serviceaccount:*:kubevirt-controller", "kub?virt", "[a-z]"])
def test_a_pattern_is_no_account(user: str) -> None:
    with pytest.raises(ConfigError, match="not an exact user name"):
        exact_user(user)
    assert exact_user(IN_KUBEVIRT) == IN_KUBEVIRT
