"""Ranges that a field may lie in: enforced when a file is read."""

from __future__ import annotations

from typing import Annotated

from annotated_types import Ge, Gt, Le, Lt

Count = Annotated[int, Gt(0)]
Natural = Annotated[int, Ge(0)]
Positive = Annotated[float, Gt(0)]
NotNegative = Annotated[float, Ge(0)]
AtLeastOne = Annotated[float, Ge(1)]
Frac = Annotated[float, Gt(0), Le(1)]
LostFrac = Annotated[float, Ge(0), Lt(1)]
