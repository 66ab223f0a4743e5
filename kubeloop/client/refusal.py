"""Refusal: the refuser of a request and its reason, parsed from the API server's message.

An admission webhook chooses the status of its denial (400 where it gives none), a policy too (422 by default), RBAC
answers 403, a webhook that does not answer costs a 500: the texts alone tell them apart. They are apiserver's own
(admission/plugin/webhook/errors, admission/plugin/policy, util/webhook, endpoints/handlers/responsewriters), unchanged
since the webhooks exist."""

from __future__ import annotations

import re
from typing import NamedTuple

_WEBHOOK = re.compile(r'admission webhook "([^"]+)" (?:denied the request(?:: (.*))?|(does not support dry run))', re.S)
_SILENT_WEBHOOK = re.compile(r'failed calling webhook "([^"]+)"[:;] ?(.*)', re.S)
_POLICY = re.compile(
    r"""(\w*AdmissionPolicy|policy) ['"]([^'"]+)['"](?: with binding '([^']+)')? denied request: (.*)""", re.S
)
_RBAC = re.compile(r'(User "[^"]*" cannot \S+ (?:resource|path) .*)', re.S)
_QUOTA = re.compile(r"exceeded quota: ([^,\s]+)(?:, (.*))?", re.S)
_FORBIDDEN = re.compile(r'(?:^|: )\S+ "[^"]*" is forbidden: (.*)', re.S)
_INVALID = re.compile(r'(?:^|: )\S+ "[^"]*" is invalid: (.*)', re.S)


class Refusal(NamedTuple):
    """`by` names who refused; `reason` is the sentence that was given."""

    by: str
    reason: str
    by_admission: bool = False
    """A webhook or a policy denied the request, with a status of its choice."""


def refusal_of(message: str) -> Refusal:
    """The refusal of an error's message; `by` is "the API server" where it names nobody."""
    if match := _WEBHOOK.search(message):
        return Refusal(f"webhook {match[1]}", match[2] or match[3] or "without explanation", True)
    if match := _SILENT_WEBHOOK.search(message):
        return Refusal(f"webhook {match[1]}", f"it does not answer: {match[2]}")
    if match := _POLICY.search(message):
        kind = match[1] if match[1] != "policy" else "admission policy"
        binding = f" (binding {match[3]})" if match[3] else ""
        return Refusal(f"{kind} {match[2]}{binding}", match[4], True)
    if match := _RBAC.search(message):
        return Refusal("RBAC", match[1])
    if match := _QUOTA.search(message):
        return Refusal(f"quota {match[1]}", match[2] or "it is used up")
    if match := _FORBIDDEN.search(message):
        return Refusal("admission", match[1])
    if match := _INVALID.search(message):
        return Refusal("validation", match[1])
    return Refusal("the API server", message)
