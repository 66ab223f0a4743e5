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
    next_step,
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
STAGED: Final = "staged.crt"
STAGED_KEY: Final = "staged.key"
ACTIVATE_AT: Final = "activate-at"
_KEYS: Final = (BUNDLE, AUTHORITY, AUTHORITY_KEY, CERTIFICATE, KEY, STAGED, STAGED_KEY, ACTIVATE_AT)
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
        self._registered: tuple[bytes, float] = (b"", 0.0)
        # The bundle that was last registered with the API servers, and when it first was.
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
        self.activate()

    def activate(self) -> None:
        """Load what is to be served at this moment, if it is not what is served already."""
        if self._material is None:
            return
        pair = self._current(self._material)
        if pair != self._loaded:
            load(self._context, pair.certificate, pair.key)
            self._loaded = pair
            CERTIFICATE_EXPIRY.set(expiry(pair))
            log.info("serving certificate loaded, valid until %s", date(expiry(pair)))

    def registered(self, bundle: bytes | None) -> None:
        """The bundle that API servers are configured to trust."""
        if bundle is not None and bundle != self._registered[0]:
            self._registered = (bundle, self._clock())

    def _current(self, material: Material) -> KeyPair:
        """What is to be served now: what is staged only once API servers have been told of its CA for a while. When
        that did not succeed in time the old certificate serves on, for as long as it is valid."""
        now = self._clock()
        pair = material.served(now)
        if pair is material.serving or self._loaded is None or now >= expiry(material.serving):
            return pair
        bundle, since = self._registered
        late = bundle != material.bundle or now - since < self._policy.overlap / 2
        return material.serving if late else pair

    def wait(self) -> float:
        """Seconds until something is due here, whatever others do."""
        if self._material is None:
            return 0.0
        now = self._clock()
        times = [next_step(self._material, self._policy)]
        if self._material.staged is not None and now < self._material.activate_at:
            times.append(self._material.activate_at)
        return max(0.0, min(times) - now)

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
        material = self._lost()
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
            return material
        except NotFound as exc:
            raise ConfigError(f"namespace {self._namespace} for the certificate's secret: {exc}") from exc
        log.info("secret %s/%s created", self._namespace, self._name)
        return material

    def _lost(self) -> Material:
        """For a Secret that was deleted or spoiled: as it was, because the API servers and the other replicas know
        that CA."""
        return self._material or issue(self._hosts, self._policy, self._clock())

    async def _settle(self, secret: Secret) -> Material | None:
        """The Secret's content, with what was due done. None: read it again."""
        found = self._read(secret)
        due = self._lost() if found is None else step(found, self._hosts, self._policy, self._clock())
        if due is None:
            return found
        data: dict[str, str | None] = dict.fromkeys(_KEYS)
        data.update(_data(due))
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
    fields: dict[str, bytes] = {
        BUNDLE: material.bundle,
        AUTHORITY: material.authority.certificate,
        AUTHORITY_KEY: material.authority.key,
        CERTIFICATE: material.serving.certificate,
        KEY: material.serving.key,
    }
    if material.staged is not None:
        fields[STAGED] = material.staged.certificate
        fields[STAGED_KEY] = material.staged.key
        fields[ACTIVATE_AT] = repr(material.activate_at).encode("ascii")
    return {name: base64.b64encode(content).decode("ascii") for name, content in fields.items()}


def _material(data: Mapping[str, str]) -> Material:
    """Raises CertificateError that names the missing or invalid key."""
    staged = None
    activate_at = 0.0
    if STAGED in data:
        staged = KeyPair(_field(data, STAGED), _field(data, STAGED_KEY))
        try:
            activate_at = float(_field(data, ACTIVATE_AT))
        except ValueError as exc:
            raise CertificateError(f"{ACTIVATE_AT} is not a time") from exc
    return Material(
        authority=KeyPair(_field(data, AUTHORITY), _field(data, AUTHORITY_KEY)),
        bundle=_field(data, BUNDLE),
        serving=KeyPair(_field(data, CERTIFICATE), _field(data, KEY)),
        staged=staged,
        activate_at=activate_at,
    )


def _field(data: Mapping[str, str], name: str) -> bytes:
    try:
        return base64.b64decode(data[name], validate=True)
    except KeyError as exc:
        raise CertificateError(f"{name} is missing") from exc
    except (binascii.Error, ValueError) as exc:
        raise CertificateError(f"{name} is not base64") from exc
