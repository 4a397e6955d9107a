"""Every check holds where its assumption does, and fails where the rule is wrong."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from workbench.methods.plan import Mix
from workbench.report.statement import Row
from workbench.theory import CHECKS, features, intervals, masks, overlap

EXACT = {name: check.exact for name, check in CHECKS.items() if check.exact}


@pytest.mark.parametrize("name", EXACT)
def test_every_exact_statement_holds_and_every_twin_shows_its_violation(name):
    rows = EXACT[name]().rows
    assert [row for row in rows if row.holds is not True] == []
    assert any(row.broken for row in rows)


def product_of_experts(mix: Mix, logits: Tensor) -> Tensor:
    """A wrong rule: the experts' product, with the base in it once more."""
    return torch.log_softmax(logits.log_softmax(-1).sum(0), dim=-1)


def mean(mix: Mix, logits: Tensor) -> Tensor:
    """A wrong rule: the mixture of the branches."""
    return logits.log_softmax(-1).exp().mean(0).log()


@pytest.mark.parametrize("wrong", [product_of_experts, mean])
@pytest.mark.parametrize("name", [name for name in EXACT if name != "intervals"])
def test_a_wrong_rule_of_composition_is_noticed(name, wrong, monkeypatch):
    monkeypatch.setattr(Mix, "__call__", wrong)
    assert any(row.holds is False and not row.broken for row in EXACT[name]().rows)


def test_an_expert_outside_its_interval_is_noticed(monkeypatch):
    leaking = (intervals.skills()[0], intervals.skills(leak=0.3)[1])
    monkeypatch.setattr(intervals, "skills", lambda leak=0.0, early=0: leaking)
    assert [row.holds for row in intervals.exact().rows][1] is False


def test_gaps_grow_from_nothing():
    for gaps in (
        [max(masks.positions_gaps(4, eta)[:2]) for eta in (0.0, 0.05, 0.5)],
        [max(masks.blocks_gaps(4, eta)[:2]) for eta in (0.0, 0.05, 0.5)],
        [features.case_gap(eta)[0] for eta in (0.0, 0.05, 0.5)],
    ):
        assert gaps[0] < 1e-12 < 1e-4 < gaps[1] < gaps[2]


def test_both_experts_touch_every_token_and_yet_compose():
    distance, both = features.case_gap()
    assert both == 1.0
    assert distance < 1e-12


def test_overlapping_intervals_by_one_symbol():
    assert overlap._distance(early=0) < 1e-12
    assert overlap._distance(early=1) > 0.1


@pytest.mark.parametrize(
    ("row", "holds", "tolerance"),
    [
        (Row("s", "q", 0.5, at_most=1.0), True, "≤ 1"),
        (Row("s", "q", 1.5, at_most=1.0), False, "≤ 1"),
        (Row("s", "q", 1.5, at_least=1.6), False, "≥ 1.6"),
        (Row("s", "q", 2.1, 1.8, 2.2), True, "1.8 to 2.2"),
        (Row("s", "q", float("nan"), 1.8, 2.2), False, "1.8 to 2.2"),
        (Row("s", "q", float("nan"), at_most=1e9), False, "≤ 1e+09"),
        (Row("s", "q", 3.0), None, ""),
    ],
)
def test_a_row_holds_within_its_bounds(row, holds, tolerance):
    assert row.holds is holds
    assert row.tolerance == tolerance
