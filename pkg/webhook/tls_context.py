"""Loading a certificate into an SSLContext that is in use: new handshakes get it, standing connections keep theirs."""

from __future__ import annotations

import ssl
import tempfile
from pathlib import Path

from kubeloop.client.errors import ConfigError
from pkg.webhook.certificates import CertificateError


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


def load(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """PEM. Tried on another context first: one that is refused halfway would leave the live one without a key.

    Raises CertificateError; the context is untouched then.
    """
    # The ssl module reads files only; these are gone before another process can look for them, in a folder of ours.
    with tempfile.TemporaryDirectory(prefix="headroom-") as folder:
        files = Path(folder, "crt"), Path(folder, "key")
        for file, content in zip(files, (certificate, key), strict=True):
            file.write_bytes(content)
        try:
            for target in (server_context(), context):
                target.load_cert_chain(files[0], files[1], password=_no_password)
        except (ssl.SSLError, ValueError) as exc:
            raise CertificateError(f"certificate and key cannot be used: {_reason(exc)}") from exc


def _no_password() -> str:
    """Without this a key with a password makes OpenSSL ask on the terminal."""
    raise ValueError("the key is encrypted")


def _reason(exc: Exception) -> str:
    return (getattr(exc, "reason", None) or str(exc)).lower().replace("_", " ")
