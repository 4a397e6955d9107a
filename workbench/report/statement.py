"""What a check found: claims with the values that were measured, and curves for the page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """`value` must lie between `at_least` and `at_most`; with neither, it is a measurement and no claim.

    A row with `broken` breaks the statement's assumption on purpose: it holds if the violation shows.
    """

    statement: str
    quantity: str
    value: float
    at_least: float | None = None
    at_most: float | None = None
    broken: bool = False

    @property
    def holds(self) -> bool | None:
        """None for a measurement; a value that is not a number never holds."""
        if self.at_least is None and self.at_most is None:
            return None
        low = -math.inf if self.at_least is None else self.at_least
        high = math.inf if self.at_most is None else self.at_most
        return low <= self.value <= high

    @property
    def tolerance(self) -> str:
        if self.at_least is not None and self.at_most is not None:
            return f"{self.at_least:.3g} to {self.at_most:.3g}"
        if self.at_least is not None:
            return f"≥ {self.at_least:.3g}"
        return "" if self.at_most is None else f"≤ {self.at_most:.3g}"

    @property
    def verdict(self) -> str:
        return {True: "holds", False: "FAILS", None: "–"}[self.holds]


@dataclass(frozen=True)
class Curves:
    """Lines of (x, y) points in one picture; `lines` by their names. A logarithmic axis leaves out what is
    not positive."""

    title: str
    x: str
    y: str
    lines: Mapping[str, Sequence[tuple[float, float]]]
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True)
class Finding:
    rows: Sequence[Row] = ()
    curves: Sequence[Curves] = ()
    words: Sequence[str] = ()  # conclusions that a person can act on
