"""How webhooks are registered: where the API server finds them, and the configurations that say so."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hmac
import logging
import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from kubeloop.api.admissionregistration import MutatingWebhookConfiguration, ValidatingWebhookConfiguration
from kubeloop.api.registry import Resource
from kubeloop.client.client import Client
from kubeloop.client.errors import AlreadyExists, ApiError, Conflict, NotFound
from kubeloop.client.retry import retry_on_conflict
from kubeloop.workqueue.queue import loop_time

log = logging.getLogger(__name__)

TIMEOUT_SECONDS: Final = 5
"""How long the API server waits for an answer."""
_KEY_BYTES: Final = 16
_KEY: Final = re.compile(f"[0-9a-f]{{{2 * _KEY_BYTES}}}")
_READ_AGAIN_SECONDS: Final = 1.0
"""How long a review waits for the registered key to be read again, and how long until it is read once more."""
RACES: Final = (AlreadyExists, Conflict, NotFound)
"""Another replica created, changed or deleted the same configuration meanwhile."""

Webhook = dict[str, Any]
"""One of a configuration, as on the wire."""
Configuration = ValidatingWebhookConfiguration | MutatingWebhookConfiguration
C = TypeVar("C", ValidatingWebhookConfiguration, MutatingWebhookConfiguration)


class NotReached(Exception):
    """The API server does not reach the webhook; the text says why."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where the API server finds us: a URL, or a Service when `url` is "" (`https://host:port`, no path)."""

    url: str = ""
    service_namespace: str = ""
    service_name: str = ""
    key: str = ""
    """The last part of every path, by which the API server is known where it presents no client certificate: only
    readers of webhook configurations know it. Replicas share the one that is registered."""

    def client_config(self, path: str, bundle: bytes | None = None) -> dict[str, Any]:
        """WebhookClientConfig; without `bundle` it has no caBundle."""
        path = f"{path}/{self.key}" if self.key else path
        service = {"namespace": self.service_namespace, "name": self.service_name, "path": path, "port": 443}
        config: dict[str, Any] = {"url": self.url + path} if self.url else {"service": service}
        return config if bundle is None else {**config, "caBundle": base64.b64encode(bundle).decode("ascii")}

    @property
    def hosts(self) -> list[str]:
        """The names that the API server calls, which the certificate is for."""
        if self.url:
            return [urlsplit(self.url).hostname or ""]
        service = f"{self.service_name}.{self.service_namespace}.svc"
        return [service, f"{service}.cluster.local"]


def key_of(webhooks: Iterable[Mapping[str, Any]]) -> str:
    """The key in which the paths of registered webhooks end; "": in none."""
    configs = [webhook.get("clientConfig") or {} for webhook in webhooks]
    paths = [urlsplit(c.get("url") or "").path or (c.get("service") or {}).get("path") or "" for c in configs]
    return next((key for key in (path.rpartition("/")[2] for path in paths) if _KEY.fullmatch(key)), "")


def split_key(path: str) -> tuple[str, str]:
    """A path, or a URL, without the key in which it ends, and the key; "": it has none."""
    rest, _, key = path.rpartition("/")
    return (rest, key) if _KEY.fullmatch(key) else (path, "")


def webhook(name: str, client_config: Mapping[str, Any], rules: Sequence[Mapping[str, Any]], **fields: Any) -> Webhook:
    """A validating webhook; `fields` by their names in JSON, a mutating one's also `reinvocationPolicy`. Every field is
    spelled out, defaults too: what the server stores then equals what is wanted, and drift is seen by comparing."""
    return {
        "name": name,
        "admissionReviewVersions": ["v1"],
        "clientConfig": client_config,
        "failurePolicy": "Fail",
        "matchPolicy": "Equivalent",
        "namespaceSelector": {},
        "objectSelector": {},
        "rules": list(rules),
        "sideEffects": "None",
        "timeoutSeconds": TIMEOUT_SECONDS,
        **fields,
    }


def rule(
    resources: list[str], operations: list[str], *, group: str = "", version: str = "v1", scope: str = "Namespaced"
) -> dict[str, Any]:
    """RuleWithOperations."""
    return {
        "apiGroups": [group],
        "apiVersions": [version],
        "resources": resources,
        "operations": operations,
        "scope": scope,
    }


class Registration:
    """Configurations of one name, of each kind one, kept as they should be. Writes only what differs."""

    def __init__(
        self,
        client: Client,
        endpoint: Endpoint,
        name: str,
        kinds: Sequence[tuple[Resource[Any], Callable[[Endpoint, bytes | None], list[Webhook]]]],
        *,
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
    ) -> None:
        """`kinds`: the webhooks of each, for an endpoint and what the API server shall trust (None: another program,
        cert-manager's CA injector, sets caBundle, and it stays)."""
        self.client = client
        self.endpoint = replace(endpoint, key=secrets.token_hex(_KEY_BYTES))
        # Its key is registered, or the one that another replica has registered before.
        self._name = name
        self._kinds = kinds
        self._labels = dict(labels or {})
        self._annotations = dict(annotations or {})
        self._reading: asyncio.Task[None] | None = None
        self._read_at = float("-inf")

    def written(self, resource: Resource[Any], name: str, operation: str) -> None:
        """One write has succeeded: `created`, `updated` or `removed`."""
        log.info("%s %s %s", resource.kind, name, operation)

    async def ensure(self, bundle: bytes | None) -> None:
        """Write the configurations where they differ. Raises ApiError; where that is asked also NotReached."""
        await self.adopt()
        await self.write(bundle)

    async def adopt(self) -> None:
        """The key that the API server sends is the one that is registered, by whichever replica: of all configurations
        the first one holds it. Raises ApiError."""
        self.share_key(await registered(self.client, self._kinds[0][0], self._name))

    def share_key(self, found: Configuration | None) -> bool:
        """Take the key of what is registered; reports whether it has one."""
        key = key_of((found and found.webhooks) or ())
        self.endpoint = replace(self.endpoint, key=key or self.endpoint.key)
        return bool(key)

    async def knows(self, key: str) -> bool:
        """Whether this is the registered key. Replicas that start together each have one of their own until one of
        those is registered: before a review is refused the registration is read again, by one request a second at most,
        however many ask and with whatever keys."""
        if key and not self._is_ours(key):
            now = loop_time()
            if self._reading is None or (self._reading.done() and now - self._read_at >= _READ_AGAIN_SECONDS):
                self._read_at = now
                self._reading = asyncio.create_task(self._read_key(), name="read of the webhooks' key")
            # Who goes away does not end the read of the others.
            await asyncio.wait([self._reading], timeout=_READ_AGAIN_SECONDS)
        return self._is_ours(key)

    def _is_ours(self, key: str) -> bool:
        return hmac.compare_digest(key, self.endpoint.key)

    async def _read_key(self) -> None:
        with contextlib.suppress(ApiError):
            await self.adopt()

    async def write(self, bundle: bytes | None, *, only: Callable[[Webhook], bool] | None = None) -> bool:
        """Every configuration, or of those that stand the webhooks that `only` keeps. Whether any stood."""

        async def attempt(again: bool) -> bool:
            stood = False
            if again:
                await self.adopt()
            for resource, make in self._kinds:
                found: Configuration | None = await registered(self.client, resource, self._name)
                stood |= found is not None
                wanted = make(self.endpoint, bundle)
                if only is not None:
                    wanted = [each for each in wanted if found and only(each)]
                await self.put(resource, self._name, found, wanted, self._annotations)
            return stood

        return await retry_on_conflict(attempt, errors=RACES)

    async def put(
        self,
        resource: Resource[Any],
        name: str,
        found: Configuration | None,
        wanted: list[Webhook],
        annotations: Mapping[str, str],
    ) -> bool:
        """Whether anything had to be written to what was `found`; without webhooks there is no configuration. Raises
        AlreadyExists, Conflict, NotFound: another replica was first."""
        configurations = self.client.resource(resource)
        metadata: dict[str, Any] = {"labels": self._labels, "annotations": annotations}
        standing = (found and found.webhooks) or []
        wanted = with_their_bundle(wanted, standing)
        if found is None and wanted:
            await configurations.create({"metadata": {"name": name, **metadata}, "webhooks": wanted})
            self.written(resource, name, "created")
        elif found is not None and not wanted:
            await configurations.delete(name=name, uid=found.uid)
            self.written(resource, name, "removed")
        elif found is not None and not (standing == wanted and self._marks(found, annotations)):
            metadata["resourceVersion"] = found.metadata.resource_version
            await configurations.merge_patch({"metadata": metadata, "webhooks": wanted}, name=name)
            self.written(resource, name, "updated")
        else:
            return False
        return True

    def _marks(self, found: Configuration, annotations: Mapping[str, str]) -> bool:
        return self._labels.items() <= found.labels.items() and annotations.items() <= found.annotations.items()


async def registered(client: Client, resource: Resource[C], name: str) -> C | None:
    """The configuration that stands; None: there is none. Raises ApiError."""
    with contextlib.suppress(NotFound):
        return await client.resource(resource).get(name=name)
    return None


def with_their_bundle(wanted: list[Webhook], standing: list[Webhook]) -> list[Webhook]:
    """Without a caBundle of ours, the one that stands there (a CA injector's) stays."""
    theirs = {each.get("name"): each.get("clientConfig", {}).get("caBundle") for each in standing}
    kept = {name: {"caBundle": bundle} for name, bundle in theirs.items() if bundle}
    return [{**each, "clientConfig": {**kept.get(each["name"], {}), **each["clientConfig"]}} for each in wanted]
