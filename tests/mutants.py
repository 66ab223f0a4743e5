"""`make mutants`: a sample of small changes to the modules that decide, of the controllers, the webhook and kubeloop,
and how many of them the tests notice that need no cluster.

cosmic-ray makes the changes. Which tests run a changed line is measured once; a change is put into a fork of a process
that has everything imported and collected, or, where the line runs at import, into a fork of one that has nothing
imported yet; and these tests run there until the first fails. No file is written: what tests start as a program of its
own is unchanged. A survivor is printed as a diff: a test is missing, the line is not needed, or the change makes no
difference.
"""

import argparse
import ast
import contextlib
import difflib
import gc
import json
import mmap
import os
import random
import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from itertools import accumulate, islice
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import hypothesis
import pytest
from cosmic_ray import plugins
from cosmic_ray.ast import ast_nodes, get_ast_from_path
from cosmic_ray.mutating import mutate_code
from coverage import Coverage, CoverageData
from hypothesis import Phase

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Area:
    """Modules, and the tests that are to notice a change of them."""

    modules: Sequence[str]
    tests: Sequence[str]


AREAS = {
    "planner": Area(
        [f"pkg/util/{part}" for part in ("resourcequota", "quotacount", "kubevirt")],
        ["tests/pkg/util", "tests/pkg/webhook/resources", "tests/pkg/controller", "tests/pkg/report"],
    ),
    "managedtenantquota": Area(
        ["pkg/util/managedtenantquota"], ["tests/pkg/util/managedtenantquota", "tests/pkg/controller"]
    ),
    "controllers": Area(["pkg/controller"], ["tests/pkg/controller"]),
    "webhook": Area(["pkg/webhook", "kubeloop/webhook"], ["tests/pkg/webhook", "tests/kubeloop/webhook"]),
    "kubeloop": Area(
        [f"kubeloop/{part}" for part in ("api", "cache", "client", "controllers", "leaderelection", "workqueue")],
        ["tests/kubeloop"],
    ),
}
_LEFT_OUT = ("generate", "testing/cluster", "test_wheel.py")
ARGUMENTS = [
    *("-q", "-s", "--disable-warnings", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not cluster and not bench"),
    *(f"--ignore=tests/kubeloop/{each}" for each in _LEFT_OUT),
]
AT_IMPORT = "import "
"""Before the name of the file of tests that was being imported when a line ran."""
OPERATORS = """AddNot NumberReplacer ReplaceAndWithOr ReplaceBinaryOperator_Add_Sub ReplaceBinaryOperator_BitOr_BitAnd
ReplaceBinaryOperator_Mul_Div ReplaceBinaryOperator_Sub_Add ReplaceBreakWithContinue
ReplaceComparisonOperator_Eq_NotEq ReplaceComparisonOperator_GtE_Gt ReplaceComparisonOperator_Gt_GtE
ReplaceComparisonOperator_Is_NotEq ReplaceComparisonOperator_IsNot_Eq ReplaceComparisonOperator_LtE_Lt
ReplaceComparisonOperator_Lt_LtE ReplaceComparisonOperator_NotEq_Eq ReplaceContinueWithBreak
ReplaceFalseWithTrue ReplaceOrWithAnd ReplaceTrueWithFalse ReplaceUnaryOperator_Delete_Not ZeroIterationForLoop
"""


@dataclass(frozen=True)
class Change:
    number: int
    path: Path
    operator: str
    line: int
    before: str
    after: str

    def diff(self) -> str:
        lines = self.before.splitlines(), self.after.splitlines()
        return "\n".join(difflib.unified_diff(*lines, str(self.path), str(self.path), lineterm=""))


def changes(arguments: argparse.Namespace) -> list[Change]:
    """The sample. How many changes are possible is printed."""
    positions = [
        (path, f"core/{name}", occurrence, start)
        for area in arguments.areas
        for module in AREAS[area].modules
        for path in sorted((ROOT / module).rglob("*.py"))
        for tree in [get_ast_from_path(path)]
        for name in OPERATORS.split()
        for occurrence, (start, _) in enumerate(
            span for node in ast_nodes(tree) for span in plugins.get_operator(f"core/{name}")().mutation_positions(node)
        )
    ]
    print(f"{len(positions)} changes are possible", flush=True)
    random.Random(arguments.seed).shuffle(positions)
    variants = (
        (path, name, start[0], line_text, mutate_code(line_text, plugins.get_operator(name)(), occurrence))
        for path, name, occurrence, start in positions
        for line_text in [path.read_text(encoding="utf-8")]
    )
    real = (change for change in variants if change[-1] and _runs(change[-1]) not in (_runs(change[-2]), ""))
    return [Change(number, *change) for number, change in enumerate(islice(real, arguments.sample), 1)]


def _runs(code: str) -> str:
    """What decides in a module: no annotations, markers in a signature, type variables and flags of dataclasses and
    their fields; "" for what is not Python."""
    try:
        tree = ast.parse(code)
    except SyntaxError:
        return ""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("dataclass", "TypeVar"):
            node.keywords = []
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "field":
            node.keywords = [keyword for keyword in node.keywords if str(keyword.arg).startswith("default")]
        if isinstance(node, ast.arguments):
            node.posonlyargs, node.args, node.kwonlyargs = ([], [*node.posonlyargs, *node.args, *node.kwonlyargs], [])
            node.defaults, node.kw_defaults = [*node.defaults, *filter(None, node.kw_defaults)], []
        for field in ("annotation", "returns"):
            if getattr(node, field, None) is not None:
                setattr(node, field, ast.Constant(None))
    return ast.dump(tree)


class CoverageRecorder:
    """The lines that tests run, how long each test takes, and which fail without a change."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._coverage = Coverage(str(file), source=[str(ROOT / "kubeloop"), str(ROOT / "pkg")], config_file=False)
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._failed: set[str] = set()
        self._coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> Generator[None, Any, Any]:
        self._coverage.switch_context(AT_IMPORT + collector.nodeid.partition("::")[0])
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        self._coverage.switch_context(item.nodeid)
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any, request: pytest.FixtureRequest) -> Generator[None, Any, Any]:
        """Counts what runs for several tests for all of the file."""
        if fixturedef.scope == "function":
            return (yield)
        file, test = request.node.nodeid.partition("::")[0], os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0]
        self._coverage.switch_context(file)
        try:
            return (yield)
        finally:
            self._coverage.switch_context(test)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] += report.duration
        if report.failed:
            self._failed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        self._coverage.stop()
        self._coverage.save()
        for test in self._failed:
            print(f"fails without any change, and is left out: {test}")
            del self._seconds[test]
        self._file.with_suffix(".json").write_text(json.dumps(self._seconds))


class Tests:
    """The tests for a change: those of the same folder first, and the shortest first."""

    def __init__(self, file: Path, limit: float) -> None:
        self._data = CoverageData(str(file))
        self._data.read()
        self.seconds: dict[str, float] = json.loads(file.with_suffix(".json").read_text())
        self._limit = limit

    def tests_of(self, change: Change) -> tuple[list[str], dict[CodeType, CodeType]]:
        """Also what replaces the code of functions: nothing if the line runs at import. Then all tests count that run
        anything of the module, otherwise those that run the function; of a coroutine that was cancelled coverage may
        lose lines."""
        lines = self._data.contexts_by_lineno(str(change.path))
        function = _function(change)
        names = {name for line in function or range(change.line, change.line + 1) for name in lines.get(line, ())}
        at_import = not function or any(not name or name.startswith(AT_IMPORT) for name in names)
        if at_import:
            names = {name for test in lines.values() for name in test}
            if names and not any("::" in test for test in names):
                names = {test.partition("::")[0] for test in self.seconds}
        files = {test.removeprefix(AT_IMPORT) for test in names}
        folder = f"tests/{change.path.parent.relative_to(ROOT)}/"
        ordered = sorted(
            (test not in lines.get(change.line, ()), not test.startswith(folder), seconds, test)
            for test, seconds in self.seconds.items()
            if test in names or test.partition("::")[0] in files
        )
        spent = accumulate(seconds for *_, seconds, _ in ordered)
        affordable = [test for (*_, test), so_far in zip(ordered, spent, strict=True) if so_far < self._limit]
        return affordable, {} if at_import else in_place(change)


def _function(change: Change) -> range | None:
    """The lines inside the innermost function around the change."""
    functions = (
        range(node.body[0].lineno, (node.end_lineno or 0) + 1)
        for node in ast.walk(ast.parse(change.before))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    return min((lines for lines in functions if change.line in lines), key=len, default=None)


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from _codes(const)


def in_place(change: Change) -> dict[CodeType, CodeType]:
    """Returns what replaces the code of functions; nothing where a change takes other variables from around a
    function."""
    compiled = [compile(text, str(change.path), "exec", dont_inherit=True) for text in (change.before, change.after)]
    old, new = (list(_codes(code)) for code in compiled)
    if [code.co_freevars for code in old] != [code.co_freevars for code in new]:
        return {}
    return {_key(old_code): new_code for old_code, new_code in zip(old, new, strict=True) if old_code != new_code}


def _key(code: CodeType) -> CodeType:
    """Decorators as `types.coroutine` change the flags."""
    return code.replace(co_flags=0)


class Fork:
    """A change, in a fork that ends with the first test that fails."""

    def __init__(
        self, change: Change, tests: Sequence[str], codes: dict[CodeType, CodeType], seconds: dict[str, float]
    ) -> None:
        self.change, self._tests, self.codes, self._seconds = change, tests, codes, seconds
        self.noticed = ""
        self._test = mmap.mmap(-1, 1024)
        """The one that runs, as the fork tells it."""

    def run(self, inside: "Callable[[Fork], None]") -> None:
        """`inside` runs in the fork, and ends it if no test fails."""
        if not self._tests:
            print(f"{self.change.number} NOT NOTICED, no test runs {self._location()}", flush=True)
            return
        began = time.monotonic()
        if not (pid := os.fork()):
            try:
                os.setsid()
                with open(os.devnull, "r+b") as nothing:
                    for descriptor in (0, 1, 2):
                        os.dup2(nothing.fileno(), descriptor)
                hypothesis.settings.register_profile("mutants", phases=[Phase.explicit, Phase.generate])
                hypothesis.settings.load_profile("mutants")
                inside(self)
            finally:
                os._exit(1)
        _, status = os.waitpid(pid, 0)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        test = self._test[:].rstrip(b"\0").decode(errors="replace") or "import"
        signalled = f"{signal.Signals(os.WTERMSIG(status)).name} in " if os.WIFSIGNALED(status) else ""
        self.noticed = signalled + test if status else ""
        summary = f"{self.change.number} {time.monotonic() - began:.1f} s, {len(self._tests)} tests"
        print(f"{summary} {self._location()} {self.noticed or 'NOT NOTICED'}", flush=True)

    def _location(self) -> str:
        return f"{self.change.path.relative_to(ROOT)}:{self.change.line} {self.change.operator}"

    def import_again(self) -> None:
        self._from_now_on()
        pytest.main([*ARGUMENTS, *dict.fromkeys(test.partition("::")[0] for test in self._tests)], plugins=[self])

    def _from_now_on(self) -> None:
        """Whoever imports the module gets the changed one."""
        read = SourceFileLoader.get_code

        def get_code(loader: SourceFileLoader, name: str) -> CodeType | None:
            if loader.get_filename(name) == str(self.change.path):
                return compile(self.change.after, str(self.change.path), "exec", dont_inherit=True)
            return read(loader, name)

        SourceFileLoader.get_code = get_code  # type: ignore[method-assign, assignment]

    def pytest_runtestloop(self, session: pytest.Session) -> None:
        """Runs the tests of what `import_again` collected."""
        self._run({item.nodeid: item for item in session.items})

    def replace(self, session: pytest.Session, functions: Sequence[FunctionType]) -> None:
        self._from_now_on()
        for function in functions:
            if changed := self.codes.get(_key(function.__code__)):
                function.__code__ = changed.replace(co_flags=function.__code__.co_flags)
        session.config.pluginmanager.register(self)
        self._run({function.nodeid: function for function in session.items})

    def _run(self, items: dict[str, pytest.Item]) -> None:
        selected = [items[test] for test in self._tests]
        for item, following in zip(selected, [*selected[1:], None], strict=True):
            self._test[:] = item.nodeid.encode()[:1024].ljust(1024, b"\0")
            signal.setitimer(signal.ITIMER_PROF, 3 + 3 * self._seconds[item.nodeid])
            signal.setitimer(signal.ITIMER_REAL, 20 + 3 * self._seconds[item.nodeid])
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        os._exit(0)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            os._exit(1)


class InPlace:
    """Collects all tests, and runs each change that is made in place."""

    def __init__(self, forks: Sequence[Fork]) -> None:
        self._forks = forks

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        gc.collect()
        inside = (str(ROOT / "kubeloop"), str(ROOT / "pkg"))
        functions = [
            item
            for item in gc.get_objects()
            if isinstance(item, FunctionType) and item.__code__.co_filename.startswith(inside)
        ]
        gc.freeze()
        for fork in self._forks:
            fork.run(lambda fork: fork.replace(session, functions))
        return True


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--sample", type=int, default=100)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--areas", nargs="*", choices=list(AREAS), default=list(AREAS))
    options.add_argument("--only", nargs="*", type=int, help="of the sample, by the numbers that are printed")
    options.add_argument("--measured", type=Path, help="a file for what is measured, taken as it is if it is there")
    options.add_argument("--limit", type=float, default=60, help="seconds that the tests for one change take unchanged")
    arguments = options.parse_args()
    sample = [item for item in changes(arguments) if not arguments.only or item.number in arguments.only]
    tests = sorted({item for area in arguments.areas for item in AREAS[area].tests})
    with tempfile.TemporaryDirectory() as folder:
        measured = _measured(arguments.measured or Path(folder, "coverage"), tests, arguments.limit)
        forks = [Fork(change, *measured.tests_of(change), measured.seconds) for change in sample]
    for fork in forks:
        if not fork.codes:
            fork.run(Fork.import_again)
    pytest.main([*ARGUMENTS, *tests], plugins=[InPlace([item for item in forks if item.codes])])
    for fork in forks:
        if not fork.noticed:
            print(f"\n{fork.change.number}\n{fork.change.diff()}")
    print(f"{sum(bool(item.noticed) for item in forks)} of {len(forks)} changes noticed")
    return 0


def _measured(file: Path, tests: Sequence[str], limit: float) -> Tests:
    if not file.exists():
        if not (pid := os.fork()):
            os._exit(pytest.main([*ARGUMENTS, *tests], plugins=[CoverageRecorder(file)]) > 1)
        os.waitpid(pid, 0)
    return Tests(file, limit)


if __name__ == "__main__":
    sys.exit(main())
