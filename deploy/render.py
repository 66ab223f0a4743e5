"""Renders deploy/*.yaml and the chart's README from the chart, docs/metrics.md and docs/reference.md from tables in the
code: `make manifests`. A test checks that they are."""

import re
import subprocess
from collections import defaultdict
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

from deploy.reference import reference
from kubeloop.metrics import FRAMEWORK, Metric
from kubeloop.testing.cluster.binaries import ensure_helm
from pkg.config.metrics import METRICS

DEPLOY = Path(__file__).parent
CHART = DEPLOY / "charts" / "headroom"
IMAGE = "set-image-repository.invalid/headroom"
"""In what is applied by hand: a name that no resolver knows (RFC 2606), so that nothing else is pulled by accident."""
NAMESPACE = """\
apiVersion: v1
kind: Namespace
metadata:
  name: headroom-system
  labels:
    pod-security.kubernetes.io/enforce: restricted
"""
_SOURCE = re.compile(r"^# Source: .*\n", re.MULTILINE)


def helm(*arguments: str) -> str:
    """What helm says. Raises CalledProcessError."""
    command = [str(ensure_helm()), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@cache
def template(*arguments: str) -> str:
    """The chart rendered, without helm's remarks on where a document comes from."""
    given = ("--namespace", "headroom-system", "--set", f"image.repository={IMAGE}", *arguments)
    rendered = helm("template", "headroom", str(CHART), *given)
    # Helm's own labels would say that helm looks after what `kubectl apply` made.
    rendered = re.sub(r" *(helm\.sh/chart|app\.kubernetes\.io/managed-by): .*\n", "", rendered)
    return _SOURCE.sub("", rendered).removeprefix("---\n")


def rbac() -> str:
    """The rights of one account for everything: `webhook.inController=true`."""
    title = (
        "# What headroom may do, with one account for everything; the namespace is in namespace.yaml.\n"
        "# `kubectl apply --server-side -f deploy/rbac.yaml`\n"
    )
    shown = ("--show-only", "templates/rbac.yaml")
    together = template("--set", "webhook.inController=true", *shown)
    # And the account of `headroom webhook` by itself.
    alone = "".join(f"---\n{each}" for each in template(*shown).split("---\n") if "name: headroom-webhook" in each)
    return f"{title}{together}{alone}"


def render_default_quota() -> str:
    title = "# The right that `headroom controller --render-default-quota` needs beside rbac.yaml.\n"
    shown = ("--show-only", "templates/render-default-quota.yaml")
    return title + template("--set", "controller.renderDefaultQuota=true", *shown)


def rancher_impersonation() -> str:
    title = (
        "# For `--rancher-quotas impersonate`, beside rbac.yaml: quotas that Rancher's webhook protects are written\n"
        "# as the account that Rancher itself has for that, in the group that passes every check of Kubernetes.\n"
        "# Whoever steals a token of headroom is cluster-admin then.\n"
    )
    shown = ("--show-only", "templates/rancher-impersonation.yaml")
    return title + template("--set", "rancher.quotas=impersonate", *shown)


def policy() -> str:
    return template("--show-only", "templates/policy.yaml", "--show-only", "templates/own-writes.yaml")


def monitoring(kind: str) -> str:
    """The object of the Prometheus Operator that the value `kind` switches on."""
    title = f"# For the Prometheus Operator. `kubectl apply --server-side -f deploy/monitoring/{kind.lower()}.yaml`\n"
    return title + template("--set", f"{kind}.enabled=true", "--show-only", "templates/monitoring.yaml")


def plain_rules() -> str:
    """The same as a rule file of Prometheus itself."""
    title = "# Alerts, as a rule file of Prometheus: rule_files: [rules.yaml]\n"
    return title + (CHART / "files" / "alerts.yaml").read_text("utf-8").partition("\n")[2]


def everything() -> str:
    """The default rendering; VMMRQ's definition with it, and without the hook, which only helm runs."""
    title = (
        f"# The chart's default rendering. Put your image in the place of {IMAGE}, then\n"
        "# `kubectl apply --server-side -f deploy/headroom.yaml`\n"
    )
    crds = "".join(f"---\n{path.read_text('utf-8').rstrip()}\n" for path in sorted((CHART / "crds").glob("*.yaml")))
    return f"{title}{NAMESPACE}{crds}---\n{template('--no-hooks')}"


def readme() -> str:
    """The chart's README with the table of its values."""
    head, tail = (CHART / "README.md").read_text("utf-8").split("<!-- values -->\n")[::2]
    return f"{head}<!-- values -->\n{_table()}<!-- values -->\n{tail}"


def _table() -> str:
    """A row for each value whose comment begins with `# --`."""
    rows, path, comment = ["| value | default | |\n|---|---|---|\n"], [""] * 8, ""
    for line in (CHART / "values.yaml").read_text("utf-8").splitlines():
        key = re.match(r"( *)([A-Za-z]+):(?: (.*))?$", line)
        if "# -- " in line:
            comment = line.split("# -- ")[1]
        elif line.lstrip().startswith("#") and comment:
            comment += line.lstrip().removeprefix("#")
        elif key:
            depth = len(key[1]) // 2
            path[depth] = key[2]
            if comment:
                default = key[3] or "see values.yaml"
                rows.append(f"| `{'.'.join(path[: depth + 1])}` | `{default}` | {comment} |\n")
            comment = ""
    return "".join(rows)


_METRICS = """\
# Metrics

Made by `make manifests` from the tables in the code. Every process of headroom serves /metrics
(`--metrics-bind-address`).

*Exported by*: `all` processes, the `leader` (a controller without leader election is one) once its caches have synced,
or those that serve a `webhook`. A gauge is exported from its first value on, one of a namespace only while there is
something to say about it: what is not there is not known, or zero. Durations are in seconds, times in seconds since
1970.

"""


def metrics() -> str:
    """docs/metrics.md."""
    rows = [*METRICS.values(), *FRAMEWORK.values()]
    shown = "".join(
        f"| `{each.name}{_braces(each)}` | {each.kind} | {each.exported} | {each.help} |\n" for each in rows
    )
    named: dict[tuple[str, str], list[str]] = defaultdict(list)
    for each in rows:
        for label in each.labels.items():
            named[label].append(f"`{each.name}`")
    labels = "".join(
        f"| `{label}` | {values} | {', '.join(names) if len(names) < 3 else 'all others'} |\n"
        for (label, values), names in named.items()
    )
    return (
        f"{_METRICS}| metric | type | exported by | |\n|---|---|---|---|\n{shown}\n"
        f"## Labels\n\n| label | values | of |\n|---|---|---|\n{labels}"
    )


def _braces(metric: Metric) -> str:
    return f"{{{','.join(metric.labels)}}}" if metric.labels else ""


FILES: dict[Path, Callable[[], str]] = {
    DEPLOY / "namespace.yaml": lambda: NAMESPACE,
    DEPLOY / "rbac.yaml": rbac,
    DEPLOY / "render-default-quota.yaml": render_default_quota,
    DEPLOY / "rancher-impersonation.yaml": rancher_impersonation,
    DEPLOY / "policy.yaml": policy,
    DEPLOY / "headroom.yaml": everything,
    DEPLOY / "monitoring" / "rules.yaml": plain_rules,
    DEPLOY / "monitoring" / "prometheusrule.yaml": partial(monitoring, "prometheusRule"),
    DEPLOY / "monitoring" / "servicemonitor.yaml": partial(monitoring, "serviceMonitor"),
    CHART / "README.md": readme,
    DEPLOY.parent / "docs" / "metrics.md": metrics,
    DEPLOY.parent / "docs" / "reference.md": reference,
}

if __name__ == "__main__":
    for file, render in FILES.items():
        file.write_text(render(), "utf-8")
        print(file.relative_to(DEPLOY.parent))
