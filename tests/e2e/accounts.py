"""headroom under accounts of its own: what deploy/ says they may, their kubeconfigs, and what they asked for."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from kubeloop.testing.cluster.paths import Paths
from tests.e2e.api import CORE, Api, ApiFailure, Raw
from tests.program import ROOT

NAMESPACE = "headroom-system"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
BY_HAND = [ROOT / "deploy" / name for name in ("namespace.yaml", "rbac.yaml")]
"""The accounts and their rights, without the chart."""
WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})


def documents(*files: Path) -> list[Raw]:
    """Every object of manifest files."""
    return [
        document for file in files for document in yaml.load_all(file.read_text("utf-8"), yaml.CSafeLoader) if document
    ]


def collection(api: Api, document: Raw) -> str:
    """Returns the path of the objects of its kind, as the API server's discovery has it."""
    version, kind = document["apiVersion"], document["kind"]
    prefix = f"/{'apis' if '/' in version else 'api'}/{version}"
    served = api.get(prefix)["resources"]
    (served_kind,) = [
        kind_of_api for kind_of_api in served if kind_of_api["kind"] == kind and "/" not in kind_of_api["name"]
    ]
    path = f"/namespaces/{document['metadata'].get('namespace')}" if served_kind["namespaced"] else ""
    return f"{prefix}{path}/{served_kind['name']}"


def apply(api: Api, objects: Sequence[Raw], *, dry_run: bool = False) -> None:
    """Applies as `kubectl apply --server-side --force-conflicts` does. Raises ApiFailure for what the server
    refuses."""
    for document in objects:
        query = "fieldManager=e2e&force=true" + ("&dryRun=All" if dry_run else "")
        path = f"{collection(api, document)}/{document['metadata']['name']}?{query}"
        api.send("PATCH", path, document, "application/apply-patch+yaml")


def is_served(api: Api, path: str) -> bool:
    """A definition's storage takes a moment: 404, then 429."""
    try:
        api.get(path)
    except ApiFailure:
        return False
    return True


def remove(api: Api, objects: Sequence[Raw]) -> None:
    for document in reversed(objects):
        api.delete(f"{collection(api, document)}/{document['metadata']['name']}")


def forget(api: Api) -> None:
    """Removes what headroom itself made for an earlier test: the next one makes it anew."""
    hooks = "/apis/admissionregistration.k8s.io/v1"
    for path in (
        f"{CORE}/namespaces/{NAMESPACE}/configmaps/headroom",
        f"{CORE}/namespaces/{NAMESPACE}/secrets/headroom-webhook-tls",
        f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/headroom",
        *(
            f"{hooks}/{kind}webhookconfigurations/{name}.harvesterhci.io"
            for kind in ("mutating", "validating")
            for name in ("headroom", "headroom-probe")
        ),
    ):
        api.delete(path)


def kubeconfig_of(api: Api, account: str, folder: Path) -> Path:
    """The kubeconfig of a service account that is there."""
    path = f"{CORE}/namespaces/{NAMESPACE}/serviceaccounts/{account}/token"
    token = api.create(path, {"spec": {"expirationSeconds": 7200}})["status"]["token"]
    content = json.loads(api.kubeconfig.read_text("utf-8"))
    content["users"][0]["user"] = {"token": token}
    content["contexts"][0]["context"]["namespace"] = NAMESPACE
    config = folder / f"{account}.kubeconfig"
    config.write_text(json.dumps(content), "utf-8")
    return config


def bindings(name: str, role: str) -> list[Raw]:
    """Binds one more service account to the cluster-wide and the own-namespace rights of a role of deploy/rbac.yaml."""
    group, metadata = "rbac.authorization.k8s.io", {"name": f"{role}-{name}"}

    def binding(kind: str, **where: str) -> Raw:
        return {
            "apiVersion": f"{group}/v1",
            "kind": f"{kind}Binding",
            "metadata": metadata | where,
            "roleRef": {"apiGroup": group, "kind": kind, "name": role},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": NAMESPACE}],
        }

    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": NAMESPACE}}
    return [account, binding("ClusterRole"), binding("Role", namespace=NAMESPACE)]


def twin(api: Api, name: str) -> str:
    """Makes one more service account with the controller's rights; deploy/rbac.yaml is applied already."""
    apply(api, bindings(name, "headroom"))
    return name


@dataclass(frozen=True)
class Request:
    """A line of the audit log."""

    account: str
    verb: str
    group: str
    resource: str
    name: str
    namespace: str
    is_denied: bool
    """By the account's rights; a namespace that is being deleted refuses with the same code."""
    at: str
    """RFC 3339, microseconds: when it arrived."""

    @property
    def writes(self) -> bool:
        return self.verb in WRITES


def requests(directory: Path, since: int = 0) -> Iterator[Request]:
    """Returns what headroom's accounts asked the API server of the cluster in `directory`, from byte `since` of its
    log on."""
    log = Paths(directory).audit_log
    with log.open("rb") as lines:
        lines.seek(since)
        for line in lines:
            if line.endswith(b"\n"):
                yield _request(json.loads(line))


def _request(event: dict[str, Any]) -> Request:
    ref = event.get("objectRef") or {}
    resource = ref.get("resource", "") + (f"/{ref['subresource']}" if ref.get("subresource") else "")
    return Request(
        event["user"]["username"].rpartition(":")[2],
        event["verb"],
        ref.get("apiGroup", ""),
        resource,
        ref.get("name", ""),
        ref.get("namespace", ""),
        (event.get("annotations") or {}).get("authorization.k8s.io/decision") == "forbid",
        event["requestReceivedTimestamp"],
    )


@dataclass(frozen=True)
class Right:
    """A verb on one resource, of one name or ("") of any."""

    account: str
    verb: str
    group: str
    resource: str
    name: str
    namespace: str
    """"" in a ClusterRole."""

    def covers(self, request: Request) -> bool:
        return (
            (self.account, self.verb, self.group, self.resource)
            == (request.account, request.verb, request.group, request.resource)
            and self.name in ("", request.name)
            and self.namespace in ("", request.namespace)
        )

    def __str__(self) -> str:
        place = f" in {self.namespace}" if self.namespace else ""
        return f"{self.account}: {self.verb} {self.resource} {self.name}".rstrip() + place


def rules(manifests: Sequence[Raw]) -> dict[str, list[Right]]:
    """Rights that each rule of the roles gives, by role, the rule's place in it and service account."""
    roles = {(manifest["kind"], manifest["metadata"]["name"]): manifest.get("rules", []) for manifest in manifests}
    return {
        f"rule {number} of {binding['roleRef']['kind']} {binding['roleRef']['name']} for {subject['name']}": [
            Right(subject["name"], verb, group, resource, name, binding["metadata"].get("namespace", ""))
            for group in rule["apiGroups"]
            for resource in rule["resources"]
            for name in rule.get("resourceNames", [""])
            for verb in rule["verbs"]
        ]
        for binding in manifests
        if binding["kind"].endswith("RoleBinding")
        for subject in binding["subjects"]
        if subject["kind"] == "ServiceAccount"
        for number, rule in enumerate(roles[binding["roleRef"]["kind"], binding["roleRef"]["name"]], 1)
    }


def rights(manifests: Sequence[Raw]) -> list[Right]:
    """Rights that the roles give to service accounts, each by itself."""
    return [right for granted in rules(manifests).values() for right in granted]
