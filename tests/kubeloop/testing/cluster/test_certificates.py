from __future__ import annotations

import base64
import json
import socket
import ssl
import threading
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key
from cryptography.x509.oid import NameOID

from kubeloop.testing.cluster.certificates import Authority, KeyPair, write_signing_key
from kubeloop.testing.cluster.control_plane import write_kubeconfig


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "pki")


def _handshake(authority: Authority, server: KeyPair, client: KeyPair, host: str) -> x509.Certificate:
    """A mutual TLS handshake; the client's certificate as the server saw it."""
    serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.certificate))
    serving.verify_mode = ssl.CERT_REQUIRED
    serving.load_cert_chain(server.certificate, server.key)
    asking = ssl.create_default_context(cafile=str(authority.certificate))
    asking.load_cert_chain(client.certificate, client.key)
    seen: list[bytes] = []
    left, right = socket.socketpair()

    def serve() -> None:
        try:
            with serving.wrap_socket(left, server_side=True) as connection:
                seen.append(connection.getpeercert(binary_form=True) or b"")
                connection.sendall(b".")
        except OSError:
            left.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with asking.wrap_socket(right, server_hostname=host) as connection:
            connection.recv(1)
    finally:
        thread.join()
    return x509.load_der_x509_certificate(seen[0])


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_server_and_client_trust_each_other_at(host: str, authority: Authority) -> None:
    server = authority.server("server", "server", ["127.0.0.1", "localhost"])
    client = authority.client("admin", "kubernetes-admin", ["system:masters"])
    subject = _handshake(authority, server, client, host).subject
    assert subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value == "kubernetes-admin"
    assert [a.value for a in subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)] == ["system:masters"]


def test_a_server_is_not_trusted_under_another_name(authority: Authority) -> None:
    server = authority.server("server", "server", ["127.0.0.1"])
    with pytest.raises(ssl.SSLCertVerificationError):
        _handshake(authority, server, authority.client("c", "c"), "localhost")


def test_a_client_certificate_does_not_serve(authority: Authority) -> None:
    client = authority.client("client", "localhost")
    with pytest.raises(ssl.SSLError):
        _handshake(authority, client, client, "localhost")


def test_certificates_of_another_cluster_are_not_trusted(authority: Authority, tmp_path: Path) -> None:
    server = Authority(tmp_path / "other").server("server", "server", ["localhost"])
    with pytest.raises(ssl.SSLCertVerificationError):
        _handshake(authority, server, authority.client("c", "c"), "localhost")


def test_private_keys_are_readable_by_their_owner_only(authority: Authority, tmp_path: Path) -> None:
    pairs = [authority.client("c", "c"), write_signing_key(tmp_path)]
    assert all(pair.key.stat().st_mode & 0o077 == 0 for pair in pairs)


def test_the_authoritys_own_key_is_never_written(authority: Authority) -> None:
    assert [path.name for path in authority.certificate.parent.iterdir()] == ["ca.crt"]


def test_the_signing_key_and_its_public_half_belong_together(tmp_path: Path) -> None:
    pair = write_signing_key(tmp_path)
    private = load_pem_private_key(pair.key.read_bytes(), None)
    public = load_pem_public_key(pair.certificate.read_bytes())
    assert private.public_key() == public


def test_a_kubeconfig_holds_all_it_needs_and_is_private(authority: Authority, tmp_path: Path) -> None:
    admin = authority.client("admin", "kubernetes-admin")
    write_kubeconfig(tmp_path / "kubeconfig", "https://127.0.0.1:6443", authority.certificate, admin)
    config = json.loads((tmp_path / "kubeconfig").read_text())
    assert config["clusters"][0]["cluster"]["server"] == "https://127.0.0.1:6443"
    assert base64.b64decode(config["users"][0]["user"]["client-key-data"]) == admin.key.read_bytes()
    context = next(c for c in config["contexts"] if c["name"] == config["current-context"])["context"]
    assert (context["cluster"], context["user"]) == (
        config["clusters"][0]["name"],
        config["users"][0]["name"],
    )
    assert (tmp_path / "kubeconfig").stat().st_mode & 0o077 == 0
