"""Rendering a namespace's default ResourceQuota where no Rancher does it (`--render-default-quota`).

A change of the annotation reaches existing quotas through `pkg.controller.resourcequota`, which watches
namespaces. Forbids: writing an existing ResourceQuota.
"""

from pkg.controller.namespace.register import register

__all__ = ["register"]
