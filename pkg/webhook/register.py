"""Wiring of the webhooks: what one process serves, and the handler of every path."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from ssl import SSLContext

from kubeloop.api.meta import Object
from kubeloop.api.registry import SECRETS
from kubeloop.client.client import Client, own_user
from kubeloop.metrics import LateGauge
from kubeloop.webhook.admission import AdmissionRequest, Decision, Hook
from kubeloop.webhook.admission_server import AdmissionServer
from kubeloop.webhook.registration import Endpoint
from kubeloop.webhook.server import ServerMetrics
from kubeloop.webhook.serving_certificate import CertificateFiles, SharedCertificates
from pkg.config.management import Management
from pkg.config.metrics import METRICS
from pkg.config.settings import Settings
from pkg.selfcheck.api_server import PROBE_MARK, PROBE_PATH
from pkg.selfcheck.installation import about
from pkg.util.constants import LOCK_PATH
from pkg.util.kubevirt.rendering import virt_controllers
from pkg.webhook import configurations as paths
from pkg.webhook.registration import Registrar
from pkg.webhook.resources import lock, namespace, pod, resourcequota, virtualmachine
from pkg.webhook.view import View

_DECISIONS = METRICS["headroom_admission_decisions_total"].counter()
_DENIALS = METRICS["headroom_admission_denials_total"].counter()
_CERTIFICATE_EXPIRY = LateGauge(METRICS["headroom_webhook_certificate_expiry_seconds"])
_OPEN = LateGauge(METRICS["headroom_webhook_connections"])
_CLOSED = METRICS["headroom_webhook_connections_closed_total"].counter()


@dataclass(frozen=True)
class Webhooks:
    """The webhooks of a process before it has a client; `server` makes them."""

    endpoint: Endpoint
    """The Service's namespace is that of the settings."""
    context: SSLContext
    files: CertificateFiles | None = None
    """A certificate that another program makes, instead of the one in the Secret."""

    async def server(self, settings: Settings, client: Client, management: Management) -> AdmissionServer:
        """The webhooks on a process's caches; call before `management.start()`."""
        settings = replace(settings, own_user=await own_user(client))
        endpoint = replace(self.endpoint, service_namespace=settings.namespace)
        source = management.source(settings.profile, claims=False)
        view = View(client, source, management.clock, management.slim)
        secrets, name = client.resource(SECRETS), settings.secret_name
        certificate = self.files or SharedCertificates(
            self.context, secrets, settings.namespace, name, endpoint.hosts, managed_by="headroom"
        )
        report = partial(management.recorder("headroom").event, about(settings.namespace), "Warning")
        return AdmissionServer(
            hooks(view, settings, endpoint, management),
            certificate,
            Registrar(client, endpoint, settings, report) if settings.register else None,
            client_names=settings.client_names,
            synced=management.wait_for_sync,
            stopped=view.close,
            metrics=HeadroomMetrics(),
        )


def hooks(view: View, settings: Settings, endpoint: Endpoint, management: Management) -> Mapping[str, Hook]:
    """Returns all handlers by path: the API server may still ask by the settings of a replica from before."""
    locks, kubevirts = management.locks, management.kubevirts.cache()
    owners = [settings.own_user, *settings.controller_users]
    accounts = lock.Accounts(owners, lambda: virt_controllers(kubevirts.list(), settings.kubevirt_users))
    granted = partial(lock.is_granted, view)
    guard = resourcequota.Guard(view, settings, management.recorder("headroom").event)
    mark = paths.fingerprint(endpoint, settings)
    return {
        PROBE_PATH: lambda request: answer_probe(request, mark),
        paths.VALIDATE_NAMESPACE: partial(namespace.validate, view),
        paths.VALIDATE_RESOURCE_QUOTA: guard.validate,
        paths.MUTATE_RESOURCE_QUOTA: guard.mutate,
        paths.VALIDATE_POD: pod.PodValidator(view, settings, accounts.makes_targets).validate,
        LOCK_PATH: lock.LockValidator(locks.cache(), locks.client, management.clock, accounts, granted).validate,
        paths.VALIDATE_VIRTUAL_MACHINE: partial(virtualmachine.validate, view),
    }


async def answer_probe(request: AdmissionRequest, mark: str) -> Decision:
    annotations = {**request.new(Object).annotations, PROBE_MARK: mark}
    return Decision(patch=[{"op": "add", "path": "/metadata/annotations", "value": annotations}])


class HeadroomMetrics(ServerMetrics):
    """Exports what a server tells; the series of every webhook exist from the start, as dashboards expect."""

    def __init__(self) -> None:
        for webhook, answer in product(paths.NAMES.values(), ("allowed", "patched", "denied")):
            _DECISIONS.labels(webhook, answer)

    def name(self, path: str) -> str:
        return paths.NAMES[path]

    def connections(self, count: int) -> None:
        _OPEN.set(count)

    def closed(self, reason: str) -> None:
        _CLOSED.labels(reason).inc()

    def decided(self, webhook: str, decision: Decision) -> None:
        if not decision.allowed:
            _DENIALS.labels(webhook, decision.reason).inc()
        answer = "denied" if not decision.allowed else "patched" if decision.patch else "allowed"
        _DECISIONS.labels(webhook, answer).inc()

    def certificate(self, expires: float) -> None:
        _CERTIFICATE_EXPIRY.set(expires)
