"""The archive, in the tools by which docs/install.md has it pushed and imported: Debian's skopeo and containerd."""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy import image
from kubeloop.testing.polling import eventually

PACKAGES = ("skopeo", "libgpgme11", "libassuan0", "libgpg-error0", "containerd")
POLICY = {"default": [{"type": "insecureAcceptAnything"}]}


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages' files, unpacked."""
    folder = tmp_path_factory.mktemp("tools")
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        pytest.skip("needs Debian: skopeo and containerd come from its packages")
    process = subprocess.run(["apt-get", "download", *PACKAGES], cwd=folder, capture_output=True, text=True)
    if process.returncode:
        pytest.skip(f"Debian's packages are not to be had: {process.stderr.strip()[-200:]}")
    for package in folder.glob("*.deb"):
        subprocess.run(["dpkg-deb", "-x", package, folder / "root"], check=True)
    return folder / "root"


def run(tools: Path, *command: object) -> str:
    """Returns what the tool prints. Raises AssertionError with what it says where it fails."""
    env = {**os.environ, "LD_LIBRARY_PATH": str(tools / "usr/lib/x86_64-linux-gnu")}
    program, *arguments = map(str, command)
    process = subprocess.run([tools / "usr/bin" / program, *arguments], env=env, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    return process.stdout


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An image archive whose root file systems have one file."""

    def assemble(root: Path, architecture: str, _scratch: Path) -> None:
        (root / "usr/bin").mkdir(parents=True)
        (root / "usr/bin/headroom").write_text(architecture)

    target = tmp_path_factory.mktemp("image") / "image.tar"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(image, "assemble", assemble)
        image.build(target)
    return target


def test_skopeo_copies_every_architecture(tools: Path, archive: Path, tmp_path: Path) -> None:
    policy, copy = tmp_path / "policy.json", f"oci:{tmp_path / 'copy'}:{image.VERSION}"
    policy.write_text(json.dumps(POLICY))
    run(tools, "skopeo", "--policy", policy, "copy", "-a", f"oci-archive:{archive}", copy)
    listed = json.loads(run(tools, "skopeo", "inspect", "--raw", copy))["manifests"]
    assert {entry["platform"]["architecture"] for entry in listed} == set(image.ARCHITECTURES)
    for architecture in image.ARCHITECTURES:
        inspected = json.loads(run(tools, "skopeo", "--override-arch", architecture, "inspect", copy))
        assert inspected["Architecture"] == architecture


@pytest.fixture
def containerd(tools: Path, tmp_path: Path) -> Iterator[Path]:
    """The socket of a containerd that runs."""
    if os.geteuid():
        pytest.skip("containerd needs root")
    socket, config = tmp_path / "containerd.sock", tmp_path / "config.toml"
    config.write_text(
        f'version = 2\nroot = "{tmp_path}/root"\nstate = "{tmp_path}/state"\n'
        'disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.internal.v1.opt"]\n'
        f'[grpc]\naddress = "{socket}"\n[ttrpc]\naddress = "{socket}.ttrpc"\n'
    )
    with (tmp_path / "containerd.log").open("w") as log:
        process = subprocess.Popen([tools / "usr/bin/containerd", "--config", config], stdout=log, stderr=log)
    try:
        eventually(lambda: process.poll() is not None or socket.exists())
        assert process.poll() is None, (tmp_path / "containerd.log").read_text()
        yield socket
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(10)


def test_containerd_imports_it_under_its_name(tools: Path, containerd: Path, archive: Path) -> None:
    ctr = ["ctr", "--address", containerd, "--namespace", "k8s.io", "images"]
    run(tools, *ctr, "import", archive)
    assert run(tools, *ctr, "ls", "-q").split() == [image.NAME]
    run(tools, *ctr, "check")
