"""Log lines for programs and for people, and what is being handled in them."""

import asyncio
import json
import logging
import re

import pytest

from kubeloop.api.core import ConfigMap
from kubeloop.api.registry import CONFIG_MAPS
from kubeloop.controllers.factory import ControllerFactory
from kubeloop.logs import current
from kubeloop.testing.fake.server import FakeCluster
from kubeloop.testing.virtual_time import settle
from pkg.cmd.options import LogOptions
from tests.pkg.cmd.rig import logging_as_it_was

log = logging.getLogger("a.part")


def test_a_line_of_json_has_the_whole_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    with logging_as_it_was():
        LogOptions(log_format="json").set_up()
        try:
            dict[str, str]()["name"]
        except KeyError:
            log.exception("%s failed", "it")
    (line,) = map(json.loads, capsys.readouterr().err.splitlines())
    assert (line["level"], line["logger"], line["message"]) == ("error", "a.part", "it failed")
    assert line["error"] == "KeyError('name')"
    assert line["traceback"].startswith("Traceback (most recent call last):")
    assert 'dict[str, str]()["name"]' in line["traceback"]
    assert "key" not in line


async def handled() -> None:
    """Two objects, each logged by the handler and by a task that it starts."""
    cluster = FakeCluster(CONFIG_MAPS)
    for name in "ab":
        cluster.put(CONFIG_MAPS, {"metadata": {"name": name, "namespace": "ns"}})
    factory = ControllerFactory(cluster.client())

    async def on_change(key: str, obj: ConfigMap | None) -> None:
        async def task() -> None:
            log.info("task of %s", key)

        await asyncio.sleep(0)  # the calls are interleaved
        log.info("handler of %s", key)
        await asyncio.create_task(task())

    factory.controller(CONFIG_MAPS).on_change("handler", on_change)
    await factory.start()
    await settle(100)
    await factory.stop()
    assert current() is None


async def test_every_line_says_what_is_being_handled(capsys: pytest.CaptureFixture[str]) -> None:
    with logging_as_it_was():
        LogOptions(log_format="json").set_up()
        await handled()
    lines = [line for line in map(json.loads, capsys.readouterr().err.splitlines()) if " of " in line["message"]]
    records = [(line["message"], line["kind"], line["key"]) for line in lines]
    assert sorted(records) == [
        (f"{source} of ns/{n}", "configmaps", f"ns/{n}") for source in ("handler", "task") for n in "ab"
    ]
    numbers = {
        line["key"]: {other_line["reconcile"] for other_line in lines if other_line["key"] == line["key"]}
        for line in lines
    }
    (a,), (b,) = numbers["ns/a"], numbers["ns/b"]
    assert a != b, "one number for each call"


async def test_lines_for_people_end_with_it(capsys: pytest.CaptureFixture[str]) -> None:
    with logging_as_it_was():
        LogOptions().set_up()
        log.info("outside")
        await handled()
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].endswith("INFO    outside")
    assert [line for line in lines if re.search(r"INFO    task of ns/a \[configmaps ns/a #\d+\]$", line)]
