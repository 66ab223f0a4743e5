"""The framework's wheel in a project of another repository, which has a package `pkg` of its own; and the programs of
docs/dev/porting.md, run from there."""

import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kubeloop.api.registry import CONFIG_MAPS, LEASES
from kubeloop.client.client import Client
from kubeloop.client.loading import load_config
from kubeloop.testing.cluster.cluster import Cluster
from kubeloop.testing.cluster.versions import GOMOD
from kubeloop.testing.polling import until

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


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Builds the wheel from a copy of the sources: setuptools leaves its own folders beside them."""
    scratch = tmp_path_factory.mktemp("wheel")
    source = shutil.copytree(ROOT / "kubeloop", scratch / "source", ignore=LEFT_OUT)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--wheel-dir", scratch, source], check=True)
    (wheel,) = scratch.glob("*.whl")
    return wheel


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
    for name, text in programs(folder).items():
        (folder / f"{name}.py").write_text(text)
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


def test_a_project_and_the_pages_programs_pass_mypy_strict(project: Path) -> None:
    interpreter = f"--python-executable={project}/.venv/bin/python"
    files = [f"{name}.py" for name in programs(project)]
    command = [sys.executable, "-m", "mypy", "--strict", interpreter, f"--cache-dir={project}/.mypy", "pkg", *files]
    process = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stdout + process.stderr


@pytest.mark.cluster
def test_its_controller_runs_against_an_api_server(project: Path, cluster: Cluster) -> None:
    command = [f"{project}/.venv/bin/python", "-m", "pkg.controller", str(cluster.kubeconfig)]
    process = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False, timeout=300)
    assert (process.returncode, process.stdout) == (0, "counted\n"), process.stderr


# ---- docs/dev/porting.md, as a stranger meets it


def blocks(project: Path, heading: str) -> list[str]:
    """The Python of a section of the page in the wheel."""
    (page,) = project.glob(".venv/lib/python*/site-packages/kubeloop/porting.md")
    section = page.read_text().partition(f"{heading}\n")[2]
    return re.findall(r"```python\n(.*?)```", re.split(r"\n##+ ", section)[0], re.DOTALL)


RUN = '\n\nif __name__ == "__main__":\n    run_until_signal(main)\n'


def whole(project: Path, *, elected: bool) -> str:
    program, election = blocks(project, "## A whole program")
    if not elected:
        return program
    imports, _, main = election.partition("\n\n\n")
    begin = program.partition("async def main(")[0]
    return f"{imports}\n{begin}{main}{RUN}"


UNTYPED = """
import asyncio

from kubeloop.api.objects import edit
from kubeloop.controllers.factory import ControllerFactory
from kubeloop.testing.fake import FakeCluster


async def main() -> None:
    management = ControllerFactory(FakeCluster(THINGS).client())
    things = management.controller(THINGS)
    things.cache().add_indexer("size", lambda thing: [str(thing.spec.get("size"))])
    await management.start()
    body = {"metadata": {"name": "a", "namespace": "ns"}, "spec": {"size": 1, "parts": {"x": [1], "y": 2}}}
    thing = await things.client.create(body)
    thing = await things.client.update(thing, edit(thing, spec={"size": 3, "parts": {"x": []}}))
    thing = await things.client.update_status(thing, edit(thing, status={"ready": True}))
    assert (thing.spec, thing.status) == ({"size": 3, "parts": {"x": []}}, {"ready": True}), thing
    await asyncio.sleep(0.1)
    assert [each.name for each in things.cache().by_index("size", "3")] == ["a"]
    await management.stop()


asyncio.run(main())
"""


ASKED = """
import asyncio

from kubeloop.testing.fake import FakeCluster
from kubeloop.testing.fake.objects import Answer, Request


def answer(request: Request) -> Answer:
    if request.plural != "tokenreviews":
        return None
    known = request.body["spec"]["token"] == "known"
    status = {"authenticated": True, "user": {"username": "bob"}} if known else {"error": "unknown"}
    return {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "status": status}


async def main() -> None:
    cluster = FakeCluster()
    cluster.reactors.append(answer)
    assert [await user_of(cluster.client(), token) for token in ("known", "another")] == ["bob", ""]


asyncio.run(main())
"""


def programs(project: Path) -> dict[str, str]:
    hooks, test, *_ = blocks(project, "## A webhook")
    called = "\nimport asyncio\nasyncio.run(test_a_config_map_without_an_owner_is_denied())\n"
    return {
        "program": whole(project, elected=False),
        "elected": whole(project, elected=True),
        "untyped": blocks(project, "### Without a schema")[0] + UNTYPED,
        "asked": blocks(project, "### A kind of questions")[0] + ASKED,
        "hooks": hooks + "\n\n" + test + called,
    }


def python(project: Path, *args: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [f"{project}/.venv/bin/python", *args]
    env = {**os.environ, **environ}
    return subprocess.run(command, cwd=project, env=env, capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.parametrize("name", ["untyped", "asked", "hooks"])
def test_an_example_runs_without_a_cluster(project: Path, name: str) -> None:
    process = python(project, f"{name}.py")
    assert process.returncode == 0, process.stderr


@contextmanager
def running(project: Path, name: str, cluster: Cluster) -> Iterator[subprocess.Popen[str]]:
    command = [f"{project}/.venv/bin/python", f"{name}.py"]
    env = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig)}
    with subprocess.Popen(command, cwd=project, env=env, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.cluster
@pytest.mark.parametrize("name", ["program", "elected"])
async def test_a_whole_program_runs_until_a_signal(project: Path, cluster: Cluster, name: str) -> None:
    async with Client(load_config(str(cluster.kubeconfig))) as client:
        config_maps = client.resource(CONFIG_MAPS)
        config_map = await config_maps.create({"metadata": {"generateName": "a-"}}, namespace="default")

        async def is_labelled() -> bool:
            return "owner" in (await config_maps.get(name=config_map.name, namespace="default")).labels

        with running(project, name, cluster) as process:
            await until(is_labelled, "a label")
            process.send_signal(signal.SIGTERM)
            assert process.wait(15) == 0, process.stderr and process.stderr.read()
        if name == "elected":
            lease = await client.resource(LEASES).get(name="owner-controller", namespace="default")
            assert not lease.spec.holder_identity, "it was released"
        await config_maps.delete(name=config_map.name, namespace="default")


MISSING: dict[str, tuple[str, str, str]] = {
    "a kubeconfig without its extra": (
        "yaml",
        "from kubeloop.client.loading import load_config; load_config('a-file')",
        "ConfigError: kubeconfig a-file: yaml is not installed, it comes with an extra: "
        "pip install 'kubeloop[kubeconfig]'",
    ),
    "structs from files without the extra": (
        "yaml",
        "sys.argv = ['kubeloop', 'structs', '-f', 'x']; from kubeloop.generate.__main__ import main; main()",
        "kubeloop structs: yaml is not installed, it comes with an extra: pip install 'kubeloop[structs]'",
    ),
    "webhooks without the extra": (
        "cryptography",
        "import kubeloop.webhook.admission_server",
        "ImportError: cryptography is not installed, it comes with an extra: pip install 'kubeloop[webhook]'",
    ),
    "a cluster without the extra": (
        "trustme",
        "import kubeloop.testing.cluster.cluster",
        "ImportError: trustme is not installed, it comes with an extra: pip install 'kubeloop[testing]'",
    ),
}


@pytest.mark.parametrize(("module", "code", "message"), MISSING.values(), ids=MISSING)
def test_what_is_not_installed_is_named_with_its_extra(project: Path, module: str, code: str, message: str) -> None:
    process = python(project, "-c", f"import sys; sys.modules[{module!r}] = None\n{code}")
    assert process.returncode != 0
    assert process.stderr.strip().splitlines()[-1].endswith(message)


def test_help_and_the_fake_need_no_extra(project: Path) -> None:
    without = (
        "import sys\nfor name in ('yaml', 'kubernetes', 'trustme', 'cryptography', 'ruff'): sys.modules[name] = None\n"
    )
    code = "import kubeloop.testing.fake, kubeloop.testing.reviews, kubeloop.controllers.run\n"
    process = python(project, "-c", without + code + "sys.argv = ['kubeloop', '--help']\n"
                  "from kubeloop.generate.__main__ import main; main()")  # fmt: skip
    assert (process.returncode, process.stdout.split()[:2]) == (0, ["usage:", "kubeloop"]), process.stderr
