"""Objects from YAML and JSON in all the shapes that people pipe."""

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from pkg.cmd.manifests import ManifestError, describe_each, name_of, read_file, read_objects
from pkg.util.constants import COLLECTED
from tests.decisions import sentences

A: dict[str, Any] = {"kind": "A", "metadata": {"name": "a"}}
B: dict[str, Any] = {"kind": "B", "metadata": {"name": "b"}}
PRETTY_A, PRETTY_B = json.dumps(A, indent=1), json.dumps(B, indent=1)
YAML_A, YAML_B = "kind: A\nmetadata:\n  name: a\n", "kind: B\nmetadata: {name: b}\n"


def read(text: str | bytes) -> list[Mapping[str, Any]]:
    return [document for _, document in read_objects(text.encode() if isinstance(text, str) else text)]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(f"{json.dumps(A)}\n{json.dumps(B)}\n", id="JSON lines"),
        pytest.param(f"{json.dumps(A)}\r\n\r\n{json.dumps(B)}", id="JSON lines from Windows, with an empty one"),
        pytest.param(f"{PRETTY_A}\n{PRETTY_B}\n", id="JSON objects over several lines"),
        pytest.param(f"{PRETTY_A}{PRETTY_B}", id="JSON objects with nothing between them"),
        pytest.param(f"{json.dumps(A)}\n{PRETTY_B}\n", id="one line, then several"),
        pytest.param(json.dumps([A, B]), id="a JSON list"),
        pytest.param(json.dumps({"kind": "List", "items": [A, B]}), id="a List object"),
        pytest.param(json.dumps({"kind": "ThingList", "items": [A, B]}, indent=1), id="a typed List"),
        pytest.param(f"{YAML_A}---\n{YAML_B}", id="YAML documents"),
        pytest.param(f"---\n{YAML_A}---\n---\n# nothing\n---\n{YAML_B}...\n", id="YAML with empty documents"),
        pytest.param(f"%YAML 1.1\n---\n{YAML_A}--- # second\n{YAML_B}", id="YAML with a directive"),
        pytest.param(f"# first a comment\n\n{YAML_A}---\n{YAML_B}", id="YAML after a comment"),
        pytest.param(f"\ufeff{YAML_A}---\n{YAML_B}", id="YAML after a byte order mark"),
        pytest.param(f"\ufeff{json.dumps(A)}\n{json.dumps(B)}\n", id="JSON after a byte order mark"),
        pytest.param(f"\n\n  {json.dumps(A)}\n{json.dumps(B)}", id="JSON after empty lines"),
        pytest.param('"kind": A\n"metadata": {name: a}\n---\n  kind: B\n  metadata: {name: b}\n', id="YAML in quotes"),
        pytest.param("\n  kind: A\n  metadata: {name: a}\n---\n" + YAML_B, id="YAML that is indented"),
        pytest.param("{kind: A, metadata: {name: a}}\n---\n{kind: B, metadata: {name: b}}\n", id="YAML in braces"),
        pytest.param(f"{json.dumps(A)}\n---\n{PRETTY_B}\n", id="JSON with YAML's separator"),
        pytest.param("kind: List\nitems:\n- kind: A\n  metadata: {name: a}\n- " + json.dumps(B), id="a YAML List"),
    ],
)
def test_two_objects_are_read_from(text: str) -> None:
    assert read(text) == [A, B]


def test_an_item_without_a_kind_is_of_its_lists_kind() -> None:
    items = [{"metadata": {"name": "a"}}, {**B, "kind": "Thing"}]
    assert [item["kind"] for item in read(json.dumps({"kind": "ThingList", "items": items}))] == ["Thing"] * 2
    assert "kind" not in read(json.dumps({"kind": "List", "items": items}))[0]


NOTHING = "", "\n\n", "   ", "---\n", "# only a comment\n", "null\n", "[]"


@pytest.mark.parametrize("text", [*NOTHING, '{"kind":"List","items":[]}', '{"kind":"PodList","items":null}'])
def test_nothing_is_read_from(text: str) -> None:
    assert read(text) == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param(b"\xff\x00\x01", "not UTF-8", id="binary garbage"),
        pytest.param(b"{\xff", "not UTF-8", id="binary garbage that begins like JSON"),
        pytest.param("a: [1", "neither JSON nor YAML", id="half a YAML document"),
        pytest.param('{"kind": "A"', "neither JSON nor YAML", id="half a JSON document"),
        pytest.param("a: !!python/object:os.system {}", "neither JSON nor YAML", id="a Python object in YAML"),
        pytest.param("a: \x00", "neither JSON nor YAML", id="a zero byte"),
        pytest.param("name: {{ .Values.name }}", "it is a template, render it first", id="a Helm template"),
        pytest.param("{{- if .Values.vm }}\nkind: A", "it is a template, render", id="one that begins with its braces"),
        pytest.param("just text", "document 1: not an object", id="a word"),
        pytest.param(f"{json.dumps(A)}\n7\n", "document 2: not an object", id="a number after an object"),
        pytest.param("[1]", "document 1, item 1: not an object", id="a list of numbers"),
        pytest.param('{"kind":"List","items":["x"]}', "document 1, item 1: not an object", id="a List of words"),
        pytest.param("a: " + "9" * 5000, "neither JSON nor YAML", id="an integer without end"),
    ],
)
def test_garbage_is_one_clear_line(text: str | bytes, says: str) -> None:
    with pytest.raises(ManifestError, match=says) as caught:
        read(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("opening", ["[", "{", "- ", "? ", "{a: ", '[{"a":'])
def test_endless_nesting_is_refused_and_does_not_crash(opening: str) -> None:
    with pytest.raises(ManifestError):
        read(opening * 100_000)


def test_endless_indentation_is_refused_and_does_not_crash() -> None:
    with pytest.raises(ManifestError):
        read("".join(f"{' ' * depth}a:\n" for depth in range(6_000)))


def test_aliases_and_merge_keys_are_read() -> None:
    limits = {"cpu": "2", "memory": "4Gi"}
    (document,) = read("a: &a {cpu: '2', memory: 4Gi}\nb: *a\nc: {<<: *a, cpu: '3'}\nd: [*a, *a]\n")
    assert document == {"a": limits, "b": limits, "c": {**limits, "cpu": "3"}, "d": [limits, limits]}


def levels(head: str, opening: str, closing: str) -> str:
    """Thirty levels, each of which repeats the one before nine times."""
    nine = [f"l{n}: &l{n} {opening}{', '.join([f'*l{n - 1}'] * 9)}{closing}\n" for n in range(1, 30)]
    return f"kind: A\nl0: &l0 {head}\n{''.join(nine)}"


THOUSAND = f"a: &a [{'x,' * 999}x]\nb: [{'*a,' * 98}*a]\n"
"""A text of 2,300 characters that stands for 100,000 values."""
TOO_MUCH = {
    "lists of lists": levels("[x]", "[", "]"),
    "objects that merge others": levels("{a: 1}", "{<<: [", "]}"),
    "a list that holds itself": "a: &a [*a]",
    "an object that merges itself": "a: &a {<<: *a}",
    "one list that is repeated in a hundred documents": f"{THOUSAND}---\n" * 100,
}


@sentences(TOO_MUCH)
def test_aliases_that_stand_for_too_much_are_refused_at_once(case: str) -> None:
    began = time.process_time()
    with pytest.raises(ManifestError, match=r"write out what they stand for|nested too deeply"):
        read(case)
    assert time.process_time() - began < 1


def test_many_values_are_read_that_are_written_or_repeated() -> None:
    assert len(read(THOUSAND)[0]["b"]) == 99
    assert len(read("a: [" + "x," * 200_000 + "x]")[0]["a"]) == 200_001


NO_FILES: dict[str, Callable[[Path], object]] = {
    "a FIFO": lambda path: os.mkfifo(path),
    "a link to a device": lambda path: path.symlink_to("/dev/zero"),
    "a link to a file": lambda path: path.symlink_to(__file__),
    "nothing": lambda path: None,
}


@sentences(NO_FILES)
def test_only_files_are_opened_in_a_folder_of_others(case: Callable[[Path], object], tmp_path: Path) -> None:
    path = tmp_path / COLLECTED
    case(path)
    with pytest.raises(ManifestError, match=f"/{COLLECTED}: it is missing, or a link"):
        read_file(path)
    if path.exists():
        with pytest.raises(ManifestError, match=f"/{COLLECTED}: it is"):
            describe_each(str(tmp_path), "A", dict)


@sentences({name: NO_FILES[name] for name in ("a FIFO", "a link to a device")})
def test_a_pipe_or_device_that_a_person_names_is_not_opened(
    case: Callable[[Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "named"
    case(path)
    monkeypatch.setattr(Path, "read_bytes", lambda _: pytest.fail("it was opened"))
    with pytest.raises(ManifestError, match="/named: it is a pipe or a device, not a file"):
        describe_each(str(path), "A", dict)


def test_an_error_of_the_output_does_not_name_the_file(tmp_path: Path) -> None:
    (tmp_path / "f").write_text(YAML_A)

    def fail(_: object) -> None:
        raise OSError("disk full")

    with pytest.raises(OSError, match=r"^disk full$"):
        describe_each(str(tmp_path / "f"), "A", fail)


def test_a_pipe_that_a_shell_names_is_read(capsys: pytest.CaptureFixture[str]) -> None:
    ends = os.pipe()
    os.write(ends[1], YAML_A.encode())
    os.close(ends[1])
    assert describe_each(f"/dev/fd/{ends[0]}", "A", dict) == 0
    assert json.loads(capsys.readouterr().out) == A
    os.close(ends[0])


def test_times_stay_text() -> None:
    (document,) = read("metadata: {creationTimestamp: 2026-11-21T16:30:14Z, day: 2026-11-21}\n")
    assert document == {"metadata": {"creationTimestamp": "2026-11-21T16:30:14Z", "day": "2026-11-21"}}


def test_what_stands_before_the_error_is_read_first() -> None:
    objects = read_objects(f"{YAML_A}---\n[\n".encode())
    assert next(objects) == ("document 1", A)
    with pytest.raises(ManifestError):
        next(objects)


def test_many_documents_over_several_lines_take_no_longer_each() -> None:
    start = time.process_time()
    assert len(read(f'{{\n"name": "{"a" * 100}"}}\n' * 60_000)) == 60_000
    assert time.process_time() - start < 8  # 0.3 on an idle core; a minute if each copies what follows it


@pytest.mark.parametrize(
    ("document", "name"),
    [
        ({"kind": "VM", "metadata": {"namespace": "ns", "name": "vm1"}}, "VM ns/vm1"),
        ({"kind": "VM", "metadata": {"name": "vm1"}}, "VM vm1"),
        ({"metadata": {"namespace": "ns", "name": "vm1"}}, "ns/vm1"),
        ({"kind": "VM"}, "document 3"),
        ({"metadata": {"name": 7}}, "document 3"),
        ({"metadata": "x"}, "document 3"),
        ({"kind": "VM", "metadata": {"name": "a\nb"}}, "VM a b"),
    ],
    ids=["all", "no namespace", "no kind", "no metadata", "a number", "no object", "two lines"],
)
def test_an_object_is_called_by_kind_and_key_or_by_its_place(document: dict[str, Any], name: str) -> None:
    assert name_of("document 3", document) == name
