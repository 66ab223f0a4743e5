"""Registration of webhooks: their address for the API server, and the configurations that contain it."""

import asyncio
import base64
import contextlib
import hmac
import logging
import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from kubeloop.api.core import MutatingWebhookConfiguration, ValidatingWebhookConfiguration
from kubeloop.api.registry import Resource
from kubeloop.client.client import Client
from kubeloop.client.errors import AlreadyExists, ApiError, Conflict, NotFound
from kubeloop.client.retry import retry_on_conflict
from kubeloop.workqueue.queue import loop_time

log = logging.getLogger(__name__)

TIMEOUT_SECONDS: Final = 5
"""The time for which the API server waits for an answer."""
_KEY_BYTES: Final = 16
_KEY: Final = re.compile(f"[0-9a-f]{{{2 * _KEY_BYTES}}}")
_READ_AGAIN_SECONDS: Final = 1.0
"""The time for which a review waits for the registered key to be read again, and until it is read once more."""
RACES: Final = (AlreadyExists, Conflict, NotFound)
"""Another replica created, changed or deleted the same configuration meanwhile."""

Webhook = dict[str, Any]
"""A webhook of a configuration, as on the wire."""
Configuration = ValidatingWebhookConfiguration | MutatingWebhookConfiguration
C = TypeVar("C", ValidatingWebhookConfiguration, MutatingWebhookConfiguration)


class NotReached(Exception):
    """The API server does not reach the webhook; the text says why."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address of this program for the API server: a URL (`https://host:port`, no path) or a Service."""

    url: str = ""
    service_namespace: str = ""
    service_name: str = ""
    key: str = ""
    """The last part of every path, by which the API server is known where it presents no client certificate: only
    readers of webhook configurations know it. Replicas share the one that is registered."""

    def client_config(self, path: str, bundle: bytes | None = None) -> dict[str, Any]:
        """Returns a WebhookClientConfig; without `bundle` it has no caBundle."""
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
    return next(filter(None, (split_key(path)[1] for path in paths)), "")


def split_key(path: str) -> tuple[str, str]:
    """A path, or a URL, without the key in which it ends, and the key; "": it has none."""
    path_without_key, _, key = path.rpartition("/")
    return (path_without_key, key) if _KEY.fullmatch(key) else (path, "")


def webhook(name: str, client_config: Mapping[str, Any], rules: Sequence[Mapping[str, Any]], **fields: Any) -> Webhook:
    """A validating webhook; `fields` by their names in JSON, a mutating one's also `reinvocationPolicy`. Every field is
    spelled out, defaults too: what the server stores then equals what is wanted, and drift is seen by comparing. Raises
    TypeError for a field that no webhook has: the server would drop it."""
    defaults = {
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
    }
    if wrong := fields.keys() - defaults.keys() - {"matchConditions", "reinvocationPolicy"}:
        raise TypeError(f"{', '.join(sorted(wrong))}: a webhook has no such field: write it as in JSON")
    return {**defaults, **fields}


def rule(
    resources: list[str] | Resource[Any], operations: list[str], *, group: str = "", scope: str = "Namespaced"
) -> dict[str, Any]:
    """Returns a RuleWithOperations: of a kind, or of plurals of v1, with subresources, of one group and scope."""
    version = "v1"
    if isinstance(resources, Resource):
        group, version, scope = resources.group, resources.version, "Namespaced" if resources.namespaced else "Cluster"
        resources = [resources.plural]
    about = {"apiGroups": [group], "apiVersions": [version], "resources": resources}
    return {**about, "operations": operations, "scope": scope}


@dataclass(eq=False, repr=False)
class Registration:
    """Configurations of one name, of each kind one, kept as they should be. Writes only what differs."""

    client: Client
    endpoint: Endpoint
    """Its key is registered, or the one that another replica has registered before."""
    name: str
    kinds: Sequence[tuple[Resource[Any], Callable[[Endpoint, bytes | None], list[Webhook]]]]
    """The webhooks of each, for an endpoint and the CAs that the API server trusts (None: a CA injector sets them)."""
    labels: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    annotations: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    _reading: asyncio.Task[None] | None = field(default=None, init=False)
    _read_at: float = field(default=float("-inf"), init=False)

    def __post_init__(self) -> None:
        self.endpoint = replace(self.endpoint, key=secrets.token_hex(_KEY_BYTES))

    def written(self, resource: Resource[Any], name: str, operation: str) -> None:
        """Records a write that succeeded: `created`, `updated` or `removed`."""
        log.info("%s %s %s", resource.kind, name, operation)

    async def ensure(self, bundle: bytes | None) -> None:
        """Writes the configurations where they differ. Raises ApiError; where that is asked also NotReached."""
        await self.write(bundle, await self.adopt())

    async def adopt(self) -> Configuration | None:
        """Takes the key that is registered, by whichever replica, in the first configuration, which it returns. Raises
        ApiError."""
        first: Configuration | None = await registered(self.client, self.kinds[0][0], self.name)
        self.share_key(first)
        return first

    def share_key(self, configuration: Configuration | None) -> bool:
        """Takes the key of the registered configuration, and reports whether it has one."""
        key = key_of((configuration and configuration.webhooks) or ())
        self.endpoint = replace(self.endpoint, key=key or self.endpoint.key)
        return bool(key)

    async def knows(self, key: str) -> bool:
        """Reports whether this is the registered key. Replicas that start together each have one of their own until one
        of those is registered: before a review is refused the registration is read again, by one request a second at
        most, however many ask and with whatever keys."""
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

    async def write(
        self, bundle: bytes | None, first: Configuration | None = None, *, only: Callable[[Webhook], bool] | None = None
    ) -> bool:
        """Writes every configuration, or of the registered ones what `only` keeps; reports whether there was any.
        `first`: that of the first kind, where it has just been read."""

        async def attempt(again: bool) -> bool:
            was_registered, current = False, await self.adopt() if again else first
            for resource, make in self.kinds:
                configuration = current or await registered(self.client, resource, self.name)
                current = None
                was_registered |= configuration is not None
                webhooks = make(self.endpoint, bundle)
                if only is not None:
                    webhooks = [entry for entry in webhooks if configuration and only(entry)]
                await self.put(resource, self.name, configuration, webhooks, self.annotations)
            return was_registered

        return await retry_on_conflict(attempt, errors=RACES)

    async def put(
        self,
        resource: Resource[Any],
        name: str,
        configuration: Configuration | None,
        webhooks: list[Webhook],
        annotations: Mapping[str, str],
    ) -> bool:
        """Writes the configuration unless the registered one is as it should be, and reports whether it did; without
        webhooks there is none. Raises AlreadyExists, Conflict, NotFound: another replica was first."""
        configurations = self.client.resource(resource)
        metadata: dict[str, Any] = {"labels": dict(self.labels), "annotations": annotations}
        registered_webhooks = (configuration and configuration.webhooks) or []
        webhooks = with_their_bundle(webhooks, registered_webhooks)
        if configuration is None:
            if not webhooks:
                return False
            await configurations.create({"metadata": {"name": name, **metadata}, "webhooks": webhooks})
            self.written(resource, name, "created")
        elif not webhooks:
            await configurations.delete(name=name, uid=configuration.uid)
            self.written(resource, name, "removed")
        else:
            has_labels = self.labels.items() <= configuration.labels.items()
            has_annotations = annotations.items() <= configuration.annotations.items()
            if registered_webhooks == webhooks and has_labels and has_annotations:
                return False
            metadata["resourceVersion"] = configuration.metadata.resource_version
            await configurations.merge_patch({"metadata": metadata, "webhooks": webhooks}, name=name)
            self.written(resource, name, "updated")
        return True


async def registered(client: Client, resource: Resource[C], name: str) -> C | None:
    """The configuration that stands; None: there is none. Raises ApiError."""
    with contextlib.suppress(NotFound):
        return await client.resource(resource).get(name=name)
    return None


def with_their_bundle(webhooks: list[Webhook], registered_webhooks: list[Webhook]) -> list[Webhook]:
    """Returns the webhooks, each without a caBundle of its own with the registered one (a CA injector's)."""
    bundles = {entry.get("name"): entry.get("clientConfig", {}).get("caBundle") for entry in registered_webhooks}
    configs = {name: {"caBundle": bundle} for name, bundle in bundles.items() if bundle}
    return [{**w, "clientConfig": {**configs.get(w["name"], {}), **w["clientConfig"]}} for w in webhooks]
