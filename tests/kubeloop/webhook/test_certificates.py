"""Certificates under a clock of the test's own."""

from dataclasses import replace

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from kubeloop.webhook.certificates import (
    AUTHORITY_LIFE,
    BACKDATED,
    DAY,
    SERVING_LIFE,
    CertificateError,
    KeyPair,
    check,
    expiry,
    issue,
    parse,
    parse_bundle,
    step,
)

NOW = 1_800_000_000.0
HOSTS = ["headroom-webhook.harvester-system.svc", "127.0.0.1"]


def trusted(pair: KeyPair, bundle: bytes) -> bool:
    certificate = parse(pair.certificate)
    for authority in parse_bundle(bundle):
        try:
            certificate.verify_directly_issued_by(authority)
        except Exception:
            continue
        return True
    return False


def usage(*, signs: bool) -> x509.KeyUsage:
    """Signatures alone."""
    names = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only")
    other_usages = dict.fromkeys((*names, "decipher_only"), False)
    return x509.KeyUsage(digital_signature=True, key_cert_sign=signs, crl_sign=signs, **other_usages)


def test_a_new_ca_and_what_it_signs() -> None:
    material = issue(HOSTS, NOW)
    check(material)
    authority, serving = parse(material.authority.certificate), parse(material.serving.certificate)
    assert trusted(material.serving, material.bundle)
    for certificate, constraints in (
        (authority, x509.BasicConstraints(ca=True, path_length=0)),
        (serving, x509.BasicConstraints(ca=False, path_length=None)),
    ):
        extension = certificate.extensions.get_extension_for_class(x509.BasicConstraints)
        assert (extension.critical, extension.value) == (True, constraints)
    assert parse(material.serving.certificate + material.authority.certificate) == serving, "of a chain the first"
    signs = authority.extensions.get_extension_for_class(x509.KeyUsage)
    assert (signs.critical, signs.value) == (True, usage(signs=True))
    serves = serving.extensions.get_extension_for_class(x509.KeyUsage)
    assert serves.value == usage(signs=False)
    purposes = serving.extensions.get_extension_for_class(x509.ExtendedKeyUsage)
    assert (purposes.critical, list(purposes.value)) == (False, [ExtendedKeyUsageOID.SERVER_AUTH])
    names = serving.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == HOSTS[:1]
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == HOSTS[1:]
    assert expiry(material.serving) == NOW + SERVING_LIFE
    assert expiry(material.authority) == NOW + AUTHORITY_LIFE


def test_two_cas_never_have_one_name() -> None:
    names = {parse(issue(HOSTS, NOW).authority.certificate).subject for _ in range(2)}
    assert len(names) == 2


@pytest.mark.parametrize(
    ("days", "due"), [(0, False), (243, False), (243.33, False), (243.34, True), (364, True), (4000, True)]
)
def test_renewed_at_two_thirds_of_its_life(days: float, due: bool) -> None:
    material = issue(HOSTS, NOW)
    assert parse(material.serving.certificate).not_valid_before_utc.timestamp() == NOW - BACKDATED
    renewed = step(material, HOSTS, NOW + days * DAY)
    assert (renewed is not None) is due
    assert renewed is None or expiry(renewed.serving) == NOW + days * DAY + SERVING_LIFE


def test_a_client_trusts_every_certificate_of_a_living_ca() -> None:
    """Even if no API server is told anything for years."""
    material = first_material = issue(HOSTS, NOW)
    certificates = set()
    for day in range(0, 3650, 10):
        now = NOW + day * DAY
        material = step(material, HOSTS, now) or material
        check(material)
        assert trusted(material.serving, first_material.bundle)
        assert now < expiry(material.serving) <= expiry(first_material.authority)
        certificates.add(material.serving.certificate)
    assert len(certificates) == 15


def test_an_expired_ca_is_replaced_with_what_it_signed() -> None:
    expired = issue([*HOSTS, "other.example"], NOW)
    renewed = step(expired, HOSTS, NOW + AUTHORITY_LIFE)
    assert renewed is not None
    check(renewed)
    assert parse_bundle(renewed.bundle) == [parse(renewed.authority.certificate)]
    assert renewed.authority != expired.authority
    assert step(renewed, ["other.example"], NOW + AUTHORITY_LIFE) is None


def test_a_rotation_that_an_earlier_version_began_is_understood() -> None:
    """Two CAs in the bundle, and still a certificate of the older one."""
    older, newer = issue(HOSTS, NOW), issue(HOSTS, NOW)
    half_renewed = replace(older, authority=newer.authority, bundle=newer.bundle + older.bundle)
    check(half_renewed)
    renewed = step(half_renewed, HOSTS, NOW)
    assert renewed is not None
    check(renewed)
    assert renewed.bundle == half_renewed.bundle
    assert trusted(renewed.serving, newer.bundle)
    assert step(renewed, HOSTS, NOW) is None


def test_a_host_that_is_not_covered_is_added_and_none_is_lost() -> None:
    material = issue(HOSTS, NOW)
    renewed = step(material, ["other.example", "127.0.0.1"], NOW)
    assert renewed is not None
    assert renewed.bundle == material.bundle
    for hosts in (HOSTS, ["other.example"]):
        assert step(renewed, hosts, NOW) is None


GARBAGE = {
    "a certificate that is none": lambda m: replace(m, serving=replace(m.serving, certificate=b"x")),
    "a key that is none": lambda m: replace(m, serving=replace(m.serving, key=b"x")),
    "a key of another certificate": lambda m: replace(m, serving=replace(m.serving, key=m.authority.key)),
    "a CA's key of another CA": lambda m: replace(m, authority=replace(m.authority, key=m.serving.key)),
    "an empty bundle": lambda m: replace(m, bundle=b""),
    "a bundle without the CA that signs": lambda m: replace(m, bundle=issue(HOSTS, NOW).bundle),
}


@pytest.mark.parametrize("spoil", list(GARBAGE.values()), ids=list(GARBAGE))
def test_garbage_is_found(spoil: object) -> None:
    with pytest.raises(CertificateError):
        check(spoil(issue(HOSTS, NOW)))  # type: ignore[operator]
