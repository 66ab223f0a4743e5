"""Assembles the OCI archive without a container engine: Debian's Python, the locked wheels and headroom. `make image`.

Packages come from the machine's Debian mirror (apt-get download, signatures checked), wheels from the package index by
the hashes of requirements-run.lock. Everything is only unpacked: no package script runs, no shell gets in, so that an
image of another architecture is made alike. Needs Debian 12 (apt-get, dpkg-deb); `docker build .` needs none of this.
"""

import csv
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
VERSION = version("harvester-headroom")
NAME = f"docker.io/library/headroom:{VERSION}"
"""By which an imported archive is found: what the reference `headroom:VERSION` means to containerd."""
ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}
"""Debian's and OCI's name to the one of wheels."""
PYTHON = "3.11"
USER = 65532
PACKAGES = (
    "base-files", "libc6", "libgcc-s1", "libstdc++6", "zlib1g", "libssl3", "libffi8", "libexpat1", "libbz2-1.0",
    "liblzma5", "libuuid1", "libcrypt1", "libsqlite3-0",
    f"libpython{PYTHON}-minimal", f"libpython{PYTHON}-stdlib", f"python{PYTHON}-minimal",
)  # fmt: skip
"""Python and what its modules link to; Python's own dependencies on a shell and on dpkg are for its scripts alone."""
LEFT_OUT = ("./usr/share/doc/", "./usr/share/man/", "./usr/share/lintian/", "./var/", "./dev/", "./etc/default/")
SITE = f"usr/lib/python{PYTHON}/dist-packages"
_SCRIPT = f"#!/usr/bin/python{PYTHON}\nfrom pkg.cmd.main import main\n\nmain()\n"
_INSTANCE = {
    "apiVersion": "kubevirt.io/v1",
    "kind": "VirtualMachineInstance",
    "metadata": {"name": "vm", "namespace": "default"},
    "spec": {"domain": {"resources": {"limits": {"cpu": "2", "memory": "4Gi"}}}},
}
"""What a first `headroom delta` is asked about."""
_PASSWD = f"root:x:0:0:root:/:/nonexistent\nheadroom:x:{USER}:{USER}:headroom:/:/nonexistent\n"


def build(target: Path, architectures: tuple[str, ...] = tuple(ARCHITECTURES)) -> None:
    """Write the archive, one image with a manifest an architecture. Raises CalledProcessError."""
    blobs: dict[str, bytes] = {}
    manifests = []
    for architecture in architectures:
        with tempfile.TemporaryDirectory(prefix="headroom-image-") as scratch:
            root = Path(scratch, "root")
            assemble(root, architecture, Path(scratch))
            layer = _layer(root)
        manifests.append(_manifest(architecture, layer, blobs))
        print(f"{architecture}: {len(blobs[manifests[-1]['layer']]) / 1e6:.1f} MB compressed")
    _write(target, [manifest["descriptor"] for manifest in manifests], blobs)


def assemble(root: Path, architecture: str, scratch: Path) -> None:
    """The root file system."""
    for name in ("usr/bin", "usr/lib", "usr/sbin", "usr/lib64", "tmp", "etc", "proc", SITE):
        (root / name).mkdir(parents=True, exist_ok=True)
    for name in ("bin", "lib", "sbin", "lib64"):
        (root / name).symlink_to(f"usr/{name}")
    for package in _debian(architecture, scratch):
        _unpack(package, root)
        _note(package, root / "var/lib/dpkg/status.d")
    _wheels(root / SITE, architecture)
    (root / "usr/bin/headroom").write_text(_SCRIPT)
    (root / "usr/bin/headroom").chmod(0o755)
    (root / "etc/passwd").write_text(_PASSWD)
    (root / "etc/group").write_text(f"root:x:0:\nheadroom:x:{USER}:\n")


def _debian(architecture: str, scratch: Path) -> list[Path]:
    """The packages' files. apt's state is a folder of ours: the machine's architectures and lists stay as they are."""
    folder = scratch / "apt"
    for name in ("state/lists/partial", "cache/archives/partial", "packages"):
        (folder / name).mkdir(parents=True)
    (folder / "state/status").touch()
    options = {
        "APT::Architecture": architecture,
        "APT::Architectures": architecture,
        "Dir::State": folder / "state",
        "Dir::State::status": folder / "state/status",
        "Dir::Cache": folder / "cache",
        "APT::Sandbox::User": "root",
        "Acquire::Languages": "none",
    }
    apt = ["apt-get", "-qq", *(f"-o{name}={value}" for name, value in options.items())]
    subprocess.run([*apt, "update"], check=True)
    subprocess.run([*apt, "download", *PACKAGES], check=True, cwd=folder / "packages")
    return sorted((folder / "packages").glob("*.deb"))


def _unpack(package: Path, root: Path) -> None:
    """A package's files, with /bin and /lib below /usr as in any Debian of today."""
    archive = subprocess.run(["dpkg-deb", "--fsys-tarfile", package], check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as content:
        for member in content:
            if member.name.startswith(LEFT_OUT) or member.isdev():
                continue
            for name in ("bin", "lib", "lib64", "sbin"):
                if member.name == f"./{name}" or member.name.startswith(f"./{name}/"):
                    member.name = f"./usr{member.name[1:]}"
            if not (member.isdir() and (root / member.name).exists()):
                content.extract(member, root, filter="tar")


def _note(package: Path, folder: Path) -> None:
    """What scanners and `make release` read: the package's name and version, as in images without a dpkg database; its
    checksum, and the licences that its copyright file names (DEP-5)."""
    shown = subprocess.run(["dpkg-deb", "--field", package], check=True, capture_output=True, text=True).stdout
    name = package.name.partition("_")[0]
    files = subprocess.run(["dpkg-deb", "--fsys-tarfile", package], check=True, capture_output=True).stdout
    licenses: set[str] = set()
    with tarfile.open(fileobj=io.BytesIO(files)) as content:
        for member in content:
            if member.isfile() and member.name == f"./usr/share/doc/{name}/copyright":
                found = content.extractfile(member)
                assert found is not None
                licenses |= set(re.findall(r"^License: *(\S.*)$", found.read().decode(errors="replace"), re.M))
    more = f"SHA256: {hashlib.sha256(package.read_bytes()).hexdigest()}\nLicenses: {'; '.join(sorted(licenses))}\n"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(shown + more, "utf-8")


def _wheels(site: Path, architecture: str) -> None:
    """The locked wheels and headroom itself."""
    machine = ARCHITECTURES[architecture]
    quiet = ("--quiet", "--disable-pip-version-check", "--no-deps", "--no-compile")
    pip = [sys.executable, "-m", "pip", "install", *quiet]
    platforms = [f"--platform={tag}_{machine}" for tag in ("manylinux2014", "manylinux_2_17", "manylinux_2_28")]
    foreign = [*platforms, f"--python-version={PYTHON}", "--implementation=cp", "--only-binary=:all:"]
    locked = ["--require-hashes", "-r", str(ROOT / "requirements-run.lock")]
    subprocess.run([*pip, *foreign, f"--target={site}", *locked], check=True)
    shutil.rmtree(site / "bin", ignore_errors=True)  # shebangs of this machine
    # What setuptools left of an earlier build would be installed too, modules that have gone since included.
    shutil.rmtree(ROOT / "build" / "lib", ignore_errors=True)
    own = [*pip, "--no-build-isolation", f"--target={site}", str(ROOT)]
    subprocess.run(own, check=True)
    for folder in [site / "bin", *site.rglob("__pycache__")]:
        shutil.rmtree(folder, ignore_errors=True)
    for info in site.glob("*.dist-info"):
        forget_origin(info)
    if sys.version_info[:2] == tuple(map(int, PYTHON.split("."))):
        # The root file system is read-only: what is not compiled here is compiled at every start.
        compile_all = [sys.executable, "-m", "compileall", "-q", "-j0", "--invalidation-mode=unchecked-hash"]
        subprocess.run([*compile_all, "-s", str(site), "-p", f"/{SITE}", str(site)], check=True)


def forget_origin(info: Path) -> None:
    """Remove what pip notes of the machine: the folder that a package was built in, and the hashes of commands, which
    begin with a path of this machine and are not in the image."""
    (info / "direct_url.json").unlink(missing_ok=True)
    record = info / "RECORD"
    lines = record.read_text("utf-8").splitlines(keepends=True)
    kept = (line for line in lines if (info.parent / next(csv.reader([line]))[0]).exists())
    record.write_text("".join(kept), "utf-8")


def _layer(root: Path) -> bytes:
    """The root file system as a tar, the same bytes for the same files."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(root.rglob("*")):
            info = tar.gettarinfo(path, str(path.relative_to(root)))
            info.uid = info.gid = info.mtime = 0
            info.uname = info.gname = ""
            if path == root / "tmp":
                info.mode = 0o1777
            with path.open("rb") if info.isreg() else io.BytesIO() as content:
                tar.addfile(info, content if info.isreg() else None)
    return buffer.getvalue()


def _manifest(architecture: str, layer: bytes, blobs: dict[str, bytes]) -> dict[str, Any]:
    """Adds the layer, its configuration and its manifest to the blobs; `descriptor` is the image index's entry."""
    compressed = _descriptor("layer.v1.tar+gzip", gzip.compress(layer, 6, mtime=0), blobs)
    labels = {
        "org.opencontainers.image.title": "headroom",
        "org.opencontainers.image.version": VERSION,
        "org.opencontainers.image.licenses": "Apache-2.0",
        "org.opencontainers.image.description": "Keeps ResourceQuota from blocking live migration of VMs",
    }
    config = {
        "architecture": architecture,
        "os": "linux",
        "config": {
            "User": f"{USER}:{USER}",
            "Env": ["PATH=/usr/bin", "PYTHONUNBUFFERED=1", "PYTHONDONTWRITEBYTECODE=1", "HOME=/tmp"],
            "Entrypoint": ["/usr/bin/headroom"],
            "WorkingDir": "/",
            "Labels": labels,
        },
        "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": _descriptor("config.v1+json", _json(config), blobs),
        "layers": [compressed],
        "annotations": labels,
    }
    descriptor = _descriptor("manifest.v1+json", _json(manifest), blobs)
    descriptor["platform"] = {"architecture": architecture, "os": "linux"}
    return {"descriptor": descriptor, "layer": compressed["digest"]}


def _write(target: Path, manifests: list[dict[str, Any]], blobs: dict[str, bytes]) -> None:
    """Writes an archive whose index.json names one image, the index of its architectures: tools take several entries
    under one name for several images, and refuse (OCI image layout, "index.json file")."""
    named = _descriptor("index.v1+json", _json(_index(manifests)), blobs)
    named["annotations"] = {"org.opencontainers.image.ref.name": VERSION, "io.containerd.image.name": NAME}
    files = {"oci-layout": _json({"imageLayoutVersion": "1.0.0"}), "index.json": _json(_index([named]))}
    files |= {f"blobs/sha256/{digest.removeprefix('sha256:')}": content for digest, content in blobs.items()}
    target.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(target, "w") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(content), 0o644
            tar.addfile(info, io.BytesIO(content))


def layers(archive: Path, architecture: str) -> Iterator[bytes]:
    """The layers (gzipped tars) of an architecture's image, checked against their digests."""
    with tarfile.open(archive) as tar:

        def blob(digest: str) -> bytes:
            found = tar.extractfile(f"blobs/sha256/{digest.removeprefix('sha256:')}")
            assert found is not None
            content = found.read()
            assert _digest(content) == digest
            return content

        index = tar.extractfile("index.json")
        assert index is not None
        (image,) = json.load(index)["manifests"]
        for entry in json.loads(blob(image["digest"]))["manifests"]:
            if entry["platform"]["architecture"] == architecture:
                for layer in json.loads(blob(entry["digest"]))["layers"]:
                    yield blob(layer["digest"])


def run(root: Path, *arguments: str, given: str = "") -> str:
    """What headroom prints when it runs from the root file system in `root`: read-only, as the image's user.

    Needs root and CAP_SYS_ADMIN. Raises CalledProcessError.
    """
    read_only = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec unshare --root="$0" "$@"'
    command = [f"--setgid={USER}", f"--setuid={USER}", "/usr/bin/headroom", *arguments]
    done = subprocess.run(
        ["unshare", "--mount", "--net", "sh", "-c", read_only, root, *command],
        check=True,
        input=given,
        stdout=subprocess.PIPE,
        text=True,
        env={"PATH": "/usr/bin:/usr/sbin:/bin:/sbin", "PYTHONDONTWRITEBYTECODE": "1", "HOME": "/tmp"},
    )
    return done.stdout


def try_out(archive: Path, architecture: str) -> None:
    """`headroom version` and `headroom delta` from the archive. Raises CalledProcessError."""
    with tempfile.TemporaryDirectory(prefix="headroom-image-") as root:
        for layer in layers(archive, architecture):
            with tarfile.open(fileobj=io.BytesIO(layer)) as content:
                content.extractall(root, filter="tar")
        Path(root).chmod(0o755)
        print(run(Path(root), "version"), end="")
        print(run(Path(root), "delta", "-f", "-", given=json.dumps(_INSTANCE)), end="")


def _index(manifests: list[dict[str, Any]]) -> dict[str, Any]:
    return {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": manifests}


def _descriptor(kind: str, content: bytes, blobs: dict[str, bytes]) -> dict[str, Any]:
    digest = _digest(content)
    blobs[digest] = content
    return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": digest, "size": len(content)}


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _json(content: object) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()


if __name__ == "__main__":
    archive = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / f"headroom-{VERSION}.oci.tar"
    build(archive)
    print(archive)
    native = {machine: name for name, machine in ARCHITECTURES.items()}.get(os.uname().machine)
    if native and os.geteuid() == 0:
        try_out(archive, native)
    else:
        print("not run: that needs root on amd64 or arm64")
