"""Options by annotations and by the command line."""

from typing import Any

import pytest

from lab.bodies import stand_in
from lab.kubevirt.__main__ import parse_arguments
from lab.kubevirt.options import MigrationOptions, StandInOptions, reported_version
from pkg.util.kubevirt.profiles import PROFILES, profile_for_version
from tests.lab.kubevirt.samples import vmim


def annotated(**annotations: str) -> dict[str, Any]:
    return {"annotations": stand_in(**annotations)}


LINGERS = {
    "the migration's": (vmim(**annotated(source_linger_seconds="1.5")), 1.5),
    "zero": (vmim(**annotated(source_linger_seconds="0")), 0),
    "the default for what is no number": (vmim(**annotated(source_linger_seconds="soon")), 3),
    "the default for less than nothing": (vmim(**annotated(source_linger_seconds="-1")), 3),
    "the default for ever": (vmim(**annotated(source_linger_seconds="inf")), 3),
    "the default when there is no migration any more": (None, 3),
}


@pytest.mark.parametrize(("migration", "seconds"), LINGERS.values(), ids=LINGERS.keys())
def test_source_linger_and_what_no_annotation_says(migration: Any, seconds: float) -> None:
    options = MigrationOptions.of(StandInOptions(source_linger=3, phase_delay=5), migration)
    assert options == MigrationOptions(seconds, 5, {}, "")


HOLDS = {
    "every paced phase lasts the delay": ("", {"Scheduling": 0.2, "Running": 0.2}),
    "Pending lasts as long as quota makes it": ("", {"Pending": 0.0, "": 0.0}),
    "one number is for all paced phases": ("2", {"Scheduling": 2.0, "Running": 2.0, "Pending": 0.0}),
    "a phase can have its own": ("Running=10, Pending=1", {"Running": 10.0, "Pending": 1.0, "Scheduling": 0.2}),
    "what is no number counts as the delay": ("Running=long", {"Running": 0.2}),
}


@pytest.mark.parametrize(("text", "expected"), HOLDS.values(), ids=HOLDS.keys())
def test_phase_seconds(text: str, expected: dict[str, float]) -> None:
    options = MigrationOptions.of(StandInOptions(), vmim(**(annotated(phase_seconds=text) if text else {})))
    assert {phase: options.hold(phase) for phase in expected} == expected


def test_the_command_line_is_the_options() -> None:
    assert parse_arguments([])[1] == StandInOptions()
    argv = (
        "--source-linger 1 --phase-delay 0 --overhead-profile main --parallel-migrations 9"
        " --parallel-outbound 8 --first-retry 0.5 --max-retry 7 --finished-linger 6 --drained-bucket"
    )
    expected = StandInOptions(1.0, 0.0, "main", 9, 8, 0.5, 7.0, 6.0, drained_bucket=True)
    assert parse_arguments(argv.split())[1] == expected


WRONG = {
    "a negative time": ["--source-linger", "-1"],
    "no time": ["--phase-delay", "soon"],
    "an endless time": ["--max-retry", "inf"],
}


@pytest.mark.parametrize("argv", WRONG.values(), ids=WRONG.keys())
def test_a_wrong_command_line_ends_with_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        parse_arguments(argv)
    assert exit_.value.code == 2
    assert argv[0] in capsys.readouterr().err


SCALE = "headroom-scale-0123ab-001/vm"


@pytest.mark.parametrize(
    ("prefix", "own_keys"),
    [("", ["tenant/vm", "headroom-scaled/vm"]), ("headroom-scale-0123ab-", [SCALE])],
    ids=["all but those of scale runs", "those of one run alone"],
)
def test_one_stand_in_leaves_the_other_its_namespaces(prefix: str, own_keys: list[str]) -> None:
    keys = ("tenant/vm", SCALE, "headroom-scaled/vm", "headroom-scale-4567cd-001/vm")
    assert [key for key in keys if StandInOptions(namespace_prefix=prefix).selects(key)] == own_keys


@pytest.mark.parametrize("profile", sorted(PROFILES))
def test_the_version_that_is_reported_leads_back_to_the_profile(profile: str) -> None:
    assert profile_for_version(reported_version(profile)) == PROFILES[profile]
