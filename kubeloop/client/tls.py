"""TLS contexts for the API server."""

import logging
import re
import ssl
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from kubeloop.client.connections import in_own_thread
from kubeloop.client.credentials import REREAD_SECONDS, Certificate
from kubeloop.client.errors import ConfigError
from kubeloop.errors import one_line

_CERTIFICATE: Final = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TLSSettings:
    """The certificates that a connection verifies and presents (client-go's TLSClientConfig). Each part is a file (a
    Path), its content in PEM, or None; without `ca` the system's certificate authorities count."""

    ca: Path | str | None = None
    certificate: Path | str | None = field(default=None, repr=False)
    key: Path | str | None = field(default=None, repr=False)
    verify: bool = True

    @property
    def on_disk(self) -> bool:
        """Reports whether a part is a file, which can change."""
        return any(isinstance(part, Path) for part in (self.ca, self.certificate, self.key))

    def read(self) -> "TLSSettings":
        """Returns the same settings with the files' content, as it is now. Raises ConfigError."""
        if bool(self.certificate) != bool(self.key):
            raise ConfigError("only one of client-certificate and client-key is set: set both")
        return TLSSettings(_text(self.ca), _text(self.certificate), _text(self.key), self.verify)

    def context(self, certificate: Certificate | None = None) -> ssl.SSLContext:
        """A client context; `certificate` (a credential plugin's) beats the settings' own. Raises ConfigError."""
        ca, own_certificate, key = map(_text, (self.ca, self.certificate, self.key))
        context = ssl.create_default_context(cadata=None if ca is None else _authorities(ca))
        # Python 3.13 turns strict RFC 5280 checks on, which cluster CAs without an authority key identifier
        # fail; Go's clients don't check that.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if certificate is None and own_certificate and key:
            certificate = Certificate(own_certificate, key)
        if certificate is not None:
            try:
                load_pair(certificate.certificate.encode(), certificate.key.encode(), context)
            except (ssl.SSLError, ValueError) as err:
                problem = "the client certificate and key are not valid or don't belong together"
                raise ConfigError(f"{problem}: {err}") from err
        return context


class TLSContexts:
    """The context to connect with: kept until a certificate changes, so that connections are used again. Files are read
    again every REREAD_SECONDS, and when the credentials were refused; while what is there is not whole (a certificate
    is there, its key not yet), the last ones stay in use. client-go: cert_rotation.go."""

    def __init__(self, source: TLSSettings) -> None:
        self._source = source
        self._settings = source.read()
        self._read_at = time.monotonic()
        self._for: Certificate | None = None
        self._context = self._settings.context()

    def get(self, certificate: Certificate | None = None) -> ssl.SSLContext:
        if certificate != self._for:
            self._context, self._for = self._settings.context(certificate), certificate
        return self._context

    async def reread(self, *, now: bool = False) -> None:
        """Reads the files again if it is time, or `now`."""
        if not self._source.on_disk or not (now or time.monotonic() - self._read_at >= REREAD_SECONDS):
            return
        self._read_at = time.monotonic()
        try:
            settings = await in_own_thread(self._source.read)
            if settings != self._settings:
                self._context = settings.context(self._for)
                self._settings = settings
                logger.info("client certificate files reloaded")
        except ConfigError as err:
            logger.warning("keeping the certificates in use: %s", err)


def _text(part: Path | str | None) -> str | None:
    if not isinstance(part, Path):
        return part
    try:
        content = part.read_bytes()
    except OSError as err:
        raise ConfigError(f"{part}: {err.strerror or err}") from err
    text = content.decode(errors="replace")  # beside the blocks anything may be written, in any encoding
    if content and "-----BEGIN" not in text:
        raise ConfigError(f"{part} is not a PEM file")
    return text


def _authorities(ca: str) -> str:
    """The valid certificates in a text, as Go reads them, whatever else is in it. Raises ConfigError for none."""
    if not ca.strip():
        # The ssl module would take an empty text for none, and trust every public authority.
        raise ConfigError("the cluster's certificate authority is empty: leave it out for the system's authorities")
    context, valid, reason = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), [], "it has none"
    for block in _CERTIFICATE.findall(ca):
        try:
            context.load_verify_locations(cadata=block)
            valid.append(block)
        except (ssl.SSLError, ValueError, TypeError) as err:
            reason = one_line(err)
    if not valid:
        raise ConfigError(f"the cluster's certificate authority is not a valid PEM certificate: {reason}")
    return "\n".join(valid)


def load_pair(certificate: bytes, key: bytes, *contexts: ssl.SSLContext) -> None:
    """A certificate and its key, PEM, into one context after the other. Raises SSLError, ValueError."""
    # The ssl module reads files only; these are gone before another process can look for them, in a folder of ours.
    with tempfile.TemporaryDirectory(prefix="tls-") as folder:
        file = Path(folder, "pem")
        file.write_bytes(key + b"\n" + certificate)
        for context in contexts:
            context.load_cert_chain(file, password="")  # or OpenSSL would ask for one on the terminal
