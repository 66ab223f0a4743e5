"""A few requests to the embedded API server, blocking, over one connection: what starting it needs, and no more.

The product's own client is pkg/client; this one works before anything is ready and imports only the standard library.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from pkg.testcluster.errors import ClusterError

TIMEOUT = 10.0


class RestError(ClusterError):
    """An answer that is not a success; `status` is HTTP's."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Rest:
    """Requests as the user of a kubeconfig that kubeconfig.py wrote. Not for use by several threads."""

    def __init__(self, kubeconfig: Path) -> None:
        """ClusterError when `kubeconfig` is not one of ours."""
        try:
            config = json.loads(kubeconfig.read_text("utf-8"))
            cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
            self._address = urlsplit(cluster["server"]).netloc
            self._tls = _tls(cluster, user)
        except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
            raise ClusterError(f"{kubeconfig} is not the kubeconfig of an embedded cluster") from error
        self._connection: http.client.HTTPSConnection | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def get(self, path: str) -> dict[str, Any]:
        return self._object("GET", path, None)

    def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        return self._object("POST", path, body)

    def ready(self) -> bool:
        """Does /readyz say ok? False, too, when nothing answers."""
        try:
            return self._send("GET", "/readyz", None)[0] == 200
        except (OSError, http.client.HTTPException):
            return False

    def _object(self, method: str, path: str, body: Mapping[str, Any] | None) -> dict[str, Any]:
        try:
            status, content = self._send(method, path, body)
        except (OSError, http.client.HTTPException) as error:
            raise RestError(0, f"{method} {path}: the API server does not answer ({error})") from error
        if status >= 300:
            raise RestError(status, f"{method} {path}: HTTP {status} {_message(content)}")
        answer: dict[str, Any] = json.loads(content)
        return answer

    def _send(self, method: str, path: str, body: Mapping[str, Any] | None) -> tuple[int, bytes]:
        if self._connection is None:
            self._connection = http.client.HTTPSConnection(self._address, timeout=TIMEOUT, context=self._tls)
        try:
            content = None if body is None else json.dumps(body).encode()
            self._connection.request(method, path, content, {"Content-Type": "application/json"})
            response = self._connection.getresponse()
            return response.status, response.read()
        except BaseException:
            self._close()
            raise

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _tls(cluster: Mapping[str, str], user: Mapping[str, str]) -> ssl.SSLContext:
    context = ssl.create_default_context(
        cadata=_decode(cluster["certificate-authority-data"]).decode("ascii")
    )
    # The ssl module reads a client certificate from a file only. This one is in memory: nothing stays behind, also
    # when the process is killed here.
    with open(os.memfd_create("client-certificate"), "wb") as file:
        file.write(_decode(user["client-certificate-data"]) + b"\n" + _decode(user["client-key-data"]))
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
    return context


def _decode(data: str) -> bytes:
    return base64.b64decode(data, validate=True)


def _message(content: bytes) -> str:
    try:
        return str(json.loads(content).get("message", ""))
    except (ValueError, AttributeError):
        return content[:200].decode("utf-8", "replace")
