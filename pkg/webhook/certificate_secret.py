"""The Secret through which replicas share one CA: one writer wins, the others read what it wrote."""

from __future__ import annotations

import base64
import binascii
import logging
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from kubeloop.api.core import Secret
from kubeloop.client.errors import AlreadyExists, ConfigError, Conflict, NotFound, ReadOnly
from kubeloop.client.resource_client import ResourceClient
from pkg.webhook.certificates import (
    CertificateError,
    KeyPair,
    Material,
    Policy,
    check,
    date,
    expiry,
    issue,
    step,
)
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


class SharedCertificates:
    """Keeps the Secret and the live context up to date; in a dry run the certificate stays in memory.

    `bundle` is what an API server has to trust."""

    def __init__(
        self,
        secrets: ResourceClient[Secret],
        namespace: str,
        name: str,
        hosts: Sequence[str],
        context: ssl.SSLContext,
        policy: Policy | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._secrets = secrets
        self._namespace = namespace
        self._name = name
        self._hosts = list(hosts)
        self._context = context
        self._policy = policy or Policy()
        self._clock = clock
        self._material: Material | None = None
        self._loaded: KeyPair | None = None

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
            load(self._context, pair.certificate, pair.key)
            self._loaded = pair
            CERTIFICATE_EXPIRY.set(expiry(pair))
            log.info("serving certificate loaded, valid until %s", date(expiry(pair)))

    async def _shared(self) -> Material:
        for _attempt in range(_ATTEMPTS):
            try:
                secret = await self._secrets.get(name=self._name, namespace=self._namespace)
            except NotFound:
                if (created := await self._create()) is not None:
                    return created
                continue
            if (settled := await self._settle(secret)) is not None:
                return settled
        raise ConfigError(
            f"secret {self._namespace}/{self._name} keeps changing: find out which other program writes it"
        )

    async def _create(self) -> Material | None:
        """None: another replica was first."""
        material = issue(self._hosts, self._policy, self._clock())
        body = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": self._name, "labels": {"app.kubernetes.io/managed-by": "headroom"}},
            "type": "Opaque",
            "data": _data(material),
        }
        try:
            await self._secrets.create(body, namespace=self._namespace)
        except AlreadyExists:
            return None
        except ReadOnly:
            return self._material or material
        except NotFound as exc:
            raise ConfigError(f"namespace {self._namespace} for the certificate's secret: {exc}") from exc
        log.info("secret %s/%s created", self._namespace, self._name)
        return material

    async def _settle(self, secret: Secret) -> Material | None:
        """The Secret's content, with what was due done. None: read it again."""
        found, now = self._read(secret), self._clock()
        if found is not None:
            due = step(found, self._hosts, self._policy, now)
        else:  # spoiled: as it was, for API servers and other replicas have that CA
            due = self._material or issue(self._hosts, self._policy, now)
        if due is None:
            return found
        data: dict[str, str | None] = {**dict.fromkeys(secret.data or {}), **_data(due)}
        patch: dict[str, Any] = {
            "metadata": {"resourceVersion": secret.metadata.resource_version, "uid": secret.uid},
            "data": data,
        }
        try:
            await self._secrets.merge_patch(patch, name=self._name, namespace=self._namespace)
        except (Conflict, NotFound):
            return None
        except ReadOnly:
            return self._material or due
        log.info("secret %s/%s: certificates renewed", self._namespace, self._name)
        return due

    def _read(self, secret: Secret) -> Material | None:
        """None: the content cannot be used, and is replaced."""
        try:
            material = _material(secret.data or {})
            check(material)
        except CertificateError as exc:
            log.warning("secret %s/%s is replaced: %s", self._namespace, self._name, exc)
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
