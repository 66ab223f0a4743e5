"""`headroom collect`: what a maintainer needs, in one folder or archive, and reading it again."""

import io
import sys
import tarfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from kubeloop.api import registry
from kubeloop.client.client import Client
from kubeloop.client.errors import ApiError
from pkg.cmd import reports
from pkg.cmd.flags import option, optional
from pkg.cmd.manifests import ManifestError, read_file, read_objects
from pkg.cmd.options import ClusterOptions, WrongCall
from pkg.report.collect import ABOUT, MORE, collected_files, restore_snapshot
from pkg.report.reader import Absent, home_namespaces, read_snapshot
from pkg.report.snapshot import Snapshot
from pkg.util.constants import COLLECTED

_ARCHIVE = ".tar.gz"
_STREAM = "-"
_LOG_LINES = "2000"
_OWN_PODS = "app.kubernetes.io/name=headroom"


@dataclass(frozen=True)
class CollectOptions:
    output: str = option(
        "headroom-collect.tar.gz",
        "Archive (.tar.gz) or folder to write; it must not exist. `-`: the archive to standard output.",
        "--output",
        "-o",
        metavar="DIR|FILE",
    )
    namespace: list[str] | None = optional(
        "Only this namespace; may be repeated. Default: all with a managed quota or a migration budget.",
        "--namespace",
        "-n",
        metavar="NAMESPACE",
        envvar=None,
    )
    headroom_namespace: str | None = optional(
        "Namespace of headroom itself. Default: as of `headroom status`.",
        metavar="NAMESPACE",
        envvar="HEADROOM_NAMESPACE",
    )
    html: Path | None = optional("Write a page of its own to this file, too.")


def collect(options: CollectOptions, cluster: ClusterOptions) -> None:
    """Collect quotas, VMs, migrations, events and headroom's own state and logs for a bug report. Writes to disk alone.

    Only known fields are written: no Secret is read, and of VMs no user data, environment or volume contents."""
    target = Path(options.output)
    if options.output != _STREAM and target.exists():
        raise WrongCall(f"{target} exists: name another file or folder, or remove it")
    namespaces = list(dict.fromkeys(map(reports.check_namespace, options.namespace or ())))
    metadata: dict[str, Any] = {"version": version("harvester-headroom"), "missing": []}

    async def look(client: Client) -> tuple[Snapshot, dict[str, bytes]]:
        own_namespace = options.headroom_namespace
        snapshot = await read_snapshot(client, namespaces, own_namespace, events="")
        return snapshot, await _logs(client, home_namespaces(client, own_namespace), metadata)

    snapshot, logs = reports.ask(cluster.kubeconfig, look)
    contents = {**collected_files(snapshot, metadata, namespaces), **logs}
    if options.output == _STREAM:
        _pack(sys.stdout.buffer, "headroom-collect", contents)
    elif target.name.endswith(_ARCHIVE):
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("xb") as stream:
            target.chmod(0o600)
            _pack(stream, target.name.removesuffix(_ARCHIVE), contents)
    else:
        target.mkdir(mode=0o700, parents=True)
        for name, content in contents.items():
            (target / name).parent.mkdir(exist_ok=True)
            (target / name).write_bytes(content)
    if options.html:
        reports.write_page(options.html, snapshot)
    if options.output != _STREAM:
        print(*filter(None, (target, options.html)), sep="\n")


def _pack(stream: BinaryIO, folder: str, contents: Mapping[str, bytes]) -> None:
    with tarfile.open(fileobj=stream, mode="w|gz") as archive:
        for name, content in contents.items():
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size, member.mtime, member.mode = len(content), int(time.time()), 0o600
            archive.addfile(member, io.BytesIO(content))


def load_collected(folder: str) -> Snapshot:
    """Reads the folder that `headroom collect` wrote. Raises Absent, ManifestError."""
    path = Path(folder)
    if not (path / ABOUT).is_file():
        raise Absent(f"{folder} holds no {ABOUT}: name the folder that `headroom collect` wrote, unpacked")
    contents = [read_file(path / name) for name in (COLLECTED, MORE)]
    try:
        objects = [document for data in contents for _place, document in read_objects(data)]
        return restore_snapshot(msgspec.json.decode(read_file(path / ABOUT)), objects)
    except (ManifestError, msgspec.MsgspecError, KeyError, ValueError, TypeError, RecursionError) as exc:
        raise ManifestError(f"{folder}: not what `headroom collect` writes ({exc})") from exc


async def _logs(client: Client, namespaces: list[str], metadata: dict[str, Any]) -> dict[str, bytes]:
    """Returns the ends of headroom's own logs, as far as they may be read; `metadata["missing"]` says what may not."""
    logs: dict[str, bytes] = {}
    for namespace in namespaces:
        try:
            pods = await client.resource(registry.PODS).list(namespace, label_selector=_OWN_PODS)
            for pod in pods:
                path = f"{registry.PODS.path(namespace, pod.name)}/log"
                logs[f"logs/{namespace}-{pod.name}.log"] = await client.transport.request(
                    "GET", path, params={"tailLines": _LOG_LINES}, accept="*/*"
                )
        except ApiError as exc:
            metadata["missing"].append(f"logs of {namespace}: {exc}")
    return logs
