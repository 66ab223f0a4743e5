"""Another product's validating webhook, which denies as it is told to: in a thread of its own, in no code of ours."""

import base64
import contextlib
import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from kubeloop.webhook.certificates import issue
from tests.e2e.accounts import ADMISSION
from tests.e2e.api import Api

Answer = Callable[[Mapping[str, Any]], dict[str, Any]]
"""The `response` of a review's `request`, without its uid."""


@contextlib.contextmanager
def denying_webhook(api: Api, name: str, namespace: str, answer: Answer, folder: Path, **fields: Any) -> Iterator[None]:
    """A webhook that is asked about every update of a quota in the namespace. `fields` are fields of the webhook."""
    material = issue(["127.0.0.1"], time.time())
    pair = folder / f"{name}.pem"
    pair.write_bytes(material.serving.certificate + material.serving.key)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(answer))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    path = f"{ADMISSION}/validatingwebhookconfigurations"
    trusted = base64.b64encode(material.bundle).decode()
    webhook = {
        "name": name,
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "failurePolicy": "Fail",
        "clientConfig": {"url": f"https://127.0.0.1:{server.server_port}/", "caBundle": trusted},
        "rules": [
            {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["resourcequotas"], "operations": ["UPDATE"]}
        ],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        **fields,
    }
    api.create(path, {"metadata": {"name": name}, "webhooks": [webhook]})
    try:
        yield
    finally:
        api.delete(f"{path}/{name}")
        server.shutdown()
        server.server_close()


def _handler(answer: Answer) -> type[BaseHTTPRequestHandler]:
    class ReviewHandler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["content-length"])))["request"]
            review = {"uid": request["uid"], **answer(request)}
            body = json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": review})
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            with contextlib.suppress(OSError):  # the API server gave it up
                self.wfile.write(body.encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    return ReviewHandler
