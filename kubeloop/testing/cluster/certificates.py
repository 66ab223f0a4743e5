"""The cluster's own certificate authority: one CA signs every server and client certificate."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import trustme
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec


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
        self._authority = trustme.CA()
        self.certificate = folder / "ca.crt"
        _write(self.certificate, self._authority.cert_pem.bytes())

    def issue(self, file_name: str, user: str, group: str | None = None, hosts: Sequence[str] = ()) -> KeyPair:
        """A certificate that serves `hosts` (names, IP addresses) and that Kubernetes reads as `user` (common name)
        in `group` (organization)."""
        # A critical list of alternative names that is empty is not taken by Go.
        made = self._authority.issue_cert(*hosts or [file_name], common_name=user, organization_name=group)
        pair = KeyPair(self._folder / f"{file_name}.crt", self._folder / f"{file_name}.key")
        _write(pair.certificate, made.cert_chain_pems[0].bytes())
        _write(pair.key, made.private_key_pem.bytes())
        return pair


def write_signing_key(folder: Path) -> KeyPair:
    """The key pair that signs service-account tokens; `certificate` is the bare public key."""
    key = ec.generate_private_key(ec.SECP256R1())
    encoding = serialization.Encoding.PEM
    pair = KeyPair(folder / "service-accounts.pub", folder / "service-accounts.key")
    public = key.public_key().public_bytes(encoding, serialization.PublicFormat.SubjectPublicKeyInfo)
    _write(pair.certificate, public)
    secret = serialization.PrivateFormat.TraditionalOpenSSL
    _write(pair.key, key.private_bytes(encoding, secret, serialization.NoEncryption()))
    return pair


def _write(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "wb") as file:
        file.write(content)
