"""The Secret through which replicas share one CA: one writer wins, the others read what it wrote."""

from __future__ import annotations

import base64
import binascii
import logging
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from kubeloop.api.core import Secret
from kubeloop.api.meta import rfc3339
from kubeloop.client.errors import AlreadyExists, ConfigError, Conflict, NotFound, ReadOnly
from kubeloop.client.resource_client import ResourceClient
from pkg.webhook.certificates import CertificateError, KeyPair, Material, Policy, check, expiry, issue, step
from pkg.webhook.metrics import CERTIFICATE_EXPIRY
from pkg.webhook.tls_context import load

log = logging.getLogger(__name__)

BUNDLE: Final = "ca.crt"
AUTHORITY: Final = "authority.crt"
AUTHORITY_KEY: Final = "authority.key"
CERTIFICATE: Final = "tls.crt"
KEY: Final = "tls.key"
_ATTEMPTS: Final = 10
"""Conflicts with other replicas that are retried at once."""


@dataclass(eq=False)
class SharedCertificates:
    """Keeps the Secret and the live context up to date; in a dry run the certificate stays in memory.

    `bundle` is what an API server has to trust."""

    secrets: ResourceClient[Secret]
    namespace: str
    name: str
    hosts: Sequence[str]
    context: ssl.SSLContext
    policy: Policy = field(default_factory=Policy)
    clock: Callable[[], float] = time.time
    _material: Material | None = field(default=None, init=False)
    _loaded: KeyPair | None = field(default=None, init=False)

    @property
    def bundle(self) -> bytes | None:
        return self._material.bundle if self._material is not None else None

    @property
    def expires(self) -> float | None:
        return expiry(self._loaded) if self._loaded is not None else None

    async def refresh(self) -> None:
        """Read the Secret, renew what is due, load what is to be served. Raises ApiError, ConfigError."""
        self._material = await self._shared()
        pair = self._material.serving
        if pair != self._loaded:
            load(self.context, pair.certificate, pair.key)
            self._loaded = pair
            CERTIFICATE_EXPIRY.set(expiry(pair))
            log.info("serving certificate loaded, valid until %s", rfc3339(expiry(pair)))

    async def _shared(self) -> Material:
        for _attempt in range(_ATTEMPTS):
            try:
                secret = await self.secrets.get(name=self.name, namespace=self.namespace)
            except NotFound:
                if (created := await self._create()) is not None:
                    return created
                continue
            if (settled := await self._settle(secret)) is not None:
                return settled
        raise ConfigError(f"secret {self.namespace}/{self.name} keeps changing: find out which other program writes it")

    async def _create(self) -> Material | None:
        """None: another replica was first."""
        material = issue(self.hosts, self.policy, self.clock())
        body = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": self.name, "labels": {"app.kubernetes.io/managed-by": "headroom"}},
            "type": "Opaque",
            "data": _data(material),
        }
        try:
            await self.secrets.create(body, namespace=self.namespace)
        except AlreadyExists:
            return None
        except ReadOnly:
            return self._material or material
        except NotFound as exc:
            raise ConfigError(f"namespace {self.namespace} for the certificate's secret: {exc}") from exc
        log.info("secret %s/%s created", self.namespace, self.name)
        return material

    async def _settle(self, secret: Secret) -> Material | None:
        """The Secret's content, with what was due done. None: read it again."""
        found, now = self._read(secret), self.clock()
        if found is not None:
            due = step(found, self.hosts, self.policy, now)
        else:  # spoiled: as it was, for API servers and other replicas have that CA
            due = self._material or issue(self.hosts, self.policy, now)
        if due is None:
            return found
        data: dict[str, str | None] = {**dict.fromkeys(secret.data or {}), **_data(due)}
        patch: dict[str, Any] = {
            "metadata": {"resourceVersion": secret.metadata.resource_version, "uid": secret.uid},
            "data": data,
        }
        try:
            await self.secrets.merge_patch(patch, name=self.name, namespace=self.namespace)
        except (Conflict, NotFound):
            return None
        except ReadOnly:
            return self._material or due
        log.info("secret %s/%s: certificates renewed", self.namespace, self.name)
        return due

    def _read(self, secret: Secret) -> Material | None:
        """None: the content cannot be used, and is replaced."""
        try:
            material = _material(secret.data or {})
            check(material)
        except CertificateError as exc:
            log.warning("secret %s/%s is replaced: %s", self.namespace, self.name, exc)
            return None
        return material


def _data(material: Material) -> dict[str, str]:
    fields = {
        BUNDLE: material.bundle,
        AUTHORITY: material.authority.certificate,
        AUTHORITY_KEY: material.authority.key,
        CERTIFICATE: material.serving.certificate,
        KEY: material.serving.key,
    }
    return {name: base64.b64encode(content).decode("ascii") for name, content in fields.items()}


def _material(data: Mapping[str, str]) -> Material:
    """Raises CertificateError that names the missing or invalid key."""
    return Material(
        authority=KeyPair(_field(data, AUTHORITY), _field(data, AUTHORITY_KEY)),
        bundle=_field(data, BUNDLE),
        serving=KeyPair(_field(data, CERTIFICATE), _field(data, KEY)),
    )


def _field(data: Mapping[str, str], name: str) -> bytes:
    try:
        return base64.b64decode(data[name], validate=True)
    except KeyError as exc:
        raise CertificateError(f"{name} is missing") from exc
    except (binascii.Error, ValueError) as exc:
        raise CertificateError(f"{name} is not base64") from exc
