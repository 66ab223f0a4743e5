"""The answer to the probe: the object with our mark."""

from __future__ import annotations

from pkg.api.meta import Object
from pkg.config.probe import PROBE_MARK
from pkg.webhook.admission import AdmissionRequest, Decision


async def answer_probe(request: AdmissionRequest, mark: str) -> Decision:
    """Puts the mark on; it costs no look at anything."""
    key = PROBE_MARK.replace("~", "~0").replace("/", "~1")
    if request.new(Object).metadata.annotations:
        return Decision(patch=[{"op": "add", "path": f"/metadata/annotations/{key}", "value": mark}])
    return Decision(patch=[{"op": "add", "path": "/metadata/annotations", "value": {PROBE_MARK: mark}}])
