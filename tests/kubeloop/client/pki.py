"""Throw-away certificates for the TLS tests."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
import tempfile
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_NOW = datetime.datetime.now(datetime.UTC)


@dataclass(frozen=True)
class Pair:
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

    def __init__(self, name: str = "test-ca") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._certificate = (
            _builder(self._name, self._name, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.pem = _pem(self._certificate)

    def issue(
        self,
        common_name: str,
        *,
        organization: str = "",
        password: bytes | None = None,
        loopback: bool = True,
    ) -> Pair:
        """A certificate for `common_name` and, with `loopback`, 127.0.0.1; its key locked with `password`."""
        key = ec.generate_private_key(ec.SECP256R1())
        attributes = [x509.NameAttribute(NameOID.COMMON_NAME, common_name)]
        if organization:
            attributes.append(x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization))
        names: list[x509.GeneralName] = [x509.DNSName(common_name)]
        if loopback:
            names.append(x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
        certificate = (
            _builder(x509.Name(attributes), self._name, key.public_key())
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return Pair(_pem(certificate), _key_pem(key, password))

    def server_context(
        self, *, ask_client: bool = False, common_name: str = "server", loopback: bool = True
    ) -> ssl.SSLContext:
        """A server's context; `ask_client`: only clients with a certificate of this authority."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        with tempfile.TemporaryDirectory() as folder:
            context.load_cert_chain(*self.issue(common_name, loopback=loopback).write(Path(folder), "server"))
        if ask_client:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(cadata=self.pem)
        return context


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(_NOW - datetime.timedelta(hours=1))
        .not_valid_after(_NOW + datetime.timedelta(hours=1))
    )


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _key_pem(key: ec.EllipticCurvePrivateKey, password: bytes | None) -> str:
    encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if password:
        encryption = serialization.BestAvailableEncryption(password)
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption
    ).decode()
