"""What every object has."""

from __future__ import annotations

from typing import Any

import pytest

from pkg.api.core import Pod
from pkg.client.decode import decoder_for

POD = decoder_for(Pod).object(b'{"metadata":{"name":"a","labels":{"k":"v"},"annotations":{"k":"v"}}}')


@pytest.mark.parametrize("obj", [POD, Pod()], ids=["with some", "without any"])
@pytest.mark.parametrize("field", ["annotations", "labels"])
def test_annotations_and_labels_of_cached_objects_cannot_be_changed_by_accident(obj: Pod, field: str) -> None:
    seen: Any = getattr(obj, field)
    before = dict(seen)
    with pytest.raises(TypeError):
        seen["oops"] = "1"
    for method in ("update", "pop", "setdefault", "clear"):
        assert not hasattr(seen, method)
    assert getattr(obj, field) == before
    assert {**seen, "more": "1"} == before | {"more": "1"}, "a copy may be changed"
