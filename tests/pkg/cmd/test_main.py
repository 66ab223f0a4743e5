"""The command line: exit codes, one line on stderr for everything that goes wrong, and the lab's commands."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from kubeloop.client.errors import ConfigError, Forbidden
from kubeloop.controllers.errors import BindError
from kubeloop.testing.cluster.paths import free_ports
from kubeloop.testing.scripted_server import GET, raw, status
from pkg.cmd import main
from tests.decisions import sentences
from tests.pkg.cmd.rig import Call, ThreadedServer, kubeconfig_for
from tests.program import COMMAND, ROOT

WRONG_CALLS = {
    "an unknown command": (["fly"], "No such command 'fly'"),
    "an unknown flag": (["controller", "--fast"], "No such option: --fast"),
    "an unknown mode": (["controller", "--mode", "alone"], "'alone' is not one of 'takeover', 'assist'"),
    "an unknown estimate": (["controller", "--estimate", "guess"], "'guess' is not one of"),
    "no workers": (["controller", "--workers", "0"], "--workers"),
    "workers that are no number": (["controller", "--workers", "many"], "--workers"),
    "a flag without its value": (["controller", "--mode"], "--mode"),
    "an argument too many": (["release", "everything"], "everything"),
    "an unknown log format": (["release", "--log-format", "xml"], "'xml' is not one of 'text', 'json'"),
    "an unknown KubeVirt release": (["controller", "--kubevirt-profile", "latest"], "'latest'"),
    "a lock without end": (["controller", "--lock-limit", "inf"], "--lock-limit"),
    "a hold without end": (["status", "--hold-limit", "inf"], "--hold-limit"),
    "a grace without end": (["controller", "--foreign-grace", "inf"], "--foreign-grace"),
    "a negative hold": (["controller", "--hold-limit", "-1"], "--hold-limit"),
}


@sentences(WRONG_CALLS)
def test_a_wrong_call_is_one_line_and_exit_2(case: tuple[list[str], str], call: Call) -> None:
    arguments, message = case
    result = call(*arguments)
    assert result.code == 2
    assert message in result.said_in_one_line()
    assert result.out == ""


def test_without_a_command_help_is_shown_and_the_exit_is_2(call: Call) -> None:
    result = call()
    assert result.code == 2
    assert "controller" in result.out + result.err
    assert "Traceback" not in result.err


@pytest.mark.parametrize("arguments", [["--help"], ["controller", "--help"], ["release", "--help"]], ids=" ".join)
def test_help_exits_0(call: Call, arguments: list[str]) -> None:
    result = call(*arguments)
    assert (result.code, result.err) == (0, "")
    assert "Usage: headroom" in result.out


def test_the_shell_completes_commands(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asks as what `headroom --install-completion` installs does."""
    environment = {"_HEADROOM_COMPLETE": "complete_bash", "COMP_WORDS": "headroom re", "COMP_CWORD": "1"}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert call().out.split() == ["release"]


COMMANDS = {"controller": ["--health-bind-address", "0"], "release": []}
"""To arguments that keep what runs beside it out of the way."""

NO_KUBECONFIG = {
    "a file that does not exist": (None, "no-such-file"),
    "a file that is no YAML": ("{{{", "kubeconfig"),
    "an empty file": ("", "kubeconfig"),
    "a file of something else": ("just text", "kubeconfig"),
    "a file without contexts": ("apiVersion: v1\nkind: Config\n", "kubeconfig"),
}


@pytest.mark.parametrize("command", COMMANDS)
@sentences(NO_KUBECONFIG)
def test_a_kubeconfig_that_cannot_be_used(
    case: tuple[str | None, str], command: str, call: Call, tmp_path: Path
) -> None:
    text, expected = case
    path = tmp_path / ("no-such-file" if text is None else "kubeconfig")
    if text is not None:
        path.write_text(text)
    result = call(command, "--kubeconfig", str(path))
    assert result.code == 2
    assert expected in result.said_in_one_line()
    assert result.seconds < 5


def test_no_cluster_at_all(call: Call, tmp_path: Path) -> None:
    result = call("controller", HOME=str(tmp_path))
    assert result.code == 2
    assert result.said_in_one_line().startswith("no cluster is configured: give --kubeconfig")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_server_that_cannot_be_reached_is_one_line_and_exit_1(command: str, call: Call, tmp_path: Path) -> None:
    port = free_ports(1)[0]
    kubeconfig = kubeconfig_for(f"http://127.0.0.1:{port}", tmp_path)
    result = call(command, "--kubeconfig", kubeconfig, *COMMANDS[command])
    assert result.code == 1
    assert f"127.0.0.1:{port}" in result.said_in_one_line()
    assert result.seconds < 10


def test_a_host_name_that_does_not_resolve(call: Call, tmp_path: Path) -> None:
    result = call("release", "--kubeconfig", kubeconfig_for("http://no-such-host.invalid:6443", tmp_path))
    assert result.code == 1
    assert "no-such-host.invalid" in result.said_in_one_line()


REFUSALS = {
    "unknown credentials": (status(401, "Unauthorized", "Unauthorized"), "http://127.0.0.1:{port}: Unauthorized"),
    "an account that may not": (status(403, "Forbidden", 'User "u" cannot get path "/version"'), "cannot get path"),
    "a proxy's page instead of an answer": (raw(b"<html>\n<b>Bad\n gateway</b>", 502), "Bad gateway"),
}


@sentences(REFUSALS)
def test_a_server_that_refuses_is_one_line_and_exit_1(
    case: tuple[object, str], call: Call, server: ThreadedServer, kubeconfig: str
) -> None:
    reply, message = case
    server.server.always(GET, "/version", reply)  # type: ignore[arg-type]
    result = call("controller", "--health-bind-address", "0", "--kubeconfig", kubeconfig)
    assert result.code == 1
    assert message.format(port=server.server.url.rpartition(":")[2]) in result.said_in_one_line()


BIND_ADDRESSES = {
    "no address at all": "nowhere",
    "a port that is none": "127.0.0.1:http",
    "a port out of range": "127.0.0.1:99999",
}


@sentences(BIND_ADDRESSES)
def test_an_address_that_is_none_is_exit_2(case: str, call: Call, server: ThreadedServer, kubeconfig: str) -> None:
    server.server.always(GET, "/version", raw(b"{}"))
    result = call("controller", "--kubeconfig", kubeconfig, "--health-bind-address", case)
    assert result.code == 2
    assert case in result.err.splitlines()[-1]
    assert "Traceback" not in result.err


def test_an_address_that_is_taken_is_exit_2(call: Call, server: ThreadedServer, kubeconfig: str) -> None:
    server.server.always(GET, "/version", raw(b"{}"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        result = call("controller", "--kubeconfig", kubeconfig, "--health-bind-address", address)
    assert result.code == 2
    assert result.said_in_one_line() == f"cannot listen on {address}: Address already in use"


ENVIRONMENT = {
    "HEADROOM_MODE": ("alone", "'alone' is not one of"),
    "HEADROOM_ESTIMATE": ("guess", "'guess' is not one of"),
    "HEADROOM_WORKERS": ("0", "HEADROOM_WORKERS"),
    "HEADROOM_KUBECONFIG": ("/no/such/file", "/no/such/file"),
    "HEADROOM_HEALTH_BIND_ADDRESS": ("nowhere", "nowhere"),
    "HEADROOM_METRICS_BIND_ADDRESS": ("nowhere", "nowhere"),
    "HEADROOM_LOG_FORMAT": ("xml", "'xml' is not one of"),
    "HEADROOM_HOLD_LIMIT": ("soon", "HEADROOM_HOLD_LIMIT"),
    "HEADROOM_RENDER_DEFAULT_QUOTA": ("perhaps", "HEADROOM_RENDER_DEFAULT_QUOTA"),
    "KUBECONFIG": ("/no/such/file", "/no/such/file"),
}


@pytest.mark.parametrize("variable", ENVIRONMENT)
def test_every_flag_is_an_environment_variable_too(
    variable: str, call: Call, server: ThreadedServer, kubeconfig: str
) -> None:
    server.server.always(GET, "/version", raw(b"{}"))
    env = {"HEADROOM_HEALTH_BIND_ADDRESS": "127.0.0.1:0"}
    if "KUBECONFIG" not in variable:
        env["KUBECONFIG"] = kubeconfig
    value, message = ENVIRONMENT[variable]
    result = call("controller", **env | {variable: value})
    assert result.code == 2
    assert message in result.err.splitlines()[-1]


def fail_with(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command raises that; ask for one that the lab is not asked about."""

    def fail(**_: object) -> None:
        raise error

    monkeypatch.setattr(main, "application", lambda _: fail)


FAILURES = {
    "a wrong configuration": (ConfigError("no such context"), 2, "no such context"),
    "an address that cannot be listened on": (BindError("cannot listen"), 2, "cannot listen"),
    "the server's refusal": (Forbidden("not you", status=403), 1, "not you"),
    "the operating system's": (FileNotFoundError(2, "No such file", "x"), 1, "x: No such file"),
    "a bug names its class": (KeyError("name"), 1, "KeyError: 'name'"),
    "a text of several lines becomes one": (Forbidden("a\n  b\tc"), 1, "a b c"),
}


@sentences(FAILURES)
def test_what_a_command_raises_is_one_line(
    case: tuple[Exception, int, str], call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    error, code, line = case
    fail_with(error, monkeypatch)
    result = call("status")
    assert (result.code, result.said_in_one_line()) == (code, line)


def test_a_developer_may_ask_for_the_traceback(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_with(KeyError("name"), monkeypatch)
    with pytest.raises(KeyError):
        call("status", HEADROOM_TRACEBACK="1")


INTERRUPTIONS = {
    "Ctrl-C": (KeyboardInterrupt(), 130),
    "an abort at a prompt": (typer.Abort(), 130),
    "an exit of the process": (SystemExit(3), 3),
    "a reader that went away": (BrokenPipeError(), 1),
}


@sentences(INTERRUPTIONS)
def test_an_interruption_is_a_code_and_no_text(
    case: tuple[BaseException, int], call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    error, code = case
    fail_with(error, monkeypatch)
    monkeypatch.setattr(sys, "stdout", sys.stdout)
    result = call("status")
    assert (result.code, result.err) == (code, "")


def test_the_program_itself_exits_with_the_code(tmp_path: Path) -> None:
    """Through the entry point, as a process."""
    completed = subprocess.run(
        [*COMMAND, "controller", "--kubeconfig", str(tmp_path / "no-such-file")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert completed.returncode == 2
    assert len(completed.stderr.splitlines()) == 1
    assert "no-such-file" in completed.stderr


@pytest.mark.parametrize("words", ["testcluster up --dir /d", "demo --help", "scale --vms=3", "demo"])
def test_without_the_lab_its_commands_say_what_to_install(
    words: str, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(main, "entry_points", lambda group: ())
    result = call(*words.split())
    assert result.code == 2
    assert "pip install ./lab" in result.said_in_one_line()


def test_with_the_lab_they_are_there() -> None:
    app = typer.Typer(rich_markup_mode=None)
    main.add_lab(app)
    listed = CliRunner().invoke(app, ["--help"]).output
    assert all(name in listed for name in main.LAB_COMMANDS)
    assert "not installed" not in listed


def test_the_version_is_what_people_try_first(call: Call) -> None:
    assert (call("--version").code, call("--version").out) == (0, call("version").out)


START = "import pkg.cmd.main, pkg.cmd.controller"
"""All that a controller in a pod imports, without webhooks."""
HTTP = "import aiohttp.web"
MOST = 1.55
"""Times the source of the HTTP library alone; measured: 1.43."""
NEEDLESS = {"kubernetes", "cryptography", "rich", "kubeloop.webhook.server", "pkg.report.reader", "lab.demo"}
_FILES = """
import json, sys
print(json.dumps({name: getattr(module, "__file__", None) or "" for name, module in list(sys.modules.items())}))
"""


def imported(code: str) -> dict[str, str]:
    """Returns the modules that a process has which runs this, with their files."""
    command = [sys.executable, "-c", f"{code}\n{_FILES}"]
    files: dict[str, str] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return files


def test_a_start_imports_little_and_nothing_needless() -> None:
    of_start, of_http = (imported(code) for code in (START, HTTP))
    start, http = (
        sum(Path(file).stat().st_size for file in set(files.values()) if file.endswith(".py"))
        for files in (of_start, of_http)
    )
    assert start < MOST * http
    assert not NEEDLESS & of_start.keys()
