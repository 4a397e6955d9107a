"""Sampling against the distributions it claims to draw from."""

from __future__ import annotations

import pytest
import torch
from scipy.stats import chisquare

from workbench.decode.sampling import Picker, Sampling, keep_likely
from workbench.errors import WorkbenchError

P = torch.tensor([0.4, 0.05, 0.3, 0.15, 0.1])


def draw(sampling: Sampling, n: int = 4000) -> torch.Tensor:
    pick = Picker(sampling, seed=11)
    return torch.tensor([pick(P.log()) for _ in range(n)]).bincount(minlength=5)


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (Sampling(1.0), P),
        (Sampling(2.0), P.sqrt()),
        (Sampling(1.0, top_k=2), P * torch.tensor([1, 0, 1, 0, 0])),
        (Sampling(1.0, top_p=0.75), P * torch.tensor([1, 0, 1, 1, 0])),
        (Sampling(1.0, top_p=0.7), P * torch.tensor([1, 0, 1, 0, 0])),
        (Sampling(1.0, top_p=1e-9), P * torch.tensor([1, 0, 0, 0, 0])),
        (Sampling(1.0, top_k=3, top_p=0.6), P * torch.tensor([1, 0, 1, 0, 0])),
    ],
)
def test_draws_follow_the_distribution(sampling, expected):
    counts = draw(sampling)
    expected = expected / expected.sum()
    assert counts[expected == 0].sum() == 0
    kept = expected > 0
    if kept.sum() > 1:
        assert chisquare(counts[kept], expected[kept] * counts.sum(), sum_check=False).pvalue > 1e-4


def test_greedy_takes_the_likeliest():
    assert Picker(Sampling(), 0)(P.log()) == 0


def test_top_k_larger_than_the_vocabulary_keeps_all():
    assert torch.equal(keep_likely(P.log(), 50, 1.0), P.log())


@pytest.mark.parametrize(
    "wrong", [{"temperature": -1}, {"temperature": float("nan")}, {"top_p": 0}, {"top_k": -1}]
)
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(WorkbenchError):
        Sampling(**wrong)
