"""The configuration of a pod."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kubeloop.client import loading
from kubeloop.client.errors import ConfigError
from kubeloop.client.tls import TLSSettings
from tests.kubeloop.client.rig import POD, load_account, service_account, token_of

pytestmark = pytest.mark.usefixtures("bare_machine")


async def test_a_pods_service_account(tmp_path: Path) -> None:
    account = service_account(tmp_path)
    config = load_account(account)
    assert (config.host, config.namespace) == ("https://10.53.0.1:443", "cattle")
    assert config.tls.read() == TLSSettings((account / "ca.crt").read_text())
    assert await token_of(config) == "Bearer pod-token"
    (account / "token").write_text("renewed")
    assert (await config.authenticate(refresh=True))[0]["Authorization"] == "Bearer renewed"


def test_an_ipv6_service_address_is_put_in_brackets(tmp_path: Path) -> None:
    account = service_account(tmp_path)
    config = load_account(account, {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"})
    assert (config.host, config.hostname) == ("https://[fd00::1]:443", "fd00::1")


@pytest.mark.parametrize("broken", ["token", "ca.crt"])
@pytest.mark.parametrize("content", [None, ""])
def test_a_pod_with_half_an_account(tmp_path: Path, broken: str, content: str | None) -> None:
    account = service_account(tmp_path)
    (account / broken).unlink()
    if content is not None:
        (account / broken).write_text(content)
    with pytest.raises(ConfigError, match=r"^in-cluster configuration: "):
        load_account(account)


def test_when_this_is_a_pod(tmp_path: Path) -> None:
    token = service_account(tmp_path) / "token"
    assert loading.in_cluster(POD, str(token))
    assert not loading.in_cluster({}, str(token))
    assert not loading.in_cluster(POD, str(tmp_path / "none"))


def test_a_pod_starts_without_the_package_that_reads_kubeconfig_files(tmp_path: Path) -> None:
    """It takes 0.3 s of CPU to import."""
    token = service_account(tmp_path) / "token"
    code = (
        "import sys; import kubeloop.client.client; from kubeloop.client import loading;"
        "from kubeloop.client.loading import load_config;"
        f"loading.in_cluster.__defaults__ = ({str(token)!r},);"
        f"loading.in_cluster_config.__defaults__ = ({str(token)!r}, {str(token.with_name('ca.crt'))!r});"
        f"config = load_config(environ={POD!r});"
        "sys.exit(not config.in_cluster or 'kubernetes' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
