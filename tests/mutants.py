"""`make mutants`: a sample of small changes to the modules that decide, and how many of them the unit tests notice.

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
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from cosmic_ray import plugins
from cosmic_ray.ast import ast_nodes, get_ast_from_path
from cosmic_ray.mutating import mutate_and_test, mutate_code
from cosmic_ray.work_item import MutationSpec, TestOutcome

ROOT = Path(__file__).parents[1]
MODULES = ("pkg/util/resourcequota", "pkg/util/quotacount", "pkg/util/kubevirt/evidence.py")
PLANNER = Path("tests", "pkg", "util", "resourcequota")
RANDOM = ("test_interleavings.py", "test_hostile_tenant.py")
"""They take longer than the rest together, so they come last: a change that another test notices ends the run."""
TESTS = [
    "tests/pkg/util/quotacount",
    "tests/pkg/util/kubevirt/test_evidence.py",
    *(
        str(each.relative_to(ROOT))
        for each in sorted((ROOT / PLANNER).glob("test_*.py"))
        if each.name not in RANDOM
    ),
    "tests/pkg/webhook/resources",
    "tests/pkg/controller/resourcequota",
    "tests/pkg/report",
    *(str(PLANNER / name) for name in RANDOM),
]
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
            node.posonlyargs, node.args, node.kwonlyargs = (
                [],
                [*node.posonlyargs, *node.args, *node.kwonlyargs],
                [],
            )
        for field in ("annotation", "returns"):
            if getattr(node, field, None) is not None:
                setattr(node, field, ast.Constant(None))
    return ast.dump(tree)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("python", help="the interpreter that runs the tests")
    options.add_argument("--sample", type=int, default=100)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--modules", nargs="*", default=MODULES)
    chosen = options.parse_args()
    python = Path(chosen.python).absolute()
    with tempfile.TemporaryDirectory() as copy:
        for part in ("kubeloop", "pkg", "lab", "tests", "deploy", "examples"):
            shutil.copytree(ROOT / part, Path(copy, part), ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", copy)
        command = f"{python} -m pytest -q -x -p no:cacheprovider -p no:xdist {' '.join(TESTS)}"
        return _run(Path(copy), command, chosen)


def _run(root: Path, command: str, chosen: argparse.Namespace) -> int:

    os.chdir(root)
    paths = [path for name in chosen.modules for path in sorted(Path(name).rglob("*.py")) or [Path(name)]]
    found = [mutation for path in paths for mutation in mutations(path)]
    random.Random(chosen.seed).shuffle(found)
    sample = list(islice(filter(is_a_change, found), chosen.sample))
    began = time.monotonic()
    if mutate_and_test([], command, 900).test_outcome is not TestOutcome.SURVIVED:
        sys.exit("the tests fail without any change")
    limit = 60 + 5 * (time.monotonic() - began)
    survivors = 0
    for done, mutation in enumerate(sample, 1):
        result = mutate_and_test([mutation], command, limit)
        if result.test_outcome is TestOutcome.SURVIVED:
            survivors += 1
            print(result.diff, flush=True)
        print(
            f"{done}/{len(sample)} {result.test_outcome} {mutation.module_path} {mutation.operator_name}",
            flush=True,
        )
    print(f"{len(sample) - survivors} of {len(sample)} changes noticed; {len(found)} are possible")
    return 0


if __name__ == "__main__":
    sys.exit(main())
