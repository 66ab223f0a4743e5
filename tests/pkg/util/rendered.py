"""The pods that KubeVirt's own template service rendered: seven releases, random VMIs and configurations.

`tests/vectors/rendered.jsonl.gz` was recorded; every case is self-contained. A case gives the documents of a cluster
and what quota counts of the pods that KubeVirt made of them.
"""

import copy
import gzip
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from kubeloop.api.core import Pod
from kubeloop.api.resource_list import ResourceList, total
from pkg.util.quotacount.pod_resources import apply_limit_ranges
from pkg.util.quotacount.usage import pod_usage
from tests.pkg.util import vectors

T = TypeVar("T")
Document = dict[str, Any]
_FINER_THAN_INT64 = re.compile(r"[0-9]{10,}n")
NODE = "node01"


@dataclass(frozen=True)
class RenderedCase:
    """One migration: the objects of its cluster, the VMI the last of them, and the target's pods."""

    id: str
    release: str
    documents: list[Document]
    pods: list[Document]


def cases(mode: str) -> Iterator[RenderedCase]:
    """The cases without a source pod, with one at the `same` ratio, at another `ratio`, and of `resized` VMs.

    Left out: memory such as 1.123456789Gi, of which KubeVirt's quantities share their digits, so that it adds the
    overhead twice.
    """
    with gzip.open(vectors.FOLDER / "rendered.jsonl.gz", "rt", encoding="utf-8") as file:
        for text in file:
            line = json.loads(text)
            is_exact = not _FINER_THAN_INT64.search(json.dumps(line["vmi"]["spec"]["domain"]))
            if is_exact and (mode != "resized" or "resized" in line):
                yield _case(line, mode)


def _case(line: Document, mode: str) -> RenderedCase:
    config, vmi = line["config"], line["vmi"]
    target = line.get("target")
    if mode == "ratio":
        config = {**config, "additionalGuestMemoryOverheadRatio": line["targetAtRatio"]["ratio"]}
        target = line["targetAtRatio"]["target"]
    if mode == "resized":
        vmi = copy.deepcopy(vmi)
        vmi["spec"]["domain"].update(line["resized"].get("domain", {}))
        vmi["status"]["conditions"] = line["resized"]["conditions"]
        target = line["resized"]["target"]
    hotplug = [line["hotplug"]] if "hotplug" in line else []
    sources = [] if mode == "none" else [_pod("launcher", line["launcher"]), *(_pod("hp", pod) for pod in hotplug)]
    return RenderedCase(
        line["id"],
        line["kubevirt"],
        [*_around(line, config), *sources, vmi],
        [_pod("target", _changed(line["launcher"], target or {})), *(_pod("hp-target", pod) for pod in hotplug)],
    )


def _around(line: Document, config: Document) -> Iterator[Document]:
    status = {"phase": "Deployed", "observedKubeVirtVersion": line["kubevirt"]}
    yield _document("KubeVirt", "kubevirt", spec={"configuration": config}, status=status)
    yield {**_document("Namespace", "ns"), "metadata": {"name": "ns", **line["namespace"]}}
    for number, hard in enumerate([*line["quotas"], {}, {}][:2]):
        yield _document("ResourceQuota", f"quota{number}", spec={"hard": hard})
    for name, resource in line.get("nads", {}).items():
        nad = _document("NetworkAttachmentDefinition", name.rpartition("/")[2])
        nad["metadata"]["annotations"] = {"k8s.v1.cni.cncf.io/resourceName": resource}
        nad["metadata"]["namespace"] = name.rpartition("/")[0] or "ns"
        yield nad


def _document(kind: str, name: str, **body: Any) -> Document:
    return {"kind": kind, "metadata": {"name": name, "namespace": "ns"}, **body}


def _pod(name: str, rendered: Mapping[str, Any]) -> Document:
    spec = {
        key: rendered[key]
        for key in ("containers", "initContainers", "runtimeClassName", "priorityClassName")
        if key in rendered
    }
    metadata = {key: rendered[key] for key in ("labels", "annotations", "ownerReferences") if key in rendered}
    return {
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "ns", "uid": f"uid-{name}", **metadata},
        "spec": {**spec, "nodeName": NODE},
        "status": {"phase": "Running"},
    }


def _changed(launcher: Document, difference: Document) -> Document:
    """The launcher with what a target has otherwise."""
    target = copy.deepcopy(launcher)
    target.update({key: difference[key] for key in ("containers", "initContainers") if key in difference})
    compute = target["containers"][0]
    if "compute" in difference:
        compute["resources"] = difference["compute"]
    for part, memory in difference.get("computeMemory", {}).items():
        compute["resources"].setdefault(part, {})["memory"] = memory
    return target


MODES = {"none": 2180, "same": 2180, "ratio": 2180, "resized": 356}


def of_kind(kind: type[T], documents: list[dict[str, Any]]) -> Iterator[T]:
    return (msgspec.convert(d, kind, strict=False) for d in documents if d["kind"] == kind.__name__)


def counted(pods: list[dict[str, Any]]) -> ResourceList:
    """Returns what quota counts of pods as virt-controller sends them."""
    return total(pod_usage(apply_limit_ranges(pod, ())) for pod in of_kind(Pod, pods))
