"""The cluster's own certificate authority: one CA signs every server and client certificate, valid for ten years.

P-256 throughout: making the seven keys takes milliseconds where RSA takes seconds.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_VALIDITY = datetime.timedelta(days=3650)
# A clock that is set back a little after `up` must not make the certificates "not yet valid".
_BACKDATED = datetime.timedelta(hours=1)


@dataclass(frozen=True)
class KeyPair:
    """PEM files."""

    certificate: Path
    key: Path


class Authority:
    """Signs with a key that lives only as long as this object: a cluster's certificates are made once, by `up`."""

    def __init__(self, folder: Path) -> None:
        """`folder` is created if missing; ca.crt is written into it."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("kubeloop-cluster-ca")
        builder = _builder(self._name, self._name, self._key).add_extension(
            x509.BasicConstraints(ca=True, path_length=0), critical=True
        )
        self._certificate = builder.add_extension(_ca_usage(), critical=True).sign(self._key, hashes.SHA256())
        self.certificate = folder / "ca.crt"
        _write(self.certificate, self._certificate.public_bytes(serialization.Encoding.PEM))

    def server(self, file_name: str, common_name: str, hosts: Sequence[str]) -> KeyPair:
        """A certificate that serves `hosts` (names and IP addresses) and may also be shown to a peer, as etcd's is."""
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        return self._sign(file_name, _name(common_name), usages, [_general_name(host) for host in hosts])

    def client(self, file_name: str, user: str, groups: Sequence[str] = ()) -> KeyPair:
        """A certificate that Kubernetes reads as `user` (common name) in `groups` (organizations)."""
        return self._sign(file_name, _name(user, groups), [ExtendedKeyUsageOID.CLIENT_AUTH], [])

    def _sign(
        self,
        file_name: str,
        subject: x509.Name,
        usages: list[x509.ObjectIdentifier],
        hosts: list[x509.GeneralName],
    ) -> KeyPair:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(subject, self._name, key).add_extension(
            x509.ExtendedKeyUsage(usages), critical=False
        )
        if hosts:
            builder = builder.add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        pair = KeyPair(self._folder / f"{file_name}.crt", self._folder / f"{file_name}.key")
        _write(pair.certificate, certificate.public_bytes(serialization.Encoding.PEM))
        _write(pair.key, _private_pem(key))
        return pair


def write_signing_key(folder: Path) -> KeyPair:
    """The key pair that signs service-account tokens; `certificate` is the bare public key."""
    key = ec.generate_private_key(ec.SECP256R1())
    pair = KeyPair(folder / "service-accounts.pub", folder / "service-accounts.key")
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    _write(pair.certificate, public)
    _write(pair.key, _private_pem(key))
    return pair


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(now + _VALIDITY)
    )


def _ca_usage() -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _name(common_name: str, organizations: Sequence[str] = ()) -> x509.Name:
    attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, name) for name in organizations]
    return x509.Name([*attributes, x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    )


def _write(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "wb") as file:
        file.write(content)
