"""The certificate of the listener, in an SSLContext that is in use: new handshakes get a new one, standing connections
keep theirs."""

from __future__ import annotations

import logging
import ssl
import tempfile
from abc import ABC, abstractmethod
from pathlib import Path

from kubeloop.api.meta import rfc3339
from kubeloop.client.errors import ConfigError
from pkg.webhook.certificates import CertificateError, KeyPair, expiry
from pkg.webhook.metrics import CERTIFICATE_EXPIRY

log = logging.getLogger(__name__)


class ServingCertificate(ABC):
    """One that its source keeps current: the Secret that replicas share, or files."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self.context = context
        self.bundle: bytes | None = None
        """PEM of the CAs to trust; None when cert-manager tells the API server."""
        self.loaded: KeyPair | None = None

    @property
    def expires(self) -> float | None:
        """When the certificate that is served ends, seconds since 1970; None without one."""
        return expiry(self.loaded) if self.loaded is not None else None

    @abstractmethod
    async def refresh(self) -> None:
        """Find out what is current, renew what is due, serve it. Raises ApiError, ConfigError."""

    def serve(self, pair: KeyPair) -> None:
        """From now on. Raises CertificateError; what was served is still served then."""
        if pair == self.loaded:
            return
        until = expiry(pair)
        load(self.context, pair)
        self.loaded = pair
        CERTIFICATE_EXPIRY.set(until)
        log.info("serving certificate loaded, valid until %s", rfc3339(until))


def server_context(client_authority: Path | None = None) -> ssl.SSLContext:
    """TLS 1.2 and newer, without a certificate yet; with a CA for clients, those have to present a certificate of it.

    Raises ConfigError for a CA that cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if client_authority is not None:
        try:
            context.load_verify_locations(client_authority)
        except (OSError, ssl.SSLError) as exc:
            raise ConfigError(f"--client-ca-file {client_authority}: {_reason(exc)}") from exc
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def load(context: ssl.SSLContext, pair: KeyPair) -> None:
    """Tried on another context first: one that is refused halfway would leave the live one without a key.

    Raises CertificateError; the context is untouched then.
    """
    # The ssl module reads files only; these are gone before another process can look for them, in a folder of ours.
    with tempfile.TemporaryDirectory(prefix="headroom-") as folder:
        file = Path(folder, "pem")
        file.write_bytes(pair.key + b"\n" + pair.certificate)
        try:
            for target in (server_context(), context):
                target.load_cert_chain(file, password=_no_password)
        except (ssl.SSLError, ValueError) as exc:
            raise CertificateError(f"certificate and key cannot be used: {_reason(exc)}") from exc


def _no_password() -> str:
    """Without this a key with a password makes OpenSSL ask on the terminal."""
    raise ValueError("the key is encrypted")


def _reason(exc: Exception) -> str:
    return (getattr(exc, "reason", None) or str(exc)).lower().replace("_", " ")
