"""What a number may be, said in the type of a method's parameter.

    lr: NotNegative = 1e-3        momentum: Share = 0.9        places: Count = 64

The same type is what refuses other values when a method is made, and what `fedctta keys` tells of the parameter.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Annotated

from fedctta.errors import UserError


@dataclass(frozen=True)
class Range:
    """All numbers from `least` to `most`; without these two themselves where an end is `open`."""

    least: float
    most: float = inf
    open_least: bool = False
    open_most: bool = False

    def __contains__(self, value: float) -> bool:
        above = value > self.least if self.open_least else value >= self.least
        return above and (value < self.most if self.open_most else value <= self.most)

    def __str__(self) -> str:
        """Say the range after the word "number".

        >>> [str(each) for each in (Range(1), Range(0, 1), Range(0, 1, open_least=True), Range(0, 1, open_most=True))]
        ['from 1 on', 'from 0 to 1', 'above 0, up to 1', 'from 0 to below 1']
        """
        if self.most == inf:
            return f"above {self.least}" if self.open_least else f"from {self.least} on"
        if self.open_least:
            return f"above {self.least}, {'below' if self.open_most else 'up to'} {self.most}"
        return f"from {self.least} to {'below ' if self.open_most else ''}{self.most}"

    def require(self, value: float, what: str) -> None:
        """Refuse another value of what is called `what`."""
        if value not in self:
            raise UserError(f"{what}={value} must {self._demand()}")

    def _demand(self) -> str:
        if self.most == inf:
            if self.open_least:
                return f"be above {self.least}"
            return f"be at least {self.least}" if self.least else "not be negative"
        if self.open_least:
            return f"lie above {self.least} and {'below' if self.open_most else 'up to'} {self.most}"
        if self.open_most:
            return f"be at least {self.least} and below {self.most}"
        return f"lie between {self.least} and {self.most}"


Positive = Annotated[float, Range(0, open_least=True)]
NotNegative = Annotated[float, Range(0)]
AtLeastOne = Annotated[float, Range(1)]
Share = Annotated[float, Range(0, 1)]
PositiveShare = Annotated[float, Range(0, 1, open_least=True)]
ShareBelowOne = Annotated[float, Range(0, 1, open_most=True)]
Count = Annotated[int, Range(1)]
CountOrZero = Annotated[int, Range(0)]
