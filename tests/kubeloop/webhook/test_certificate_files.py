"""Certificates that cert-manager brings."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from kubeloop.client.errors import ConfigError
from kubeloop.webhook.certificates import Material, issue
from kubeloop.webhook.serving_certificate import CertificateFiles, server_context

pytestmark = pytest.mark.virtual_time


def write(folder: Path, material: Material, authority: str = "ca.crt") -> None:
    (folder / "tls.crt").write_bytes(material.serving.certificate)
    (folder / "tls.key").write_bytes(material.serving.key)
    (folder / authority).write_bytes(material.bundle)


def made() -> Material:
    return issue(["127.0.0.1"], time.time())


def files(folder: Path, authority: Path | None = None) -> CertificateFiles:
    return CertificateFiles(server_context(), folder / "tls.crt", folder / "tls.key", authority)


@pytest.mark.parametrize(
    ("there", "chosen", "registered"),
    [("ca.crt", None, True), ("root.pem", "root.pem", True), ("root.pem", None, False)],
    ids=["beside the certificate", "one's own choice", "none: an injector's affair"],
)
async def test_the_ca_that_is_registered(tmp_path: Path, there: str, chosen: str | None, registered: bool) -> None:
    material = made()
    write(tmp_path, material, there)
    found = files(tmp_path, tmp_path / chosen if chosen else None)
    assert not found.expires
    await found.refresh()
    assert found.expires
    assert found.bundle == (material.bundle if registered else None)


async def test_a_change_is_loaded(tmp_path: Path) -> None:
    write(tmp_path, made())
    found = files(tmp_path)
    await found.refresh()
    renewed = made()
    write(tmp_path, renewed)
    await found.refresh()
    assert found.bundle == renewed.bundle
    assert found.loaded == renewed.serving


@pytest.mark.parametrize("half", [b"", b"-----BEGIN CERTIFICATE-----\nMIIB"])
async def test_a_file_that_is_half_written_changes_nothing(tmp_path: Path, half: bytes) -> None:
    material = made()
    write(tmp_path, material)
    found = files(tmp_path)
    await found.refresh()
    (tmp_path / "tls.crt").write_bytes(half)
    await found.refresh()
    assert found.loaded == material.serving
    (tmp_path / "tls.crt").unlink()
    await found.refresh()
    assert found.expires


@pytest.mark.parametrize("missing", ["tls.crt", "tls.key"])
async def test_what_was_never_there_is_one_clear_line(tmp_path: Path, missing: str) -> None:
    write(tmp_path, made())
    (tmp_path / missing).unlink()
    with pytest.raises(ConfigError, match=missing):
        await files(tmp_path).refresh()


async def test_a_key_of_another_certificate_is_one_clear_line(tmp_path: Path) -> None:
    write(tmp_path, made())
    (tmp_path / "tls.key").write_bytes(made().serving.key)
    with pytest.raises(ConfigError, match="cannot be used"):
        await files(tmp_path).refresh()
