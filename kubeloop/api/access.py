"""Kinds of access control: service accounts, rbac.authorization.k8s.io/v1, and the kinds that answer questions about
it.

Reviews are created, never kept: `answer = await client.resource(SUBJECT_ACCESS_REVIEWS).create({"spec": {...}})`."""

from __future__ import annotations

from typing import ClassVar

from kubeloop.api.meta import Object, Struct


class LocalObjectReference(Struct):
    whole: ClassVar[bool] = True

    name: str = ""


class ServiceAccount(Object):
    automount_service_account_token: bool | None = None
    image_pull_secrets: list[LocalObjectReference] | None = None


class PolicyRule(Struct):
    whole: ClassVar[bool] = True

    verbs: list[str] | None = None
    api_groups: list[str] | None = None
    resources: list[str] | None = None
    resource_names: list[str] | None = None
    non_resource_urls: list[str] | None = None


class Role(Object):
    rules: list[PolicyRule] | None = None


class ClusterRole(Role):
    pass


class Subject(Struct):
    whole: ClassVar[bool] = True

    kind: str = ""
    api_group: str | None = None
    name: str = ""
    namespace: str | None = None


class RoleRef(Struct):
    api_group: str = ""
    kind: str = ""
    name: str = ""


class RoleBinding(Object):
    subjects: list[Subject] | None = None
    role_ref: RoleRef = RoleRef()


class ClusterRoleBinding(RoleBinding):
    pass


class SubjectAccessReviewStatus(Struct):
    allowed: bool = False
    denied: bool | None = None
    reason: str | None = None
    evaluation_error: str | None = None


class SubjectAccessReview(Object):
    """authorization.k8s.io/v1: whether a user may do something."""

    status: SubjectAccessReviewStatus = SubjectAccessReviewStatus()


class SelfSubjectAccessReview(SubjectAccessReview):
    """authorization.k8s.io/v1: whether this client may do something."""


class TokenUser(Struct):
    username: str | None = None
    uid: str | None = None
    groups: list[str] | None = None


class TokenReviewStatus(Struct):
    authenticated: bool | None = None
    user: TokenUser | None = None
    audiences: list[str] | None = None
    error: str | None = None


class TokenReview(Object):
    """authentication.k8s.io/v1: whose a token is."""

    status: TokenReviewStatus = TokenReviewStatus()
