"""Reviews that are not the API server's: anybody who reaches the listener's port can send one."""

import json
import time
from collections.abc import AsyncIterator

import aiohttp
import pytest

from kubeloop.api import registry
from lab import bodies
from lab.headroom import samples
from lab.namespace import PODS, Namespace
from pkg.util.constants import WEBHOOK_CONFIGURATION_NAME
from pkg.webhook.configurations import NAMES
from tests.e2e.admin import HARD, Admin
from tests.program import Program

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("running")]


@pytest.fixture
async def stranger() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def test_a_strangers_reviews_are_refused_without_a_trace(
    admin: Admin, running: Program, stranger: aiohttp.ClientSession
) -> None:
    namespace = await admin.namespace(HARD)
    tenant = namespace.by(admin.by("tenant"))
    await namespace.migrating()
    remembered = running.metric("headroom_reserve_remembered_pods")
    requests_at_start, began = running.metric("rest_client_requests_total"), time.monotonic()
    for _ in range(10):
        for path in (*NAMES, *(f"{path}/{'0' * 32}" for path in NAMES)):
            status, _ = await forge(stranger, running.url + path, namespace)
            assert status == 403
    requests = running.metric("rest_client_requests_total") - requests_at_start
    # What the controllers and the upkeep do meanwhile, and one read of the key a second for the 140 reviews.
    assert requests < 20 + 3 * (time.monotonic() - began)
    assert running.metric("headroom_reserve_remembered_pods") <= remembered
    await tenant.create(PODS, bodies.pod(cpu="985m"))


async def test_a_forged_review_with_the_key_refuses_no_pod(
    admin: Admin, running: Program, stranger: aiohttp.ClientSession
) -> None:
    """Anybody who may read webhook configurations knows the registered paths."""
    namespace = await admin.namespace(HARD)
    await namespace.migrating()
    configurations = admin.client.resource(registry.VALIDATING_WEBHOOK_CONFIGURATIONS)
    registered = (await configurations.get(name=WEBHOOK_CONFIGURATION_NAME)).webhooks or []
    (url,) = [hook["clientConfig"]["url"] for hook in registered if hook["name"].startswith("pods.")]
    status, answer = await forge(stranger, url, namespace)
    assert (status, json.loads(answer)["response"]) == (200, {"uid": "forged", "allowed": True})
    assert running.metric("headroom_reserve_remembered_pods") > 0
    timeouts = await given_up(admin)
    await namespace.by(admin.by("tenant")).create(PODS, bodies.pod(cpu="985m"))
    assert await given_up(admin) == timeouts


async def given_up(admin: Admin) -> float:
    """Returns how many pods the API server has let in because the webhook said nothing in time."""
    text = (await admin.client.transport.request("GET", "/metrics", accept="text/plain")).decode()
    open_failures = samples(text, "apiserver_admission_webhook_fail_open_count")
    return sum(value for labels, value in open_failures if labels["name"].startswith("pods."))


async def forge(session: aiohttp.ClientSession, url: str, namespace: Namespace) -> tuple[int, str]:
    """The answer to a review that anybody could have sent: about a pod that takes all that is left."""
    limits = {"limits": {"cpu": "985m", "memory": "1Mi"}}
    pod = {
        "metadata": {"name": "ghost", "namespace": namespace.name, "uid": "ghost"},
        "spec": {"containers": [{"name": "main", "resources": limits}]},
    }
    content = {"uid": "forged", "namespace": namespace.name, "operation": "CREATE", "object": pod}
    review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": content}
    async with session.post(url, json=review, ssl=False) as answer:
        return answer.status, await answer.text()
