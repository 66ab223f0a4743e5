"""Who is known to be the API server by the path that it asks on."""

from __future__ import annotations

import contextlib

import msgspec
import pytest

from pkg.webhook.admission import ALLOW, AdmissionRequest, Decision
from pkg.webhook.caller import Caller
from pkg.webhook.configurations import VALIDATE_POD, Endpoint, mutating, validating
from pkg.webhook.deadline import NoAnswer, in_time
from pkg.webhook.options import Options
from tests.pkg.webhook.listening import JSON, listening

pytestmark = pytest.mark.virtual_time


@pytest.mark.parametrize(
    "endpoint",
    [
        lambda key: Endpoint(url="https://127.0.0.1:9443", key=key),
        lambda key: Endpoint(service_namespace="ns", service_name="headroom", key=key),
    ],
    ids=["by URL", "by Service"],
)
def test_replicas_share_the_key_that_is_registered(endpoint: object) -> None:
    first, second = Caller(), Caller()
    assert first.key != second.key
    registered = endpoint(first.key)  # type: ignore[operator]
    for webhook in (*validating(registered, Options(), b"ca"), *mutating(registered, Options(), b"ca")):
        config = webhook["clientConfig"]
        assert (config.get("url") or config["service"]["path"]).endswith(f"/{first.key}")
    second.adopt(validating(registered, Options(), b"ca"))
    assert second.key == first.key
    second.adopt(validating(Endpoint(url="https://127.0.0.1:9443"), Options(), b"ca"))
    assert second.key == first.key


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

    caller = Caller()
    says_so = {"uid": "u", "operation": "CREATE", "authenticated": True}
    review = msgspec.json.encode({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": says_so})
    async with listening({VALIDATE_POD: hook}, caller=caller) as peer:
        paths = [VALIDATE_POD, f"{VALIDATE_POD}/{caller.key}", f"{VALIDATE_POD}/{'0' * 32}"]
        assert [(await peer.post(path, review, JSON))[0] for path in paths] == [200] * 3
        assert (await peer.post(f"{VALIDATE_POD}/{caller.key[1:]}", review, JSON))[0] == 404
    assert seen == [(False, None), (True, True), (False, None)]
