"""How the next token is picked from a distribution: greedy, or sampled with a seed of the request's own."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from workbench.errors import WorkbenchError


@dataclass(frozen=True)
class Sampling:
    """temperature 0 is greedy; else top_k and then top_p cut the distribution before the draw."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0  # 0: no limit

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise WorkbenchError(f"temperature {self.temperature}", "a finite number, 0 (greedy) or more")
        if not 0 < self.top_p <= 1:
            raise WorkbenchError(f"top-p {self.top_p}", "a number above 0 and at most 1")
        if self.top_k < 0:
            raise WorkbenchError(f"top-k {self.top_k}", "0 (no limit) or more")


class Picker:
    """Picks the tokens of one request. One uniform number is drawn a token, by a generator of its own, so
    the same request gives the same text whatever else is in the batch."""

    def __init__(self, sampling: Sampling, seed: int) -> None:
        self.sampling = sampling
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, log_probs: Tensor) -> int:
        """log_probs: (vocab,) -> a token id."""
        if self.sampling.temperature == 0:
            return int(log_probs.argmax())
        scaled = (log_probs - log_probs.max()) / self.sampling.temperature
        kept = keep_likely(scaled, self.sampling.top_k, self.sampling.top_p)
        cumulative = kept.double().softmax(-1).cumsum(-1)
        u = torch.rand((), generator=self.generator, dtype=torch.float64).to(cumulative.device)
        token = int(torch.searchsorted(cumulative, u * cumulative[-1], right=True))
        return min(token, len(kept) - 1)


def keep_likely(log_probs: Tensor, top_k: int, top_p: float) -> Tensor:
    """Sets to -inf what is not among the top_k, or comes after the tokens that hold top_p of the mass."""
    if top_k and top_k < len(log_probs):
        smallest = log_probs.topk(top_k).values[-1]
        log_probs = log_probs.masked_fill(log_probs < smallest, -torch.inf)
    if top_p < 1:
        probs, order = log_probs.softmax(-1).sort(descending=True, stable=True)
        before = probs.cumsum(-1) - probs  # the mass of the more likely ones; the first is always kept
        log_probs = log_probs.index_fill(0, order[before >= top_p], -torch.inf)
    return log_probs
