"""Autoregressive models small enough to enumerate: every conditional distribution is written in a table.

    p(x) = Π_t p(x_t | x_<t),   x ∈ {0 … V−1}^T

Composition goes through the very plan that decodes text. It knows no theorem.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from workbench.methods.logit import Logit

Prefix = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Table:
    """conditionals[t]: (V^t, V) log p(x_t | x_<t), prefixes in the order of `prefixes`; float64."""

    conditionals: tuple[Tensor, ...]

    @property
    def V(self) -> int:
        return self.conditionals[0].shape[1]

    @property
    def T(self) -> int:
        return len(self.conditionals)

    def joint(self) -> Tensor:
        """p(x), shape (V, …, V) with T axes."""
        total = torch.zeros(1, dtype=torch.float64)
        for step in self.conditionals:
            total = (total[:, None] + step).flatten()
        return total.exp().reshape([self.V] * self.T)

    def marginal(self, positions: Sequence[int]) -> Tensor:
        """The joint distribution of x at these positions."""
        others = [t for t in range(self.T) if t not in positions]
        return self.joint().sum(dim=others) if others else self.joint()


def prefixes(V: int, t: int) -> Iterator[Prefix]:
    return product(range(V), repeat=t)


def table(V: int, T: int, row: Callable[[Prefix], Tensor]) -> Table:
    """The model whose conditional after a prefix is `row(prefix)`, probabilities of shape (V,)."""
    return Table(tuple(torch.stack([row(prefix) for prefix in prefixes(V, t)]).log() for t in range(T)))


def compose(base: Table, experts: Sequence[Table]) -> Table:
    """log p̂ = log p_b + Σ_i (log p_i − log p_b), renormalised at every prefix."""
    plan = Logit().plan(torch.ones(len(experts), dtype=torch.float64))
    chosen = [experts[int(gate.argmax())] if gate.any() else base for gate in plan.gate]
    return Table(
        tuple(plan.join(torch.stack(step)) for step in zip(*(m.conditionals for m in chosen), strict=True))
    )


def normaliser(base: Table, experts: Sequence[Table]) -> Tensor:
    """Z = Σ_x p_b Π_i p_i / p_b at every prefix of every length."""
    steps = zip(base.conditionals, *(expert.conditionals for expert in experts), strict=True)
    return torch.cat([(sum(own) - (len(own) - 1) * b).logsumexp(-1).exp() for b, *own in steps])


class Draw:
    """Random distributions, the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, *shape: int) -> Tensor:
        """Probabilities along the last axis, none near 0."""
        return torch.randn(*shape, generator=self.generator, dtype=torch.float64).softmax(-1)


def gap(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max())
