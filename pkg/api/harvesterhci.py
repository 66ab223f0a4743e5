"""harvesterhci.io/v1beta1."""

from __future__ import annotations

from pkg.api.meta import Object


class Setting(Object):
    """harvesterhci.io/v1beta1 Setting, cluster scoped: `value`, else `default`."""

    value: str = ""
    default: str = ""
