"""The interval of composed success minus a product, against simulation."""

from __future__ import annotations

import pytest
import torch

from workbench.theory.lengths import _row, standard_error


def test_the_standard_error_is_that_of_simulated_samples():
    generator = torch.Generator().manual_seed(0)
    a, b, c, n = 0.9, 0.7, 0.6, 200

    def draw(rate: float) -> torch.Tensor:
        return (torch.rand(4000, n, generator=generator) < rate).double()

    first, second, composed = draw(a), draw(b), draw(c)
    differences = composed.mean(1) - first.mean(1) * second.mean(1)
    sample = [[1.0] * round(rate * n) + [0.0] * (n - round(rate * n)) for rate in (a, b, c)]
    assert standard_error(sample[:2], sample[2]) == pytest.approx(float(differences.std()), rel=0.05)


def test_a_composition_below_its_components_fails():
    good, bad = [1.0] * 90 + [0.0] * 10, [1.0] * 50 + [0.0] * 50
    assert _row("s", [good, good], good).holds
    assert not _row("s", [good, good], bad).holds
    assert _row("s", [good, good], bad, broken=True).holds
    assert _row("s", [[0.0] * 10, good], [0.0] * 10).holds  # nothing is promised where a component fails
