"""Written by `kubeloop structs`."""

from typing import ClassVar

from kubeloop.api.meta import Condition, Object, Struct
from kubeloop.api.registry import Resource


class KeyPairSpec(Struct):
    whole: ClassVar[bool] = True

    public_key: str = ""


class KeyPairStatus(Struct):
    whole: ClassVar[bool] = True

    conditions: list[Condition] | None = None
    finger_print: str | None = None


class KeyPair(Object):
    spec: KeyPairSpec = KeyPairSpec()
    status: KeyPairStatus = KeyPairStatus()


KEY_PAIRS = Resource("harvesterhci.io", "v1beta1", "keypairs", "KeyPair", KeyPair, status_subresource=False)
