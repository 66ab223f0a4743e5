"""deploy/rbac.yaml: whose rights they are (tests/e2e/test_rights.py: that they are enough and none is spare)."""

from __future__ import annotations

from typing import Any

from tests.e2e.accounts import BY_HAND, documents


def manifests() -> list[dict[str, Any]]:
    return documents(*BY_HAND)


def test_every_binding_is_for_a_service_account_that_is_made() -> None:
    found = manifests()
    made = {body["metadata"]["name"] for body in found if body["kind"] == "ServiceAccount"}
    assert made == {"headroom", "headroom-release", "headroom-webhook"}
    subjects = [subject for body in found for subject in body.get("subjects", ())]
    everybody = [subject for subject in subjects if subject["kind"] == "Group"]
    assert [subject["name"] for subject in everybody] == ["system:authenticated"]
    accounts = [subject for subject in subjects if subject not in everybody]
    assert {subject["name"] for subject in accounts} == made
    assert {subject["namespace"] for subject in accounts} == {"headroom-system"}
    own = [body for body in found if body["kind"] in ("Role", "RoleBinding", "ServiceAccount")]
    assert {body["metadata"]["namespace"] for body in own} == {"headroom-system"}


def test_every_user_may_read_how_headroom_runs_and_nothing_else() -> None:
    """Mode, estimate and version, and whether it runs, for the reports."""
    (role,) = [
        body for body in manifests() if body["kind"] == "Role" and body["metadata"]["name"] == "headroom-installation"
    ]
    assert role["rules"] == [
        {"apiGroups": [group], "resources": [kind], "resourceNames": ["headroom"], "verbs": ["get"]}
        for group, kind in (("", "configmaps"), ("coordination.k8s.io", "leases"))
    ]
