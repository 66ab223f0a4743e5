"""Signals, with real processes: what a kubelet or a person at a terminal does."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from kubeloop.controllers.run import run_until_signal

HEARS = "await stop.wait()\nprint('heard', flush=True)"
ROOT = Path(__file__).resolve().parents[3]


class SignalledProgram:
    """`main(stop)` in a process of its own; it prints "up" when it can be signalled."""

    def __init__(self, body: str, options: str = "") -> None:
        script = "import asyncio, signal, sys, time, threading\nfrom kubeloop.controllers.run import run_until_signal\n"
        script += "async def main(stop):\n    print('up', flush=True)\n"
        script += textwrap.indent(textwrap.dedent(body), "    ")
        script += f"\nsys.exit(run_until_signal(main{options}))\n"
        self.process = subprocess.Popen(
            [sys.executable, "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        self.says("up")

    def says(self, line: str) -> None:
        """Wait for it."""
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == f"{line}\n"

    def send(self, number: signal.Signals, read: str = "") -> tuple[int, float, str, str]:
        """A signal, and what it reads then: exit code, seconds until the end, stdout, stderr."""
        started = time.monotonic()
        self.process.send_signal(number)
        try:
            output, err = self.process.communicate(read, timeout=60)
        finally:
            self.process.kill()
        return self.process.returncode, time.monotonic() - started, output, err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_and_exits_with_0(number: signal.Signals) -> None:
    program = SignalledProgram("await stop.wait()\nawait asyncio.sleep(0.3)\nprint('drained', flush=True)")
    code, _, output, err = program.send(number)
    assert (code, output, err) == (0, "drained\n", "")


def test_a_signal_that_another_thread_gets_wakes_the_loop() -> None:
    """The kernel gives a process's signal to any of its threads."""
    program = SignalledProgram(
        """
        threading.Timer(0.3, lambda: signal.pthread_kill(threading.get_ident(), signal.SIGTERM)).start()
        await stop.wait()
        """
    )
    try:
        assert program.process.wait(20) == 0
    finally:
        program.process.kill()


def test_the_first_signal_of_a_main_that_ends_by_itself_drains() -> None:
    program = SignalledProgram(f"stop.set()\n{HEARS}\nawait asyncio.sleep(0.5)\nprint('drained', flush=True)\nreturn 3")
    program.says("heard")
    code, _, output, err = program.send(signal.SIGTERM)
    assert (code, output, err) == (3, "drained\n", "")


TOO_LONG: dict[str, tuple[str, str, str]] = {
    # main, the options, what it prints
    "a drain is cancelled": (
        "await stop.wait()\ntry: await asyncio.sleep(100)\nfinally: print('cancelled', flush=True)",
        "drain_seconds=0.5, exit_seconds=30",
        "cancelled\n",
    ),
    "a main that will not be cancelled": (
        "while True:\n    try: await asyncio.sleep(100)\n    except asyncio.CancelledError: pass",
        "drain_seconds=0.2, exit_seconds=1",
        "",
    ),
    "a thread that hangs": (
        "asyncio.get_running_loop().run_in_executor(None, time.sleep, 60)\nawait stop.wait()",
        "exit_seconds=1",
        "",
    ),
}


@pytest.mark.parametrize("case", TOO_LONG)
def test_what_takes_too_long_is_ended_with_0(case: str) -> None:
    main, options, printed = TOO_LONG[case]
    code, seconds, output, _ = SignalledProgram(main, f", {options}").send(signal.SIGTERM)
    assert (code, output) == (0, printed)
    assert seconds < 15


@pytest.mark.parametrize(
    ("first_signal", "second_signal", "statement"),
    [
        (signal.SIGTERM, signal.SIGTERM, "await asyncio.sleep(100)"),
        (signal.SIGINT, signal.SIGTERM, "await asyncio.sleep(100)"),
        (signal.SIGTERM, signal.SIGINT, "time.sleep(60)"),  # the loop is blocked
    ],
)
def test_a_second_signal_exits_at_once(
    first_signal: signal.Signals, second_signal: signal.Signals, statement: str
) -> None:
    program = SignalledProgram(f"{HEARS}\n{statement}")
    program.process.send_signal(first_signal)
    program.says("heard")
    code, seconds, _, err = program.send(second_signal)
    assert (code, err) == (128 + second_signal, "")
    assert seconds < 15


def test_two_signals_at_once_are_not_one() -> None:
    """A second signal counts even if the loop was busy all the time between the two."""
    program = SignalledProgram("print('busy', flush=True)\nsys.stdin.readline()\nawait asyncio.sleep(100)")
    program.says("busy")
    program.process.send_signal(signal.SIGINT)
    code, seconds, _, _ = program.send(signal.SIGTERM, "go on\n")
    assert code in (130, 143)
    assert seconds < 15


@pytest.mark.parametrize(("result", "code"), [(None, 0), (0, 0), (1, 1), (2, 2)])
def test_mains_result_is_the_exit_code(result: int | None, code: int) -> None:
    async def main(stop: asyncio.Event) -> int | None:
        return result

    assert run_until_signal(main) == code


def test_what_main_raises_comes_out() -> None:
    async def main(stop: asyncio.Event) -> None:
        raise ValueError("odd")

    with pytest.raises(ValueError, match="odd"):
        run_until_signal(main)


def test_what_main_raises_while_draining_comes_out() -> None:
    async def main(stop: asyncio.Event) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        await stop.wait()
        raise ValueError("odd")

    with pytest.raises(ValueError, match="odd"):
        run_until_signal(main)


def test_afterwards_signals_do_what_they_did_before() -> None:
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    async def main(stop: asyncio.Event) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        await stop.wait()

    assert run_until_signal(main) == 0
    assert {number: signal.getsignal(number) for number in handlers} == handlers
