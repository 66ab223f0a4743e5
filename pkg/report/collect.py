"""Writes what a maintainer needs of a cluster as files, and reads it back from them. Pure.

Promises: an object is written as its struct, which decodes the fields in use and no others; of annotations and labels
only those that begin as in ANNOTATIONS and LABELS. What a tenant or another program writes elsewhere (user data of
cloud-init, environment variables, what kubectl applied last) never gets in. Forbids: reading a Secret."""

import json
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from kubeloop.api import core
from kubeloop.api.meta import Object
from kubeloop.api.registry import kind_of
from pkg.api.harvesterhci import Setting
from pkg.api.kubevirt import KubeVirt, VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceMigration
from pkg.report.installation import Installed
from pkg.report.snapshot import LISTS, Basis, Snapshot
from pkg.report.status import status
from pkg.util import constants
from pkg.util.kubevirt.claims import STATE_PREFIX
from pkg.util.kubevirt.launcher import ANNOTATION_HOOK_SIDECARS, hook_sidecar_count
from pkg.util.managedtenantquota.lock import recognise

ABOUT, MORE = "about.json", "more.jsonl"

ANNOTATIONS: Final = (
    "headroom.harvesterhci.io/",
    "harvesterhci.io/migrating",
    constants.ANNOTATION_SKIP_AUTO_SCALING,
    *constants.VMI_STATE_ANNOTATIONS,
    constants.ANNOTATION_RANCHER_RESOURCE_QUOTA,
    constants.ANNOTATION_PROJECT,
    constants.ANNOTATION_MEMORY_OVERHEAD,
)
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

EVENTS_ABOUT: Final = re.compile("ConfigMap|ResourceQuota|VirtualMachine(Instance(Migration)?|MigrationResourceQuota)?")
"""Not pods, in whose events stands what a probe answered; nor other kinds: an image's events may quote its URL."""

AROUND_VMIS: Final = (
    KubeVirt,
    Setting,
    core.Namespace,
    core.ResourceQuota,
    core.LimitRange,
    core.PersistentVolumeClaim,
    core.Pod,
)
"""What `headroom delta` reads beside VMIs."""


def collected_files(snapshot: Snapshot, origin: Mapping[str, Any], namespaces: Collection[str]) -> dict[str, bytes]:
    """Returns contents by file name; without `namespaces`, of those with a managed or raised quota, or a budget."""
    statuses = status(snapshot)
    selection = set(namespaces) or {quota.namespace for quota in statuses} | {obj.namespace for obj in snapshot.budgets}
    document = {
        "headroom": dict(origin),
        "now": snapshot.now,
        "basis": msgspec.to_builtins(snapshot.basis),
        "installed": msgspec.to_builtins(snapshot.installed),
        "namespaces": sorted(selection),
        "status": [quota.document() for quota in statuses if quota.namespace in selection],
    }
    moves = [(vmi.namespace, move) for vmi in snapshot.instances for move in snapshot.moves_of(vmi)]
    doubled = {(namespace, claim) for namespace, move in moves for claim in move.claims}
    objects = [obj for name in LISTS for obj in getattr(snapshot, name) if _is_collected(obj, selection, doubled)]
    kinds_of_delta = (*AROUND_VMIS, VirtualMachineInstance)
    return {
        ABOUT: json.dumps(document, indent=2).encode() + b"\n",
        constants.COLLECTED: _json_lines(objects, kinds_of_delta),
        MORE: _json_lines(objects, [kind for kind in LISTS.values() if kind not in kinds_of_delta]),
    }


def restore_snapshot(metadata: Mapping[str, Any], objects: Iterable[Mapping[str, Any]]) -> Snapshot:
    """Returns the snapshot that the files hold. Raises ValidationError, KeyError, ValueError for other files."""
    lists: dict[str, list[Any]] = defaultdict(list)
    for document in objects:
        lists[str(document["kind"])].append(document)
    objects_by_name: dict[str, Any] = {
        name: msgspec.convert(lists[kind.__name__], list[kind])  # type: ignore[valid-type]
        for name, kind in LISTS.items()
    }
    basis = msgspec.convert(metadata["basis"], Basis)
    installed = msgspec.convert(metadata["installed"], Installed)
    return Snapshot(float(metadata["now"]), basis=basis, installed=installed, **objects_by_name)


def collected_document(obj: Object) -> dict[str, Any]:
    api_version, kind = kind_of(obj)
    document: dict[str, Any] = msgspec.to_builtins(obj)
    metadata = document.get("metadata", {})
    for part, keys in (("annotations", ANNOTATIONS), ("labels", LABELS)):
        if allowed := {key: text for key, text in (metadata.pop(part, None) or {}).items() if key.startswith(keys)}:
            metadata[part] = allowed
    if isinstance(obj, VirtualMachineInstance) and (sidecars := hook_sidecar_count(obj)):
        metadata.setdefault("annotations", {})[ANNOTATION_HOOK_SIDECARS] = json.dumps([{}] * sidecars)
    if isinstance(obj, VirtualMachine):
        document["spec"].get("template", {}).pop("metadata", None)
    if "webhooks" in document:
        hooks = document["webhooks"] or ()
        document["webhooks"] = [{name: hook[name] for name in WEBHOOK_FIELDS if name in hook} for hook in hooks]
    for condition in document.get("status", {}).get("conditions") or ():
        condition.pop("message", None)
    return {**document, "apiVersion": api_version, "kind": kind}


def _is_collected(obj: Object, namespaces: Collection[str], doubled: Collection[tuple[str, str]]) -> bool:
    """Reports whether an object is written. Of PVCs those of VMs' state, and of the disks that a volume migration has
    `doubled`; all migrations, for KubeVirt's limits count those of the whole cluster."""
    match obj:
        case core.Namespace():
            return obj.name in namespaces
        case core.PersistentVolumeClaim() if not obj.name.startswith(STATE_PREFIX):
            return obj.namespace in namespaces and (obj.namespace, obj.name) in doubled
        case core.Event():
            return obj.namespace in namespaces and EVENTS_ABOUT.fullmatch(obj.involved_object.kind) is not None
        case core.ValidatingWebhookConfiguration():
            return obj.name == constants.WEBHOOK_CONFIGURATION_NAME or recognise(obj) is not None
        case VirtualMachineInstanceMigration() | KubeVirt() | Setting():
            return True
    return obj.namespace in namespaces


def _json_lines(objects: Iterable[Object], kinds: Sequence[type[Object]]) -> bytes:
    """Returns the objects as JSON lines in the order of the kinds: what a VMI depends on stands before it."""
    ordered = sorted((obj for obj in objects if type(obj) in kinds), key=lambda obj: kinds.index(type(obj)))
    return b"".join(msgspec.json.encode(collected_document(obj)) + b"\n" for obj in ordered)
