"""A client of the embedded API server that shares no code with the product: blocking, JSON in and out."""

import base64
import json
import ssl
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from urllib3 import BaseHTTPResponse, HTTPHeaderDict, PoolManager, Retry

Raw = dict[str, Any]

CORE = "/api/v1"
KUBEVIRT = "/apis/kubevirt.io/v1"
MERGE_PATCH = "application/merge-patch+json"
_AGAIN = Retry(1, allowed_methods=["GET", "PUT", "PATCH", "DELETE"], redirect=False, respect_retry_after_header=False)


class ApiFailure(Exception):
    """An answer that is no success."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.message = message


class Api:
    """Requests as the user of a kubeconfig, or as `user` by impersonation, from any thread."""

    def __init__(self, kubeconfig: Path, *, user: str = "", groups: tuple[str, ...] = ()) -> None:
        self.kubeconfig = kubeconfig
        config = json.loads(kubeconfig.read_text())
        cluster, credentials = config["clusters"][0]["cluster"], config["users"][0]["user"]
        self.address = urlsplit(cluster["server"]).netloc
        self.tls = _tls(cluster, credentials)
        self._pool = PoolManager(maxsize=16, ssl_context=self.tls, timeout=20.0)
        self._headers = [("Impersonate-User", user)] if user else []
        self._headers += [("Impersonate-Group", group) for group in groups]

    def as_user(self, user: str, *groups: str) -> "Api":
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

    def request(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, content: str = "application/json"
    ) -> BaseHTTPResponse:
        """Sends one request, again after a broken connection unless it is a POST; any answer is one."""
        data = None if body is None else json.dumps(body).encode()
        headers = HTTPHeaderDict([*self._headers, ("Content-Type", content)])
        return self._pool.urlopen(method, f"https://{self.address}{path}", body=data, headers=headers, retries=_AGAIN)

    def send(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, content: str = "application/json"
    ) -> Raw:
        """Raises ApiFailure for an answer that is no success."""
        response = self.request(method, path, body, content)
        if response.status >= 300:
            raise ApiFailure(response.status, _message(response.data))
        decoded: Raw = response.json()
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
