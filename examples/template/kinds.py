"""The three kinds, with the fields in use (harvesterhci.io/v1beta1)."""

from typing import Any

import msgspec

from kubeloop.api.meta import Condition, Object, Struct
from kubeloop.api.registry import Resource


class VirtualMachineTemplateSpec(Struct):
    default_version_id: str = msgspec.field(default="", name="defaultVersionId")


class VirtualMachineTemplateStatus(Struct):
    default_version: int = 0
    latest_version: int = 0


class VirtualMachineTemplate(Object):
    spec: VirtualMachineTemplateSpec = VirtualMachineTemplateSpec()
    status: VirtualMachineTemplateStatus = VirtualMachineTemplateStatus()


class VirtualMachineTemplateVersionSpec(Struct):
    template_id: str = msgspec.field(default="", name="templateId")
    vm: dict[str, Any] = msgspec.field(default_factory=dict)


class VirtualMachineTemplateVersionStatus(Struct):
    version: int = 0
    conditions: list[Condition] | None = None


class VirtualMachineTemplateVersion(Object):
    spec: VirtualMachineTemplateVersionSpec = VirtualMachineTemplateVersionSpec()
    status: VirtualMachineTemplateVersionStatus = VirtualMachineTemplateVersionStatus()


class VirtualMachineImageStatus(Struct):
    conditions: list[Condition] | None = None


class VirtualMachineImage(Object):
    status: VirtualMachineImageStatus = VirtualMachineImageStatus()


_GROUP, _VERSION = "harvesterhci.io", "v1beta1"
TEMPLATES = Resource(
    _GROUP,
    _VERSION,
    "virtualmachinetemplates",
    "VirtualMachineTemplate",
    VirtualMachineTemplate,
    status_subresource=True,
)
TEMPLATE_VERSIONS = Resource(
    _GROUP,
    _VERSION,
    "virtualmachinetemplateversions",
    "VirtualMachineTemplateVersion",
    VirtualMachineTemplateVersion,
    status_subresource=False,
)
IMAGES = Resource(
    _GROUP, _VERSION, "virtualmachineimages", "VirtualMachineImage", VirtualMachineImage, status_subresource=False
)
