"""The archive: OCI's layout, the same bytes for the same files. `make image` runs headroom from the real one."""

import hashlib
import io
import json
import re
import subprocess
import tarfile
from pathlib import Path

import pytest

from deploy import image


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An image archive whose root file system has two files."""

    def assemble(root: Path, architecture: str, _scratch: Path) -> None:
        (root / "tmp").mkdir(parents=True)
        (root / "usr/bin").mkdir(parents=True)
        (root / "usr/bin/headroom").write_text(architecture)
        (root / "bin").symlink_to("usr/bin")

    monkeypatch.setattr(image, "assemble", assemble)
    image.build(tmp_path / "image.tar")
    return tmp_path / "image.tar"


def test_the_archive_names_one_image_and_holds_all_that_it_names(archive: Path) -> None:
    """OCI image layout: of several entries under one name tools take none, or the first."""
    with tarfile.open(archive) as tar:
        files = {member.name: content.read() for member in tar if (content := tar.extractfile(member))}
    (entry,) = json.loads(files["index.json"])["manifests"]
    assert entry["mediaType"] == "application/vnd.oci.image.index.v1+json"
    assert entry["annotations"]["org.opencontainers.image.ref.name"] == image.VERSION
    described = [entry]
    while described:
        descriptor = described.pop()
        blob = files[f"blobs/sha256/{descriptor['digest'].removeprefix('sha256:')}"]
        assert (len(blob), f"sha256:{hashlib.sha256(blob).hexdigest()}") == (descriptor["size"], descriptor["digest"])
        if "layer" not in descriptor["mediaType"]:
            document = json.loads(blob)
            described += [*document.get("manifests", ()), *document.get("layers", ())]
            described += [document["config"]] if "mediaType" in document.get("config", ()) else []


@pytest.mark.parametrize("architecture", image.ARCHITECTURES)
def test_every_architecture_has_its_files(archive: Path, architecture: str) -> None:
    (layer,) = image.layers(archive, architecture)
    with tarfile.open(fileobj=io.BytesIO(layer)) as tar:
        members = {member.name: member for member in tar}
        command = tar.extractfile("usr/bin/headroom")
        assert command is not None
        assert command.read().decode() == architecture
    assert members["bin"].linkname == "usr/bin"
    assert members["tmp"].mode == 0o1777
    assert {(member.uid, member.gid, member.mtime) for member in members.values()} == {(0, 0, 0)}


def test_the_same_files_are_the_same_bytes(archive: Path) -> None:
    first_build = archive.read_bytes()
    image.build(archive)
    assert archive.read_bytes() == first_build


def test_it_starts_the_command_as_a_user_that_is_not_root(archive: Path) -> None:
    with tarfile.open(archive) as tar:
        blobs = [tar.extractfile(member) for member in tar if member.name.startswith("blobs/")]
        contents = [blob.read() for blob in blobs if blob is not None]
    configurations = [json.loads(blob) for blob in contents if blob.startswith(b'{"architecture"')]
    assert {configuration["architecture"] for configuration in configurations} == set(image.ARCHITECTURES)
    for configuration in configurations:
        assert configuration["config"]["Entrypoint"] == ["/usr/bin/headroom"]
        assert configuration["config"]["User"] == "65532:65532"


def test_a_layer_that_was_changed_is_noticed(archive: Path) -> None:
    (layer,) = image.layers(archive, "amd64")
    archive.write_bytes(archive.read_bytes().replace(layer[-24:], bytes(24)))
    with pytest.raises(AssertionError):
        list(image.layers(archive, "amd64"))


def test_the_dockerfile_takes_nothing_but_by_hash() -> None:
    dockerfile = (image.ROOT / "Dockerfile").read_text("utf-8").replace("\\\n", " ")
    assert re.fullmatch(
        r"(\S+@sha256:[0-9a-f]{64}\n?){2}", "\n".join(re.findall(r"^ARG \w+_IMAGE=(.*)$", dockerfile, re.M))
    )
    installs = re.findall(r"pip install ([^&\n]*)", dockerfile)
    assert installs
    for install in installs:
        assert "--require-hashes" in install or install.split()[-1] == ".", install
    (expression,) = re.findall(r"sed -n '([^']*)' requirements.lock", dockerfile)
    command = ["sed", "-n", expression, str(image.ROOT / "requirements.lock")]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    assert re.fullmatch(r"setuptools==\S+ \\", lines[0])
    assert [line for line in lines[1:] if not re.fullmatch(r" +(--hash=sha256:[0-9a-f]{64}( \\)?|# via.*)", line)] == []
    assert any("--hash" in line for line in lines)
