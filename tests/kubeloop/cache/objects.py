"""Pods for these tests, and a handler that writes down what it is told."""

from __future__ import annotations

from kubeloop.api.core import Pod
from kubeloop.api.meta import ObjectMeta

Event = tuple[object, ...]


def pod(
    name: str,
    version: str = "1",
    namespace: str = "ns",
    *,
    uid: str | None = None,
    labels: dict[str, str] | None = None,
) -> Pod:
    """A pod; its uid follows from its name."""
    uid = f"uid-{name}" if uid is None else uid
    return Pod(metadata=ObjectMeta(name=name, namespace=namespace, uid=uid, resource_version=version, labels=labels))


class Recorder:
    """Keeps what it is told: ("add", key@version, initial), ("update", old, new), ("delete", key@version, unknown)."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def on_add(self, obj: Pod, is_in_initial_list: bool) -> None:
        self.events.append(("add", at(obj), is_in_initial_list))

    def on_update(self, old: Pod, new: Pod) -> None:
        self.events.append(("update", at(old), at(new)))

    def on_delete(self, obj: Pod, final_state_unknown: bool) -> None:
        self.events.append(("delete", at(obj), final_state_unknown))

    def take(self) -> list[Event]:
        """What came since the last take."""
        taken = list(self.events)
        self.events.clear()
        return taken


def at(obj: Pod) -> str:
    """`ns/name@version`."""
    return f"{obj.key}@{obj.metadata.resource_version}"
