"""Task arithmetic (Ilharco et al. 2023): the model with the weights θ_b + Σ_i λ_i τ_i.

One branch whose gate is λ; the dense sum is never formed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from workbench.methods.plan import Mix, Plan


@dataclass(frozen=True)
class TaskArithmetic:
    """adds the experts' changes in weights to the base's"""

    def plan(self, weights: Tensor) -> Plan:
        return Plan(weights[None], Mix(torch.ones(1)))
