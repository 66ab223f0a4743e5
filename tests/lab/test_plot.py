"""Where a value lies on an axis."""

from __future__ import annotations

import pytest

from lab.plot import Axis

SHARES = {
    "in the middle": (Axis((0, 8)), 4, 0.5),
    "in the middle of a logarithmic one": (Axis((1, 10, 100), log=True), 10, 0.5),
    "below the beginning": (Axis((1, 100), log=True), 0, 0.0),
    "where nothing was measured": (Axis.to(0.0), 1.0, 1.0),
}


@pytest.mark.parametrize(("axis", "value", "share"), SHARES.values(), ids=SHARES.keys())
def test_share(axis: Axis, value: float, share: float) -> None:
    assert axis.share(value) == pytest.approx(share)
