"""harvesterhci.io/v1beta1."""

from __future__ import annotations

from kubeloop.api.meta import Object
from kubeloop.api.registry import Resource


class Setting(Object):
    """harvesterhci.io/v1beta1 Setting, cluster scoped: `value`, else `default`."""

    value: str = ""
    default: str = ""


SETTINGS = Resource(
    "harvesterhci.io", "v1beta1", "settings", "Setting", Setting, namespaced=False, status_subresource=False
)
