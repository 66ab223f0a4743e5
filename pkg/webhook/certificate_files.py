"""Certificates that another program makes (cert-manager), as files: loaded again whenever they change."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

from kubeloop.client.errors import ConfigError
from pkg.webhook.certificates import CertificateError, KeyPair, parse_bundle
from pkg.webhook.serving_certificate import ServingCertificate

log = logging.getLogger(__name__)

AUTHORITY_FILE = "ca.crt"
"""What cert-manager puts beside tls.crt and tls.key."""


class CertificateFiles(ServingCertificate):
    """Without a CA's file `bundle` is None: the configurations' caBundle is left to cert-manager's CA injector."""

    def __init__(self, certificate: Path, key: Path, context: ssl.SSLContext, authority: Path | None = None) -> None:
        """`authority`: the CA's file; without, a `ca.crt` beside the certificate if there is one."""
        super().__init__(context)
        self._certificate = certificate
        self._key = key
        beside = certificate.parent / AUTHORITY_FILE
        self._authority = authority or (beside if beside.is_file() else None)

    async def refresh(self) -> None:
        """Load what changed. Raises ConfigError as long as nothing usable was ever there; later that is logged: a
        file may be half written, and the certificate that is loaded still serves."""
        try:
            pair = KeyPair(self._certificate.read_bytes(), self._key.read_bytes())
            if self._authority is not None:
                bundle = self._authority.read_bytes()
                parse_bundle(bundle)
                self.bundle = bundle
            self.serve(pair)
        except (OSError, CertificateError) as exc:
            reason = f"{exc.filename}: {exc.strerror}" if isinstance(exc, OSError) else str(exc)
            if self.loaded is None:
                raise ConfigError(f"{self._certificate}: {reason}") from exc
            log.warning("%s not loaded: %s", self._certificate, reason)
