"""The handlers, and what calls them."""

import asyncio
import json
from collections.abc import Iterable

from examples.template.kinds import (
    IMAGES,
    TEMPLATE_VERSIONS,
    TEMPLATES,
    VirtualMachineImage,
    VirtualMachineTemplate,
    VirtualMachineTemplateVersion,
)
from kubeloop.api.objects import condition_is_true, edit, owner_reference, set_condition, split_key
from kubeloop.client.resource_client import ResourceClient
from kubeloop.controllers.cache_reader import CacheReader
from kubeloop.controllers.factory import ControllerFactory

TEMPLATE_LABEL = "template.harvesterhci.io/templateID"
VOLUME_CLAIM_TEMPLATES = "harvesterhci.io/volumeClaimTemplates"
IMAGE_ID = "harvesterhci.io/imageId"
ASSIGNED, READY, IMPORTED = "assigned", "ready", "Imported"
_BY_IMAGE = "template versions by image"


def register(management: ControllerFactory) -> None:
    """Upstream's third handler, which enqueues the versions of an image, is the second `watch_related`."""
    templates = management.controller(TEMPLATES)
    versions = management.controller(TEMPLATE_VERSIONS)
    images = management.controller(IMAGES)
    management.require(templates, versions, images)

    version_cache = versions.cache()
    version_cache.add_indexer(_BY_IMAGE, image_ids)
    templates.watch_related(versions, lambda version: [version.spec.template_id])
    versions.watch_related(images, lambda image: [v.key for v in version_cache.by_index(_BY_IMAGE, image.key)])

    template_handler = TemplateHandler(templates.client, versions.client, version_cache)
    version_handler = TemplateVersionHandler(versions.client, templates.cache(), images.cache())
    templates.on_change("template-controller", template_handler.on_changed)
    versions.on_change("template-version-controller", version_handler.on_changed)


class TemplateHandler:
    """Makes the first version the default one, and writes the numbers of the latest and the default version."""

    def __init__(
        self,
        templates: ResourceClient[VirtualMachineTemplate],
        versions: ResourceClient[VirtualMachineTemplateVersion],
        version_cache: CacheReader[VirtualMachineTemplateVersion],
    ) -> None:
        self._templates = templates
        self._versions = versions
        self._version_cache = version_cache

    async def on_changed(self, key: str, template: VirtualMachineTemplate | None) -> VirtualMachineTemplate | None:
        if template is None or template.deleting:
            return template
        latest = await latest_version(self._versions, template.namespace, key)
        if latest is None:
            return template
        number, default_id = latest.status.version, template.spec.default_version_id
        if not default_id and number == 1:
            new = edit(template, spec={"default_version_id": latest.key})
            return await self._templates.update(template, new)
        default = template.status.default_version
        if default_id:
            namespace, name = split_key(default_id)
            version = self._version_cache.require(namespace=namespace, name=name)
            if not is_assigned(version):
                return template  # called again when it is
            default = version.status.version
        new = edit(template, status={"latest_version": number, "default_version": default})
        return await self._templates.update_status(template, new)


class TemplateVersionHandler:
    """Labels a version, makes the template its owner, tells whether its images are there, and numbers it."""

    def __init__(
        self,
        versions: ResourceClient[VirtualMachineTemplateVersion],
        template_cache: CacheReader[VirtualMachineTemplate],
        image_cache: CacheReader[VirtualMachineImage],
    ) -> None:
        self._versions = versions
        self._template_cache = template_cache
        self._image_cache = image_cache
        self._numbering = asyncio.Lock()  # two workers must not find the same latest number

    async def on_changed(
        self, key: str, version: VirtualMachineTemplateVersion | None
    ) -> VirtualMachineTemplateVersion | None:
        if version is None or version.deleting:
            return None
        namespace, name = split_key(version.spec.template_id)
        template = self._template_cache.require(namespace=namespace, name=name)
        owners = list(version.metadata.owner_references or ())
        if all(owner.uid != template.uid for owner in owners):
            owners.append(owner_reference(template, controller=True))
        labels = {TEMPLATE_LABEL: name, **version.labels}
        ready = "True" if self._images_are_imported(version) else "False"
        new = edit(
            version,
            metadata={"labels": labels, "owner_references": owners},
            status={"conditions": set_condition(version.status.conditions, READY, ready, last_update=True)},
        )
        async with self._numbering:
            if not is_assigned(version):
                latest = await latest_version(self._versions, version.namespace, version.spec.template_id)
                number = latest.status.version + 1 if latest else 1
                conditions = set_condition(new.status.conditions, ASSIGNED, "True", last_update=True)
                new = edit(new, status={"version": number, "conditions": conditions})
            return await self._versions.update(version, new)

    def _images_are_imported(self, version: VirtualMachineTemplateVersion) -> bool:
        for image_id in image_ids(version):
            namespace, name = split_key(image_id)
            image = self._image_cache.require(namespace=namespace, name=name)
            if not condition_is_true(image.status.conditions, IMPORTED):
                return False
        return True


def image_ids(version: VirtualMachineTemplateVersion) -> Iterable[str]:
    """`namespace/name` of each image that a version's volumes are made from. Raises ValueError: not JSON."""
    annotations = version.spec.vm.get("metadata", {}).get("annotations", {})
    claims = json.loads(annotations.get(VOLUME_CLAIM_TEMPLATES) or "[]")
    ids = [(claim.get("metadata", {}).get("annotations") or {}).get(IMAGE_ID) for claim in claims]
    return [image_id for image_id in ids if image_id]


def is_assigned(version: VirtualMachineTemplateVersion) -> bool:
    """Reports whether a template version has its number."""
    return condition_is_true(version.status.conditions, ASSIGNED)


async def latest_version(
    versions: ResourceClient[VirtualMachineTemplateVersion], namespace: str, template_id: str
) -> VirtualMachineTemplateVersion | None:
    """Returns a template's newest numbered version. Reads from the API server, because a cache may lag."""
    all_versions = await versions.list(namespace)
    mine = [v for v in all_versions if v.spec.template_id == template_id and is_assigned(v)]
    return max(mine, key=lambda v: v.status.version, default=None)
