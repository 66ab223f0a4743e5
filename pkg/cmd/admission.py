"""Puts the webhooks together: what `headroom webhook` and `headroom controller --webhook` have in common.

Here, and not in `pkg.webhook`, because decisions look at namespaces through the controllers' eyes, and controllers and
webhooks do not import each other.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from ssl import SSLContext
from urllib.parse import urlsplit

from pkg.api.core import ResourceQuota
from pkg.api.registry import PODS, SECRETS
from pkg.client.client import Client
from pkg.client.config import ClientConfig
from pkg.client.errors import ConfigError
from pkg.client.identity import own_user
from pkg.controller.resourcequota.observation import Caches, Observer
from pkg.generic.factory import Management
from pkg.util.managedtenantquota.accounts import virt_controllers
from pkg.util.memory_overhead import OverheadProfile
from pkg.util.resourcequota.planner import Memory, Observed, Policy
from pkg.webhook.admission_server import AdmissionServer
from pkg.webhook.certificate_files import CertificateFiles
from pkg.webhook.certificate_secret import SharedCertificates
from pkg.webhook.configurations import Endpoint, mutating
from pkg.webhook.live_context import server_context
from pkg.webhook.namespace_pods import NamespacePods
from pkg.webhook.options import KUBEVIRT_USERS, RANCHER_USERS, FailurePolicy, Options, QuotaGuard
from pkg.webhook.register import hooks
from pkg.webhook.registration import Registrar
from pkg.webhook.resources.lock.locks import Locks
from pkg.webhook.resources.lock.validator import Accounts
from pkg.webhook.upkeep import Certificates
from pkg.webhook.view import View

DEFAULT_SERVICE = "headroom-webhook"
DEFAULT_SECRET = "headroom-webhook-tls"


@dataclass(frozen=True, slots=True)
class Flags:
    """What the command line says about the webhooks."""

    bind_address: str
    webhook_url: str | None = None
    quota_guard: str = QuotaGuard.CORRECT
    reserve: bool = True
    failure_policy: str = FailurePolicy.IGNORE
    rancher_users: Sequence[str] | None = None
    kubevirt_users: Sequence[str] | None = None
    controller_users: Sequence[str] | None = None
    namespace: str | None = None
    service_name: str = DEFAULT_SERVICE
    secret_name: str = DEFAULT_SECRET
    tls_cert_file: Path | None = None
    tls_key_file: Path | None = None
    tls_ca_file: Path | None = None
    register: bool = True

    def check(self) -> None:
        """Raises ConfigError for what cannot work, before anything is started."""
        if bool(self.tls_cert_file) != bool(self.tls_key_file):
            raise ConfigError("--tls-cert-file and --tls-key-file go together")
        if self.webhook_url is not None:
            _base(self.webhook_url)
        try:
            mutating(Endpoint(), self.options(""), None)
        except ValueError as exc:
            raise ConfigError(f"--rancher-user: {exc}") from exc

    def options(self, user: str) -> Options:
        return Options(
            quota_guard=QuotaGuard(self.quota_guard),
            reserve=self.reserve,
            failure_policy=FailurePolicy(self.failure_policy),
            rancher_users=tuple(self.rancher_users) if self.rancher_users else RANCHER_USERS,
            kubevirt_users=tuple(self.kubevirt_users) if self.kubevirt_users else KUBEVIRT_USERS,
            own_user=user,
        )


class Checks:
    """What /healthz and /readyz ask: the caches and the webhooks together."""

    def __init__(self, management: Management, admission: AdmissionServer | None) -> None:
        self._management = management
        self._admission = admission

    def healthy(self) -> list[str]:
        return self._management.healthy() + (self._admission.healthy() if self._admission else [])

    def unsynced(self) -> list[str]:
        return self._management.unsynced() + (self._admission.unready() if self._admission else [])


async def admission_server(
    client: Client,
    config: ClientConfig,
    management: Management,
    policy: Policy,
    profile: OverheadProfile | None,
    flags: Flags,
) -> AdmissionServer:
    """The webhooks on a process's caches; call before `management.start()`."""
    caches = Caches.of(management)
    observer = Observer(caches, profile)

    def observe(quota: ResourceQuota) -> Observed:
        return observer.observe(quota, time.time(), Memory())

    quotas = management.resource_quotas.cache()
    pods = NamespacePods(client.resource(PODS))
    view = View(client, observe, caches.namespaces, quotas, pods, caches.migrations)
    namespace = flags.namespace or config.namespace
    endpoint = _endpoint(flags, namespace)
    options = flags.options(await own_user(client))
    context = server_context()
    return AdmissionServer(
        hooks(view, policy, options, _locks(management), _accounts(management, options, flags)),
        _certificates(client, namespace, endpoint, context, flags),
        context,
        Registrar(client, endpoint, options) if flags.register else None,
        synced=management.wait_for_sync,
        stopped=pods.close,
    )


def _locks(management: Management) -> Locks:
    return Locks(management.locks.cache(), management.locks.client)


def _accounts(management: Management, options: Options, flags: Flags) -> Accounts:
    kubevirts = management.kubevirts.cache()

    def makers() -> Sequence[str]:
        return flags.kubevirt_users or virt_controllers(kubevirts.list())

    return Accounts([options.own_user, *(flags.controller_users or ())], makers)


def _certificates(
    client: Client, namespace: str, endpoint: Endpoint, context: SSLContext, flags: Flags
) -> Certificates:
    if flags.tls_cert_file and flags.tls_key_file:
        return CertificateFiles(flags.tls_cert_file, flags.tls_key_file, context, flags.tls_ca_file)
    return SharedCertificates(
        client.resource(SECRETS), namespace, flags.secret_name, _hosts(endpoint), context
    )


def _endpoint(flags: Flags, namespace: str) -> Endpoint:
    if flags.webhook_url:
        return Endpoint(url=_base(flags.webhook_url))
    return Endpoint(service_namespace=namespace, service_name=flags.service_name)


def _hosts(endpoint: Endpoint) -> list[str]:
    if endpoint.url:
        return [urlsplit(endpoint.url).hostname or ""]
    service = f"{endpoint.service_name}.{endpoint.service_namespace}.svc"
    return [service, f"{service}.cluster.local"]


def _base(url: str) -> str:
    """`https://host:port` of a URL. Raises ConfigError."""
    try:
        parts = urlsplit(url)
        valid = parts.scheme == "https" and parts.hostname and parts.port != 0 and parts.path in ("", "/")
    except ValueError:
        valid = False
    if not valid or parts.query or parts.fragment or parts.username:
        raise ConfigError(f"--webhook-url {url!r} is not https://host:port")
    return f"https://{parts.netloc}"
