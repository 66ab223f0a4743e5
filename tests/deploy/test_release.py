"""`make release`: the files in dist/ are the same bytes each time, their checksums and the SBOM are true."""

import hashlib
import io
import json
import os
import re
import stat
import subprocess
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from deploy import image, release
from deploy.image import ROOT, VERSION
from deploy.render import CHART

WHEN = 1_700_000_000


def built_twice(make: Callable[[Path, int], Path], folder: Path) -> Path:
    """Returns the first of two artifacts that are the same bytes."""
    builds = []
    for name in ("first", "second"):
        (folder / name).mkdir()
        builds.append(make(folder / name, WHEN))
    first, second = builds
    assert (first.name, first.read_bytes()) == (second.name, second.read_bytes())
    return first


@pytest.mark.parametrize("make", [pytest.param(release.chart, marks=pytest.mark.cluster), release.plugin])
def test_built_twice_it_is_the_same_bytes(make: Callable[[Path, int], Path], tmp_path: Path) -> None:
    built_twice(make, tmp_path)


def test_the_wheel_is_the_same_bytes_on_every_machine(tmp_path: Path) -> None:
    with zipfile.ZipFile(built_twice(release.wheel, tmp_path)) as wheel:
        assert {"kubeloop/controllers/controller.py", "kubeloop/py.typed", "pkg/cmd/main.py"} <= set(wheel.namelist())
        (scripts,) = [name for name in wheel.namelist() if name.endswith("entry_points.txt")]
        text = wheel.read(scripts).decode()
        assert "headroom = pkg.cmd.main:main" in text
        assert "kubectl-headroom = pkg.cmd.main:main" in text
        assert {name.partition("/")[0].partition("-")[0] for name in wheel.namelist()} == {
            "kubeloop",
            "pkg",
            "harvester_headroom",
        }
        assert not [name for name in wheel.namelist() if str(ROOT).encode() in wheel.read(name)]


def test_the_plugin_runs_the_command_in_headrooms_pod(tmp_path: Path) -> None:
    archive = release.plugin(tmp_path, WHEN)
    manifest = yaml.safe_load((tmp_path / "krew-headroom.yaml").read_text("utf-8"))
    (platform,) = manifest["spec"]["platforms"]
    assert platform["sha256"] == hashlib.sha256(archive.read_bytes()).hexdigest()
    assert platform["uri"].endswith(f"/{archive.name}")
    assert manifest["spec"]["version"] == f"v{VERSION}"
    with tarfile.open(archive) as tar:
        assert tar.getmember(platform["bin"]).mode & stat.S_IXUSR
        tar.extractall(tmp_path, filter="data")
    kubectl = tmp_path / "bin" / "kubectl"
    kubectl.parent.mkdir()
    kubectl.write_text('#!/bin/sh\necho "$@"\n')
    kubectl.chmod(0o755)
    completed = subprocess.run(
        [tmp_path / platform["bin"], "explain", "shop/web 1"],
        env={"PATH": f"{kubectl.parent}:{os.environ['PATH']}"},
        check=True,
        capture_output=True,
        text=True,
    )
    in_pod = "--namespace headroom-system exec --stdin deploy/headroom-controller -- headroom explain shop/web 1"
    assert completed.stdout == f"{in_pod}\n"


TOOL = """#!/bin/sh
test "$1" = requirements
echo '{"metadata": {}, "components": [{"name": "aiohttp", "purl": "pkg:pypi/aiohttp@3",
"externalReferences": [{"hashes": [{"alg": "SHA-256", "content": "cd"}]}]}]}'
"""


def test_the_sbom_names_the_wheels_and_the_images_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """cyclonedx-py is a script here; `make release` runs the real one."""

    def assemble(root: Path, _architecture: str, _scratch: Path) -> None:
        (root / "tmp").mkdir(parents=True)
        noted = root / "var/lib/dpkg/status.d"
        noted.mkdir(parents=True)
        (noted / "libc6").write_text(
            "Package: libc6\nVersion: 2.36-9\nDescription: C\nSHA256: ab\nLicenses: GPL-2; LGPL-2.1\n"
        )

    monkeypatch.setattr(image, "assemble", assemble)
    image.build(tmp_path / "image.tar")
    tool = tmp_path / "tool"
    tool.write_text(TOOL)
    tool.chmod(0o755)
    document = json.loads(release.sbom(tmp_path, tool, tmp_path / "image.tar", WHEN).read_text("utf-8"))
    assert [component["purl"] for component in document["components"]] == [
        "pkg:pypi/aiohttp@3",
        "pkg:deb/debian/libc6@2.36-9?distro=debian-12",
    ]
    assert document["metadata"]["component"]["version"] == VERSION
    assert document["metadata"]["timestamp"] == "2023-11-14T22:13:20Z"
    wheel, package = document["components"]
    assert wheel["hashes"] == [{"alg": "SHA-256", "content": "cd"}]
    assert [item["license"]["name"] for item in wheel["licenses"]] == ["Apache-2.0 AND MIT"]
    assert package["supplier"] == {"name": "Debian"}
    assert package["hashes"] == [{"alg": "SHA-256", "content": "ab"}]
    assert [item["license"]["name"] for item in package["licenses"]] == ["GPL-2", "LGPL-2.1"]


def test_nothing_of_the_build_machine_is_in_the_image(tmp_path: Path) -> None:
    info = tmp_path / "headroom.dist-info"
    info.mkdir()
    (tmp_path / "a,b.py").write_text("")
    (info / "direct_url.json").write_text('{"url": "file:///home/me/headroom"}')
    installed = [
        '"a,b.py",sha256=x,1',
        "headroom.dist-info/direct_url.json,sha256=y,2",
        "../../bin/headroom,sha256=z,3",
    ]
    (info / "RECORD").write_text("\n".join([*installed, "headroom.dist-info/RECORD,,", ""]))
    image.forget_origin(info)
    assert [path.name for path in info.iterdir()] == ["RECORD"]
    assert (info / "RECORD").read_text() == '"a,b.py",sha256=x,1\nheadroom.dist-info/RECORD,,\n'


def test_every_file_names_the_same_version() -> None:
    """The version of setup.cfg."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text("utf-8"))
    changes = (ROOT / "CHANGELOG.md").read_text("utf-8")
    dated = re.search(r"^## (\S+) \((?:unreleased|\d{4}-\d\d-\d\d)\)$", changes, re.MULTILINE)
    assert dated
    assert dated[1] == chart["version"] == chart["appVersion"] == VERSION
    for file in ("Dockerfile", "deploy/krew/headroom.yaml", "deploy/harvester-addon.yaml", "docs/install.md"):
        versions = set(re.findall(r"\b\d+\.\d+\.\d+\b", (ROOT / file).read_text("utf-8")))
        assert VERSION in versions, file


def test_checksums_are_those_of_the_files(tmp_path: Path) -> None:
    release.archive(tmp_path / "a.tar.gz", {"b": b"1", "a": b"#!/bin/sh\n"}, WHEN)
    (tmp_path / "c").write_bytes(b"c")
    release.checksums(tmp_path)
    completed = subprocess.run(["sha256sum", "--check", "SHA256SUMS"], cwd=tmp_path, capture_output=True, text=True)
    assert completed.stdout.splitlines() == ["a.tar.gz: OK", "c: OK"]
    with tarfile.open(fileobj=io.BytesIO((tmp_path / "a.tar.gz").read_bytes())) as tar:
        assert [(member.name, member.mtime, member.mode) for member in tar] == [("a", WHEN, 0o755), ("b", WHEN, 0o644)]
