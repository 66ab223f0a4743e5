"""Who is known to be the API server by the path that it asks on."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import msgspec
import pytest

from pkg.config.probe import PROBE_PATH
from pkg.webhook.admission import ALLOW, AdmissionRequest, Decision
from pkg.webhook.configurations import VALIDATE_POD, Endpoint, key_of, mutating, validating
from pkg.webhook.deadline import NoAnswer, in_time
from pkg.webhook.options import Options
from tests.pkg.webhook.listening import JSON, KEY, listening

pytestmark = pytest.mark.virtual_time


@pytest.mark.parametrize(
    "endpoint",
    [
        Endpoint(url="https://127.0.0.1:9443", key=KEY),
        Endpoint(service_namespace="ns", service_name="headroom", key=KEY),
    ],
    ids=["by URL", "by Service"],
)
def test_the_key_is_at_the_end_of_every_path_but_the_probes(endpoint: Endpoint) -> None:
    webhooks = (*validating(endpoint, Options(), b"ca"), *mutating(endpoint, Options(), b"ca"))
    for webhook in webhooks:
        config = webhook["clientConfig"]
        assert (config.get("url") or config["service"]["path"]).endswith(f"/{KEY}")
    assert key_of(webhooks) == KEY
    assert key_of(validating(replace(endpoint, key=""), Options(), b"ca")) == ""
    assert endpoint.client_config(PROBE_PATH) == replace(endpoint, key="").client_config(PROBE_PATH)


async def test_only_the_key_makes_a_review_the_api_servers_and_for_others_nothing_is_asked_of_it() -> None:
    seen = []

    async def look() -> bool:
        return True

    async def hook(request: AdmissionRequest) -> Decision:
        with contextlib.suppress(NoAnswer):
            seen.append((request.authenticated, await in_time(look())))
            return ALLOW
        seen.append((request.authenticated, None))
        return ALLOW

    says_so = {"uid": "u", "operation": "CREATE", "authenticated": True}
    review = msgspec.json.encode({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": says_so})
    async with listening({VALIDATE_POD: hook}, key=lambda: KEY) as peer:
        paths = [VALIDATE_POD, f"{VALIDATE_POD}/{KEY}", f"{VALIDATE_POD}/{'0' * 32}"]
        assert [(await peer.post(path, review, JSON))[0] for path in paths] == [200] * 3
        assert (await peer.post(f"{VALIDATE_POD}/{KEY[1:]}", review, JSON))[0] == 404
    assert seen == [(False, None), (True, True), (False, None)]
