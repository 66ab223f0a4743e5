"""What happened in a run, as the API server tells it. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from pkg.util.quantity import QuantityError
from pkg.util.resource_list import ResourceList, parse_resource_list

_EXCEEDED = "exceeded quota"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Quota admission's words about a pod, from "exceeded quota" on: what the pod asked for and the limits that did not
    suffice; {} where the words do not say or cannot be read."""

    words: str
    requested: ResourceList
    limited: ResourceList

    @classmethod
    def of(cls, message: str) -> Self | None:
        """The refusal in the message of an event or an error; None for a message about something else."""
        at = message.find(_EXCEEDED)
        if at < 0:
            return None
        words = message[at:]
        return cls(words, _named(words, "requested"), _named(words, "limited"))


def _named(words: str, what: str) -> ResourceList:
    """Of "requested: a=1,b=2, used: …, limited: …"."""
    found = re.search(rf"{what}: (\S+?=\S+?)(?:, |$)", words)
    try:
        return parse_resource_list(dict(pair.split("=", 1) for pair in found[1].split(","))) if found else {}
    except (ValueError, QuantityError):
        return {}
