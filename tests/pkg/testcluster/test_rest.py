"""The starter's own small client, against a TLS server that is scripted."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from pkg.testcluster.certificates import Authority
from pkg.testcluster.control_plane import write_kubeconfig
from pkg.testcluster.errors import ClusterError
from pkg.testcluster.rest import Rest, RestError

Script = dict[tuple[str, str], tuple[int, bytes]]


class Server(ThreadingHTTPServer):
    """Answers by script; remembers bodies, and which connection each request came on."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, script: Script) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.script = script
        self.bodies: list[Any] = []
        self.connections: list[Any] = []
        self.hang_up = False


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def _answer(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        self.server.bodies.append(json.loads(self.rfile.read(length)) if length else None)
        self.server.connections.append(self.client_address)
        if self.server.hang_up:
            self.close_connection = True
            return
        status, content = self.server.script.get(
            (self.command, self.path), (404, b'{"message": "not found"}')
        )
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = _answer

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "pki")


@pytest.fixture
def server(authority: Authority) -> Iterator[Server]:
    keys = authority.server("server", "server", ["127.0.0.1"])
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.certificate))
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(keys.certificate, keys.key)
    server = Server({})
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def kubeconfig(server: Server, authority: Authority, tmp_path: Path) -> Path:
    path = tmp_path / "kubeconfig"
    url = f"https://127.0.0.1:{server.server_address[1]}"
    write_kubeconfig(path, url, authority.certificate, authority.client("admin", "admin", ["system:masters"]))
    return path


@pytest.fixture
def rest(kubeconfig: Path) -> Iterator[Rest]:
    with Rest(kubeconfig) as rest:
        yield rest


def test_an_object_is_got_with_the_kubeconfigs_certificate(rest: Rest, server: Server) -> None:
    server.script["GET", "/api/v1/nodes/n"] = (200, b'{"kind": "Node"}')
    assert rest.get("/api/v1/nodes/n") == {"kind": "Node"}


def test_an_object_is_created_with_its_body(rest: Rest, server: Server) -> None:
    server.script["POST", "/api/v1/nodes"] = (201, b'{"kind": "Node", "metadata": {"uid": "1"}}')
    assert rest.create("/api/v1/nodes", {"kind": "Node"})["metadata"] == {"uid": "1"}
    assert server.bodies == [{"kind": "Node"}]


def test_all_requests_go_over_one_connection(rest: Rest, server: Server) -> None:
    server.script["GET", "/version"] = (200, b"{}")
    for _ in range(5):
        rest.get("/version")
    assert len(set(server.connections)) == 1


def test_a_connection_that_broke_is_opened_again(rest: Rest, server: Server) -> None:
    server.script["GET", "/version"] = (200, b"{}")
    rest.get("/version")
    server.hang_up = True
    with pytest.raises(RestError, match="the API server does not answer"):
        rest.get("/version")
    server.hang_up = False
    assert rest.get("/version") == {}


@pytest.mark.parametrize(
    ("status", "content", "message"),
    [
        (404, b'{"message": "nodes \\"n\\" not found"}', 'GET /x: HTTP 404 nodes "n" not found'),
        (409, b'{"kind": "Status"}', "GET /x: HTTP 409 "),
        (503, b"upstream is away", "GET /x: HTTP 503 upstream is away"),
        (500, b"[]", "GET /x: HTTP 500 []"),
    ],
)
def test_a_refusal_has_status_and_message(
    status: int, content: bytes, message: str, rest: Rest, server: Server
) -> None:
    server.script["GET", "/x"] = (status, content)
    with pytest.raises(RestError) as caught:
        rest.get("/x")
    assert (caught.value.status, str(caught.value)) == (status, message)


@pytest.mark.parametrize(("status", "ready"), [(200, True), (500, False), (403, False)])
def test_readiness_is_what_readyz_says(status: int, ready: bool, rest: Rest, server: Server) -> None:
    server.script["GET", "/readyz"] = (status, b"ok")
    assert rest.ready() is ready


def test_a_server_that_hangs_up_is_not_ready(rest: Rest, server: Server) -> None:
    server.hang_up = True
    assert not rest.ready()


def test_an_absent_server_is_not_ready_and_an_error_with_status_0(
    authority: Authority, tmp_path: Path
) -> None:
    path = tmp_path / "kubeconfig"
    write_kubeconfig(path, "https://127.0.0.1:9", authority.certificate, authority.client("a", "a"))
    with Rest(path) as rest:
        assert not rest.ready()
        with pytest.raises(RestError) as caught:
            rest.get("/version")
    assert caught.value.status == 0


def test_a_server_with_another_certificate_is_not_talked_to(
    server: Server, kubeconfig: Path, tmp_path: Path
) -> None:
    other = Authority(tmp_path / "other")
    url = json.loads(kubeconfig.read_text())["clusters"][0]["cluster"]["server"]
    write_kubeconfig(kubeconfig, url, other.certificate, other.client("a", "a"))
    server.script["GET", "/readyz"] = (200, b"ok")
    with Rest(kubeconfig) as rest:
        assert not rest.ready()
    assert server.bodies == []


@pytest.mark.parametrize(
    "content",
    [
        pytest.param("", id="is empty"),
        pytest.param("apiVersion: v1\nkind: Config\n", id="is YAML"),
        pytest.param("{}", id="names no cluster"),
        pytest.param("[]", id="is a list"),
        pytest.param(
            '{"clusters": [{"cluster": {"server": "https://x"}}], "users": [{"user": {}}]}', id="has no keys"
        ),
    ],
)
def test_one_clear_error_when_the_kubeconfig(content: str, tmp_path: Path) -> None:
    (tmp_path / "kubeconfig").write_text(content)
    with pytest.raises(ClusterError, match="kubeconfig is not the kubeconfig of an embedded cluster"):
        Rest(tmp_path / "kubeconfig")


def test_one_clear_error_when_there_is_no_kubeconfig(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="nothing/here is not the kubeconfig"):
        Rest(tmp_path / "nothing" / "here")
