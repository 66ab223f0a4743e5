"""VirtualMachine CREATE and UPDATE: is there storage for its volumes?

Source: Harvester pkg/util/resourcequota/calculator.go (CheckStorageResourceQuota); its text byte for byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

import msgspec

from kubeloop.api.core import ResourceQuota, ResourceRequirements
from kubeloop.api.meta import Struct
from kubeloop.api.quantity import ZERO, Quantity, QuantityError
from kubeloop.api.resource_list import parse_resource_list
from kubeloop.webhook.admission import ALLOW, AdmissionRequest, Decision, deny
from pkg.api.kubevirt import VirtualMachine
from pkg.util import constants
from pkg.util.constants import REQUESTS_STORAGE
from pkg.util.resourcequota.balance import Balance
from pkg.util.resourcequota.base import parse_limits
from pkg.util.resourcequota.entries import added
from pkg.util.resourcequota.errors import InsufficientResources, ResourceQuotaError
from pkg.util.resourcequota.rancher import annotation_of
from pkg.webhook.view import NoAnswer, View, defaults

_STORAGE: Final = "storage"


class _ClaimSpec(Struct):
    resources: ResourceRequirements = ResourceRequirements()


class _ClaimTemplate(Struct):
    spec: _ClaimSpec = _ClaimSpec()


_TEMPLATES = msgspec.json.Decoder(Annotated[list[_ClaimTemplate], msgspec.Meta(max_length=256)] | None)
"""As many as KubeVirt lets a VM have of volumes."""


def storage_of(vm: VirtualMachine) -> Quantity:
    """Returns the storage that the VM's volume claim templates request together. Raises ValueError for garbage."""
    text = vm.annotations.get(constants.ANNOTATION_VOLUME_CLAIM_TEMPLATES, "")
    if not text:
        return ZERO
    try:
        templates = _TEMPLATES.decode(text) or []
        requests = [(template.spec.resources.requests or {}).get(_STORAGE, 0) for template in templates]
        return sum((Quantity.parse(request) for request in requests), ZERO)
    except (msgspec.DecodeError, QuantityError, RecursionError) as exc:
        raise ValueError(f"failed to unmarshal the volumeClaimTemplates annotation: {exc}") from exc


def decide(
    new: VirtualMachine, old: VirtualMachine | None, annotation: str, quotas: Sequence[ResourceQuota]
) -> Decision:
    """`annotation` is the namespace's; `quotas` are its default quotas. An update counts by its increase."""
    try:
        limit = Quantity.parse(parse_limits(annotation).get(REQUESTS_STORAGE, "0")) if annotation else ZERO
    except (ResourceQuotaError, QuantityError) as exc:
        # The user who creates a VM here is not the one who can fix it.
        return Decision(warnings=(f"the namespace's quota annotation says nothing about storage: {exc}",))
    if limit.is_zero() or not quotas:
        return ALLOW
    try:
        need = storage_of(new) - _storage_before(old)
        if need <= ZERO:  # of what is wrong here only who asks for more is told
            return ALLOW
        is_short = any(_balance(quota, limit).lacking_resources({REQUESTS_STORAGE: need}) for quota in quotas)
    except ResourceQuotaError as exc:
        return Decision(warnings=(str(exc),))
    except ValueError as exc:
        return deny(str(exc), reason="no-room")
    if is_short:
        return deny(str(InsufficientResources(_STORAGE)), reason="no-room")
    return ALLOW


def _balance(quota: ResourceQuota, limit: Quantity) -> Balance:
    """Raises InvalidEntry."""
    return Balance({REQUESTS_STORAGE: limit}, parse_resource_list(quota.used), added(quota.annotations))


async def validate(view: View, request: AdmissionRequest) -> Decision:
    """Answers CREATE and UPDATE. The caches suggest, the API server decides: a live look precedes a denial."""
    new = request.new(VirtualMachine)
    old = request.old(VirtualMachine) if request.operation == "UPDATE" else None
    namespace = request.namespace
    annotation = annotation_of(view.namespace(namespace))
    suggested = decide(new, old, annotation, defaults(view.quotas(namespace)))
    if suggested.allowed:
        return suggested
    try:
        quotas = defaults(await view.quotas_live(namespace))
        live = await view.namespace_live(namespace)
    except NoAnswer:
        return suggested
    return decide(new, old, annotation_of(live), quotas)


def _storage_before(old: VirtualMachine | None) -> Quantity:
    """Returns the storage before an update. Garbage that is there already counts as nothing."""
    try:
        return storage_of(old) if old is not None else ZERO
    except ValueError:
        return ZERO
