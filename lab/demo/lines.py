"""The demo's checks, and its record as plain lines while it happens: the same in a terminal, a pipe and a log."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from shutil import get_terminal_size
from textwrap import fill
from typing import Final, TextIO

from lab.record import Amounts, EventSeen, Happening, Mark, PhaseChange, QuotaVersion, Record

_INDENT: Final = " " * 10


@dataclass(frozen=True, slots=True)
class Check:
    """A fact of a step: `expected` and `actual` are compared with ==, quantities so by value."""

    step: str
    name: str
    expected: object
    actual: object
    headline: bool = False
    """Reports whether the picture shows the check."""

    @property
    def ok(self) -> bool:
        return self.expected == self.actual

    def __str__(self) -> str:
        verdict = "ok" if self.ok else "FAILED"
        expected, actual = str(self.expected), str(self.actual)
        outcome = f"expected and seen {actual}" if expected == actual else f"expected {expected}; seen {actual}"
        return f"{verdict:<7} ({self.step}) {self.name}: {outcome}"


@dataclass(slots=True)
class Report:
    """The checks so far. `listener` is called for every new one."""

    listener: Callable[[Check], None] = lambda _: None
    checks: list[Check] = field(default_factory=list)

    def add(self, check: Check) -> Check:
        self.checks.append(check)
        self.listener(check)
        return check

    @property
    def failed_count(self) -> int:
        return sum(not check.ok for check in self.checks)

    @property
    def passed_count(self) -> int:
        return len(self.checks) - self.failed_count

    @property
    def exit_code(self) -> int:
        """The exit code: 0 only when there were checks and all of them passed."""
        return 0 if self.checks and not self.failed_count else 1

    @property
    def last_line(self) -> str:
        return f"demo: {self.passed_count} passed, {self.failed_count} failed"


class Lines:
    """Prints each happening and each check as it comes. `is_broken`: the pipe is closed, nothing is printed."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.is_broken = False
        self._last_amounts: tuple[Amounts, Amounts] | None = None
        self._events: set[tuple[str, str]] = set()

    def follow(self, record: Record, report: Report) -> None:
        """Prints the entries of the record and the report."""
        record.listener = lambda happening: self.print_happening(record, happening)
        report.listener = self.print_check

    def print_happening(self, record: Record, happening: Happening) -> None:
        """Prints one line, or none for a repetition."""
        match happening:
            case Mark(kind="step", text=text):
                self.say(f"\n== {text} ==")
            case Mark(at=moment, kind=kind, text=text):
                label = kind if kind in ("headroom", "rancher") else ""
                self._print_at(moment, f"{label:<10}{text or 'stopped'}")
            case QuotaVersion():
                self._quota(happening)
            case PhaseChange():
                self._print_at(happening.at, describe_phase(record, happening))
            case EventSeen(subject=subject, reason=reason, message=message) if (subject, message) not in self._events:
                self._events.add((subject, message))
                self._print_at(happening.at, f"{'event':<10}{subject}: {reason}: {message}")

    def print_check(self, check: Check) -> None:
        self.say(str(check))

    def say(self, text: str) -> None:
        """A line as it is; a terminal gets it folded between words, indented to where its text begins."""
        if self._stream.isatty():
            text = fill(text, get_terminal_size().columns, subsequent_indent=_INDENT, replace_whitespace=False)
        try:
            if not self.is_broken:
                print(text, file=self._stream, flush=True)
        except BrokenPipeError:
            self.is_broken = True

    def _print_at(self, moment: float, text: str) -> None:
        self.say(f"{moment:6.1f} s  {text}")

    def _quota(self, version: QuotaVersion) -> None:
        amounts = (version.hard, version.used)
        if amounts != self._last_amounts:
            self._last_amounts = amounts
            cpu = f"limits.cpu {version.used.cpu}/{version.hard.cpu}"
            memory = f"limits.memory {version.used.memory}/{version.hard.memory}"
            self._print_at(version.at, f"{'quota':<10}{version.quota.name}: {cpu}, {memory}")


def describe_phase(record: Record, change: PhaseChange) -> str:
    """Returns a line about a phase of a migration or a pod."""
    if change.subject in record.migrations:
        return f"{'migration':<10}{change.subject} of {change.vm}: {change.phase or 'new'}"
    pod = record.pods[change.subject]
    migration = next((m.name for m in record.migrations.values() if record.targets.get(m.uid) is pod), "")
    role = f"{migration}'s target" if migration else f"{change.vm}'s first"
    counts = ", no longer counted" if pod.ended else ""
    return f"{'pod':<10}{change.subject} ({role}): {change.phase}{counts}"


def is_terminal(stream: TextIO) -> bool:
    """Reports whether the stream can show the picture: never in CI."""
    return stream.isatty() and not os.environ.get("CI") and os.environ.get("TERM") != "dumb"
