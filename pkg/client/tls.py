"""TLS contexts for the API server."""

from __future__ import annotations

import ssl
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from pkg.client.credentials import Certificate
from pkg.client.errors import ConfigError


@dataclass(frozen=True, slots=True)
class TLSSettings:
    """What a connection verifies and presents. `ca_pem` None: the system's certificate authorities."""

    ca_pem: str | None = None
    certificate: Certificate | None = field(default=None, repr=False)
    verify: bool = True

    def context(self, certificate: Certificate | None = None) -> ssl.SSLContext:
        """A client context; `certificate` (a credential plugin's) beats the settings' own. Raises ConfigError."""
        context = self._verifying_context()
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if chosen := certificate or self.certificate:
            _present(context, chosen)
        return context

    def _verifying_context(self) -> ssl.SSLContext:
        if self.ca_pem is not None and not self.ca_pem.strip():
            # The ssl module would take an empty text for none, and trust every public authority.
            raise ConfigError("the cluster's certificate authority is empty")
        try:
            context = ssl.create_default_context(cadata=self.ca_pem)
        except (ssl.SSLError, ValueError) as err:
            raise ConfigError(
                f"the cluster's certificate authority is not a valid PEM certificate: {err}"
            ) from err
        # Python 3.13 turns strict RFC 5280 checks on, which cluster CAs without an authority key identifier
        # fail; Go's clients don't check that.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        return context


def _present(context: ssl.SSLContext, certificate: Certificate) -> None:
    # The ssl module loads a key from a file only: a private folder that exists for this moment.
    with tempfile.TemporaryDirectory(prefix="headroom-") as folder:
        cert_file, key_file = Path(folder, "tls.crt"), Path(folder, "tls.key")
        cert_file.write_text(certificate.certificate)
        key_file.write_text(certificate.key)
        try:
            # With a password at hand OpenSSL does not ask the terminal for one.
            context.load_cert_chain(cert_file, key_file, password="")
        except (ssl.SSLError, ValueError) as err:
            raise ConfigError(
                f"the client certificate and key are not valid or don't belong together: {err}"
            ) from err
