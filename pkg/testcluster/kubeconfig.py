"""Kubeconfig files for the embedded cluster: self-contained (certificates inside), readable by their owner only."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path

from pkg.testcluster.certificates import KeyPair

NAME = "headroom-testcluster"


def write_kubeconfig(path: Path, url: str, authority: Path, user: KeyPair) -> None:
    """Write `path`, at once or not at all: `user`'s client certificate at the API server `url`."""
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": NAME,
        "clusters": [
            {"name": NAME, "cluster": {"server": url, "certificate-authority-data": _data(authority)}}
        ],
        "users": [
            {
                "name": NAME,
                "user": {
                    "client-certificate-data": _data(user.certificate),
                    "client-key-data": _data(user.key),
                },
            }
        ],
        "contexts": [{"name": NAME, "context": {"cluster": NAME, "user": NAME}}],
    }
    new = path.with_name(path.name + ".new")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        # JSON is YAML, and every kubeconfig reader takes it.
        json.dump(content, file, indent=2)
    new.replace(path)


def _data(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode("ascii")
