"""The contract everything hangs on: a composition method is data, a frozen `Plan`.

A plan runs each prompt in one or more *branches*, rows of one forward pass that differ in their gate
(which expert acts with which coefficient), and joins their logits into one next-token distribution.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Plan:
    """`gate`: (branches, k); `join`: logits (branches, rows, vocab) -> log-probabilities (rows, vocab).

    With a `tangent`, (branches, k), the gate is the dual number gate + tangent · ε, and a branch's logits
    are value + tangent of what the model computes from it: the model to first order in the gate.
    """

    gate: Tensor
    join: Callable[[Tensor], Tensor]
    tangent: Tensor | None = None

    @property
    def branches(self) -> int:
        return self.gate.shape[0]


class Method(Protocol):
    """A method is a frozen dataclass whose fields are its options; `weights` is λ, shape (k,)."""

    def plan(self, weights: Tensor) -> Plan: ...


@dataclass(frozen=True, eq=False)
class Mix:
    """log p̂ = Σ_b w_b log p_b, renormalised; weights: (branches,).

    The branches' own normalisers are constant over the vocabulary, so raw logits are summed and
    normalised once, in float32 or better. A token that any branch rules out (log p = -inf) stays out.
    """

    weights: Tensor

    def __call__(self, logits: Tensor) -> Tensor:
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))  # (branches, rows, vocab)
        mixed = torch.tensordot(self.weights.to(logits), logits, dims=1)  # (rows, vocab)
        ruled_out = torch.isneginf(logits).any(dim=0)
        return torch.log_softmax(mixed.masked_fill(ruled_out, -torch.inf), dim=-1)


def base_plan(k: int) -> Plan:
    """The base alone, with k experts in the bank."""
    return Plan(torch.zeros(1, k), Mix(torch.ones(1)))


def expert_plan(k: int, i: int) -> Plan:
    """Expert i alone."""
    return Plan(torch.eye(k)[i : i + 1], Mix(torch.ones(1)))
