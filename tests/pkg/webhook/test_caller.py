"""Who is known to be the API server by the path that it asks on."""

from __future__ import annotations

import msgspec
import pytest

from pkg.webhook.admission import ALLOW, AdmissionRequest, Decision
from pkg.webhook.caller import Caller
from pkg.webhook.configurations import VALIDATE_POD, Endpoint, validating
from pkg.webhook.options import Options
from tests.pkg.webhook.listening import JSON, listening


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
    second.adopt(validating(endpoint(first.key), Options(), b"ca"))  # type: ignore[operator]
    assert second.key == first.key
    second.adopt(validating(Endpoint(url="https://127.0.0.1:9443"), Options(), b"ca"))
    assert second.key == first.key


async def test_only_the_key_makes_a_review_the_api_servers() -> None:
    seen = []

    async def hook(request: AdmissionRequest) -> Decision:
        seen.append(request.authenticated)
        return ALLOW

    caller = Caller()
    says_so = {"uid": "u", "operation": "CREATE", "authenticated": True}
    review = msgspec.json.encode(
        {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": says_so}
    )
    async with listening({VALIDATE_POD: hook}, caller=caller) as peer:
        paths = [VALIDATE_POD, f"{VALIDATE_POD}/{caller.key}", f"{VALIDATE_POD}/{'0' * 32}"]
        assert [(await peer.post(path, review, JSON))[0] for path in paths] == [200] * 3
        assert (await peer.post(f"{VALIDATE_POD}/{caller.key[1:]}", review, JSON))[0] == 404
    assert seen == [False, True, False]
