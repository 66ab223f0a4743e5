"""The rules that belong to the version that an API server reports."""

from __future__ import annotations

import pytest

from pkg.util.quotacount.releases import NEWEST, RELEASES, UNKNOWN, doubt, is_known, releases_of, version_of


@pytest.mark.parametrize(
    ("version", "release"),
    [
        ("v1.34.4", "1.34"),
        ("v1.34.4+rke2r1", "1.34"),
        ("1.37", "1.37"),
        ("v1.37.0-rc.1", "1.37"),
        ("v1.31.14", "1.30"),
        ("v1.25.9", "1.30"),
        ("v1.36.3", "1.36"),
    ],
)
def test_a_version_counts_by_its_minor_release(version: str, release: str) -> None:
    assert is_known(version)
    assert releases_of([version]) == (RELEASES[release],)


@pytest.mark.parametrize("version", ["v1.38.0", "v2.0.0", "", "latest", "1", "v1.370000.1"])
def test_by_a_version_that_is_not_known_every_release_counts(version: str) -> None:
    assert not is_known(version)
    assert releases_of([version]) == releases_of(["v1.34.4", version]) == UNKNOWN


def test_servers_that_differ_count_by_all_of_them() -> None:
    assert releases_of(["v1.34.1", "v1.35.0", "v1.34.4"]) == (RELEASES["1.34"], RELEASES["1.35"])
    assert releases_of([]) == UNKNOWN
    assert UNKNOWN[-1:] == NEWEST


@pytest.mark.parametrize(
    ("versions", "sentence"),
    [
        (["v1.36.3"], ""),
        (["v1.36.3", "v1.36.1"], ""),
        (["v1.36.3", "v1.37.2"], "API servers differ (v1.36.3, v1.37.2): the larger count holds"),
        (["v1.36.3", "v9"], "Kubernetes version 'v9' is not known to headroom: the largest count of any release holds"),
        ([], "Kubernetes version '' is not known to headroom: the largest count of any release holds"),
    ],
    ids=str,
)
def test_why_more_is_counted_is_a_sentence(versions: list[str], sentence: str) -> None:
    assert doubt(versions) == sentence


def test_a_version_without_a_patch_is_its_first() -> None:
    assert version_of("1.37") == version_of("v1.37.0-rc.1") == (1, 37, 0)
