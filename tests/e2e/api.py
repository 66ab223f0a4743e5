"""A client of the embedded API server that shares no code with the product: blocking, JSON in and out."""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

Raw = dict[str, Any]

CORE = "/api/v1"
KUBEVIRT = "/apis/kubevirt.io/v1"
MERGE_PATCH = "application/merge-patch+json"
IDLE = 30.0
"""Seconds. The API server closes a connection that was idle for 90: a POST on it would fail."""


class ApiFailure(Exception):
    """An answer that is no success."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.message = message


class Api:
    """Requests as the user of a kubeconfig, or as `user` by impersonation. One connection a thread."""

    def __init__(self, kubeconfig: Path, *, user: str = "", groups: tuple[str, ...] = ()) -> None:
        self.kubeconfig = kubeconfig
        config = json.loads(kubeconfig.read_text())
        cluster, credentials = config["clusters"][0]["cluster"], config["users"][0]["user"]
        self.address = urlsplit(cluster["server"]).netloc
        self.tls = _tls(cluster, credentials)
        self._local = threading.local()
        self._headers = {"Impersonate-User": user} if user else {}
        self._groups = groups

    def as_user(self, user: str, *groups: str) -> Api:
        """The same server, as another user."""
        return Api(self.kubeconfig, user=user, groups=groups)

    def get(self, path: str, **query: str) -> Raw:
        return self.send("GET", path + (f"?{urlencode(query)}" if query else ""))

    def find(self, path: str) -> Raw | None:
        """Returns None if there is no such object."""
        try:
            return self.get(path)
        except ApiFailure as failure:
            if failure.status == 404:
                return None
            raise

    def items(self, path: str, **query: str) -> list[Raw]:
        objects: list[Raw] = self.get(path, **query)["items"]
        return objects

    def create(self, path: str, body: Mapping[str, Any]) -> Raw:
        return self.send("POST", path, body)

    def patch(self, path: str, patch: Mapping[str, Any]) -> Raw:
        """A JSON merge patch: null removes a key."""
        return self.send("PATCH", path, patch, MERGE_PATCH)

    def replace(self, path: str, body: Mapping[str, Any]) -> Raw:
        return self.send("PUT", path, body)

    def delete(self, path: str, **query: str) -> None:
        """Nothing happens when it is gone already."""
        try:
            self.send("DELETE", path + (f"?{urlencode(query)}" if query else ""))
        except ApiFailure as failure:
            if failure.status != 404:
                raise

    def connection(self) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection(self.address, timeout=20.0, context=self.tls)

    def send(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, content: str = "application/json"
    ) -> Raw:
        """Sends one request, repeated once after a broken connection unless it is a POST."""
        data = None if body is None else json.dumps(body).encode()
        for attempt in (1, 2):
            try:
                return self._send_once(method, path, data, content)
            except (OSError, http.client.HTTPException) as failed:
                self._local.connection = None  # it may be in the middle of an answer
                if attempt == 2 or method == "POST" or isinstance(failed, TimeoutError):
                    raise
        raise AssertionError("unreachable")

    def _send_once(self, method: str, path: str, data: bytes | None, content: str) -> Raw:
        connection: http.client.HTTPSConnection | None = getattr(self._local, "connection", None)
        if connection is None or time.monotonic() - self._local.used > IDLE:
            connection = self._local.connection = self.connection()
        self._local.used = time.monotonic()
        connection.putrequest(method, path)
        for name, value in {**self._headers, "Content-Type": content}.items():
            connection.putheader(name, value)
        for group in self._groups:
            connection.putheader("Impersonate-Group", group)
        connection.putheader("Content-Length", str(len(data or b"")))
        connection.endheaders(data)
        response = connection.getresponse()
        answer = response.read()
        if response.status >= 300:
            raise ApiFailure(response.status, _message(answer))
        decoded: Raw = json.loads(answer)
        return decoded


def _tls(cluster: Mapping[str, str], user: Mapping[str, str]) -> ssl.SSLContext:
    authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
    context = ssl.create_default_context(cadata=authority)
    with tempfile.TemporaryDirectory() as folder:
        for name in ("certificate", "key"):
            Path(folder, name).write_bytes(base64.b64decode(user[f"client-{name}-data"]))
        context.load_cert_chain(f"{folder}/certificate", f"{folder}/key")
    return context


def _message(answer: bytes) -> str:
    try:
        return str(json.loads(answer).get("message", ""))
    except (ValueError, AttributeError):
        return answer[:300].decode("utf-8", "replace")
