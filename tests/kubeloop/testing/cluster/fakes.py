"""Stand-ins for what a unit test must not need: a Go toolchain, release sites, the cluster's servers."""

import hashlib
import io
import tarfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from kubeloop.testing.cluster.reporting import Progress
from kubeloop.testing.cluster.versions import KWOK

Answer = bytes | int | Callable[[BaseHTTPRequestHandler], None]

_GO = """#!/bin/sh
if [ "$1" = env ]; then echo go1.26.1; exit 0; fi
env | grep -E '^(GO|CGO)' | sort > "$FAKE_GO_LOG.env"
echo "$PWD $*" >> "$FAKE_GO_LOG"
while [ $# -gt 1 ]; do [ "$1" = -o ] && out="$2"; shift; done
echo "example.org/first"; echo "example.org/second"
left=3000
while [ -n "$FAKE_GO_GATE" ] && [ ! -e "$FAKE_GO_GATE" ] && [ $left -gt 0 ]; do sleep 0.02; left=$((left - 1)); done
if [ -n "$FAKE_GO_FAILS" ]; then echo "$FAKE_GO_FAILS" >&2; exit 1; fi
printf '#!/bin/sh\\necho built %s\\n' "$1" > "$out"
"""


def versioned(version: str, commands: str = "") -> str:
    """A script that is Kubernetes' `version`, and runs `commands` when it is started."""
    return f'#!/bin/sh\nif [ "$1" = --version ]; then echo "Kubernetes {version}"; exit; fi\n{commands}\n'


def write_executable(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
    path.chmod(0o755)
    return path


def fake_go(folder: Path) -> Path:
    """A `go` that notes its calls in $FAKE_GO_LOG and "builds" a script that prints its package, once there is a file
    $FAKE_GO_GATE (or a minute later)."""
    return write_executable(folder / "go", _GO)


def environment(tmp_path: Path, **variables: str) -> dict[str, str]:
    """A world with an empty cache, the fake `go` first on PATH, and downloads off."""
    fake_go(tmp_path / "go-bin")
    return {
        "PATH": f"{tmp_path / 'go-bin'}:/usr/bin:/bin",
        "HOME": str(tmp_path / "home"),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "FAKE_GO_LOG": str(tmp_path / "go.log"),
        "KUBELOOP_DOWNLOAD": "off",
        **variables,
    }


def go_calls(environ: Mapping[str, str]) -> list[str]:
    """The packages that the fake `go` was asked to build."""
    log = Path(environ["FAKE_GO_LOG"])
    return [line.split()[-1] for line in log.read_text("utf-8").splitlines()] if log.exists() else []


class Notes(Progress):
    """A Progress that remembers, and makes the file `gate` when a tick says `opens`."""

    def __init__(self, gate: Path | None = None, opens: str = "") -> None:
        self.steps: list[str] = []
        self.ticks: list[str] = []
        self._gate, self._opens = gate, opens

    def step(self, text: str) -> None:
        self.steps.append(text)

    def tick(self, text: str) -> None:
        self.ticks.append(text)
        if self._gate is not None and self._opens in text:
            self._gate.touch()


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def tarball(member: str, content: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        info = tarfile.TarInfo(member)
        info.size = len(content)
        tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def kwok_site(binary: Answer, checksum: Answer = b"") -> dict[str, Answer]:
    """kwok's releases as `serve` takes them, by default with the right checksum."""
    path = f"/{KWOK}/kwok-linux-amd64"
    right = sha256(binary).encode() if isinstance(binary, bytes) else 404
    return {path: binary, path + ".sha256": checksum or right}


@contextmanager
def serve(answers: Mapping[str, Answer]) -> Iterator[tuple[str, list[str]]]:
    """A loopback site: path → content, HTTP status or code that answers. Yields its address and the paths asked for."""
    requests: list[str] = []

    class SiteHandler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requests.append(self.path)
            answer = answers.get(self.path, 404)
            if isinstance(answer, int):
                self.send_error(answer)
            elif isinstance(answer, bytes):
                self.send_response(200)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)
            else:
                answer(self)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), SiteHandler)
    server.daemon_threads = True
    server.block_on_close = False
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", requests
    finally:
        server.shutdown()
        server.server_close()


def cut_short(content: bytes) -> Callable[[BaseHTTPRequestHandler], None]:
    """Promise all of `content`, send half of it, hang up."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content[: len(content) // 2])

    return answer
