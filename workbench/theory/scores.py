"""Where the rule comes from: composing diffusion models adds scores (Bradley et al. 2025).

Assumption: p_b is Gaussian with independent coordinates; expert i shifts and scales the coordinates in M_i,
the M_i disjoint.
Claim: ∇log p̂ = ∇log p_b + Σ_i (∇log p_i − ∇log p_b) is the score of the Gaussian with all changes, Langevin
steps along it have that Gaussian's moments, and the same holds for densities on a grid, composed by the
plan that decodes text. The twin lets two experts change one coordinate.
"""

from __future__ import annotations

import torch
from torch import Tensor

from workbench.methods.logit import Logit
from workbench.report.statement import Finding, Row
from workbench.theory.tables import gap

DIMENSIONS = 5
# Expert i: coordinates, their new mean, their new standard deviation.
CHANGES = (((0,), 2.0, 0.5), ((1, 2), -1.0, 1.5), ((3,), 0.5, 0.8))
BROKEN = (((0,), 2.0, 0.5), ((0,), -1.0, 1.5), ((3,), 0.5, 0.8))
Gaussian = tuple[Tensor, Tensor]  # mean and standard deviation, (DIMENSIONS,) each
Changes = tuple[tuple[tuple[int, ...], float, float], ...]


def exact() -> Finding:
    mean, std = langevin()
    target = changed(CHANGES)
    S = "Gaussians, disjoint coordinates"
    return Finding(
        (
            Row(S, "|composed score − score of all changes|", score_gap(CHANGES), at_most=1e-9),
            Row(S, "|mean of Langevin samples − closed form|", gap(mean, target[0]), at_most=0.05),
            Row(S, "|standard deviation − closed form|", gap(std, target[1]), at_most=0.05),
            Row(S, "the decoding rule on the densities on a grid: |Δ p|", grid_gap(CHANGES), at_most=1e-9),
            Row(
                "Gaussians, one coordinate changed twice",
                "|composed score − score of all changes|",
                score_gap(BROKEN),
                at_least=0.1,
                broken=True,
            ),
            Row(
                "Gaussians, one coordinate changed twice",
                "the decoding rule on a grid: |Δ p|",
                grid_gap(BROKEN),
                at_least=1e-3,
                broken=True,
            ),
        )
    )


def base() -> Gaussian:
    return torch.zeros(DIMENSIONS, dtype=torch.float64), torch.ones(DIMENSIONS, dtype=torch.float64)


def changed(changes: Changes) -> Gaussian:
    """The base with these changes, one after the other."""
    mean, std = (part.clone() for part in base())
    for coordinates, new_mean, new_std in changes:
        mean[list(coordinates)], std[list(coordinates)] = new_mean, new_std
    return mean, std


def score(gaussian: Gaussian, x: Tensor) -> Tensor:
    """∇log p at x (n, DIMENSIONS)."""
    mean, std = gaussian
    return (mean - x) / std**2


def composed_score(changes: Changes, x: Tensor) -> Tensor:
    b = score(base(), x)
    return b + sum((score(changed((change,)), x) - b for change in changes), torch.zeros_like(x))


def score_gap(changes: Changes) -> float:
    x = torch.randn(256, DIMENSIONS, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return gap(composed_score(changes, x), score(changed(changes), x))


def langevin(chains: int = 8000, steps: int = 600, step: float = 0.02) -> Gaussian:
    """Moments after x ← x + step · s(x) + √(2 step) ξ, from the base."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(chains, DIMENSIONS, generator=generator, dtype=torch.float64)
    for _ in range(steps):
        noise = torch.randn(x.shape, generator=generator, dtype=torch.float64)
        x = x + step * composed_score(CHANGES, x) + (2 * step) ** 0.5 * noise
    return x.mean(0), x.std(0)


def grid_gap(changes: Changes) -> float:
    """Coordinate by coordinate: the densities on 400 points as distributions over 400 tokens."""
    points = torch.linspace(-8, 8, 400, dtype=torch.float64)[:, None]

    def density(gaussian: Gaussian) -> Tensor:
        mean, std = gaussian
        return (-0.5 * ((points - mean) / std) ** 2).log_softmax(0).T  # (DIMENSIONS, points)

    join = Logit().plan(torch.ones(len(changes), dtype=torch.float64)).join
    branches = torch.stack([density(base()), *(density(changed((change,))) for change in changes)])
    return gap(join(branches).exp(), density(changed(changes)).exp())
