"""Curves: ticks are round numbers around the values, points stand where their values say."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from workbench.report.curves import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, decades, svg, ticks
from workbench.report.statement import Curves


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.0, 1.0], [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        ([8, 16, 32], [5, 10, 15, 20, 25, 30, 35]),
        ([0.3], [-0.2, 0, 0.2, 0.4, 0.6, 0.8]),
        ([], [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        ([-0.01, 0.013], [-0.01, -0.005, 0, 0.005, 0.01, 0.015]),
    ],
)
def test_ticks_are_round_and_around_all_values(values, expected):
    assert ticks(values) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("values", "expected"),
    [([0.002, 0.5], [0.001, 0.01, 0.1, 1]), ([0.1], [0.1, 1]), ([1, 10], [1, 10]), ([], [0.1, 1])],
)
def test_decades(values, expected):
    assert decades(values) == pytest.approx(expected)


def points(curves: Curves) -> list[tuple[float, float]]:
    root = ElementTree.fromstring(svg(curves))
    return [(float(c.get("cx")), float(c.get("cy"))) for c in root.iter("circle")]


def test_points_stand_to_scale():
    found = points(Curves("t", "x", "y", {"a": [(0, 0), (10, 1)], "b": [(5, 0.5)]}))
    left, right, top, bottom = LEFT, WIDTH - RIGHT, TOP, HEIGHT - BOTTOM
    assert found == [(left, bottom), (right, top), ((left + right) / 2, (top + bottom) / 2)]
    found = points(
        Curves("t", "x", "y", {"a": [(1, 1), (10, 10), (100, 100), (0, 5)]}, log_x=True, log_y=True)
    )
    assert found == [(left, bottom), ((left + right) / 2, (top + bottom) / 2), (right, top)]  # 0 has no place


def test_what_is_not_finite_is_left_out_and_names_are_text():
    curves = Curves("<t>", "<x>", "y", {"<a>": [(1, float("nan")), (float("inf"), 1), (2, 3)]})
    assert len(points(curves)) == 1
    assert not re.search("<[axt]>", str(svg(curves)))
    assert points(Curves("t", "x", "y", {"a": []})) == []
