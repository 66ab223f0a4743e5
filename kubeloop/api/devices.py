"""resource.k8s.io: what a quota counts of a claim of devices."""

from __future__ import annotations

from kubeloop.api.meta import Object, Struct


class DeviceSubRequest(Struct):
    """resource.k8s.io ExactDeviceRequest and DeviceSubRequest: how many devices of a class."""

    device_class_name: str = ""
    allocation_mode: str = ""
    count: int | None = None


class DeviceRequest(DeviceSubRequest):
    """resource.k8s.io DeviceRequest: exact, or one of several; v1beta1 has the exact one's fields here."""

    exactly: DeviceSubRequest | None = None
    first_available: list[DeviceSubRequest] | None = None


class DeviceClaim(Struct):
    requests: list[DeviceRequest] | None = None


class ResourceClaimSpec(Struct):
    devices: DeviceClaim = DeviceClaim()


class ResourceClaim(Object):
    """resource.k8s.io ResourceClaim, v1 and its betas."""

    spec: ResourceClaimSpec = ResourceClaimSpec()
