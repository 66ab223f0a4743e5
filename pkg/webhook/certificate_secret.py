"""The Secret through which replicas share one CA: one writer wins, the others read what it wrote."""

from __future__ import annotations

import base64
import logging
import ssl
import time
from collections.abc import Callable, Collection, Mapping
from typing import Final

from kubeloop.api.core import Secret
from kubeloop.client.errors import AlreadyExists, ConfigError, Conflict, NotFound, ReadOnly
from kubeloop.client.resource_client import ResourceClient
from kubeloop.client.retry import retry_on_conflict
from pkg.webhook.certificates import CertificateError, KeyPair, Material, check, issue, step
from pkg.webhook.serving_certificate import ServingCertificate

log = logging.getLogger(__name__)

BUNDLE: Final = "ca.crt"
AUTHORITY: Final = "authority.crt"
AUTHORITY_KEY: Final = "authority.key"
CERTIFICATE: Final = "tls.crt"
KEY: Final = "tls.key"


class SharedCertificates(ServingCertificate):
    """Keeps the Secret and the live context up to date; in a dry run the certificate stays in memory."""

    def __init__(
        self,
        secrets: ResourceClient[Secret],
        namespace: str,
        name: str,
        hosts: Collection[str],
        context: ssl.SSLContext,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(context)
        self._secrets = secrets
        self._namespace = namespace
        self._name = name
        self._hosts = hosts
        self._clock = clock
        self._material: Material | None = None

    async def refresh(self) -> None:
        # Another replica may create, change or delete it meanwhile.
        self._material = await retry_on_conflict(lambda _: self._shared(), tries=10, errors=(AlreadyExists, Conflict))
        self.bundle = self._material.bundle
        self.serve(self._material.serving)

    async def _shared(self) -> Material:
        """The Secret's content, with what was due done. Raises AlreadyExists, Conflict: read it again."""
        now = self._clock()
        try:
            secret = await self._secrets.get(name=self._name, namespace=self._namespace)
        except NotFound:
            return await self._written(issue(self._hosts, now), None)
        try:
            found = _material(secret.data or {})
            due = step(found, self._hosts, now)
        except CertificateError as exc:
            log.warning("secret %s/%s is replaced: %s", self._namespace, self._name, exc)
            # As it was, for API servers and other replicas have that CA.
            due = self._material or issue(self._hosts, now)
        return found if due is None else await self._written(due, secret)

    async def _written(self, material: Material, over: Secret | None) -> Material:
        """What is shared from now on. Raises AlreadyExists, Conflict: another replica was first."""
        data = _data(material)
        try:
            if over is None:
                labels = {"app.kubernetes.io/managed-by": "headroom"}
                metadata = {"name": self._name, "labels": labels}
                body = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque", "data": data}
                await self._secrets.create(body, namespace=self._namespace)
            else:
                version = {"resourceVersion": over.metadata.resource_version, "uid": over.uid}
                patch = {"metadata": version, "data": {**dict.fromkeys(over.data or {}), **data}}
                await self._secrets.merge_patch(patch, name=self._name, namespace=self._namespace)
        except ReadOnly:
            return self._material or material
        except NotFound as exc:
            raise ConfigError(f"namespace {self._namespace} for the certificate's secret: {exc}") from exc
        what = "created" if over is None else "certificates renewed"
        log.info("secret %s/%s: %s", self._namespace, self._name, what)
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
    """Raises CertificateError that says what is missing or invalid."""

    def field(name: str) -> bytes:
        try:
            return base64.b64decode(data[name], validate=True)
        except (KeyError, ValueError) as exc:
            raise CertificateError(f"{name} is missing, or not base64") from exc

    authority = KeyPair(field(AUTHORITY), field(AUTHORITY_KEY))
    material = Material(authority, field(BUNDLE), KeyPair(field(CERTIFICATE), field(KEY)))
    check(material)
    return material
