"""A service account in a folder, and shorthands for the configuration's tests."""

from __future__ import annotations

from pathlib import Path

from pkg.client import incluster
from pkg.client.config import ClientConfig, load_config
from tests.pkg.client.pki import Authority


def load(path: str, context: str | None = None, **environ: str) -> ClientConfig:
    return load_config(path, context, environ=environ)


async def token_of(config: ClientConfig) -> str | None:
    return (await config.authenticate())[0].get("Authorization")


def service_account(folder: Path) -> Path:
    account = folder / "account"
    account.mkdir()
    (account / "token").write_text("pod-token\n")
    (account / "ca.crt").write_text(Authority().pem)
    (account / "namespace").write_text("cattle\n")
    return account


POD = {"KUBERNETES_SERVICE_HOST": "10.53.0.1", "KUBERNETES_SERVICE_PORT": "443"}


def load_account(account: Path, environ: dict[str, str] | None = None) -> ClientConfig:
    return incluster.load(
        POD if environ is None else environ, str(account / "token"), str(account / "ca.crt")
    )
