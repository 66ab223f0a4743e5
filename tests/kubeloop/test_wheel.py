"""The framework's wheel in a project of another repository, which has a package `pkg` of its own."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from kubeloop.testing.cluster.cluster import Cluster
from kubeloop.testing.cluster.versions import GOMOD

ROOT = Path(__file__).parents[2]
LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.egg-info", "build", ".*")
CONTROLLER = '''\
"""Counts the ConfigMaps of a namespace in an annotation of that namespace."""

from __future__ import annotations

import asyncio
import sys

from kubeloop.api.core import ConfigMap, Namespace
from kubeloop.api.registry import CONFIG_MAPS, NAMESPACES
from kubeloop.client.client import Client
from kubeloop.client.loading import load_config
from kubeloop.controllers.cache_reader import CacheReader
from kubeloop.controllers.factory import ControllerFactory
from kubeloop.client.resource_client import ResourceClient

COUNT = "example.org/config-maps"


class Handler:
    def __init__(self, namespaces: ResourceClient[Namespace], config_maps: CacheReader[ConfigMap]) -> None:
        self._namespaces = namespaces
        self._config_maps = config_maps

    async def on_namespace_changed(self, key: str, namespace: Namespace | None) -> None:
        if namespace is None or namespace.deleting:
            return
        count = str(len(self._config_maps.list(namespace.name)))
        if namespace.annotations.get(COUNT) != count:
            await self._namespaces.patch(namespace, {"metadata": {"annotations": {COUNT: count}}})


async def main(kubeconfig: str) -> None:
    async with Client(load_config(kubeconfig)) as client:
        factory = ControllerFactory(client)
        namespaces, config_maps = factory.controller(NAMESPACES), factory.controller(CONFIG_MAPS)
        handler = Handler(namespaces.client, config_maps.cache())
        namespaces.on_change("counter", handler.on_namespace_changed)
        namespaces.watch_related(config_maps, lambda each: [each.namespace])
        await factory.start()
        async with asyncio.timeout(120):
            while (await namespaces.client.get(name="default")).annotations.get(COUNT) is None:
                await asyncio.sleep(0.05)
        await factory.stop()
    print("counted")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
'''


def _wheel(source: Path, scratch: Path) -> Path:
    """Builds the wheel from a copy of the sources: setuptools leaves its own folders beside them."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--wheel-dir", scratch, source], check=True)
    (wheel,) = scratch.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    scratch = tmp_path_factory.mktemp("wheel")
    return _wheel(shutil.copytree(ROOT / "kubeloop", scratch / "source", ignore=LEFT_OUT), scratch)


@pytest.fixture(scope="module")
def project(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `.venv`, in which the wheel is installed, and a package `pkg`."""
    folder = tmp_path_factory.mktemp("project")
    venv.create(folder / ".venv", with_pip=False)
    (site,) = folder.glob(".venv/lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as content:
        content.extractall(site)
    # The wheel's dependencies are this interpreter's; its editable installs are not seen through a path alone.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    (folder / "pkg").mkdir()
    (folder / "pkg" / "__init__.py").write_text('"""A project of its own."""\n')
    (folder / "pkg" / "controller.py").write_text(CONTROLLER)
    return folder


def test_the_wheel_has_every_module_and_data_file(wheel: Path) -> None:
    content = zipfile.ZipFile(wheel)
    names = set(content.namelist())
    (scripts,) = (name for name in names if name.endswith("entry_points.txt"))
    assert "kubeloop = kubeloop.generate.__main__:main" in content.read(scripts).decode()
    (metadata,) = (name for name in names if name.endswith("/METADATA"))
    assert "\nProject-URL: Documentation, https://" in content.read(metadata).decode()
    assert [name for name in names if name.endswith("/LICENSE")] != []
    sources = ROOT / "kubeloop"
    files = {*sources.rglob("*.py"), *GOMOD.rglob("go.*"), sources / "py.typed", sources / "porting.md"}
    source_names = {str(path.relative_to(ROOT)) for path in files}
    assert {name for name in source_names if "/build/" not in name} <= names
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"kubeloop"}


def test_a_project_that_uses_it_passes_mypy_strict(project: Path) -> None:
    interpreter = f"--python-executable={project}/.venv/bin/python"
    command = [sys.executable, "-m", "mypy", "--strict", interpreter, f"--cache-dir={project}/.mypy", "pkg"]
    process = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stdout + process.stderr


@pytest.mark.cluster
def test_its_controller_runs_against_an_api_server(project: Path, cluster: Cluster) -> None:
    command = [f"{project}/.venv/bin/python", "-m", "pkg.controller", str(cluster.kubeconfig)]
    process = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False, timeout=300)
    assert (process.returncode, process.stdout) == (0, "counted\n"), process.stderr


@pytest.fixture(scope="module")
def headroom(tmp_path_factory: pytest.TempPathFactory) -> frozenset[str]:
    """Returns the files of the product's wheel."""
    scratch = tmp_path_factory.mktemp("headroom")
    source = scratch / "rooms"
    source.mkdir()
    for name in ("setup.cfg", "pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, source)
    for room in ("kubeloop", "pkg", "lab"):
        shutil.copytree(ROOT / room, source / room, ignore=LEFT_OUT)
    return frozenset(zipfile.ZipFile(_wheel(source, scratch)).namelist())


def test_the_products_wheel_has_the_framework_and_no_lab(headroom: frozenset[str]) -> None:
    assert {"kubeloop/controllers/controller.py", "kubeloop/py.typed", "pkg/cmd/main.py"} <= headroom
    assert not [name for name in headroom if name.startswith("lab/")]
