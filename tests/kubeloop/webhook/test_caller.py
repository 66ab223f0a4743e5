"""Who is known to be the API server by the path that it asks on."""

from __future__ import annotations

import msgspec
import pytest

from kubeloop.webhook.admission import ALLOW, AdmissionRequest, Decision, time_left
from kubeloop.webhook.registration import Endpoint, key_of, webhook
from tests.kubeloop.webhook.listening import JSON, KEY, listening

pytestmark = pytest.mark.virtual_time


@pytest.mark.parametrize(
    "endpoint",
    [Endpoint(url="https://127.0.0.1:9443", key=KEY), Endpoint("", "ns", "webhook", key=KEY)],
    ids=["by URL", "by Service"],
)
def test_the_key_is_at_the_end_of_the_path(endpoint: Endpoint) -> None:
    config = endpoint.client_config("/pods")
    assert (config.get("url") or config["service"]["path"]).endswith(f"/pods/{KEY}")
    without = webhook("a", {"service": {"path": "/pods"}}, [])
    assert key_of([without, webhook("b", config, [])]) == KEY
    assert key_of([without]) == ""


async def test_only_the_key_makes_a_review_the_api_servers_and_for_others_there_is_no_time_to_ask_it() -> None:
    seen = []

    async def hook(request: AdmissionRequest) -> Decision:
        seen.append((request.authenticated, time_left() > 0))
        return ALLOW

    says_so = {"uid": "u", "operation": "CREATE", "authenticated": True}
    review = msgspec.json.encode({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": says_so})
    async with listening({"/pods": hook}, key=lambda: KEY) as peer:
        paths = ["/pods", f"/pods/{KEY}", f"/pods/{'0' * 32}"]
        assert [(await peer.post(path, review, JSON))[0] for path in paths] == [200] * 3
        assert (await peer.post(f"/pods/{KEY[1:]}", review, JSON))[0] == 404
    assert seen == [(False, False), (True, True), (False, False)]
