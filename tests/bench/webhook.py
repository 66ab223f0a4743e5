"""Measures how many decisions a second the webhook makes on one core, and how long one takes at 200 a second.

`headroom webhook` runs as users run it, over TLS, on the embedded cluster; the callers are raw connections in this
process, so that it is the webhook that is measured.
"""

import asyncio
import base64
import itertools
import json
import re
import ssl
import time
from collections import deque
from pathlib import Path
from typing import Any

from kubeloop.api import registry
from kubeloop.client.client import Client
from kubeloop.client.errors import NotFound
from kubeloop.client.loading import load_config
from kubeloop.testing.cluster.paths import free_ports
from lab import bodies
from lab.headroom import Headroom
from lab.namespace import Namespace
from lab.scale.measurements import percentile
from lab.scale.site import usage
from pkg.util import constants
from tests.bench.document import Row
from tests.bench.objects import migration, remove_namespaces, vmi

NAMESPACE = "bench-webhook"
SECRET = "bench-webhook-tls"
CONNECTIONS = 16
SATURATED_SECONDS = 5.0
RATE = 200
PACED_SECONDS = 10.0
_LIMITS = '{"limit":{"limitsCpu":"3000m","limitsMemory":"5000Mi"}}'
_LARGER = '{"limit":{"limitsCpu":"30","limitsMemory":"50Gi"}}'
_HARD = {"limits.cpu": "5015m", "limits.memory": "10040344313"}
_BASE = {"limits.cpu": "3", "limits.memory": "5000Mi"}
_ENTRY = '{"limits.cpu":"2015m","limits.memory":"4797464313"}'
_RANCHER = "system:serviceaccount:cattle-system:cattle"


async def webhook(kubeconfig: Path) -> list[Row]:
    """Saturated by reviews that the caches decide; then every kind of review, also those that need a live look."""
    (port,) = free_ports(1)
    address = ("--bind-address", f"127.0.0.1:{port}", "--webhook-url", f"https://127.0.0.1:{port}")
    secret = ("--no-register", "--secret-name", SECRET, "--namespace", "default")
    async with Client(load_config(str(kubeconfig))) as client:
        await _migrating_namespace(client)
        flags = ("--kubeconfig", str(kubeconfig), *address, *secret)
        process = Headroom(kubeconfig.with_name("webhook.log"), "webhook", *flags).start()
        try:
            tls = await _trusting(client)
            reviews = _reviews()
            rate, cpu = await _saturated(process.pid, port, tls, [reviews[name] for name in _CACHED])
            latencies = await _paced(port, tls, list(reviews.values()))
        finally:
            process.stop()
            await remove_namespaces(client, [NAMESPACE])
            await client.resource(registry.SECRETS).delete(name=SECRET, namespace="default")
    return [
        Row("admission decisions on one core", rate, "/s", 1500, at_least=True),
        Row("… CPU each", cpu * 1000, "ms"),
        Row("decision at 200/s, median", percentile(latencies, 0.5) * 1000, "ms"),
        Row("decision at 200/s, 99th percentile", percentile(latencies, 0.99) * 1000, "ms", 10),
    ]


_CACHED = ("a quota raised", "a quota lowered outside migrations", "a larger annotation", "a VM's volumes")
"""The reviews that need no live request."""


def _reviews() -> dict[str, bytes]:
    """Returns one review of each kind, as the API server sends it: path and body in one HTTP request."""
    holding = _quota(_HARD, {constants.ANNOTATION_MIGRATING_NAME_PREFIX + "vm1": _ENTRY})
    lowered = _quota(_BASE, holding["metadata"]["annotations"])
    idle = _quota({"limits.cpu": "3", "limits.memory": "5000Mi"}, {}, name="idle", namespace="elsewhere")
    shrunk = _quota({"limits.cpu": "2", "limits.memory": "5000Mi"}, {}, name="idle", namespace="elsewhere")
    raised = _quota({"limits.cpu": "9", "limits.memory": "50Gi"}, holding["metadata"]["annotations"])
    return {
        "a quota raised": _http("/validate-resourcequota", raised, holding),
        "a quota lowered outside migrations": _http("/validate-resourcequota", shrunk, idle),
        "a larger annotation": _http("/validate-namespace", _namespace(_LARGER), _namespace(_LIMITS)),
        "a VM's volumes": _http("/validate-virtualmachine", _machine(), None),
        "a quota lowered under a migration": _http("/validate-resourcequota", lowered, holding),
        "Rancher's revert": _http("/mutate-resourcequota", lowered, holding, user=_RANCHER),
        "a pod beside a migration": _http("/validate-pod", _pod(), None),
    }  # fmt: skip


def _http(path: str, new: dict[str, Any], old: dict[str, Any] | None, user: str = "alice") -> bytes:
    request = {
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
        "operation": "UPDATE" if old else "CREATE",
        "namespace": NAMESPACE,
        "userInfo": {"username": user, "groups": ["system:authenticated"]},
        "object": new,
        "oldObject": old,
        "dryRun": False,
    }
    review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    return post(path, review)


def post(path: str, review: dict[str, Any]) -> bytes:
    """The request that carries a review."""
    body = json.dumps(review).encode()
    head = f"POST {path}?timeout=5s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def _quota(
    hard: dict[str, str], annotations: dict[str, str], name: str = "default-abc", namespace: str = NAMESPACE
) -> dict[str, Any]:
    metadata = {
        "name": name,
        "namespace": namespace,
        "uid": "bench",
        "labels": {constants.LABEL_DEFAULT_RESOURCE_QUOTA: "true"},
        "annotations": {
            constants.ANNOTATION_SKIP_AUTO_SCALING: "true",
            constants.ANNOTATION_OWNER: constants.OWNER,
            **annotations,
        },
        "managedFields": [{"manager": f"m{n}", "fieldsV1": {"f:spec": {"f:hard": {}}}} for n in range(5)],
    }
    return {"metadata": metadata, "spec": {"hard": hard}, "status": {"hard": hard, "used": _BASE}}


def _namespace(annotation: str) -> dict[str, Any]:
    annotations = {constants.ANNOTATION_RANCHER_RESOURCE_QUOTA: annotation}
    # One without migrations: its annotation may change.
    return {"metadata": {"name": "elsewhere", "annotations": annotations}}


def _machine() -> dict[str, Any]:
    templates = json.dumps([{"spec": {"resources": {"requests": {"storage": "10Gi"}}}}] * 3)
    metadata = {"name": "vm9", "annotations": {constants.ANNOTATION_VOLUME_CLAIM_TEMPLATES: templates}}
    return {"metadata": metadata, "spec": {"template": {"spec": vmi(NAMESPACE, "vm9")["spec"]}}}


def _pod() -> dict[str, Any]:
    limits = {"limits": {"cpu": "1m", "memory": "1Mi"}}
    metadata = {"name": "tenant", "namespace": NAMESPACE, "uid": "tenant"}
    return {"metadata": metadata, "spec": {"containers": [{"name": "main", "resources": limits}]}}


async def _migrating_namespace(client: Client) -> None:
    """A namespace whose VM migrates, as the controller left it: raised, with its entry."""
    await client.resource(registry.NAMESPACES).create(bodies.namespace(NAMESPACE, _LIMITS))
    namespace = Namespace(client, NAMESPACE)
    quota = _quota(_HARD, {constants.ANNOTATION_MIGRATING_NAME_PREFIX + "vm1": _ENTRY})
    del quota["metadata"]["uid"], quota["metadata"]["managedFields"], quota["status"]
    await namespace.create(registry.RESOURCE_QUOTAS, quota)
    await migration(namespace, "vm1")
    await namespace.enter("vm1", "Running")


async def _trusting(client: Client) -> ssl.SSLContext:
    for _ in range(100):
        try:
            secret = await client.resource(registry.SECRETS).get(name=SECRET, namespace="default")
            break
        except NotFound:
            await asyncio.sleep(0.1)
    return ssl.create_default_context(cadata=base64.b64decode((secret.data or {})["ca.crt"]).decode())


class Line:
    """A connection that reviews are sent over, one after the other: as cheap as can be."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, port: int, tls: ssl.SSLContext) -> "Line":
        return cls(*await asyncio.open_connection("127.0.0.1", port, ssl=tls))

    @property
    def certificate(self) -> bytes:
        """The one that is shown, as DER."""
        encoded: bytes = self._writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        return encoded

    async def ask(self, review: bytes) -> bytes:
        """A whole HTTP request; the body of its answer. Raises RuntimeError when that is not 200."""
        self._writer.write(review)
        head = await self._reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200 "):
            raise RuntimeError(head.decode())
        length = re.search(rb"Content-Length: (\d+)", head)
        return await self._reader.readexactly(int(length[1]) if length else 0)

    def close(self) -> None:
        self._writer.close()


async def _saturated(pid: int, port: int, tls: ssl.SSLContext, reviews: list[bytes]) -> tuple[float, float]:
    """Decisions a second, and CPU seconds of each."""
    lines = [await Line.open(port, tls) for _ in range(CONNECTIONS)]
    answered = 0
    until = time.perf_counter() + 0.5

    async def ask(line: Line, start: int) -> None:
        nonlocal answered
        for number in itertools.count(start):
            if time.perf_counter() >= until:
                return
            await line.ask(reviews[number % len(reviews)])
            answered += 1

    await asyncio.gather(*(ask(line, n) for n, line in enumerate(lines)))  # warm
    answered, began, cpu = 0, time.perf_counter(), usage(pid).cpu
    until = began + SATURATED_SECONDS
    await asyncio.gather(*(ask(line, n) for n, line in enumerate(lines)))
    took, cpu = time.perf_counter() - began, usage(pid).cpu - cpu
    for line in lines:
        line.close()
    return answered / took, cpu / answered


async def _paced(port: int, tls: ssl.SSLContext, reviews: list[bytes]) -> list[float]:
    """Seconds from when each call was due."""
    # In turn, as an API server's: the listener closes what says nothing for five seconds.
    idle = deque([await Line.open(port, tls) for _ in range(CONNECTIONS)])
    latencies: list[float] = []

    async def ask(review: bytes, due: float) -> None:
        line = idle.popleft() if idle else await Line.open(port, tls)
        await line.ask(review)
        latencies.append(time.perf_counter() - due)
        idle.append(line)

    began = time.perf_counter()
    calls = []
    for number in range(int(RATE * PACED_SECONDS)):
        due = began + number / RATE
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        calls.append(asyncio.create_task(ask(reviews[number % len(reviews)], due)))
    await asyncio.gather(*calls)
    for line in idle:
        line.close()
    return latencies
