"""What a maintainer needs of a cluster, as files, and back from them. Pure.

Promises: an object is written as its struct, which decodes the fields in use and no others, with the annotations and
labels of ANNOTATIONS and LABELS alone: what a tenant or another program writes elsewhere (user data of cloud-init,
environment variables, what kubectl applied last) never gets in. Forbids: reading a Secret.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar, cast

import msgspec

from kubeloop.api.admissionregistration import ValidatingWebhookConfiguration
from kubeloop.api.core import LimitRange, Namespace, PersistentVolumeClaim, Pod, ResourceQuota
from kubeloop.api.meta import Object
from kubeloop.api.registry import kind_of
from pkg.api.harvesterhci import Setting
from pkg.api.kubevirt import KubeVirt, VirtualMachine, VirtualMachineInstance
from pkg.report.installation import Installed
from pkg.report.snapshot import LISTS, OF_FAILURES, Basis, Snapshot
from pkg.report.status import status
from pkg.util import constants
from pkg.util.kubevirt.claims import STATE_PREFIX, moves
from pkg.util.kubevirt.launcher import ANNOTATION_HOOK_SIDECARS, hook_sidecar_count
from pkg.util.managedtenantquota.lock import recognise
from pkg.util.resourcequota.policy import EstimateKind, Mode, Policy, RancherQuotas

T = TypeVar("T", bound=Object)

MORE: Final = "more.jsonl"
"""All other objects."""
ABOUT: Final = "about.json"

ANNOTATIONS: Final = (
    "headroom.harvesterhci.io/",
    "harvesterhci.io/migrating",
    constants.ANNOTATION_SKIP_AUTO_SCALING,
    *constants.VMI_STATE_ANNOTATIONS,
    constants.ANNOTATION_RANCHER_RESOURCE_QUOTA,
    constants.ANNOTATION_MEMORY_OVERHEAD,
)
"""What the keys begin with that are kept."""
LABELS: Final = (
    "headroom.harvesterhci.io/",
    "kubevirt.io",
    "vm.kubevirt.io/",
    "vmi.kubevirt.io/",
    "alpha.kubevirt.io/",
    "resourcequota.management.cattle.io/",
    "kubernetes.io/metadata.name",
    "mtq-lock-server",
    "app.kubernetes.io/",
)
WEBHOOK_FIELDS: Final = ("name", "failurePolicy", "namespaceSelector", "objectSelector", "rules", "timeoutSeconds")
"""Not `clientConfig`: the end of its path is the key by which the API server is known."""

EVENTS_ABOUT: Final = (
    "ConfigMap",
    "ResourceQuota",
    "VirtualMachine",
    "VirtualMachineInstance",
    "VirtualMachineInstanceMigration",
    "VirtualMachineMigrationResourceQuota",
)
"""Not pods: what a probe answered stands in their events."""

AROUND_VMIS: Final = (KubeVirt, Setting, Namespace, ResourceQuota, LimitRange, PersistentVolumeClaim, Pod)
"""What `headroom delta` reads beside VMIs, of what is collected."""
_OF_NAMESPACES: Final = ("quotas", "limit_ranges", "machines", "pods", "instances", "budgets")


def files(snapshot: Snapshot, about: Mapping[str, Any], namespaces: Collection[str] = ()) -> dict[str, bytes]:
    """Contents by file name. `namespaces`: only these; none: those with a managed or raised quota, or a budget."""
    found = status(snapshot)
    chosen = set(namespaces) or {each.namespace for each in found} | {each.namespace for each in snapshot.budgets}
    document = {
        "headroom": dict(about),
        "now": snapshot.now,
        "basis": snapshot.basis.document(),
        "policyInForce": snapshot.basis.policy_in_force,
        "rancherQuotas": snapshot.basis.rancher_quotas.value,
        "rancherReason": snapshot.basis.rancher_reason,
        "installed": msgspec.to_builtins(snapshot.installed),
        "namespaces": sorted(chosen),
        "status": [each.document() for each in found if each.namespace in chosen],
    }
    every: list[Object] = [
        *(each for each in snapshot.namespaces if each.name in chosen),
        *(each for name in _OF_NAMESPACES for each in _of(getattr(snapshot, name), chosen)),
        *(each for each in _of(snapshot.claims, chosen) if each.name.startswith(STATE_PREFIX)),
        *_moving(snapshot, chosen),
        *snapshot.migrations,  # KubeVirt's limits count those of the whole cluster
        *(each for each in snapshot.locks if _is_ours(each)),
        *(each for each in _of(snapshot.failures, chosen) if each.involved_object.kind in EVENTS_ABOUT),
        *snapshot.kubevirts,
        *snapshot.settings,
        *snapshot.projects,
    ]
    of_delta = (*AROUND_VMIS, VirtualMachineInstance)
    return {
        ABOUT: json.dumps(document, indent=2).encode() + b"\n",
        constants.COLLECTED: _lines(every, of_delta),
        MORE: _lines(every, [kind for kind in LISTS.values() if kind not in of_delta]),
    }


def restored(about: Mapping[str, Any], objects: Iterable[Mapping[str, Any]]) -> Snapshot:
    """The snapshot that the files hold. Raises msgspec.ValidationError, KeyError, ValueError for other files."""
    lists: dict[str, list[Any]] = {name: [] for name in LISTS}
    of = {kind.__name__: (name, kind) for name, kind in LISTS.items()}
    for document in objects:
        if str(document["kind"]) in of:  # other versions collect other kinds
            name, kind = of[str(document["kind"])]
            lists[name].append(msgspec.convert(document, kind))
    lists["failures"] = [each for each in lists["failures"] if each.reason in OF_FAILURES]
    basis = about["basis"]
    policy = Policy(Mode(basis["mode"]), EstimateKind(basis["estimate"]))
    return Snapshot(
        now=float(about["now"]),
        basis=Basis(
            policy,
            basis["source"] or "",
            basis["kubernetes"],
            about.get("policyInForce", False),
            RancherQuotas(about.get("rancherQuotas", RancherQuotas.DIRECT)),
            about.get("rancherReason", ""),
        ),
        installed=msgspec.convert(about["installed"], Installed),
        **cast("dict[str, Any]", lists),
    )


def merged(snapshots: Sequence[Snapshot]) -> Snapshot:
    """Several namespaces of one cluster as one."""
    lists: dict[str, Any] = {name: _every(getattr(each, name) for each in snapshots) for name in LISTS}
    return replace(snapshots[0], **lists)


def _every(parts: Iterable[Sequence[T]]) -> list[T]:
    """Without repeats."""
    return list({each.key: each for part in parts for each in part}.values())


def allowed(obj: Object) -> dict[str, Any]:
    """What is written of an object."""
    api_version, kind = kind_of(obj)
    document: dict[str, Any] = msgspec.to_builtins(obj)
    metadata = document.get("metadata", {})
    for part, keys in (("annotations", ANNOTATIONS), ("labels", LABELS)):
        kept = {key: text for key, text in (metadata.pop(part, None) or {}).items() if key.startswith(keys)}
        if kept:
            metadata[part] = kept
    if isinstance(obj, VirtualMachineInstance) and (sidecars := hook_sidecar_count(obj)):
        metadata.setdefault("annotations", {})[ANNOTATION_HOOK_SIDECARS] = json.dumps([{}] * sidecars)
    if isinstance(obj, VirtualMachine):
        document["spec"].get("template", {}).pop("metadata", None)
    if "webhooks" in document:
        document["webhooks"] = [
            {name: each[name] for name in WEBHOOK_FIELDS if name in each} for each in document["webhooks"] or ()
        ]
    for condition in document.get("status", {}).get("conditions") or ():
        condition.pop("message", None)
    return {**document, "apiVersion": api_version, "kind": kind}


def _moving(snapshot: Snapshot, namespaces: Collection[str]) -> list[PersistentVolumeClaim]:
    """The claims of disks, as far as a volume migration doubles them."""
    machines = snapshot.source.machines
    named = {
        (vmi.namespace, claim)
        for vmi in snapshot.instances
        for each in moves(vmi, machines.get(namespace=vmi.namespace, name=vmi.name))
        for claim in (each.source, each.destination)
    }
    return [each for each in _of(snapshot.claims, namespaces) if (each.namespace, each.name) in named]


def _of(objects: Sequence[T], namespaces: Collection[str]) -> list[T]:
    return [each for each in objects if each.namespace in namespaces]


def _is_ours(configuration: ValidatingWebhookConfiguration) -> bool:
    return configuration.name == constants.WEBHOOK_CONFIGURATION_NAME or recognise(configuration) is not None


def _lines(objects: Iterable[Object], kinds: Sequence[type[Object]]) -> bytes:
    """In the order of the kinds: what a VMI depends on stands before it."""

    def documents() -> Iterator[bytes]:
        by_kind: dict[type[Object], list[Object]] = {kind: [] for kind in kinds}
        for each in objects:
            if type(each) in by_kind:
                by_kind[type(each)].append(each)
        for found in by_kind.values():
            yield from (msgspec.json.encode(allowed(each)) + b"\n" for each in found)

    return b"".join(documents())
