"""`headroom scale`: evacuates nodes of a large cluster of stand-ins, and measures."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass, fields
from pathlib import Path

from lab.scale.plan import Settings, Strategy
from pkg.cmd.flags import option
from pkg.cmd.options import WrongCall


@dataclass(frozen=True)
class ScaleOptions:
    """How large, how fast, and what is measured."""

    kubeconfig: Path | None = option(None, "Cluster to run on. Default: an embedded one of its own.", metavar="FILE")
    nodes: int = option(50, "Number of nodes.", metavar="COUNT", min=2)
    vms: int = option(1000, "Number of VMs.", metavar="COUNT", min=1)
    namespaces: int = option(20, "Number of namespaces, each with a quota.", metavar="COUNT", min=1)
    evacuate: int = option(5, "Number of nodes whose VMs are migrated away.", metavar="COUNT", min=1)
    rate: str = option("5/s", "Migrations that are created a second.", metavar="N/s")
    strategy: Strategy = option(Strategy.ANNOTATION, "How headroom raises quotas: annotation or vmmrq.")
    external: bool = option(False, "Start no controller: measure the one that runs on the cluster.", "--external")
    allow_real_nodes: bool = option(False, "Run on a cluster that has KubeVirt nodes of its own.", "--allow-real-nodes")
    clean: bool = option(
        False, "Run nothing: remove what a run that was killed has left on the cluster of --kubeconfig.", "--clean"
    )
    seed: int = option(0, "Seed of the VMs' sizes.", metavar="NUMBER")
    out: Path | None = option(
        None, "Folder for report.json and report.html. Default: headroom-scale-TIME.", metavar="DIR"
    )


def scale(options: ScaleOptions) -> int:
    """Evacuate nodes on a cluster of stand-in nodes and VMs, and report what it took.

    Everything that is made on the cluster is removed at the end, also after Ctrl-C. The exit status is 0 when every
    migration succeeded and every quota is as it was.
    """
    if options.evacuate >= options.nodes:
        raise WrongCall(f"--evacuate {options.evacuate} leaves none of --nodes {options.nodes} to migrate to")
    if options.namespaces > options.vms:
        raise WrongCall(f"--namespaces {options.namespaces} is more than --vms {options.vms}")
    if options.kubeconfig is not None and not options.kubeconfig.is_file():
        raise WrongCall(f"--kubeconfig {options.kubeconfig}: there is no such file")
    if options.clean:
        return _clean(options.kubeconfig)
    rate = _rate(options.rate)
    out = options.out or Path(f"headroom-scale-{time.strftime('%Y%m%d-%H%M%S')}")
    _check_folder(out)
    given = {field.name: getattr(options, field.name) for field in fields(Settings)}
    kubeconfig = None if options.kubeconfig is None else str(options.kubeconfig)
    settings = Settings(**{**given, "out": out, "kubeconfig": kubeconfig, "rate": rate})
    from lab.scale.run import run_scale

    return run_scale(settings)


def _clean(kubeconfig: Path | None) -> int:
    if kubeconfig is None:
        raise WrongCall("--clean needs --kubeconfig: an embedded cluster goes with its run")
    from lab.scale.run import clean

    return clean(str(kubeconfig))


def _rate(text: str) -> float:
    """Of `5/s` or `5`. Raises WrongCall."""
    try:
        rate = float(text.removesuffix("/s"))
    except ValueError:
        rate = 0.0
    if not 0 < rate <= 10000:
        raise WrongCall(f"--rate must be a number a second, like 5/s, not {text!r}")
    return rate


def _check_folder(out: Path) -> None:
    """Made, and tried, before anything starts. Raises WrongCall."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass
    except OSError as error:
        raise WrongCall(f"--out {out}: it cannot be written to: {error.strerror}") from error
