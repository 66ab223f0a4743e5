"""Certificates under a clock of the test's own."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from pkg.webhook.certificates import (
    DAY,
    CertificateError,
    KeyPair,
    Material,
    Policy,
    check,
    expiry,
    issue,
    next_step,
    parse,
    parse_bundle,
    step,
)

NOW = 1_800_000_000.0
POLICY = Policy(authority_life=900 * DAY, serving_life=90 * DAY, backdated=0.0, overlap=60.0)
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


def test_a_new_ca_and_what_it_signs() -> None:
    material = issue(HOSTS, POLICY, NOW)
    check(material)
    authority, serving = parse(material.authority.certificate), parse(material.serving.certificate)
    assert trusted(material.serving, material.bundle)
    assert authority.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert not serving.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    usage = serving.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.SERVER_AUTH]
    names = serving.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == HOSTS[:1]
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == HOSTS[1:]
    assert expiry(material.serving) == NOW + 90 * DAY
    assert expiry(material.authority) == NOW + 900 * DAY


def test_two_cas_never_have_one_name() -> None:
    names = {parse(issue(HOSTS, POLICY, NOW).authority.certificate).subject for _ in range(2)}
    assert len(names) == 2


@pytest.mark.parametrize(
    ("days", "due"), [(0, False), (59, False), (59.99, False), (60, True), (89, True), (1000, True)]
)
def test_renewed_at_two_thirds_of_its_life(days: float, due: bool) -> None:
    material = issue(HOSTS, POLICY, NOW)
    assert (step(material, HOSTS, POLICY, NOW + days * DAY) is not None) is due


def test_a_backdated_certificate_is_as_old_as_its_issue() -> None:
    policy = replace(POLICY, backdated=300.0)
    material = issue(HOSTS, policy, NOW)
    assert parse(material.serving.certificate).not_valid_before_utc.timestamp() == NOW - 300
    assert step(material, HOSTS, policy, NOW + 59 * DAY) is None
    assert step(material, HOSTS, policy, NOW + 61 * DAY) is not None


def test_a_renewal_under_the_same_ca_is_served_at_once() -> None:
    material = issue(HOSTS, POLICY, NOW)
    renewed = step(material, HOSTS, POLICY, NOW + 60 * DAY)
    assert renewed is not None
    assert renewed.bundle == material.bundle
    assert renewed.serving != material.serving
    assert renewed.served(NOW + 60 * DAY) == renewed.serving
    assert expiry(renewed.serving) == NOW + 150 * DAY


def test_a_new_ca_is_trusted_before_its_certificate_is_shown_and_the_old_one_until_it_is_not_shown() -> None:
    material = replace(issue(HOSTS, POLICY, NOW))
    begin = NOW + 600 * DAY
    material = replace(material, serving=issue_serving(material, begin - 10 * DAY))
    staged = step(material, HOSTS, POLICY, begin)
    assert staged is not None
    check(staged)
    assert len(parse_bundle(staged.bundle)) == 2
    assert staged.served(begin + 59) == material.serving
    assert staged.served(begin + 60) == staged.staged != material.serving
    for pair in (material.serving, staged.staged):
        assert pair is not None
        assert trusted(pair, staged.bundle)
    assert step(staged, HOSTS, POLICY, begin + 119) is None
    settled = step(staged, HOSTS, POLICY, begin + 120)
    assert settled is not None
    check(settled)
    assert settled.serving == staged.staged
    assert len(parse_bundle(settled.bundle)) == 1
    assert not trusted(material.serving, settled.bundle)
    assert step(settled, HOSTS, POLICY, begin + 121) is None


def issue_serving(material: Material, now: float) -> KeyPair:
    renewed = step(material, HOSTS, POLICY, now)
    assert renewed is not None
    return renewed.serving


def test_a_certificate_that_is_over_is_replaced_at_once() -> None:
    policy = replace(POLICY, authority_life=90 * DAY)
    late = NOW + 200 * DAY
    staged = step(issue(HOSTS, policy, NOW), HOSTS, policy, late)
    assert staged is not None
    assert staged.served(late) == staged.staged


def test_a_certificate_never_outlives_its_ca() -> None:
    policy = replace(POLICY, authority_life=30 * DAY)
    assert expiry(issue(HOSTS, policy, NOW).serving) == NOW + 30 * DAY


def test_a_host_that_is_not_covered_is_added_and_none_is_lost() -> None:
    material = issue(HOSTS, POLICY, NOW)
    renewed = step(material, ["other.example", "127.0.0.1"], POLICY, NOW)
    assert renewed is not None
    assert renewed.bundle == material.bundle
    for hosts in (HOSTS, ["other.example"]):
        assert step(renewed, hosts, POLICY, NOW) is None


def test_years_of_renewals_never_show_a_certificate_that_is_not_trusted() -> None:
    """A client with any bundle of the last minute trusts what is shown in the next."""
    policy = Policy(authority_life=30 * DAY, serving_life=20 * DAY, backdated=300.0, overlap=3600.0)
    now, material = NOW, issue(HOSTS, policy, NOW)
    shown: set[bytes] = set()
    authorities: set[bytes] = set()
    for _ in range(120):
        at = max(now + 1.0, next_step(material, policy))
        if material.staged is not None and now < material.activate_at < at:
            at = material.activate_at + 1.0
        previous, now = material, at
        material = step(material, HOSTS, policy, now) or material
        for pair in (material.served(now), previous.served(now)):
            assert trusted(pair, material.bundle)
            assert trusted(pair, previous.bundle)
            assert expiry(pair) > now
        check(material)
        shown.add(material.served(now).certificate)
        authorities.add(material.authority.certificate)
    assert len(shown) > 30
    assert len(authorities) > 20


def test_next_step_says_when_something_is_due() -> None:
    material = issue(HOSTS, POLICY, NOW)
    assert next_step(material, POLICY) == NOW + 60 * DAY
    assert step(material, HOSTS, POLICY, next_step(material, POLICY)) is not None


GARBAGE = {
    "a certificate that is none": lambda m: replace(m, serving=replace(m.serving, certificate=b"x")),
    "a key that is none": lambda m: replace(m, serving=replace(m.serving, key=b"x")),
    "a key of another certificate": lambda m: replace(m, serving=replace(m.serving, key=m.authority.key)),
    "a CA's key of another CA": lambda m: replace(m, authority=replace(m.authority, key=m.serving.key)),
    "an empty bundle": lambda m: replace(m, bundle=b""),
    "a bundle without the CA that signs": lambda m: replace(m, bundle=issue(HOSTS, POLICY, NOW).bundle),
    "a certificate of another CA": lambda m: replace(m, serving=issue(HOSTS, POLICY, NOW).serving),
    "a staged one that is garbage": lambda m: replace(m, staged=KeyPair(b"x", b"y")),
}


@pytest.mark.parametrize("spoil", list(GARBAGE.values()), ids=list(GARBAGE))
def test_garbage_is_found(spoil: object) -> None:
    with pytest.raises(CertificateError):
        check(spoil(issue(HOSTS, POLICY, NOW)))  # type: ignore[operator]
