"""Probes whether the API server reaches headroom's webhook: only the API server can tell.

One configuration of its own matches only Events with a label, in headroom's namespace. Such an Event is created as a
dry run: nothing is stored, and it comes back with the webhook's mark, or with what the API server says of the
failure."""

from __future__ import annotations

from typing import Final

import msgspec

from kubeloop.api.meta import Object
from kubeloop.api.registry import EVENTS
from kubeloop.client.client import Client
from kubeloop.client.errors import ApiError
from kubeloop.webhook.registration import NotReached
from pkg.util.constants import WEBHOOK_CONFIGURATION_NAME

PROBE_CONFIGURATION: Final = "headroom-probe.harvesterhci.io"
"""A MutatingWebhookConfiguration; its failurePolicy is Fail, so that the reason of a failure comes back."""
PROBE_PATH: Final = "/probe"
PROBE_LABEL: Final = "headroom.harvesterhci.io/probe"
PROBE_MARK: Final = "headroom.harvesterhci.io/answered-by"
"""An annotation: the hash of what the replica that answered would register."""
ANNOTATION_HASH: Final = "headroom.harvesterhci.io/configuration-hash"
"""On the registered configurations: the same hash, of the replica that wrote them."""
_SECONDS: Final = 7.0
"""More than the webhook's timeoutSeconds."""
PROBE_WEBHOOK: Final = f"probe.{WEBHOOK_CONFIGURATION_NAME}"
_FAILED: Final = f'failed calling webhook "{PROBE_WEBHOOK}"'
"""Of the API server's error (apiserver/pkg/admission/plugin/webhook/errors); it has no reason of its own. Another
webhook that fails on the probe's object says nothing about ours."""


async def probe(client: Client, namespace: str) -> str:
    """Returns the mark of the replica that answered. Raises NotReached; ApiError for the API server itself."""
    event = {
        "apiVersion": EVENTS.api_version,
        "kind": EVENTS.kind,
        "metadata": {"generateName": "headroom-probe-", "labels": {PROBE_LABEL: "true"}},
        "involvedObject": {"kind": "Namespace", "name": namespace, "namespace": namespace, "apiVersion": "v1"},
        "reason": "Probe",
        "type": "Normal",
    }
    try:
        answer = await client.transport.request(
            "POST",
            EVENTS.path(namespace),
            params={"dryRun": "All"},
            body=msgspec.json.encode(event),
            timeout=_SECONDS,
            retry=False,
        )
    except ApiError as exc:
        if _FAILED in exc.message:
            raise NotReached(exc.message) from exc
        raise
    mark = msgspec.json.decode(answer, type=Object).annotations.get(PROBE_MARK)
    if mark is None:
        raise NotReached("the API server does not ask the webhook yet")
    return mark
