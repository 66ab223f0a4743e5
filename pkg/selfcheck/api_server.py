"""What the API server says: its version, by which it counts, and whether it reaches headroom's webhooks.

During an upgrade either of several API servers may answer, and either may admit the next pod: both count then.
The probe: a configuration of its own matches only Events with a label, in headroom's namespace. Such an Event, created
as a dry run, comes back with the webhook's mark, or with what the API server says of the failure."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, NoReturn

import msgspec

from kubeloop.api.meta import Object
from kubeloop.api.registry import EVENTS
from kubeloop.client.client import Client
from kubeloop.client.errors import ApiError
from kubeloop.webhook.registration import NotReached
from pkg.util.constants import WEBHOOK_CONFIGURATION_NAME
from pkg.util.quotacount.releases import Releases, doubt, releases_of

log = logging.getLogger(__name__)

PERIOD: Final = 120.0
ANSWERS: Final = 5
"""The answers that count, for ten minutes; while there are no new ones they count on."""
PROBE_CONFIGURATION: Final = "headroom-probe.harvesterhci.io"
"""A MutatingWebhookConfiguration; its failurePolicy is Fail, so that the reason of a failure comes back."""
PROBE_PATH: Final = "/probe"
PROBE_LABEL: Final = "headroom.harvesterhci.io/probe"
PROBE_MARK: Final = "headroom.harvesterhci.io/answered-by"
"""An annotation: the hash of what the replica that answered would register."""
ANNOTATION_HASH: Final = "headroom.harvesterhci.io/configuration-hash"
"""On the registered configurations: the same hash, of the replica that wrote them."""
PROBE_WEBHOOK: Final = f"probe.{WEBHOOK_CONFIGURATION_NAME}"


async def repeat(check: Callable[[], Awaitable[object]], period: float, *, retry: float, subject: str) -> NoReturn:
    """Checks every `period` seconds until cancelled; after ApiError, which is logged, in `retry` seconds."""
    while True:
        pause = period
        try:
            await check()
        except ApiError as exc:
            log.warning("%s: %s, trying again in %g s", subject, exc, retry)
            pause = retry
        await asyncio.sleep(pause)


async def ask_version(client: Client) -> str:
    """Returns the version of the API server that answers, "" if it cannot be read. Raises ApiError."""
    answer = await client.transport.request("GET", "/version")
    try:  # apimachinery version.Info has texts alone
        return msgspec.json.decode(answer, type=dict[str, str]).get("gitVersion", "")
    except msgspec.MsgspecError:
        return ""


class KubernetesVersion:
    """The versions by which the API servers answer: `run` asks until it is cancelled."""

    def __init__(self, *known_versions: str) -> None:
        self._answers: deque[str] = deque(maxlen=ANSWERS)
        for version in known_versions:
            self.record(version)

    @property
    def versions(self) -> tuple[str, ...]:
        return tuple(sorted(set(self._answers)))

    def releases(self) -> Releases:
        return releases_of(self.versions)

    async def run(self, client: Client) -> None:
        while True:
            await asyncio.sleep(PERIOD)
            try:
                self.record(await ask_version(client))
            except ApiError as exc:
                log.debug("version of the API server: %s", exc)

    def record(self, version: str) -> None:
        old_versions = self.versions
        self._answers.append(version)
        if self.versions == old_versions:
            return
        if reason := doubt(self.versions):
            log.warning("%s", reason)
        elif old_versions:
            log.info("pods count as in Kubernetes %s", version)


async def wait_for_version(client: Client, stop: asyncio.Event) -> KubernetesVersion | None:
    """Returns None when `stop` is set before the API server has said its version. Raises ApiError, ConfigError."""
    asking, stopped = asyncio.create_task(ask_version(client)), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([asking, stopped], return_when=asyncio.FIRST_COMPLETED)
        return KubernetesVersion(asking.result()) if asking.done() else None
    finally:
        asking.cancel()
        stopped.cancel()
        await asyncio.wait([asking])


async def probe(client: Client, namespace: str) -> str:
    """Returns the mark of the replica that answered. Raises NotReached; ApiError for the API server itself."""
    event = {
        "apiVersion": EVENTS.api_version,
        "kind": EVENTS.kind,
        "metadata": {"generateName": "headroom-probe-", "labels": {PROBE_LABEL: "true"}},
        "involvedObject": {"kind": "Namespace", "name": namespace, "namespace": namespace, "apiVersion": "v1"},
        "reason": "Probe",
        "type": "Normal",
    }
    try:
        answer = await client.transport.request(
            "POST",
            EVENTS.path(namespace),
            params={"dryRun": "All"},
            body=msgspec.json.encode(event),
            timeout=7.0,  # more than the webhook's timeoutSeconds
            retry=False,
        )
    except ApiError as exc:
        # apiserver/pkg/admission/plugin/webhook/errors: it has no reason of its own. Another webhook that fails on the
        # probe's object says nothing about ours.
        if f'failed calling webhook "{PROBE_WEBHOOK}"' in exc.message:
            raise NotReached(exc.message) from exc
        raise
    mark = msgspec.json.decode(answer, type=Object).annotations.get(PROBE_MARK)
    if mark is None:
        raise NotReached("the API server does not ask the webhook yet")
    return mark
