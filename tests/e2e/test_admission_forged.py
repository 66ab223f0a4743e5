"""Reviews that are not the API server's: anybody who reaches the listener's port can send one."""

from __future__ import annotations

import time
from typing import Any

import aiohttp
import msgspec
import pytest

from kubeloop.api import registry
from lab import bodies
from lab.bodies import quota_text
from lab.headroom import samples
from lab.namespace import NAMESPACES, PODS, Namespace
from pkg.util import constants
from pkg.util.constants import LOCK_PATH, WEBHOOK_CONFIGURATION_NAME
from pkg.webhook.configurations import MUTATE_RESOURCE_QUOTA, VALIDATE_NAMESPACE, VALIDATE_POD, VALIDATE_RESOURCE_QUOTA
from tests.e2e.admin import HARD, RANCHER, Admin
from tests.program import Program

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("running")]


async def test_a_strangers_reviews_are_answered_and_leave_nothing_behind(admin: Admin, running: Program) -> None:
    namespace = await admin.namespace(HARD)
    tenant = namespace.by(admin.by("tenant"))
    await namespace.migrating()
    requests = await forged(namespace)
    remembered = running.metric("headroom_reserve_remembered_pods")
    before, begun = running.metric("rest_client_requests_total"), time.monotonic()
    for _ in range(25):
        answers = [await forge(running.url + path, request) for path, request in requests.items()]
        assert all(answer["uid"] == "forged" for answer in answers)
    asked = running.metric("rest_client_requests_total") - before
    # What the controllers and the upkeep do meanwhile, and nothing for the 150 reviews.
    assert asked < 20 + 2 * (time.monotonic() - begun)
    assert running.metric("headroom_reserve_remembered_pods") <= remembered
    await tenant.create(PODS, bodies.pod(cpu="985m"))
    assert not await namespace.events("ResourceQuotaCorrected")


async def test_a_forged_review_with_the_key_holds_a_pod_up_and_refuses_none(admin: Admin, running: Program) -> None:
    """Who may read webhook configurations knows the registered paths."""
    namespace = await admin.namespace(HARD)
    await namespace.migrating()
    configurations = admin.client.resource(registry.VALIDATING_WEBHOOK_CONFIGURATIONS)
    registered = (await configurations.get(name=WEBHOOK_CONFIGURATION_NAME)).webhooks or []
    (url,) = [each["clientConfig"]["url"] for each in registered if each["name"].startswith("pods.")]
    assert (await forge(url, (await forged(namespace))[VALIDATE_POD]))["allowed"]
    assert running.metric("headroom_reserve_remembered_pods") > 0
    late = await given_up(admin)
    await namespace.by(admin.by("tenant")).create(PODS, bodies.pod(cpu="985m"))
    assert await given_up(admin) == late


async def given_up(admin: Admin) -> float:
    """How many pods the API server has let in because the webhook said nothing in time."""
    text = (await admin.client.transport.request("GET", "/metrics", accept="text/plain")).decode()
    found = samples(text, "apiserver_admission_webhook_fail_open_count")
    return sum(value for labels, value in found if labels["name"].startswith("pods."))


async def forged(namespace: Namespace) -> dict[str, dict[str, Any]]:
    """By path: reviews that would be refused or corrected, or take all that is left, were they the API server's."""
    quota = msgspec.to_builtins(await namespace.quota())
    limits = {"limits": {"cpu": "985m", "memory": "1Mi"}}
    pod = {
        "metadata": {"name": "ghost", "namespace": namespace.name, "uid": "ghost"},
        "spec": {"containers": [{"name": "main", "resources": limits}]},
    }
    lowered = {**quota, "spec": {"hard": {"limits.cpu": "1", "limits.memory": "1Gi"}}}
    found = msgspec.to_builtins(await namespace.client.resource(NAMESPACES).get(name=namespace.name))
    annotation = {constants.ANNOTATION_RANCHER_RESOURCE_QUOTA: quota_text({"limitsCpu": "1"})}
    changed = {**found, "metadata": {**found["metadata"], "annotations": annotation}}
    return {
        VALIDATE_POD: {"object": pod, "operation": "CREATE"},
        VALIDATE_RESOURCE_QUOTA: {"object": lowered, "oldObject": quota, "operation": "UPDATE"},
        MUTATE_RESOURCE_QUOTA: {"object": lowered, "oldObject": quota, "operation": "UPDATE"},
        VALIDATE_NAMESPACE: {"object": changed, "oldObject": found, "operation": "UPDATE"},
        LOCK_PATH: {"object": pod, "operation": "CREATE", "resource": {"resource": "pods"}},
    } | {f"{VALIDATE_POD}/{'0' * 32}": {"object": pod, "operation": "CREATE"}}


async def forge(url: str, request: dict[str, Any]) -> dict[str, Any]:
    """The answer to a review that anybody could have sent."""
    namespace = request["object"]["metadata"].get("namespace") or request["object"]["metadata"]["name"]
    content = {"uid": "forged", "namespace": namespace, "userInfo": {"username": RANCHER}, **request}
    review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": content}
    async with aiohttp.ClientSession() as session, session.post(url, json=review, ssl=False) as answer:
        assert answer.status == 200, await answer.text()
        response: dict[str, Any] = (await answer.json())["response"]
    return response
