"""deploy/k9s: its commands and columns exist."""

import re
import shlex
from typing import Any

import pytest
import yaml

from deploy.render import DEPLOY
from pkg.api.kubevirt import VIRTUAL_MACHINE_INSTANCE_MIGRATIONS
from pkg.cmd.main import OWN
from pkg.util.constants import ANNOTATION_SUMMARY

PLUGINS: dict[str, Any] = yaml.safe_load((DEPLOY / "k9s" / "plugins.yaml").read_text("utf-8"))["plugins"]
VIEWS: dict[str, Any] = yaml.safe_load((DEPLOY / "k9s" / "views.yaml").read_text("utf-8"))["views"]


@pytest.mark.parametrize("name", PLUGINS)
def test_a_plugin_runs_a_command_of_headroom_with_quoted_names(name: str) -> None:
    plugin = PLUGINS[name]
    assert plugin.keys() >= {"shortCut", "description", "scopes", "command", "args"}
    (script,) = plugin["args"][1:]
    words = shlex.split(script.partition("|")[0])
    assert (words[0], words[1] in OWN) == ("headroom", True)
    assert all(f'"{variable}' in script for variable in re.findall(r"\$[A-Z]+", script) if variable != "$NAME")


def test_the_columns_are_of_fields_that_there_are() -> None:
    (summary,) = [column for column in VIEWS["v1/resourcequotas"]["columns"] if column.startswith("HEADROOM:")]
    assert summary.partition(":")[2].replace("\\.", ".") == f".metadata.annotations.{ANNOTATION_SUMMARY}"
    migrations = VIRTUAL_MACHINE_INSTANCE_MIGRATIONS
    assert f"{migrations.api_version}/{migrations.plural}" in VIEWS
