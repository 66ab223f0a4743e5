"""The policies of deploy/policy.yaml."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from pkg.config.upkeep import POLICIES

_FILE = Path(__file__).parents[3] / "deploy" / "policy.yaml"


SHIPPED: list[dict[str, Any]] = [
    document
    for name in POLICIES
    for kind in ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
    for document in yaml.safe_load_all(_FILE.read_text("utf-8"))
    if document["kind"] == kind and name == document["metadata"]["name"]
]
