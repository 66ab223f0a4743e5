"""The command `kubeloop`."""

import argparse
import asyncio
import subprocess
import sys
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from kubeloop.client.client import Client
from kubeloop.client.discovery import resource_of, served_schema
from kubeloop.client.loading import load_config
from kubeloop.errors import ReportedError, needs_extra
from kubeloop.generate.structs import Kind, kind_of_crd, structs


def main() -> None:
    """Writes to stdout; ends with 1 and one line on stderr where it cannot."""
    parser = argparse.ArgumentParser(prog="kubeloop")
    text = "write structs for kinds, from CRDs or from an API server"
    command = parser.add_subparsers(required=True).add_parser("structs", help=text)
    several: dict[str, Any] = {"type": _split_list, "default": []}
    command.add_argument("-f", dest="files", action="append", default=[], metavar="crds.yaml")
    command.add_argument("--served", **several, metavar="apps/v1/Deployment,v1/Service", help="kinds of a server")
    command.add_argument("--kinds", **several, help="of the files: only these")
    command.add_argument("--fields", **several, metavar="spec.a,Kind.status", help="only these and what is below them")
    command.add_argument("--kubeconfig", help="of the server")
    options = parser.parse_args()
    try:
        kinds = [kind for kind in _kinds_of_files(options.files) if not options.kinds or kind.kind in options.kinds]
        if options.served:
            kinds += asyncio.run(_kinds_of_server(options.served, options.kubeconfig))
        if not kinds:
            parser.error("no kind was found: give -f a file with CustomResourceDefinitions, or --served")
        sys.stdout.write(formatted(structs(kinds, options.fields)))
    except (ReportedError, OSError, ValueError, KeyError, ImportError, subprocess.CalledProcessError) as err:
        sys.exit(f"kubeloop structs: {err}")


def formatted(text: str) -> str:
    """Formats the text with this project's ruff, and removes unused imports."""
    with needs_extra("structs"):
        import_module("ruff")
    for command in (["check", "--fix-only", "--select", "F401,I"], ["format"]):
        ruff = [sys.executable, "-m", "ruff", *command, "--quiet", "--stdin-filename", "structs.py", "-"]
        text = subprocess.run(ruff, input=text, capture_output=True, text=True, check=True).stdout
    return text


def _split_list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _kinds_of_files(files: Iterable[str]) -> Iterator[Kind]:
    with needs_extra("structs"):
        import yaml
    for file in files:
        try:
            documents = list(yaml.safe_load_all(Path(file).read_text()))
        except yaml.YAMLError as err:
            raise ValueError(f"{file}: not YAML: {err}") from err
        for document in documents:
            if document and document.get("kind") == "CustomResourceDefinition":
                yield kind_of_crd(document)


async def _kinds_of_server(served: Iterable[str], kubeconfig: str | None) -> list[Kind]:
    kinds = []
    async with Client(load_config(kubeconfig)) as client:
        for api_version, _, kind in (text.rpartition("/") for text in served):
            schema, definitions = await served_schema(client.transport, api_version, kind)
            resource = await resource_of(client.transport, api_version, kind)
            about = (resource.group, resource.version, resource.plural, kind, resource.namespaced)
            kinds.append(Kind(*about, bool(resource.status_subresource), schema, definitions))
    return kinds


if __name__ == "__main__":
    main()
