"""The ported `template` controller: upstream's table (template_controller_test.go), and the whole on a cluster."""

import json
from typing import Any

import pytest

from examples.template.controller import READY, TEMPLATE_LABEL, TemplateHandler, register
from examples.template.kinds import (
    IMAGES,
    TEMPLATE_VERSIONS,
    TEMPLATES,
    VirtualMachineTemplate,
    VirtualMachineTemplateSpec,
    VirtualMachineTemplateStatus,
)
from kubeloop.api.meta import ObjectMeta
from kubeloop.api.objects import condition_is_true
from kubeloop.client.client import Client
from kubeloop.client.errors import NotFound
from kubeloop.controllers.factory import ControllerFactory
from kubeloop.testing.fake.server import FakeCluster
from kubeloop.testing.polling import until

KINDS = (TEMPLATES, TEMPLATE_VERSIONS, IMAGES)
NAMESPACED = {"namespace": "default"}


def template(default_id: str = "", default: int = 0, latest: int = 0, **metadata: Any) -> VirtualMachineTemplate:
    return VirtualMachineTemplate(
        metadata=ObjectMeta(name="test", namespace="default", uid="u", **metadata),
        spec=VirtualMachineTemplateSpec(default_version_id=default_id),
        status=VirtualMachineTemplateStatus(default_version=default, latest_version=latest),
    )


def version(name: str, template_id: str, number: int) -> dict[str, Any]:
    assigned = [{"type": "assigned", "status": "True"}]
    return {
        "metadata": NAMESPACED | {"name": name},
        "spec": {"templateId": template_id},
        "status": {"version": number, "conditions": assigned},
    }


UPSTREAM: dict[str, tuple[VirtualMachineTemplate | None, dict[str, Any] | None, tuple[int, int] | type[Exception]]] = {
    # upstream's name: template, its version -> (default, latest) of its status afterwards, or the error
    "nil resource": (None, None, (0, 0)),
    "deleted resource": (template(deletion_timestamp="2026-01-01T00:00:00Z"), None, (0, 0)),
    "blank default version ID": (template(), None, (0, 0)),
    "not corresponding version template": (template("default/test"), version("fake", "default/test", 1), NotFound),
    "directly return as the template version is the same": (
        template("default/test", 1),
        version("test", "fake_template_id", 1),
        (1, 0),
    ),
    "update template version": (template("default/test", 1, 1), version("test", "default/test", 2), (2, 2)),
}


@pytest.mark.parametrize("case", UPSTREAM)
async def test_upstreams_table(case: str) -> None:
    template_body, given_version, expected = UPSTREAM[case]
    cluster = FakeCluster(*KINDS)
    if template_body is not None:
        template_body = cluster.put(TEMPLATES, template_body)
    if given_version is not None:
        cluster.put(TEMPLATE_VERSIONS, given_version)
    management = ControllerFactory(cluster.client())
    templates, versions = management.controller(TEMPLATES), management.controller(TEMPLATE_VERSIONS)
    handler = TemplateHandler(templates.client, versions.client, versions.cache())
    await management.start()
    await management.wait_for_sync()
    if isinstance(expected, type):
        with pytest.raises(expected, match=r'^virtualmachinetemplateversions\.harvesterhci\.io "test" not found$'):
            await handler.on_changed("default/test", template_body)
    else:
        await handler.on_changed("default/test", template_body)
        status = (cluster.get(TEMPLATES, "default/test") or template()).status
        assert (status.default_version, status.latest_version) == expected
    await management.stop()


async def scenario(client: Client) -> None:
    """A template, three versions, and an image that is imported late."""
    templates, versions, images = (client.resource(kind) for kind in KINDS)
    management = ControllerFactory(client)
    register(management)
    await management.start()
    await templates.create({"metadata": {"name": "test"}}, namespace="default")
    await images.create({"metadata": {"name": "os"}}, namespace="default")
    claims = json.dumps([{"metadata": {"annotations": {"harvesterhci.io/imageId": "default/os"}}}])
    vm = {"metadata": {"annotations": {"harvesterhci.io/volumeClaimTemplates": claims}}}
    for name in "abc":
        spec = {"templateId": "default/test", "vm": vm}
        await versions.create({"metadata": {"name": name}, "spec": spec}, namespace="default")

    async def numbered() -> bool:
        template_now = await templates.get(name="test", namespace="default")
        return (template_now.status.default_version, template_now.status.latest_version) == (1, 3)

    async def ready() -> bool:
        all_versions = await versions.list("default")
        return all(condition_is_true(v.status.conditions, READY) for v in all_versions)

    await until(numbered)
    all_versions = await versions.list("default")
    assert sorted(v.status.version for v in all_versions) == [1, 2, 3]
    assert {v.labels[TEMPLATE_LABEL] for v in all_versions} == {"test"}
    assert {owner.kind for v in all_versions for owner in v.metadata.owner_references or ()} == {
        "VirtualMachineTemplate"
    }
    assert not await ready()
    imported = {"status": {"conditions": [{"type": "Imported", "status": "True"}]}}
    await images.merge_patch(imported, name="os", namespace="default")
    await until(ready)
    await management.stop()
