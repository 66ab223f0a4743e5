"""Admission requests made for tests are those of the API server."""

from __future__ import annotations

import msgspec
import pytest

from kubeloop.api.core import ConfigMap
from kubeloop.api.meta import ObjectMeta
from kubeloop.api.registry import CONFIG_MAPS, DEPLOYMENTS
from kubeloop.testing.reviews import admission_request
from kubeloop.webhook.admission import BadReview

OBJECT = ConfigMap(metadata=ObjectMeta(name="a", namespace="ns"), data={"k": "v"})


def test_a_request_about_a_typed_object_or_a_mapping() -> None:
    body = {"metadata": {"name": "a", "namespace": "ns"}, "data": {"k": "old"}}
    request = admission_request(CONFIG_MAPS, "UPDATE", OBJECT, body, username="bob", dryRun=True, subResource="x")
    assert str(request) == "UPDATE configmaps ns/a"
    assert (request.new(ConfigMap).data, request.old(ConfigMap).data) == ({"k": "v"}, {"k": "old"})
    assert (request.new(ConfigMap).kind, request.kind.kind) == ("ConfigMap", "ConfigMap")
    assert (request.user_info.username, request.dry_run, request.sub_resource) == ("bob", True, "x")


def test_a_deletion_has_the_old_object_alone() -> None:
    request = admission_request(DEPLOYMENTS, "DELETE", old={"metadata": {"name": "d", "namespace": "ns"}})
    assert (request.name, request.namespace, request.resource.group) == ("d", "ns", "apps")
    assert msgspec.json.decode(request.object) is None
    with pytest.raises(BadReview):
        request.new(ConfigMap)
