"""`headroom delta`: what a migration adds to the quota, for VMIs from a file or a pipe."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from pkg.cmd.options import WrongCall, overhead_profile

if TYPE_CHECKING:
    from pkg.api.kubevirt import VirtualMachineInstance
    from pkg.util.resource_list import ResourceList

_KIND = "VirtualMachineInstance"
_QUOTA = ("limits.cpu", "limits.memory")
"""The quota is taken to limit both."""
_ALIASES = ("cpu", "memory", "ephemeral-storage")
"""Names under which a quota may limit requests; they are printed as requests.… only."""


class Arch(StrEnum):
    """The node's architecture."""

    AMD64 = "amd64"
    ARM64 = "arm64"


class DeltaEstimate(StrEnum):
    """How much a migration needs: Harvester's formula, or all that quota counts of the target pod."""

    HARVESTER = "harvester"
    EXACT = "exact"


def delta(
    file: Annotated[
        str, typer.Option("--file", "-f", envvar="HEADROOM_FILE", help="YAML or JSON file; - is stdin.")
    ],
    overhead_ratio: Annotated[
        str, typer.Option(envvar="HEADROOM_OVERHEAD_RATIO", help="additional-guest-memory-overhead-ratio.")
    ] = "1.5",
    arch: Annotated[
        Arch | None,
        typer.Option(envvar="HEADROOM_ARCH", help="Else the VMI's own, else amd64.", show_default=False),
    ] = None,
    estimate: Annotated[
        DeltaEstimate, typer.Option(envvar="HEADROOM_ESTIMATE", help="How much a migration needs.")
    ] = DeltaEstimate.HARVESTER,
    kubevirt_profile: Annotated[
        str, typer.Option(envvar="HEADROOM_KUBEVIRT_PROFILE", help='A KubeVirt release, or "main".')
    ] = "1.8",
) -> int:
    """Print what a live migration of each VirtualMachineInstance adds to its namespace's quota, a JSON line each.

    Offline: nothing but the input is looked at; the quota is taken to limit both cpu and memory.
    """
    from pkg.cmd.manifests import ManifestError

    try:
        calculator = _Calculator(overhead_ratio, arch, estimate, kubevirt_profile)
        with _open(file) as stream:
            for line in calculator.lines(stream):
                sys.stdout.write(line + "\n")
    except WrongCall as error:
        return _fail(str(error), 2)
    except ManifestError as error:
        return _fail(f"{file}: {error}" if file != "-" else str(error), 1)
    return 0


def _fail(message: str, code: int) -> int:
    sys.stdout.flush()
    print(f"headroom: {message}", file=sys.stderr)
    return code


@contextlib.contextmanager
def _open(file: str) -> Iterator[BinaryIO]:
    from pkg.cmd.manifests import ManifestError

    if file == "-":
        yield sys.stdin.buffer
        return
    try:
        with open(file, "rb") as stream:
            yield stream
    except (OSError, ValueError) as error:
        raise ManifestError(getattr(error, "strerror", None) or str(error)) from error


class _Calculator:
    """The flags of one call, checked."""

    def __init__(self, ratio: str, arch: Arch | None, estimate: DeltaEstimate, profile: str) -> None:
        from pkg.util.memory_overhead import parse_ratio

        if parse_ratio(ratio) is None:
            raise WrongCall(f"--overhead-ratio must be a number from 1.0 to 10.0, not {ratio!r}")
        self.ratio = ratio
        self.arch = arch
        self.estimate = estimate
        self.profile = overhead_profile(profile)
        self.release = profile

    def lines(self, stream: BinaryIO) -> Iterator[str]:
        """A JSON line for each VMI. ManifestError names the object that is wrong."""
        from pkg.cmd.manifests import ManifestError, name_of, read_objects
        from pkg.util.quantity import QuantityError

        for place, document in read_objects(stream):
            try:
                yield json.dumps(self.describe(_decode(document)))
            except (QuantityError, ManifestError) as error:
                raise ManifestError(f"{name_of(place, document)}: {error}") from error

    def describe(self, vmi: VirtualMachineInstance) -> dict[str, Any]:
        """What is printed for one VMI. QuantityError if one of its quantities is none."""
        from pkg.util.memory_overhead import harvester_delta, memory_overhead
        from pkg.util.resource_list import format_resource_list

        arch = self.arch or vmi.spec.architecture or Arch.AMD64
        overhead = memory_overhead(vmi.spec, ratio=self.ratio, arch=arch, profile=self.profile)
        if self.estimate is DeltaEstimate.EXACT:
            resources = _exact(vmi, overhead, self.release)
        else:
            hard = dict.fromkeys(_QUOTA)
            resources = harvester_delta(vmi.spec, hard, self.ratio, arch, self.profile) or {}
        return {
            "namespace": vmi.namespace,
            "name": vmi.name,
            "overhead": overhead,
            "delta": format_resource_list(resources),
        }


def _exact(vmi: VirtualMachineInstance, overhead: int, release: str) -> ResourceList:
    """All that quota counts of the launcher pod and the attachment pod of hotplugged volumes, with the
    configuration that a KubeVirt release comes with."""
    from pkg.api.core import ResourceQuotaSpec
    from pkg.api.kubevirt import KubeVirtConfiguration
    from pkg.util.resource_list import add
    from pkg.util.resourcequota.exact import attachments_usage, rendered_pod
    from pkg.util.resourcequota.installation import with_beta_gates
    from pkg.util.resourcequota.model import Rendering
    from pkg.util.resourcequota.usage import pod_usage

    spec = ResourceQuotaSpec(hard=dict.fromkeys(_QUOTA, "0"))
    rendering = Rendering(kubevirt=with_beta_gates(KubeVirtConfiguration(), release))
    launcher = pod_usage(rendered_pod(vmi, rendering, spec, overhead))
    usage = add(launcher, attachments_usage(vmi, None, rendering, spec))
    return {name: quantity for name, quantity in usage.items() if name not in _ALIASES}


def _decode(document: Mapping[str, Any]) -> VirtualMachineInstance:
    """The VMI that a document holds; one without a kind is taken for a VMI if it looks like one."""
    import msgspec

    from pkg.api.kubevirt import VirtualMachineInstance
    from pkg.cmd.manifests import ManifestError

    kind = document.get("kind", _KIND)
    if kind != _KIND:
        raise ManifestError(f"kind {kind!r} is not {_KIND}")
    spec = document.get("spec")
    if not isinstance(spec, dict) or not isinstance(spec.get("domain"), dict):
        raise ManifestError("no spec.domain")
    try:
        return msgspec.convert(document, VirtualMachineInstance)
    except (msgspec.ValidationError, RecursionError) as error:
        raise ManifestError(" ".join(str(error).split())) from error
