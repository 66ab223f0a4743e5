"""Who the API server takes us for."""

from __future__ import annotations

import contextlib

import msgspec

from pkg.client.client import Client
from pkg.client.errors import ApiError


async def own_user(client: Client) -> str:
    """The own user name; "" when the API server does not say (before Kubernetes 1.28)."""
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    with contextlib.suppress(ApiError, msgspec.DecodeError, KeyError, TypeError):
        answer = await client.transport.request(
            "POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", body=msgspec.json.encode(body)
        )
        return str(msgspec.json.decode(answer)["status"]["userInfo"]["username"])
    return ""
