"""`headroom scale`: evacuates nodes of a large cluster of stand-ins, and measures."""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace
from pathlib import Path

from lab.scale.plan import Settings
from pkg.cmd.options import WrongCall


def scale(options: Settings) -> int:
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
    from lab.scale import run

    if options.clean:
        if options.kubeconfig is None:
            raise WrongCall("--clean needs --kubeconfig: an embedded cluster goes with its run")
        return run.clean(options.kubeconfig)
    if not options.per_second:
        raise WrongCall(f"--rate must be a number a second, like 5/s, not {options.rate!r}")
    out = options.out or Path(f"headroom-scale-{time.strftime('%Y%m%d-%H%M%S')}")
    try:  # before anything starts
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass
    except OSError as error:
        raise WrongCall(f"--out {out}: it cannot be written to: {error.strerror}") from error
    return run.run_scale(replace(options, out=out))
