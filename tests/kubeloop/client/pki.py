"""Throw-away certificates for the TLS tests."""

import ssl
from dataclasses import dataclass
from pathlib import Path

import trustme
from cryptography.hazmat.primitives import serialization


@dataclass(frozen=True)
class IssuedPair:
    """A certificate and its key, PEM."""

    certificate: str
    key: str

    def write(self, folder: Path, name: str) -> tuple[Path, Path]:
        """The pair as two files."""
        files = folder / f"{name}.crt", folder / f"{name}.key"
        files[0].write_text(self.certificate)
        files[1].write_text(self.key)
        return files


class Authority:
    """A certificate authority of its own."""

    def __init__(self) -> None:
        self._authority = trustme.CA()
        self.pem = self._authority.cert_pem.bytes().decode()

    def issue(self, user: str, *, password: bytes | None = None) -> IssuedPair:
        """A certificate for `user` and 127.0.0.1; its key locked with `password`."""
        certificate = self._issue(user, "127.0.0.1")
        key = certificate.private_key_pem.bytes()
        if password:
            private = serialization.load_pem_private_key(key, None)
            encrypted = serialization.BestAvailableEncryption(password)
            key = private.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encrypted)
        return IssuedPair(certificate.cert_chain_pems[0].bytes().decode(), key.decode())

    def server_context(
        self, *, ask_client: bool = False, common_name: str = "server", loopback: bool = True
    ) -> ssl.SSLContext:
        """A server's context; `ask_client`: only clients with a certificate of this authority."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._issue(common_name, *["127.0.0.1"] * loopback).configure_cert(context)
        if ask_client:
            context.verify_mode = ssl.CERT_REQUIRED
            self._authority.configure_trust(context)
        return context

    def _issue(self, user: str, *hosts: str) -> trustme.LeafCert:
        return self._authority.issue_cert(user, *hosts, common_name=user)
