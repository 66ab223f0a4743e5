"""The chart's renderings that tests look at, by name: what is set."""

from __future__ import annotations

RENDERINGS = {
    "default": (),
    "webhook off": ("webhook.enabled=false",),
    "assist": ("mode=assist",),
    "in the controller": ("webhook.inController=true",),
    "cert-manager": ("webhook.certificate.source=certManager",),
    "brought certificate": ("webhook.certificate.source=secret", "webhook.certificate.secretName=mine"),
    "monitoring": ("serviceMonitor.enabled=true", "prometheusRule.enabled=true"),
}
