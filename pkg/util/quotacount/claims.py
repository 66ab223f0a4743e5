"""What ResourceQuota counts of PersistentVolumeClaims and ResourceClaims.

Source: kubernetes pkg/quota/v1/evaluator/core/persistent_volume_claims.go and resource_claims.go; what differs by
release stands in `releases`.
"""

from __future__ import annotations

from functools import reduce

from kubeloop.api.core import PersistentVolumeClaim
from kubeloop.api.devices import DeviceRequest, DeviceSubRequest, ResourceClaim
from kubeloop.api.quantity import Quantity
from kubeloop.api.resource_list import ResourceList, maximum, parse_resource_list, positive, total
from pkg.util.quotacount.releases import NEWEST, Release, Releases
from pkg.util.quotacount.usage import DEVICE_CLASS_PREFIX, REQUESTS_PREFIX

STORAGE_CLASS_SUFFIX = ".storageclass.storage.k8s.io/"
_STORAGE = "storage"
_CLAIMS = "persistentvolumeclaims"
_REQUESTS_STORAGE = "requests.storage"
_ANNOTATION_STORAGE_CLASS = "volume.beta.kubernetes.io/storage-class"
RESOURCE_CLAIMS = "count/resourceclaims.resource.k8s.io"
DEVICES_SUFFIX = ".deviceclass.resource.k8s.io/devices"
_MOST_DEVICES = 32
"""What "All" counts as: AllocationResultsMaxSize."""
_ONE = Quantity.of(1)


def storage_usage(claim: PersistentVolumeClaim, releases: Releases = NEWEST) -> ResourceList:
    """What a quota counts of a PersistentVolumeClaim, also by storage class. QuantityError if a quantity is none."""
    return reduce(maximum, [_storage_usage(claim, release) for release in releases])


def device_usage(claim: ResourceClaim, releases: Releases = NEWEST) -> ResourceList:
    """What a quota counts of a ResourceClaim as such. A claim that the scheduler made for the extended resources of a
    pod is charged only for what the pod is not; the pod and the DeviceClasses that say so are not looked at."""
    return reduce(maximum, [_device_usage(claim, release) for release in releases])


def _storage_usage(claim: PersistentVolumeClaim, release: Release) -> ResourceList:
    usage = {_CLAIMS: _ONE}
    size = parse_resource_list(claim.spec.resources.requests).get(_STORAGE)
    if size is not None:
        if release.allocated_storage:
            size = max(size, parse_resource_list(claim.status.allocated_resources).get(_STORAGE, size))
        usage[_REQUESTS_STORAGE] = Quantity.of(size.value(), size.format)
    storage_class = claim.annotations.get(_ANNOTATION_STORAGE_CLASS, claim.spec.storage_class_name)
    by_class = {storage_class + STORAGE_CLASS_SUFFIX + name: usage[name] for name in usage} if storage_class else {}
    return {f"count/{_CLAIMS}": _ONE} | usage | by_class


def _device_usage(claim: ResourceClaim, release: Release) -> ResourceList:
    devices = total(_devices(request, release) for request in claim.spec.devices.requests or ())
    usage = {RESOURCE_CLAIMS: _ONE} | {name + DEVICES_SUFFIX: quantity for name, quantity in devices.items()}
    if release.device_class_claims:
        asked = positive(devices).items()
        usage |= {REQUESTS_PREFIX + DEVICE_CLASS_PREFIX + name: quantity for name, quantity in asked if name}
    return usage


def _devices(request: DeviceRequest, release: Release) -> ResourceList:
    """By device class; of alternatives the most of each class."""
    if request.first_available and release.prioritized_devices:
        return positive(reduce(maximum, map(_exact_devices, request.first_available)))
    exact = request.exactly or (request if request.device_class_name else None)
    return _exact_devices(exact) if exact else {}


def _exact_devices(request: DeviceSubRequest) -> ResourceList:
    """One device of the class where nothing else is said, as the API server completes a claim."""
    amounts = {"ExactCount": request.count or 1, "All": _MOST_DEVICES}
    return {request.device_class_name: Quantity.of(amounts.get(request.allocation_mode or "ExactCount", 0))}
