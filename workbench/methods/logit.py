"""Logit composition: the paper's rule (Kumar, Bucarelli, Natale 2026).

    log p̂ = log p_b + Σ_i λ_i (log p_i − log p_b), renormalised at every token;  λ = 1:  p̂ ∝ p_b Π_i p_i / p_b

The base and each expert are a branch; their weights 1 − Σ λ_i, λ_1, ..., λ_k sum to 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from workbench.methods.plan import Mix, Plan


@dataclass(frozen=True)
class Logit:
    """adds the experts' changes in log-probability to the base's, at every token"""

    def plan(self, weights: Tensor) -> Plan:
        k = len(weights)
        gate = torch.cat([torch.zeros(1, k), torch.eye(k)])  # (k + 1, k)
        mix = torch.cat([1 - weights.sum(dim=0, keepdim=True), weights])  # (k + 1,)
        needed = mix != 0  # at Σ λ = 1 the base needs no row; an expert at λ = 0 neither
        return Plan(gate[needed], Mix(mix[needed]))
