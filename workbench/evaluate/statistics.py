"""Intervals of scores."""

from __future__ import annotations

from collections.abc import Sequence

from scipy.stats import binomtest


def wilson(values: Sequence[float]) -> tuple[float, float]:
    """95 % Wilson interval of the mean of zeros and ones.

    Raises ValueError for other values, or none.
    """
    if any(value not in (0, 1) for value in values):
        raise ValueError("the Wilson interval is for zeros and ones")
    interval = binomtest(int(sum(values)), len(values)).proportion_ci(method="wilson")
    return float(interval.low), float(interval.high)
