"""The Wilson interval against its formula, and against what an interval must be."""

from __future__ import annotations

from math import sqrt

import pytest

from workbench.evaluate.statistics import wilson

Z = 1.959963984540054  # the 97.5 % point of the standard normal


@pytest.mark.parametrize(
    ("right", "n"), [(0, 1), (1, 1), (0, 10), (10, 10), (3, 7), (50, 100), (255, 256), (1, 5000)]
)
def test_the_interval_is_wilsons(right: int, n: int) -> None:
    # the p for which |p̂ − p| = z √(p (1 − p) / n): the roots of (n + z²) p² − (2 n p̂ + z²) p + n p̂² = 0
    a, b, c = n + Z**2, -(2 * right + Z**2), right**2 / n
    root = sqrt(b * b - 4 * a * c)
    assert wilson([1] * right + [0] * (n - right)) == pytest.approx(
        ((-b - root) / (2 * a), (-b + root) / (2 * a)), abs=1e-12
    )


def test_it_holds_the_mean_stays_in_0_1_and_narrows() -> None:
    widths = []
    for n in (1, 4, 16, 64, 256):
        for right in range(n + 1):
            low, high = wilson([1.0] * right + [0.0] * (n - right))
            assert 0 <= low <= right / n <= high <= 1
            assert low < high
        low, high = wilson([1.0, 0.0] * n)
        widths.append(high - low)
    assert widths == sorted(widths, reverse=True)


def test_right_and_wrong_mirror_each_other_and_order_does_not_matter() -> None:
    values = [1, 0, 0, 1, 1, 0, 1, 1]
    low, high = wilson(values)
    assert wilson([1 - value for value in values]) == pytest.approx((1 - high, 1 - low))
    assert wilson(values[::-1]) == (low, high)


@pytest.mark.parametrize("values", [[], [0.5], [1, 2], [-1], [float("nan")]])
def test_what_is_not_a_row_of_zeros_and_ones_is_refused(values: list[float]) -> None:
    with pytest.raises(ValueError, match=r"."):
        wilson(values)
