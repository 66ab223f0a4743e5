"""deploy/rbac.yaml: the accounts that have rights (tests/e2e/test_rights.py: the rights are enough, none is spare)."""

from typing import Any

from tests.e2e.accounts import BY_HAND, documents


def manifests() -> list[dict[str, Any]]:
    return documents(*BY_HAND)


def test_every_binding_is_for_a_service_account_that_is_made() -> None:
    bodies = manifests()
    account_names = {body["metadata"]["name"] for body in bodies if body["kind"] == "ServiceAccount"}
    assert account_names == {"headroom", "headroom-release", "headroom-webhook"}
    subjects = [subject for body in bodies for subject in body.get("subjects", ())]
    everybody = [subject for subject in subjects if subject["kind"] == "Group"]
    assert [subject["name"] for subject in everybody] == ["system:authenticated"]
    accounts = [subject for subject in subjects if subject not in everybody]
    assert {subject["name"] for subject in accounts} == account_names
    assert {subject["namespace"] for subject in accounts} == {"headroom-system"}
    namespaced = [body for body in bodies if body["kind"] in ("Role", "RoleBinding", "ServiceAccount")]
    assert {body["metadata"]["namespace"] for body in namespaced} == {"headroom-system"}


def test_every_user_may_read_how_headroom_runs_and_nothing_else() -> None:
    """Mode, estimate and version, and whether it runs, for the reports."""
    (role,) = [
        body for body in manifests() if body["kind"] == "Role" and body["metadata"]["name"] == "headroom-installation"
    ]
    assert role["rules"] == [
        {"apiGroups": [group], "resources": [kind], "resourceNames": ["headroom"], "verbs": ["get"]}
        for group, kind in (("", "configmaps"), ("coordination.k8s.io", "leases"))
    ]
