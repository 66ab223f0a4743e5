"""The groups of flags that several commands share, and the settings of a process that follow from them.
`pkg.cmd.flags` says how to add a flag.

Enums are imported from where they are used; those modules import nothing heavy, for a command line starts with them."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final, Literal

from kubeloop.errors import ReportedError
from kubeloop.logs import printable, stream_handler
from pkg.cmd.flags import option, optional
from pkg.config.settings import RANCHER_USERS, WEBHOOKS, QuotaGuard, Settings
from pkg.util.resourcequota.policy import EXACT, LOCK_LIMIT, EstimateKind, Mode, Policy, RancherQuotas

if TYPE_CHECKING:
    from kubeloop.leaderelection.elector import LeaderElectionConfig
    from pkg.util.kubevirt.profiles import Profile

DEFAULT_SECRET: Final = "headroom-webhook-tls"
Output = Literal["table", "json"]


class WrongCall(ReportedError):
    """A flag's value that is not valid."""

    exit_code = 2


def remark(text: str) -> None:
    """Prints a line to stderr, whatever control characters it holds."""
    print(f"headroom: {printable(text)}", file=sys.stderr, flush=True)


@dataclass(frozen=True)
class ClusterOptions:
    title: ClassVar = "Cluster"
    kubeconfig: str | None = optional(
        "Kubeconfig file. Default: $KUBECONFIG, then the pod's service account, then ~/.kube/config.", metavar="FILE"
    )


@dataclass(frozen=True)
class LogOptions:
    title: ClassVar = "Logging"
    log_format: Literal["text", "json"] = option("text", "Format of the log lines.")
    verbose: bool = option(False, "Log at debug level.", "--verbose", "-v")

    def set_up(self) -> None:
        """Installs the one handler of this process; called once, by the command that runs."""
        handler = stream_handler(as_json=self.log_format == "json")
        logging.basicConfig(level=logging.DEBUG if self.verbose else logging.INFO, handlers=[handler], force=True)
        for noisy in ("asyncio", "aiohttp"):
            logging.getLogger(noisy).setLevel(logging.WARNING)


@dataclass(frozen=True)
class OutputOptions:
    output: Output = option("table", "A table to read or JSON for programs.", "--output", "-o")


@dataclass(frozen=True)
class ProcessOptions:
    title: ClassVar = "Process"
    namespace: str | None = optional(
        "Namespace of headroom's own objects: the Lease, the certificate's Secret and the Service. Default: the pod's "
        "namespace, else the kubeconfig context's.",
        metavar="NAMESPACE",
    )
    dry_run: bool = option(False, "Decide, log and count, but write nothing.")
    health_bind_address: str | None = optional(
        "Address of /healthz and /readyz; 0 switches them off. Default: 127.0.0.1:8081, of `headroom webhook` "
        "127.0.0.1:8082.",
        metavar="HOST:PORT",
    )
    metrics_bind_address: str | None = optional(
        "Address of /metrics; 0 switches it off. Default: the address of the health checks.", metavar="HOST:PORT"
    )


@dataclass(frozen=True)
class PolicyOptions:
    title: ClassVar = "Policy"
    mode: Mode = option(Mode.TAKEOVER, "takeover replaces Harvester's migration-quota controllers, assist joins them.")
    estimate: EstimateKind = option(
        EstimateKind.EXACT,
        "How much a migration needs: Harvester's formula, or exactly what quota counts of the target pod.",
    )
    kubevirt_profile: str | None = optional(
        "KubeVirt release whose overhead constants count. Default: the version that the KubeVirt object reports.",
        metavar="VERSION",
    )
    hold_limit: float = option(
        EXACT.hold_limit, "How long after its migration a pod or claim that it left behind keeps the added headroom."
    )
    reserve: Literal["on", "off"] | None = optional(
        "Reserve the added headroom for migrations: other pods may not use it. Default: on in takeover mode, else off."
    )
    rancher_user: list[str] | None = optional(
        "User names of Rancher, whose quota writes are corrected instead of denied; may be repeated. "
        "Default: Rancher's service accounts.",
        metavar="PATTERN",
    )
    rancher_quotas: RancherQuotas = option(
        RancherQuotas.AUTO,
        "How quotas with Rancher's label are raised: direct writes them, annotation requests the headroom of Rancher, "
        "impersonate writes as Rancher. auto: direct where Rancher admits it, else impersonate where the account may, "
        "else annotation.",
    )
    kubevirt_user: list[str] | None = optional(
        "User name of virt-controller, which creates the pods of migrations; may be repeated. "
        "Default: its service account in the namespace of the KubeVirt object.",
        metavar="NAME",
    )
    controller_user: list[str] | None = optional(
        "User name whose writes a namespace's migration lock admits, beside headroom's own; may be repeated.",
        metavar="NAME",
    )


@dataclass(frozen=True)
class ControllerOptions:
    title: ClassVar = "Controllers"
    workers: int = option(10, "Workers of each kind's queue.", metavar="COUNT", min=1, max=1000)
    compensate: bool = option(
        EXACT.compensate, "Raise the quota further for a migration that is still refused although its entry is applied."
    )
    foreign_grace: float = option(
        EXACT.foreign_grace, "How long an entry that no migration explains is kept, if another program wrote it."
    )
    render_default_quota: bool = option(
        False, "Create and update default quotas from the namespaces' annotations, where there is no Rancher."
    )
    lock_limit: float = option(LOCK_LIMIT, "How long a namespace with a VMMRQ is locked at most.", min=1.0)
    only_namespace: list[str] | None = optional(
        "Serve these namespaces and leave all others as they are, for a test on a cluster in use; may be repeated. "
        "Default: all.",
        metavar="PATTERN",
    )
    never_lock: list[str] | None = optional(
        "Namespaces that are never locked for a migration, beside headroom's own, kube-*, and those of KubeVirt, "
        "Harvester and Rancher; may be repeated.",
        metavar="PATTERN",
    )
    webhook: bool = option(False, "Serve the admission webhooks in this process too.")
    remove_webhooks: bool = option(
        False,
        "No webhooks are served on this cluster any more: remove what was registered earlier.",
        "--remove-webhooks",
    )


@dataclass(frozen=True)
class ElectionOptions:
    title: ClassVar = "Leader election"
    leader_elect: bool | None = optional(
        "Write only while holding the Lease headroom; other replicas stand by with warm caches. "
        "Default: on in a cluster, off outside.",
        "--leader-elect/--no-leader-elect",
    )
    leader_elect_lease_duration: float = option(15.0, "How long other replicas wait after the last renewal they saw.")
    leader_elect_renew_deadline: float = option(10.0, "How long the leader writes after its last successful renewal.")
    leader_elect_retry_period: float = option(2.0, "Time between two attempts to acquire or renew the Lease.")

    def config(self) -> LeaderElectionConfig:
        """Returns the durations. Raises WrongCall if a replica could write beside another."""
        from kubeloop.leaderelection.elector import LeaderElectionConfig

        try:
            return LeaderElectionConfig(
                self.leader_elect_lease_duration, self.leader_elect_renew_deadline, self.leader_elect_retry_period
            )
        except ValueError as error:
            raise WrongCall(f"--leader-elect-*: {error}") from error


@dataclass(frozen=True)
class WebhookOptions:
    title: ClassVar = "Webhooks"
    bind_address: str | None = optional(
        "Address that the webhooks listen on. Default: :9443 in a pod, else 127.0.0.1:9443.", metavar="HOST:PORT"
    )
    webhook_url: str | None = optional(
        "https://host:port to register instead of the Service, where the API server cannot reach a Service.",
        metavar="URL",
    )
    quota_guard: QuotaGuard = option(
        QuotaGuard.CORRECT,
        "Writes that lower a quota during migrations: correct Rancher's and deny all others, deny all, or off.",
    )
    failure_policy: list[str] | None = optional(
        "What the API server does with a write while no webhook answers: Ignore or Fail, for all webhooks; with "
        "WEBHOOK= for one of namespaces, virtualmachines, resourcequotas, pods. May be repeated. Default: Ignore.",
        metavar="[WEBHOOK=]POLICY",
    )
    client_ca_file: Path | None = optional(
        "CA of the API server's client certificate; with it, callers without one get no answer. The API server "
        "presents one if its --admission-control-config-file names a kubeconfig for webhooks."
    )
    client_name: list[str] | None = optional(
        "Common name or DNS name that the client certificate must have; may be repeated. Default: any name.",
        metavar="NAME",
    )
    register: bool = option(
        True,
        "Write the webhook configurations; with --no-register they are left to another tool, and what was registered "
        "before stays until `headroom release --only webhooks --force`.",
    )
    inject_ca_from: str | None = optional(
        "Certificate of cert-manager whose CA its injector writes into the webhook configurations.",
        metavar="NAMESPACE/NAME",
    )
    service_name: str = option("headroom-webhook", "Service that the API server calls.", metavar="NAME")
    secret_name: str = option(DEFAULT_SECRET, "Secret of the self-issued certificate of all replicas.", metavar="NAME")
    tls_cert_file: Path | None = optional("Serve this certificate instead of a self-issued one; reloaded on change.")
    tls_key_file: Path | None = optional("Private key of --tls-cert-file.")
    tls_ca_file: Path | None = optional(
        "CA to register. Default: ca.crt beside the certificate; without one caBundle is left to an injector."
    )

    def address(self, in_cluster: bool) -> str:
        """Returns where the webhooks listen: in a pod on every address, a Service has to reach them."""
        return self.bind_address or (":9443" if in_cluster else "127.0.0.1:9443")


def settings_of(
    policy: PolicyOptions, process: ProcessOptions, webhooks: WebhookOptions, controllers: ControllerOptions
) -> Settings:
    """Returns the settings of a process; the namespace is "" where no flag names it. Raises WrongCall."""
    return Settings(
        policy=Policy(
            policy.mode,
            policy.estimate,
            hold_limit=policy.hold_limit,
            foreign_grace=controllers.foreign_grace,
            compensate=controllers.compensate,
            render=controllers.render_default_quota,
        ),
        profile=overhead_profile(policy.kubevirt_profile),
        namespace=process.namespace or "",
        reserve=policy.mode is Mode.TAKEOVER if policy.reserve is None else policy.reserve == "on",
        rancher_quotas=policy.rancher_quotas,
        dry_run=process.dry_run,
        only_namespaces=tuple(controllers.only_namespace or ()),
        controller_users=tuple(policy.controller_user or ()),
        kubevirt_users=tuple(exact_user(user) for user in policy.kubevirt_user or ()),
        lock_limit=controllers.lock_limit,
        never_lock=tuple(controllers.never_lock or ()),
        quota_guard=webhooks.quota_guard,
        strict=strict_webhooks(webhooks.failure_policy or ()),
        rancher_users=tuple(policy.rancher_user or RANCHER_USERS),
        secret_name=webhooks.secret_name,
        register=webhooks.register and not process.dry_run,
        client_names=tuple(webhooks.client_name or ()),
        inject_ca_from=webhooks.inject_ca_from,
    )


def exact_user(user: str) -> str:
    """Returns the user name. Raises WrongCall for an empty one, and for a pattern, which would match tenants' too."""
    if not user or not set("*?[").isdisjoint(user):
        raise WrongCall(f"--kubevirt-user: {user!r} is not an exact user name")
    return user


def strict_webhooks(texts: Iterable[str]) -> list[str]:
    """Returns those of WEBHOOKS that get Fail: `POLICY` is for all, `WEBHOOK=POLICY` for one. Raises WrongCall."""
    policies: dict[str, str] = {}
    for text in texts:
        webhook, is_single, policy = text.rpartition("=")
        if policy not in ("Ignore", "Fail"):
            raise WrongCall(f"--failure-policy: {text!r} does not end in one of Ignore, Fail")
        if is_single and webhook not in WEBHOOKS:
            raise WrongCall(f"--failure-policy: {webhook!r} is not one of the webhooks {', '.join(WEBHOOKS)}")
        policies[webhook] = policy
    return [name for name in WEBHOOKS if policies.get(name, policies.get("")) == "Fail"]


def overhead_profile(name: str | None) -> Profile | None:
    """Returns the overhead constants of --kubevirt-profile, a profile's name or any version. Raises WrongCall."""
    from pkg.util.kubevirt.profiles import PROFILES, profile_for_version
    from pkg.util.quotacount.releases import version_of

    if name is None or name in PROFILES:
        return None if name is None else PROFILES[name]
    if version_of(name) is None:
        raise WrongCall(f"--kubevirt-profile must be a KubeVirt version or main, not {name!r}")
    return profile_for_version(name)


def check_ratio(text: str | None) -> None:
    """Raises WrongCall for what --overhead-ratio cannot be."""
    from pkg.util.kubevirt.rendering import parse_ratio

    if text is not None and parse_ratio(text) is None:
        raise WrongCall(f"--overhead-ratio must be a number from 1.0 to 10.0, not {text!r}")
