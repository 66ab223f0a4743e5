"""The certificate of the listener, kept current by its source: the Secret that replicas share, or files. It is loaded
into an SSLContext that is in use: new handshakes get a new one, standing connections keep theirs."""

import base64
import contextlib
import logging
import ssl
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from kubeloop.api.core import Secret
from kubeloop.api.meta import rfc3339
from kubeloop.client.connections import in_own_thread
from kubeloop.client.errors import AlreadyExists, ConfigError, Conflict, NotFound, ReadOnly
from kubeloop.client.resource_client import ResourceClient
from kubeloop.client.retry import retry_on_conflict
from kubeloop.client.tls import load_pair
from kubeloop.webhook.certificates import CertificateError, KeyPair, Material, check, expiry, issue, parse_bundle, step

log = logging.getLogger(__name__)

_NAMES: Final = ("ca.crt", "authority.crt", "authority.key", "tls.crt", "tls.key")
"""The keys of the Secret, of which cert-manager has ca.crt, tls.crt and tls.key: bundle, CA and server's pair."""


@dataclass(eq=False)
class ServingCertificate(ABC):
    """The certificate that a listener serves, from a source."""

    context: ssl.SSLContext
    bundle: bytes | None = field(default=None, init=False)
    """PEM of the CAs to trust; None when cert-manager tells the API server."""
    loaded: KeyPair | None = field(default=None, init=False)

    @property
    def expires(self) -> float | None:
        """The end of the certificate that is served, in seconds since 1970; None without one."""
        return expiry(self.loaded) if self.loaded is not None else None

    @abstractmethod
    async def refresh(self) -> None:
        """Finds out what is current, renews what is due, serves it. Raises ApiError, ConfigError."""

    def serve(self, pair: KeyPair) -> None:
        """Serves the pair from now on. Raises CertificateError; the pair before it is still served then."""
        if pair == self.loaded:
            return
        until = expiry(pair)
        load(self.context, pair)
        self.loaded = pair
        log.info("serving certificate loaded, valid until %s", rfc3339(until))


@dataclass(eq=False)
class CertificateFiles(ServingCertificate):
    """A certificate that another program makes (cert-manager), loaded again whenever it changes. Without a CA's file
    `bundle` is None: the configurations' caBundle is left to cert-manager's CA injector."""

    certificate: Path
    key: Path
    authority: Path | None = None
    """The CA's file; None: a `ca.crt` beside the certificate if there is one at the start."""

    def __post_init__(self) -> None:
        default_authority = self.certificate.parent / "ca.crt"
        self.authority = self.authority or (default_authority if default_authority.is_file() else None)

    async def refresh(self) -> None:
        """Raises ConfigError as long as nothing usable was ever there; later that is logged: a file may be half
        written, and the certificate that is loaded still serves."""
        try:
            pair, bundle = await in_own_thread(self._read)
            if bundle is not None:
                parse_bundle(bundle)
                self.bundle = bundle
            self.serve(pair)
        except (OSError, CertificateError) as exc:
            reason = f"{exc.filename}: {exc.strerror}" if isinstance(exc, OSError) else str(exc)
            if self.loaded is None:
                raise ConfigError(f"{self.certificate}: {reason}") from exc
            log.warning("%s not loaded: %s", self.certificate, reason)

    def _read(self) -> tuple[KeyPair, bytes | None]:
        pair = KeyPair(self.certificate.read_bytes(), self.key.read_bytes())
        return pair, None if self.authority is None else self.authority.read_bytes()


@dataclass(eq=False)
class SharedCertificates(ServingCertificate):
    """Certificates of one CA for all replicas, in a Secret, whose first writer wins; in a dry run only in memory."""

    secrets: ResourceClient[Secret]
    namespace: str
    name: str
    hosts: Collection[str]
    clock: Callable[[], float] = time.time
    managed_by: str = "kubeloop"
    """The program, by the Secret's label and in the certificates' names."""
    _material: Material | None = field(default=None, init=False)

    async def refresh(self) -> None:
        # Another replica may create, change or delete it meanwhile.
        self._material = await retry_on_conflict(lambda _: self._share(), tries=10, errors=(AlreadyExists, Conflict))
        self.bundle = self._material.bundle
        self.serve(self._material.serving)

    async def _share(self) -> Material:
        """The Secret's content, with what was due done. Raises AlreadyExists, Conflict: read it again."""
        now, name, secret = self.clock(), f"{self.managed_by}-webhook", None
        with contextlib.suppress(NotFound):
            secret = await self.secrets.get(name=self.name, namespace=self.namespace)
        if secret is None:
            return await self._write(issue(self.hosts, now, name), None)
        try:
            material = _material(secret.data or {})
            due = step(material, self.hosts, now, name)
        except CertificateError as exc:
            log.warning("secret %s/%s is replaced: %s", self.namespace, self.name, exc)
            # As it was, for API servers and other replicas have that CA.
            due = self._material or issue(self.hosts, now, name)
        return material if due is None else await self._write(due, secret)

    async def _write(self, material: Material, old: Secret | None) -> Material:
        """Writes and returns the material. Raises AlreadyExists, Conflict: another replica was first."""
        data = _data(material)
        try:
            if old is None:
                metadata = {"name": self.name, "labels": {"app.kubernetes.io/managed-by": self.managed_by}}
                body = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque", "data": data}
                await self.secrets.create(body, namespace=self.namespace)
            else:
                version = {"resourceVersion": old.metadata.resource_version, "uid": old.uid}
                patch = {"metadata": version, "data": {**dict.fromkeys(old.data or {}), **data}}
                await self.secrets.merge_patch(patch, name=self.name, namespace=self.namespace)
        except ReadOnly:
            return self._material or material
        except NotFound as exc:
            raise ConfigError(f"namespace {self.namespace} for the certificate's secret: {exc}") from exc
        operation = "created" if old is None else "certificates renewed"
        log.info("secret %s/%s: %s", self.namespace, self.name, operation)
        return material


def _data(material: Material) -> dict[str, str]:
    authority, serving = material.authority, material.serving
    parts = (material.bundle, authority.certificate, authority.key, serving.certificate, serving.key)
    return {name: base64.b64encode(part).decode("ascii") for name, part in zip(_NAMES, parts, strict=True)}


def _material(data: Mapping[str, str]) -> Material:
    """Raises CertificateError that says what is missing or invalid."""
    parts = []
    for name in _NAMES:
        try:
            parts.append(base64.b64decode(data[name], validate=True))
        except (KeyError, ValueError) as exc:
            raise CertificateError(f"{name} is missing, or not base64") from exc
    material = Material(KeyPair(*parts[1:3]), parts[0], KeyPair(*parts[3:]))
    check(material)
    return material


def server_context(client_authority: Path | None = None) -> ssl.SSLContext:
    """Returns a context for TLS 1.2 and newer, without a certificate yet; with a CA for clients, those have to present
    a certificate of it.

    Raises ConfigError for a CA that cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if client_authority is not None:
        try:
            context.load_verify_locations(client_authority)
        except (OSError, ssl.SSLError) as exc:
            raise ConfigError(f"{client_authority}: {_reason(exc)}") from exc
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def load(context: ssl.SSLContext, pair: KeyPair) -> None:
    """Loads the pair, on another context first: a pair that is refused halfway would leave the live one without a key.

    Raises CertificateError; the context is untouched then."""
    try:
        load_pair(pair.certificate, pair.key, server_context(), context)
    except (ssl.SSLError, ValueError) as exc:
        raise CertificateError(f"certificate and key cannot be used: {_reason(exc)}") from exc


def _reason(exc: Exception) -> str:
    return (getattr(exc, "reason", None) or str(exc)).lower().replace("_", " ")
