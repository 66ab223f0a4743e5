"""Self-issued certificates: what they are and when they are renewed. Pure: the clock is an argument.

Times are seconds since 1970. A CA is kept to its end, so that as long as it lasts no certificate is served that API
servers do not trust. Deleting the Secret makes a new one before that."""

import datetime
import ipaddress
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Final

from kubeloop.errors import needs_extra

with needs_extra("webhook"):
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from kubeloop.client.errors import ConfigError

DAY: Final = 86400.0
AUTHORITY_LIFE: Final = 3650 * DAY
SERVING_LIFE: Final = 365 * DAY
"""The last third of it is left for the renewal."""
BACKDATED: Final = 300.0
"""The time that a peer's clock may be behind."""


class CertificateError(ConfigError):
    """A certificate or key that cannot be used; the text is one line that says which and why."""


@dataclass(frozen=True, slots=True)
class KeyPair:
    """PEM."""

    certificate: bytes
    key: bytes


@dataclass(frozen=True, slots=True)
class Material:
    """The certificates that the replicas share. `authority` signs; `bundle` is what API servers shall trust: that CA,
    and in a Secret that was written before CAs were kept to their end an older one beside it."""

    authority: KeyPair
    bundle: bytes
    serving: KeyPair


def issue(hosts: Collection[str], now: float, name: str = "webhook") -> Material:
    """A new CA and a certificate of its for `hosts` (names and IP addresses); `name` is the common name."""
    # The serial in the name keeps two CAs apart where a verifier looks an issuer up by its name.
    authority = _sign(f"{name}-ca-{x509.random_serial_number():x}"[:64], now)
    return Material(authority, authority.certificate, _sign(name, now, hosts, authority))


def step(material: Material, hosts: Collection[str], now: float, name: str = "webhook") -> Material | None:
    """The material that replaces `material` now; None when nothing is due. Raises CertificateError."""
    served = _hosts(material.serving)
    names = sorted({*hosts, *served})
    authority_end, end = expiry(material.authority), expiry(material.serving)
    if now >= authority_end:
        return issue(names, now, name)
    is_due = end < authority_end and now >= end - SERVING_LIFE / 3
    if is_due or not served.issuperset(hosts) or not _is_signed_by(material.authority, material.serving):
        return replace(material, serving=_sign(name, now, names, material.authority))
    return None


def check(material: Material) -> None:
    """Raises CertificateError unless every part parses, keys belong to certificates, and the CA is in the bundle."""
    for pair in (material.authority, material.serving):
        if parse(pair.certificate).public_key() != _private_key(pair.key).public_key():
            raise CertificateError("a key does not belong to its certificate")
    if parse(material.authority.certificate) not in parse_bundle(material.bundle):
        raise CertificateError("the bundle lacks the CA that signs")


def parse(pem: bytes) -> x509.Certificate:
    """The first certificate of a PEM file. Raises CertificateError."""
    return parse_bundle(pem)[0]


def parse_bundle(pem: bytes) -> list[x509.Certificate]:
    """Returns every certificate of a PEM file. Raises CertificateError."""
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError as exc:
        raise CertificateError(f"not a certificate: {exc}") from exc


def expiry(pair: KeyPair) -> float:
    """Returns the time at which the certificate ends. Raises CertificateError."""
    return parse(pair.certificate).not_valid_after_utc.timestamp()


def _sign(name: str, now: float, hosts: Collection[str] = (), by: KeyPair | None = None) -> KeyPair:
    """A new key and its certificate, which ends no later than the CA that signs it; without one, a CA itself."""
    signs = by is None
    end = now + AUTHORITY_LIFE if by is None else min(now + SERVING_LIFE, expiry(by))
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    issuer, signer = (subject, key) if by is None else (parse(by.certificate).subject, _private_key(by.key))
    usage = x509.KeyUsage(
        digital_signature=True, key_cert_sign=signs, crl_sign=signs, content_commitment=False,
        key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False,
        decipher_only=False,
    )  # fmt: skip
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.datetime.fromtimestamp(now - BACKDATED, datetime.UTC))
        .not_valid_after(datetime.datetime.fromtimestamp(end, datetime.UTC))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .add_extension(x509.BasicConstraints(ca=signs, path_length=0 if signs else None), critical=True)
        .add_extension(usage, critical=True)
    )
    if not signs:
        served = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
        builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        builder = builder.add_extension(served, critical=False)
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return KeyPair(builder.sign(signer, hashes.SHA256()).public_bytes(pem), private)


def _private_key(pem: bytes) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError) as exc:
        raise CertificateError(f"not a private key: {exc}") from exc
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise CertificateError("not an elliptic curve key")
    return key


def _is_signed_by(authority: KeyPair, pair: KeyPair) -> bool:
    try:
        parse(pair.certificate).verify_directly_issued_by(parse(authority.certificate))
    except Exception:  # cryptography raises ValueError, TypeError or InvalidSignature: all mean no
        return False
    return True


def _hosts(pair: KeyPair) -> set[str]:
    try:
        names = parse(pair.certificate).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return set()
    return {str(name.value) for name in names}


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
