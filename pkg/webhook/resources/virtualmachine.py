"""VirtualMachine CREATE and UPDATE: is there storage for its volumes? An update is measured by its increase alone.

Source: Harvester pkg/util/resourcequota/calculator.go (CheckStorageResourceQuota); its text byte for byte. Cpu and
memory are not judged here: a VM that cannot start is halted by its controller, with a reason."""

from contextlib import suppress
from typing import Annotated, Any, Final

import msgspec

from kubeloop.api.core import PersistentVolumeClaim, ResourceQuota
from kubeloop.api.quantity import ZERO, Quantity, QuantityError
from kubeloop.api.resource_list import parse_resource_list, total
from kubeloop.client.lenient import without_nulls
from kubeloop.webhook.admission import ALLOW, AdmissionRequest, Decision, deny
from pkg.api.kubevirt import VirtualMachine
from pkg.util.constants import ANNOTATION_VOLUME_CLAIM_TEMPLATES, REQUESTS_STORAGE
from pkg.util.problems import ResourceQuotaError, insufficient
from pkg.util.resourcequota.base import parse_limits
from pkg.util.resourcequota.entries import read
from pkg.util.resourcequota.rancher import annotation_of
from pkg.util.resourcequota.room import lacking_resources
from pkg.webhook.view import NoAnswer, View, defaults

_TEMPLATES: Final = msgspec.json.Decoder(Annotated[list[Any], msgspec.Meta(max_length=256)] | None)
"""As many as KubeVirt lets a VM have of volumes."""


def storage_of(vm: VirtualMachine) -> Quantity:
    """Returns the storage that the VM's volume claim templates request together. Raises ValueError for garbage."""
    try:
        content = _TEMPLATES.decode(vm.annotations.get(ANNOTATION_VOLUME_CLAIM_TEMPLATES) or "null")
        kind = list[PersistentVolumeClaim]
        templates = msgspec.convert(without_nulls(kind, content), kind)
        requests = [(template.spec.resources.requests or {}).get("storage", 0) for template in templates]
        return sum(map(Quantity.parse, requests), ZERO)
    except (msgspec.DecodeError, QuantityError, RecursionError) as exc:
        raise ValueError(f"failed to unmarshal the volumeClaimTemplates annotation: {exc}") from exc


def decide(new: VirtualMachine, old: VirtualMachine | None, annotation: str, quotas: list[ResourceQuota]) -> Decision:
    """`annotation` is the namespace's; `quotas` are its default quotas."""
    try:
        limit = Quantity.parse(parse_limits(annotation).get(REQUESTS_STORAGE, "0"))
    except (ResourceQuotaError, QuantityError) as exc:
        # The user who creates a VM here is not the one who can fix it.
        return Decision(warnings=(f"the namespace's quota annotation says nothing about storage: {exc}",))
    if limit.is_zero() or not quotas:
        return ALLOW
    storage_before = ZERO
    with suppress(ValueError):  # garbage that is there already counts as nothing
        storage_before = storage_of(old) if old else ZERO
    try:
        need = storage_of(new) - storage_before
        if need <= ZERO:  # of what is wrong here only who asks for more is told
            return ALLOW
        for quota in quotas:
            used, entries = parse_resource_list(quota.used), read(quota.annotations)
            for error in entries.invalid.values():
                raise error
            headroom = total(entries.by_key.values())
            if lacking_resources({REQUESTS_STORAGE: need}, {REQUESTS_STORAGE: limit}, used, headroom):
                return deny(insufficient("storage"), reason="no-room")
    except ResourceQuotaError as exc:
        return Decision(warnings=(str(exc),))
    except ValueError as exc:
        return deny(str(exc), reason="no-room")
    return ALLOW


async def validate(view: View, request: AdmissionRequest) -> Decision:
    """Answers CREATE and UPDATE. The caches suggest, the API server decides: a live look precedes a denial."""
    new = request.new(VirtualMachine)
    old = request.old(VirtualMachine) if request.operation == "UPDATE" else None
    namespace = request.namespace
    decision = decide(new, old, annotation_of(view.namespace(namespace)), defaults(view.quotas(namespace)))
    with suppress(NoAnswer):
        if not decision.allowed:
            quotas = defaults(await view.quotas_live(namespace))
            return decide(new, old, annotation_of(await view.namespace_live(namespace)), quotas)
    return decision
