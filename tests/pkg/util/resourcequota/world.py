"""A namespace in memory: the seed's VM, its migrations and its quota, and what the planner makes of them.

Everything has the seed's values unless a test says otherwise, so that a test's text is what it is about:
namespace limits 3000m / 5000Mi, a VM with limits 2 / 4Gi and requests 2730Mi, ratio 1.5.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, settings

from pkg.api.core import ResourceQuota
from pkg.api.kubevirt import VirtualMachineInstance, VirtualMachineInstanceMigration
from pkg.api.meta import RawResourceList
from pkg.util import constants
from pkg.util.kubevirt.overhead import harvester_delta
from pkg.util.kubevirt.rendering import Rendering
from pkg.util.quantity import Quantity, QuantityError
from pkg.util.resourcequota.model import Estimate, Memory, Observed, Plan
from pkg.util.resourcequota.planner import plan
from pkg.util.resourcequota.policy import Mode, Policy

BASE = '{"limit":{"limitsCpu":"3000m","limitsMemory":"5000Mi"}}'
HARD = {"limits.cpu": "3", "limits.memory": "5000Mi"}
DELTA_MEMORY = 4737464313
ENTRY = '{"limits.cpu":"2","limits.memory":"4737464313"}'
RAISED = {"limits.cpu": "5", "limits.memory": "9980344313"}
RAISED_AT_4_5 = {"limits.cpu": "5", "limits.memory": "10865341313"}

DEFAULT_LABELS = {constants.LABEL_DEFAULT_RESOURCE_QUOTA: "true"}
RESYNC = constants.ANNOTATION_RESYNC_NEEDED
SKIP = constants.ANNOTATION_SKIP_AUTO_SCALING
OWNER = constants.ANNOTATION_OWNER
COMPENSATION = constants.ANNOTATION_MIGRATING_COMPENSATION
MARKS = {SKIP: "true", OWNER: "headroom"}
"""What takeover leaves on every quota that it takes."""
LONG_NAME = "a-very-long-name-exceeds-the-63-length-and-it-reports-error-in-old-version"

drawn = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""How much hypothesis draws. No deadlines: the machine may be busy."""


def sentences(cases: Mapping[str, Any]) -> pytest.MarkDecorator:
    """A table of cases by the sentence that each one proves; the test takes `case`."""
    return pytest.mark.parametrize("case", list(cases.values()), ids=list(cases))


def uid_of(vm_name: str) -> str:
    """The uid that `vmi` gives the VMI of that name."""
    return f"uid-{vm_name}"


def by_uid(vm_name: str = "vm1") -> str:
    """The key of a VM's entry as Harvester ≥ 1.4.2 writes it."""
    return f"harvesterhci.io/migratingUID-{uid_of(vm_name)}"


def by_name(vm_name: str = "vm1") -> str:
    """The key of a VM's entry as Harvester ≤ 1.4.1 writes it."""
    return f"harvesterhci.io/migrating-{vm_name}"


def vmi(
    name: str = "vm1",
    *,
    limits: RawResourceList | None = None,
    requests: RawResourceList | None = None,
    annotations: Mapping[str, str] | None = None,
    **status: Any,
) -> VirtualMachineInstance:
    resources = {
        "limits": {"cpu": "2", "memory": "4Gi"} if limits is None else limits,
        "requests": {"memory": "2730Mi"} if requests is None else requests,
    }
    domain = {"cpu": {"cores": 2, "sockets": 1, "threads": 1}, "resources": resources}
    metadata = {"name": name, "namespace": "ns1", "uid": uid_of(name), "annotations": dict(annotations or {})}
    return msgspec.convert(
        {"metadata": metadata, "spec": {"domain": domain}, "status": {"phase": "Running"} | status},
        VirtualMachineInstance,
    )


def vmim(
    phase: str | None = "Pending",
    vm: str = "vm1",
    *,
    refused: bool = False,
    abort: bool = False,
    name: str = "",
    created: str = "2026-01-01T00:00:00Z",
    deleting: bool = False,
) -> VirtualMachineInstanceMigration:
    name = name or f"migration-of-{vm}"
    conditions = [
        {"type": kind, "status": "True"}
        for kind, there in (
            (constants.CONDITION_REJECTED_BY_RESOURCE_QUOTA, refused),
            (constants.CONDITION_ABORT_REQUESTED, abort),
        )
        if there
    ]
    metadata = {"name": name, "namespace": "ns1", "uid": f"uid-{name}", "creationTimestamp": created}
    if deleting:
        metadata["deletionTimestamp"] = created
    return msgspec.convert(
        {
            "metadata": metadata,
            "spec": {"vmiName": vm},
            "status": {"phase": phase, "conditions": conditions},
        },
        VirtualMachineInstanceMigration,
    )


def quota(
    hard: RawResourceList | None = None,
    annotations: Mapping[str, str] | None = None,
    *,
    used: RawResourceList | None = None,
    labels: Mapping[str, str] | None = None,
    deleting: bool = False,
    version: str = "100",
) -> ResourceQuota:
    metadata = {
        "name": "default-abc",
        "namespace": "ns1",
        "uid": "uid-quota",
        "resourceVersion": version,
        "labels": dict(DEFAULT_LABELS if labels is None else labels),
        "annotations": dict(annotations or {}),
    }
    if deleting:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return msgspec.convert(
        {
            "metadata": metadata,
            "spec": {"hard": dict(HARD if hard is None else hard)},
            "status": {"used": dict(used or {})},
        },
        ResourceQuota,
    )


def estimate(ratio: str = "1.5") -> Estimate:
    """Harvester's formula, as `--estimate harvester` plugs it in."""
    return lambda vmi, hard: harvester_delta(vmi.spec, hard, ratio=ratio, arch="amd64")


def observed(
    quota: ResourceQuota,
    migrations: Sequence[VirtualMachineInstanceMigration] = (),
    instances: Iterable[VirtualMachineInstance] | None = None,
    *,
    limits: str = BASE,
    ratio: str = "1.5",
    now: float = 0.0,
    memory: Memory | None = None,
) -> Observed:
    """What a decision looks at; without `instances` every migration's VMI is there with the seed's values."""
    if instances is None:
        instances = [vmi(name) for name in sorted({migration.spec.vmi_name for migration in migrations})]
    return Observed(
        quota=quota,
        limits=limits,
        migrations=migrations,
        instances={instance.name: instance for instance in instances},
        estimate=estimate(ratio),
        now=now,
        memory=memory or Memory(),
        rendering=Rendering(ratio=ratio),
    )


def applied(quota: ResourceQuota, plan: Plan) -> ResourceQuota:
    """The quota after the API server has merged the patch."""
    annotations = {
        key: text for key, text in (quota.annotations | dict(plan.annotations)).items() if text is not None
    }
    version = str(int(quota.metadata.resource_version or "0") + (1 if plan else 0))
    return msgspec.structs.replace(
        quota,
        metadata=msgspec.structs.replace(quota.metadata, annotations=annotations, resource_version=version),
        spec=msgspec.structs.replace(quota.spec, hard=quota.hard | dict(plan.hard)),
    )


def settled(
    quota: ResourceQuota,
    migrations: Sequence[VirtualMachineInstanceMigration] = (),
    instances: Iterable[VirtualMachineInstance] | None = None,
    *,
    mode: Mode,
    patches: int = 1,
    **more: Any,
) -> ResourceQuota:
    """The quota once nothing changes any more; more than `patches` patches for one observation are a failure."""
    policy = Policy(mode, settle=0.0)
    known = None if instances is None else list(instances)
    memory = Memory()
    for _ in range(patches):
        made = plan(observed(quota, migrations, known, memory=memory, **more), policy)
        quota, memory = applied(quota, made), made.memory
    again = plan(observed(quota, migrations, known, memory=memory, **more), policy)
    assert not again, f"{patches} plans applied give another plan: {again}"
    return quota


def by_value(resources: RawResourceList) -> dict[str, Any]:
    """Quantities compare by value; what is none stays text."""
    return {name: _value(raw) for name, raw in resources.items()}


def entries_by_value(annotations: Mapping[str, str]) -> dict[str, Any]:
    """Annotations with resource lists by value. The resync flag's "false" says nothing and is left out."""
    seen: dict[str, Any] = {}
    for key, text in annotations.items():
        if (key, text) == (RESYNC, "false"):
            continue
        try:
            seen[key] = by_value(json.loads(text))
        except (ValueError, AttributeError):
            seen[key] = text
    return seen


def _value(raw: Any) -> Any:
    try:
        return Quantity.parse(raw)
    except QuantityError:
        return raw
