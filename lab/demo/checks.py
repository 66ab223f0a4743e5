"""What the demo expects, and what it saw."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Check:
    """One fact of a step: `expected` and `seen` are compared with ==, quantities so by value."""

    step: str
    name: str
    expected: object
    seen: object
    headline: bool = False
    """It is shown in the picture."""

    @property
    def ok(self) -> bool:
        return self.expected == self.seen

    def __str__(self) -> str:
        verdict = "ok" if self.ok else "FAILED"
        expected, seen = str(self.expected), str(self.seen)
        outcome = f"expected and seen {seen}" if expected == seen else f"expected {expected}; seen {seen}"
        return f"{verdict:<7} ({self.step}) {self.name}: {outcome}"


@dataclass(slots=True)
class Report:
    """All checks so far. `listener` is called for each as it is made."""

    listener: Callable[[Check], None] = lambda _: None
    checks: list[Check] = field(default_factory=list)

    def add(self, check: Check) -> Check:
        self.checks.append(check)
        self.listener(check)
        return check

    @property
    def failed(self) -> int:
        return sum(not check.ok for check in self.checks)

    @property
    def passed(self) -> int:
        return len(self.checks) - self.failed

    @property
    def exit_code(self) -> int:
        """0 only when there were checks and every one of them passed."""
        return 0 if self.checks and not self.failed else 1

    @property
    def last_line(self) -> str:
        return f"demo: {self.passed} passed, {self.failed} failed"
