"""The two resources of the play, as one value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from pkg.api.meta import RawResourceList
from pkg.util.constants import LIMITS_CPU, LIMITS_MEMORY
from pkg.util.quantity import ZERO, Quantity
from pkg.util.resource_list import ResourceList, parse_resource_list


@dataclass(frozen=True, slots=True)
class Amounts:
    """limits.cpu and limits.memory of a quota's hard or used; equal by value, printed as they were written."""

    cpu: Quantity = ZERO
    memory: Quantity = ZERO

    @classmethod
    def of(cls, cpu: str, memory: str) -> Self:
        """Raises QuantityError."""
        return cls(Quantity.parse(cpu), Quantity.parse(memory))

    @classmethod
    def within(cls, resources: RawResourceList) -> Self:
        """The two out of a ResourceList; what is missing is zero. Raises QuantityError."""
        return cls.of_quantities(parse_resource_list(resources))

    @classmethod
    def of_quantities(cls, resources: ResourceList) -> Self:
        """The same out of a parsed one."""
        return cls(resources.get(LIMITS_CPU, ZERO), resources.get(LIMITS_MEMORY, ZERO))

    def __add__(self, other: Amounts) -> Amounts:
        return Amounts(self.cpu + other.cpu, self.memory + other.memory)

    def __str__(self) -> str:
        return f"cpu {self.cpu}, memory {self.memory}"


@dataclass(frozen=True, slots=True)
class Quota:
    """What a quota allows and what it counts, at one moment."""

    hard: Amounts
    used: Amounts

    def __str__(self) -> str:
        return f"hard {self.hard}; used {self.used}"
