from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key
from cryptography.x509.oid import NameOID

from kubeloop.testing.cluster.control_plane import Authority, write_kubeconfig, write_signing_key


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "pki")


def test_a_certificate_says_who_it_is(authority: Authority) -> None:
    pair = authority.issue("admin", "kubernetes-admin", "system:masters")
    subject = x509.load_pem_x509_certificate(pair.certificate.read_bytes()).subject
    assert subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value == "kubernetes-admin"
    assert [a.value for a in subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)] == ["system:masters"]


def test_private_keys_are_readable_by_their_owner_only(authority: Authority, tmp_path: Path) -> None:
    pairs = [authority.issue("c", "c"), write_signing_key(tmp_path)]
    assert all(pair.key.stat().st_mode & 0o077 == 0 for pair in pairs)


def test_the_authoritys_own_key_is_never_written(authority: Authority) -> None:
    assert [path.name for path in authority.certificate.parent.iterdir()] == ["ca.crt"]


def test_the_signing_key_and_its_public_half_belong_together(tmp_path: Path) -> None:
    pair = write_signing_key(tmp_path)
    private = load_pem_private_key(pair.key.read_bytes(), None)
    public = load_pem_public_key(pair.certificate.read_bytes())
    assert private.public_key() == public


def test_a_kubeconfig_holds_all_it_needs_and_is_private(authority: Authority, tmp_path: Path) -> None:
    admin = authority.issue("admin", "kubernetes-admin")
    write_kubeconfig(tmp_path / "kubeconfig", "https://127.0.0.1:6443", authority.certificate, admin)
    config = json.loads((tmp_path / "kubeconfig").read_text())
    assert config["clusters"][0]["cluster"]["server"] == "https://127.0.0.1:6443"
    assert base64.b64decode(config["users"][0]["user"]["client-key-data"]) == admin.key.read_bytes()
    context = next(c for c in config["contexts"] if c["name"] == config["current-context"])["context"]
    assert (context["cluster"], context["user"]) == (config["clusters"][0]["name"], config["users"][0]["name"])
    assert (tmp_path / "kubeconfig").stat().st_mode & 0o077 == 0
