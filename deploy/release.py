"""`make release`: wheel, chart, image, kubectl plugin, SBOM and checksums in dist/.

The same commit gives the same bytes: every time in a file is the commit's (SOURCE_DATE_EPOCH), names are sorted. The
image also depends on the Debian packages that the mirror serves on that day; the SBOM names them. Nothing is signed
here: CONTRIBUTING.md has the commands.
"""

import contextlib
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
import time
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from typing import Any

from deploy import image
from deploy.image import ROOT, VERSION
from deploy.render import CHART, helm

PLUGIN = ROOT / "deploy" / "krew"
_LONGEST = 100
"""Characters of a licence's name; some wheels have its text in that place."""
_DATE = ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]


def epoch() -> int:
    """Seconds since 1970: $SOURCE_DATE_EPOCH, else when the commit was made."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    return int(given or subprocess.run(_DATE, check=True, capture_output=True, text=True).stdout)


def wheel(target: Path, when: int) -> Path:
    """Built from a copy of the sources: what an earlier build has left is not in it. Raises CalledProcessError."""
    with tempfile.TemporaryDirectory(prefix="headroom-wheel-") as scratch:
        for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(ROOT / name, scratch)
        for room in ("kubeloop", "pkg"):
            left_out = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")
            shutil.copytree(ROOT / room, Path(scratch, room), ignore=left_out)
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
        command += ["--no-build-isolation", f"--wheel-dir={target}", scratch]
        subprocess.run(command, check=True, env={**os.environ, "SOURCE_DATE_EPOCH": str(when)}, umask=0o022)
    (made,) = target.glob("harvester_headroom-*.whl")
    return made


def chart(target: Path, when: int) -> Path:
    """What helm packs, with other times. Raises CalledProcessError."""
    with tempfile.TemporaryDirectory(prefix="headroom-chart-") as scratch:
        helm("package", str(CHART), "--destination", scratch)
        (packed,) = Path(scratch).iterdir()
        with tarfile.open(packed) as tar:
            files = {member.name: _content(tar, member) for member in tar if member.isfile()}
        return archive(target / packed.name, files, when)


def plugin(target: Path, when: int) -> Path:
    """The archive that krew unpacks, and its manifest with the archive's checksum."""
    files = {"kubectl-headroom": (PLUGIN / "kubectl-headroom").read_bytes(), "LICENSE": (ROOT / "LICENSE").read_bytes()}
    made = archive(target / f"kubectl-headroom-{VERSION}.tar.gz", files, when)
    manifest = (PLUGIN / "headroom.yaml").read_text("utf-8").replace("CHECKSUM", _digest(made))
    (target / "krew-headroom.yaml").write_text(manifest, "utf-8")
    return made


def archive(target: Path, files: Mapping[str, bytes], when: int) -> Path:
    """A .tar.gz, the same bytes for the same files; scripts may be executed."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, content in sorted(files.items()):
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(content), when
            info.mode = 0o755 if content.startswith(b"#!") else 0o644
            tar.addfile(info, io.BytesIO(content))
    target.write_bytes(gzip.compress(buffer.getvalue(), mtime=0))
    return target


def sbom(target: Path, tool: Path, archive: Path, when: int) -> Path:
    """CycloneDX, of the wheels (cyclonedx-py, from the lock file, with the licences of those installed here) and of the
    image's Debian packages. `when`: seconds since 1970."""
    locked = str(ROOT / "requirements-run.lock")
    command = [str(tool), "requirements", "--output-reproducible", "--of", "JSON", locked]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    document: dict[str, Any] = json.loads(done.stdout)
    document["metadata"]["timestamp"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(when))
    document["metadata"]["component"] = {
        "type": "application",
        "name": "headroom",
        "version": VERSION,
        "licenses": [{"license": {"id": "Apache-2.0"}}],
    }
    document["components"] = [component | _of_wheel(component) for component in document["components"]]
    document["components"] += [_of_package(fields) for _, fields in sorted(debian_packages(archive).items())]
    made = target / f"headroom-{VERSION}.cdx.json"
    made.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n", "utf-8")
    return made


def _of_wheel(component: Mapping[str, Any]) -> dict[str, Any]:
    """What the wheel says of itself, and its hashes, which the lock file has."""
    found: dict[str, Any] = {}
    with contextlib.suppress(PackageNotFoundError):
        about = metadata(component["name"])
        terms = about["License-Expression"] or about["License"] or ""
        classified = [each.split(" :: ")[-1] for each in about.get_all("Classifier", ()) if "License ::" in each]
        names = [terms] if terms and len(terms) < _LONGEST else classified
        found["licenses"] = [{"license": {"name": name}} for name in names]
        if supplier := about["Author"] or about["Author-email"] or about["Maintainer-email"]:
            found["supplier"] = {"name": supplier}
    hashes = [each for reference in component.get("externalReferences", ()) for each in reference.get("hashes", ())]
    return found | ({"hashes": hashes[:1]} if hashes else {})


def _of_package(fields: Mapping[str, str]) -> dict[str, Any]:
    name, version = fields["Package"], fields["Version"]
    purl = f"pkg:deb/debian/{name}@{version}"
    return {
        "type": "library",
        "name": name,
        "version": version,
        "bom-ref": purl,
        "purl": f"{purl}?distro=debian-12",
        "supplier": {"name": "Debian"},
        "hashes": [{"alg": "SHA-256", "content": fields["SHA256"]}] if "SHA256" in fields else [],
        "licenses": [{"license": {"name": each}} for each in fields.get("Licenses", "").split("; ") if each],
    }


def debian_packages(archive: Path) -> dict[str, dict[str, str]]:
    """Fields by the package's name, from what dpkg's status in the image says."""
    found: dict[str, dict[str, str]] = {}
    for layer in image.layers(archive, "amd64"):
        with tarfile.open(fileobj=io.BytesIO(layer)) as tar:
            for member in tar:
                if member.isfile() and member.name.startswith("var/lib/dpkg/status.d/"):
                    text = _content(tar, member).decode()
                    fields = dict(re.findall(r"^(Package|Version|SHA256|Licenses): *(.+)$", text, re.M))
                    found[fields["Package"]] = fields
    return found


def checksums(target: Path) -> None:
    """As sha256sum writes them, of every file."""
    names = sorted(path.name for path in target.iterdir() if path.name != "SHA256SUMS")
    text = "".join(f"{_digest(target / name)}  {name}\n" for name in names)
    (target / "SHA256SUMS").write_text(text, "utf-8")


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    content = tar.extractfile(member)
    assert content is not None
    return content.read()


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def build(target: Path, tool: Path) -> None:
    """Everything, in an empty folder. Raises CalledProcessError."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    when = epoch()
    for make in (wheel, chart, plugin):
        print(make(target, when).name)
    packed = target / f"headroom-{VERSION}.oci.tar"
    image.build(packed)
    print(sbom(target, tool, packed, when).name)
    checksums(target)
    print((target / "SHA256SUMS").read_text("utf-8"), end="")


if __name__ == "__main__":
    build(ROOT / "dist", Path(sys.argv[1]))
