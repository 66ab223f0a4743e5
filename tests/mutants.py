"""`make mutants`: a sample of small changes to the modules that decide, of the webhook and of kubeloop, and how many of
them the tests notice that need no cluster.

cosmic-ray makes the changes, in a copy of the tree. A survivor is printed as a diff: a test is missing, the line is not
needed, or the change makes no difference.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from cosmic_ray import plugins
from cosmic_ray.ast import ast_nodes, get_ast_from_path
from cosmic_ray.mutating import mutate_and_test, mutate_code
from cosmic_ray.work_item import MutationSpec, TestOutcome

ROOT = Path(__file__).parents[1]
PLANNER = "tests/pkg/util/resourcequota"
RANDOM = (f"{PLANNER}/test_interleavings.py", f"{PLANNER}/test_hostile_tenant.py")
"""They take longer than the rest together, so they come last: a change that another test notices ends the run."""


@dataclass(frozen=True)
class Area:
    """Modules, and the tests that are to notice a change of them, in this order."""

    modules: Sequence[str]
    tests: Sequence[str]


AREAS = {
    "planner": Area(
        ["pkg/util/resourcequota", "pkg/util/quotacount", "pkg/util/kubevirt/evidence.py"],
        [
            "tests/pkg/util/quotacount",
            "tests/pkg/util/kubevirt/test_evidence.py",
            PLANNER,
            *(f"--ignore={each}" for each in RANDOM),
            "tests/pkg/webhook/resources",
            "tests/pkg/controller/resourcequota",
            "tests/pkg/report",
        ],
    ),
    "webhook": Area(
        ["pkg/webhook", "kubeloop/webhook"],
        ["tests/pkg/webhook", "tests/kubeloop/webhook", "--ignore=tests/kubeloop/webhook/test_under_attack.py"],
    ),
    "kubeloop": Area(
        [f"kubeloop/{part}" for part in ("api", "cache", "client", "controllers", "leaderelection", "workqueue")],
        [
            "tests/kubeloop",
            *(
                f"--ignore=tests/kubeloop/{part}"
                for part in ("generate", "testing/cluster", "webhook", "test_wheel.py")
            ),
        ],
    ),
}
OPERATORS = tuple(
    f"core/{name}"
    for name in (
        "AddNot",
        "NumberReplacer",
        "ReplaceAndWithOr",
        "ReplaceBinaryOperator_Add_Sub",
        "ReplaceBinaryOperator_BitOr_BitAnd",
        "ReplaceBinaryOperator_Mul_Div",
        "ReplaceBinaryOperator_Sub_Add",
        "ReplaceBreakWithContinue",
        "ReplaceComparisonOperator_Eq_NotEq",
        "ReplaceComparisonOperator_GtE_Gt",
        "ReplaceComparisonOperator_Gt_GtE",
        "ReplaceComparisonOperator_Is_NotEq",
        "ReplaceComparisonOperator_IsNot_Eq",
        "ReplaceComparisonOperator_LtE_Lt",
        "ReplaceComparisonOperator_Lt_LtE",
        "ReplaceComparisonOperator_NotEq_Eq",
        "ReplaceContinueWithBreak",
        "ReplaceFalseWithTrue",
        "ReplaceOrWithAnd",
        "ReplaceTrueWithFalse",
        "ReplaceUnaryOperator_Delete_Not",
        "ZeroIterationForLoop",
    )
)


def mutations(path: Path) -> Iterator[MutationSpec]:
    """Every change of one module."""
    tree = get_ast_from_path(path)
    for name in OPERATORS:
        operator = plugins.get_operator(name)()
        places = [span for node in ast_nodes(tree) for span in operator.mutation_positions(node)]
        for occurrence, (start, end) in enumerate(places):
            yield MutationSpec(path, name, occurrence, start, end)


def is_a_change(mutation: MutationSpec) -> bool:
    """Whether something else runs, and not just an annotation reads differently."""
    code = mutation.module_path.read_text(encoding="utf-8")
    changed = mutate_code(code, plugins.get_operator(mutation.operator_name)(), mutation.occurrence)
    return bool(changed) and _runs(changed) not in (_runs(code), "")


def _runs(code: str) -> str:
    """What decides in a module: no annotations, markers in a signature, type variables
    and flags of dataclasses; "" for what is not Python."""
    try:
        tree = ast.parse(code)
    except SyntaxError:
        return ""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("dataclass", "TypeVar"):
            node.keywords = []
        if isinstance(node, ast.arguments):
            node.posonlyargs, node.args, node.kwonlyargs = ([], [*node.posonlyargs, *node.args, *node.kwonlyargs], [])
            node.kw_defaults = [each for each in node.kw_defaults if each is not None]
        for field in ("annotation", "returns"):
            if getattr(node, field, None) is not None:
                setattr(node, field, ast.Constant(None))
    return ast.dump(tree)


def commands(python: Path, area: Area) -> list[str]:
    """The runs of tests that are to notice a change; a run ends with the first test that does."""
    run = f"{python} -m pytest -q -x -p no:cacheprovider -p no:xdist"
    first = f"{run} -m 'not cluster and not bench' {' '.join(area.tests)}"
    return [first, f"{run} {' '.join(RANDOM)}"] if area is AREAS["planner"] else [first]


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("python", help="the interpreter that runs the tests")
    options.add_argument("--sample", type=int, default=100)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--areas", nargs="*", choices=list(AREAS), default=list(AREAS))
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory() as copy:
        for part in ("kubeloop", "pkg", "lab", "tests", "deploy", "examples"):
            shutil.copytree(ROOT / part, Path(copy, part), ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", copy)
        os.chdir(copy)
        python = ROOT / chosen.python
        noticed = 0
        sample, possible = _sample(chosen)
        runs = {name: _unchanged(name, commands(python, AREAS[name])) for name in chosen.areas}
        for done, (name, mutation) in enumerate(sample, 1):
            outcome = _outcome(mutation, runs[name])
            noticed += outcome is not TestOutcome.SURVIVED
            print(f"{done}/{len(sample)} {outcome} {mutation.module_path} {mutation.operator_name}", flush=True)
    print(f"{noticed} of {len(sample)} changes noticed; {possible} are possible")
    return 0


def _sample(chosen: argparse.Namespace) -> tuple[list[tuple[str, MutationSpec]], int]:
    """Changes with the area of each, and how many are possible."""
    found = [
        (name, mutation)
        for name in chosen.areas
        for module in AREAS[name].modules
        for path in sorted(Path(module).rglob("*.py")) or [Path(module)]
        for mutation in mutations(path)
    ]
    random.Random(chosen.seed).shuffle(found)
    return list(islice((each for each in found if is_a_change(each[1])), chosen.sample)), len(found)


def _unchanged(name: str, runs: Sequence[str]) -> list[tuple[str, float]]:
    """The runs, and how long each may take: they pass without a change."""
    timed = []
    for run in runs:
        began = time.monotonic()
        if mutate_and_test([], run, 900).test_outcome is not TestOutcome.SURVIVED:
            sys.exit(f"the tests of {name} fail without any change: {run}")
        timed.append((run, 60 + 5 * (time.monotonic() - began)))
    return timed


def _outcome(mutation: MutationSpec, runs: Sequence[tuple[str, float]]) -> TestOutcome:
    for run, limit in runs:
        result = mutate_and_test([mutation], run, limit)
        if result.test_outcome is not TestOutcome.SURVIVED:
            return result.test_outcome
    print(result.diff, flush=True)
    return result.test_outcome


if __name__ == "__main__":
    sys.exit(main())
