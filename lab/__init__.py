"""The lab: what shows that headroom and kubeloop work, on an embedded control plane.

Promises: stand-ins for KubeVirt and Rancher that behave like the originals as seen from outside; a demo and scale
tests that read what happened from the API server alone.
Forbids: being imported by the product: `pkg` finds its commands by an entry point, and no image contains it.
"""
