"""Wires the webhooks: what `headroom webhook` and `headroom controller --webhook` have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from ssl import SSLContext
from urllib.parse import urlsplit

from kubeloop.api.registry import PODS, SECRETS
from kubeloop.client.client import Client, own_user
from kubeloop.client.config import ClientConfig
from kubeloop.client.errors import ConfigError
from kubeloop.controllers.server import parse_bind_address
from pkg.cmd.options import PolicyOptions, WebhookOptions
from pkg.config.management import Management
from pkg.util.installation import about
from pkg.util.kubevirt.accounts import exact, virt_controllers
from pkg.util.resourcequota.observe import Observer
from pkg.webhook.admission_server import AdmissionServer
from pkg.webhook.caller import Caller
from pkg.webhook.certificate_files import CertificateFiles
from pkg.webhook.certificate_secret import SharedCertificates
from pkg.webhook.configurations import Endpoint, mutating
from pkg.webhook.namespace_pods import NamespacePods
from pkg.webhook.options import RANCHER_USERS, Options, parse_failure_policies
from pkg.webhook.register import hooks
from pkg.webhook.registration import EVENT_NOT_REACHED, Registrar
from pkg.webhook.resources.lock.validator import Accounts, Locks
from pkg.webhook.tls_context import server_context
from pkg.webhook.upkeep import Certificates
from pkg.webhook.view import View


@dataclass(frozen=True)
class Admission:
    """The webhooks' options from the command line."""

    policy: PolicyOptions
    webhooks: WebhookOptions
    namespace: str | None = None
    """Of the certificate's Secret and the Service; None: the configuration's own."""

    def check(self) -> None:
        """Raises ConfigError, BindError and WrongCall for what cannot work, before anything is started."""
        if bool(self.webhooks.tls_cert_file) != bool(self.webhooks.tls_key_file):
            raise ConfigError("--tls-cert-file and --tls-key-file must be given together")
        if self.webhooks.client_name and self.webhooks.client_ca_file is None:
            raise ConfigError("--client-name needs --client-ca-file")
        server_context(self.webhooks.client_ca_file)
        if self.webhooks.bind_address is not None:
            parse_bind_address(self.webhooks.bind_address)
        if self.webhooks.webhook_url is not None:
            _base(self.webhooks.webhook_url)
        try:
            parse_failure_policies(self.webhooks.failure_policy or ())
        except ValueError as exc:
            raise ConfigError(f"--failure-policy: {exc}") from exc
        self.policy.profile()
        try:
            for user in self.policy.kubevirt_user or ():
                exact(user)
        except ValueError as exc:
            raise ConfigError(f"--kubevirt-user: {exc}") from exc
        try:
            mutating(Endpoint(), self.options(""), None)
        except ValueError as exc:
            raise ConfigError(f"--rancher-user: {exc}") from exc

    def options(self, user: str, namespace: str = "default") -> Options:
        """What the webhooks are given; `user` is the own account."""
        policy = self.policy
        common, single = parse_failure_policies(self.webhooks.failure_policy or ())
        return Options(
            quota_guard=self.webhooks.quota_guard,
            reserve=policy.reserves(),
            failure_policy=common,
            failure_policies=single,
            rancher_users=tuple(policy.rancher_user) if policy.rancher_user else RANCHER_USERS,
            own_user=user,
            namespace=namespace,
            controller_users=tuple(policy.controller_user or ()),
        )

    def bind_address(self, config: ClientConfig) -> str:
        """Where the webhooks listen: in a pod on every address, a Service has to reach them."""
        return self.webhooks.bind_address or (":9443" if config.in_cluster else "127.0.0.1:9443")

    async def server(self, client: Client, config: ClientConfig, management: Management) -> AdmissionServer:
        """The webhooks on a process's caches; call before `management.start()`."""
        namespace = self.namespace or config.namespace
        endpoint = _endpoint(self.webhooks, namespace)
        options = self.options(await own_user(client), namespace)
        context = server_context(self.webhooks.client_ca_file)
        pods = NamespacePods(client.resource(PODS))
        observer = Observer(management.source(claims=False), self.policy.profile())
        view = View(client, observer, management.resource_quotas.cache(), pods)
        accounts = _accounts(management, options, self.policy)
        tell = management.recorder("headroom").event
        caller = Caller()
        return AdmissionServer(
            hooks(view, self.policy.policy(), options, endpoint, _locks(management), accounts, tell),
            _certificates(client, namespace, endpoint, context, self.webhooks),
            context,
            Registrar(
                client,
                endpoint,
                options,
                caller=caller,
                tell=lambda what: tell(about(namespace), "Warning", EVENT_NOT_REACHED, what),
                inject_ca_from=self.webhooks.inject_ca_from,
            )
            if self.webhooks.register
            else None,
            client_names=self.webhooks.client_name or (),
            caller=caller if self.webhooks.register else None,
            synced=management.wait_for_sync,
            stopped=pods.close,
        )


def _locks(management: Management) -> Locks:
    client = management.client
    return Locks(management.locks.cache(), management.locks.client, client.transport.server_clock)


def _accounts(management: Management, options: Options, policy: PolicyOptions) -> Accounts:
    kubevirts = management.kubevirts.cache()

    def makers() -> Sequence[str]:
        return virt_controllers(kubevirts.list(), policy.kubevirt_user or ())

    return Accounts([options.own_user, *(policy.controller_user or ())], makers)


def _certificates(
    client: Client, namespace: str, endpoint: Endpoint, context: SSLContext, webhooks: WebhookOptions
) -> Certificates:
    if webhooks.tls_cert_file and webhooks.tls_key_file:
        return CertificateFiles(webhooks.tls_cert_file, webhooks.tls_key_file, context, webhooks.tls_ca_file)
    return SharedCertificates(
        client.resource(SECRETS), namespace, webhooks.secret_name, _hosts(endpoint), context
    )


def _endpoint(webhooks: WebhookOptions, namespace: str) -> Endpoint:
    if webhooks.webhook_url:
        return Endpoint(url=_base(webhooks.webhook_url))
    return Endpoint(service_namespace=namespace, service_name=webhooks.service_name)


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
