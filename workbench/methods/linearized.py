"""The linearized model (Ortiz-Jiménez, Favero, Frossard 2023): the logits to first order at the base,

    f(θ_b) + J Σ_i λ_i τ_i,        J = ∂f/∂θ at θ_b

with f the logits after a final soft-cap, where the model has one. The gate is a dual number: value 0,
tangent λ; neither J nor a dense τ is ever formed. Here logit composition and task arithmetic are one thing
(Kumar, Bucarelli, Natale 2026): the k experts, each linearized alone and composed by the paper's rule, give

    f(θ_b) + Σ_i λ_i (f(θ_b) + J τ_i − f(θ_b)),

the same logits. `separately` computes that side, in k + 1 branches.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from workbench.methods.plan import Mix, Plan


@dataclass(frozen=True)
class Linearized:
    """adds the experts' changes in weights to the base's, in the model linearized at the base"""

    separately: bool = False

    def plan(self, weights: Tensor) -> Plan:
        k = len(weights)
        if not self.separately:
            return Plan(torch.zeros(1, k), Mix(torch.ones(1)), tangent=weights[None])
        mix = torch.cat([1 - weights.sum(dim=0, keepdim=True), weights])  # (k + 1,)
        tangent = torch.cat([torch.zeros(1, k), torch.eye(k)])
        return Plan(torch.zeros(k + 1, k), Mix(mix), tangent)
