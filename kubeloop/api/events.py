"""events.k8s.io/v1."""

from __future__ import annotations

from kubeloop.api.core import ObjectReference
from kubeloop.api.meta import Object, Struct


class EventSeries(Struct):
    """The number of an event's repetitions, and the time of the last one."""

    count: int = 0
    last_observed_time: str = ""


class Event(Object):
    """events.k8s.io/v1 Event: `action` is what was done about `regarding`, `related` another object that took part."""

    event_time: str | None = None
    type: str = ""
    reason: str = ""
    action: str = ""
    note: str = ""
    regarding: ObjectReference = ObjectReference()
    related: ObjectReference | None = None
    reporting_controller: str = ""
    reporting_instance: str = ""
    series: EventSeries | None = None
