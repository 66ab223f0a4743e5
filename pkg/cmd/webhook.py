"""`headroom webhook`: the admission server alone, any number of replicas, until a signal."""

from dataclasses import replace
from urllib.parse import urlsplit

from kubeloop.client.errors import ConfigError
from kubeloop.controllers.listener import parse_bind_address
from kubeloop.webhook.registration import Endpoint
from kubeloop.webhook.serving_certificate import CertificateFiles, server_context
from pkg.cmd import options
from pkg.cmd.controller import controller
from pkg.config.settings import Settings
from pkg.webhook.configurations import mutating, validating
from pkg.webhook.register import Webhooks


def webhook(
    cluster: options.ClusterOptions,
    policy: options.PolicyOptions,
    webhooks: options.WebhookOptions,
    process: options.ProcessOptions,
    logging: options.LogOptions,
) -> int:
    """Serve the admission webhooks: guard quotas and the headroom added for migrations, until SIGTERM or SIGINT."""
    # A process of `headroom controller` without controllers, and without an election.
    process = replace(process, health_bind_address=process.health_bind_address or "127.0.0.1:8082")
    controllers = options.ControllerOptions(workers=0, webhook=True)
    election = options.ElectionOptions(leader_elect=False)
    return controller(cluster, policy, controllers, webhooks, election, process, logging)


def webhooks_of(settings: Settings, flags: options.WebhookOptions) -> Webhooks:
    """Returns the webhooks that the flags ask for. Raises ConfigError, BindError before anything is started."""
    if bool(flags.tls_cert_file) != bool(flags.tls_key_file):
        raise ConfigError("--tls-cert-file and --tls-key-file must be given together")
    if flags.client_name and flags.client_ca_file is None:
        raise ConfigError("--client-name needs --client-ca-file")
    try:
        context = server_context(flags.client_ca_file)
    except ConfigError as exc:
        raise ConfigError(f"--client-ca-file {exc}") from exc
    if flags.bind_address is not None:
        parse_bind_address(flags.bind_address)
    endpoint = endpoint_of(flags)
    for flag, configured in (("--only-namespace", validating), ("--rancher-user", mutating)):
        try:
            configured(endpoint, settings, None)
        except ValueError as exc:
            raise ConfigError(f"{flag}: {exc}") from exc
    files = None
    if flags.tls_cert_file and flags.tls_key_file:
        files = CertificateFiles(context, flags.tls_cert_file, flags.tls_key_file, flags.tls_ca_file)
    return Webhooks(endpoint, context, files)


def endpoint_of(flags: options.WebhookOptions) -> Endpoint:
    """Returns the Service, or `https://host:port` of --webhook-url. Raises ConfigError."""
    url = flags.webhook_url
    if not url:
        return Endpoint(service_name=flags.service_name)
    try:
        parts = urlsplit(url)
        valid = parts.scheme == "https" and parts.hostname and parts.port != 0 and parts.path in ("", "/")
    except ValueError:
        valid = False
    if not valid or parts.query or parts.fragment or parts.username:
        raise ConfigError(f"--webhook-url {url!r} is not https://host:port")
    return Endpoint(url=f"https://{parts.netloc}")
