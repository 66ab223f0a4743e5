"""Self-issued certificates: what they are and when they are renewed. Pure: the clock is an argument.

Times are seconds since 1970. A CA is kept to its end, so that as long as it lasts no certificate is served that API
servers do not trust. Deleting the Secret makes a new one before that.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAY = 86400.0
RENEWED_AT = 2 / 3
"""Of a certificate's life."""


class CertificateError(Exception):
    """A certificate or key that cannot be used; the text is one line that says which and why."""


@dataclass(frozen=True, slots=True)
class Policy:
    """How long certificates live; seconds. `backdated`: how far a peer's clock may be behind."""

    authority_life: float = 3650 * DAY
    serving_life: float = 365 * DAY
    backdated: float = 300.0


@dataclass(frozen=True, slots=True)
class KeyPair:
    """PEM."""

    certificate: bytes
    key: bytes


@dataclass(frozen=True, slots=True)
class Material:
    """Everything that the replicas share. `authority` signs; `bundle` is what API servers shall trust: that CA, and in
    a Secret that was written before CAs were kept to their end an older one beside it."""

    authority: KeyPair
    bundle: bytes
    serving: KeyPair


def issue(hosts: Sequence[str], policy: Policy, now: float) -> Material:
    """A new CA and a certificate of its for `hosts` (names and IP addresses)."""
    authority = _authority(policy, now)
    return Material(authority, authority.certificate, _serving(authority, hosts, policy, now))


def step(material: Material, hosts: Sequence[str], policy: Policy, now: float) -> Material | None:
    """The material that replaces `material` now; None when nothing is due. Raises CertificateError."""
    wanted = sorted({*hosts, *_hosts(material.serving)})
    if now >= expiry(material.authority):
        return issue(wanted, policy, now)
    if _due(material, policy, now) or not _covers(material.serving, hosts):
        return replace(material, serving=_serving(material.authority, wanted, policy, now))
    return None


def check(material: Material) -> None:
    """Raises CertificateError unless every part parses, keys belong to certificates, and the CAs signed them."""
    for pair in (material.authority, material.serving):
        certificate, key = parse(pair.certificate), _private_key(pair.key)
        if certificate.public_key() != key.public_key():
            raise CertificateError("a key does not belong to its certificate")
    authorities = parse_bundle(material.bundle)
    if parse(material.authority.certificate) not in authorities:
        raise CertificateError("the bundle lacks the CA that signs")
    if not any(_signed(parse(material.serving.certificate), authority) for authority in authorities):
        raise CertificateError("the serving certificate is not signed by a CA in the bundle")


def parse(pem: bytes) -> x509.Certificate:
    """The first certificate of a PEM file. Raises CertificateError."""
    try:
        return x509.load_pem_x509_certificate(pem)
    except ValueError as exc:
        raise CertificateError(f"not a certificate: {exc}") from exc


def parse_bundle(pem: bytes) -> list[x509.Certificate]:
    """Every certificate of a PEM file. Raises CertificateError."""
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError as exc:
        raise CertificateError(f"not a certificate bundle: {exc}") from exc


def expiry(pair: KeyPair) -> float:
    """When the certificate ends. Raises CertificateError."""
    return parse(pair.certificate).not_valid_after_utc.timestamp()


def _due(material: Material, policy: Policy, now: float) -> bool:
    """Whether a new serving certificate is, which is to last longer."""
    certificate = parse(material.serving.certificate)
    begin = certificate.not_valid_before_utc.timestamp() + policy.backdated
    end = certificate.not_valid_after_utc.timestamp()
    return end < expiry(material.authority) and now >= begin + (end - begin) * RENEWED_AT


def _authority(policy: Policy, now: float) -> KeyPair:
    key = ec.generate_private_key(ec.SECP256R1())
    # The serial in the name keeps two CAs apart where a verifier looks an issuer up by its name.
    serial = x509.random_serial_number()
    name = _name(f"headroom-webhook-ca-{serial:x}"[:64])
    certificate = (
        _builder(name, name, key, serial, now - policy.backdated, now + policy.authority_life)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return _pair(certificate, key)


def _serving(authority: KeyPair, hosts: Sequence[str], policy: Policy, now: float) -> KeyPair:
    """Never longer than its CA."""
    issuer, issuer_key = parse(authority.certificate), _private_key(authority.key)
    key = ec.generate_private_key(ec.SECP256R1())
    end = min(now + policy.serving_life, issuer.not_valid_after_utc.timestamp())
    names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
    serial = x509.random_serial_number()
    certificate = (
        _builder(_name("headroom-webhook"), issuer.subject, key, serial, now - policy.backdated, end)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(names, critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
        .sign(issuer_key, hashes.SHA256())
    )
    return _pair(certificate, key)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, serial: int, begin: float, end: float
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(serial)
        .not_valid_before(datetime.datetime.fromtimestamp(begin, datetime.UTC))
        .not_valid_after(datetime.datetime.fromtimestamp(end, datetime.UTC))
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True, key_cert_sign=signs, crl_sign=signs, content_commitment=False,
        key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False,
        decipher_only=False,
    )  # fmt: skip


def _pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> KeyPair:
    return KeyPair(
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )


def _private_key(pem: bytes) -> ec.EllipticCurvePrivateKey:
    try:
        key: PrivateKeyTypes = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError) as exc:
        raise CertificateError(f"not a private key: {exc}") from exc
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise CertificateError("not an elliptic curve key")
    return key


def _signed(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except Exception:  # cryptography raises ValueError, TypeError or InvalidSignature: all mean no
        return False
    return True


def _covers(pair: KeyPair, hosts: Sequence[str]) -> bool:
    return set(hosts) <= set(_hosts(pair))


def _hosts(pair: KeyPair) -> list[str]:
    try:
        names = parse(pair.certificate).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [str(name.value) for name in names]


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
