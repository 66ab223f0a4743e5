"""The trusted fields of a VMI's status, and that nothing in the product reads one past `evidence`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pkg.api.kubevirt import VirtualMachineInstanceStatus
from pkg.util.kubevirt.evidence import trusted_status
from tests.decisions import sentences
from tests.objects import vmi

PKG = Path(__file__).parents[4] / "pkg"
ALLOWED = {
    PKG / "util/kubevirt/evidence.py",
    PKG / "config/slim.py",  # keeps one copy of equal strings, and decides nothing
}
FORGED: dict[str, Any] = {
    "nodeName": "node-1",
    "migrationState": {"completed": True},
    "conditions": [{"type": "LiveMigratable"}],
}
PHASES = {
    "one that runs": ("Running", True),
    "one that no virt-api was asked about": (None, True),
    "one that was just created": ("Pending", False),
    "one that is being started": ("Scheduled", False),
    "one that has ended, perhaps without having run": ("Failed", False),
    "a phase that newer KubeVirt adds": ("WaitingForSync", False),
}


@sentences(PHASES)
def test_a_status_is_trusted_while_the_vmi_runs(case: tuple[str | None, bool]) -> None:
    phase, is_trusted = case
    instance = vmi(**(FORGED | {"phase": phase}))
    expected = instance.status if is_trusted else VirtualMachineInstanceStatus(phase=phase)
    assert trusted_status(instance) == expected


_A_VMI = re.compile(r"\bVirtualMachineInstance\b")
_OWN_FIELDS = {"node_name", "memory", "volume_status", "changed_block_tracking", "migrated_volumes"}
"""Fields that no other status has."""


def reads(source: str) -> Iterator[int]:
    """The lines of a module that read the status of something that is a VMI by its annotation, by its name, or by the
    collection that it comes from."""
    tree = ast.parse(source)
    names = {"vmi", "instance"}
    for node in ast.walk(tree):
        if isinstance(node, ast.arg) and node.annotation and _A_VMI.search(ast.unparse(node.annotation)):
            names.add(node.arg)
    for node in ast.walk(tree):
        if isinstance(node, (ast.For, ast.comprehension)) and _has(node.iter, names | {"instances"}):
            names |= {name_node.id for name_node in ast.walk(node.target) if isinstance(name_node, ast.Name)}
        elif isinstance(node, ast.Assign) and _has(node.value, {"instances"}):
            names |= {
                name_node.id
                for target in node.targets
                for name_node in ast.walk(target)
                if isinstance(name_node, ast.Name)
            }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute):
            continue
        owner = node.value
        is_vmi = isinstance(owner, (ast.Name, ast.Attribute)) and _name(owner) in names
        is_own_field = node.attr in _OWN_FIELDS and isinstance(owner, ast.Attribute) and owner.attr == "status"
        if (node.attr == "status" and is_vmi) or is_own_field:
            yield node.lineno


def _name(node: ast.Name | ast.Attribute) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr


def _has(node: ast.AST, names: set[str]) -> bool:
    return any(isinstance(child, (ast.Name, ast.Attribute)) and _name(child) in names for child in ast.walk(node))


READS = {
    "def f(x: VirtualMachineInstance | None): return x.status.phase": True,
    "def f(x: Sequence[VirtualMachineInstance]): return [each.status for each in x]": True,
    "found = snapshot.instances.get(name='a'); found.status": True,
    "for key, value in facts.instances.items():\n    value.status": True,
    "missing.vmi.status": True,
    "each.status.volume_status": True,
    "def f(x: VirtualMachineInstanceMigration): return x.status.phase": False,
    "pod.status.phase, pod.spec.node_name, trusted_status(vmi).node_name": False,
}


@pytest.mark.parametrize("source", READS)
def test_the_rule_finds_a_read(source: str) -> None:
    assert bool(list(reads(source))) is READS[source]


def test_no_module_reads_a_vmis_status_past_evidence() -> None:
    readers = {
        f"{path.relative_to(PKG.parent)}:{line}: ask pkg.util.kubevirt.evidence.trusted_status"
        for path in PKG.rglob("*.py")
        if path not in ALLOWED
        for line in reads(path.read_text("utf-8"))
    }
    assert not readers
