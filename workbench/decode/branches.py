"""A base, its bank and a plan as one model: token ids in, the composed distribution out.

Rows are laid out branch by branch: row r of branch b is row  b · rows + r  of the forward pass and of
the cache, so that an index over rows of prompts means the same in every branch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from workbench.experts.bank import ExpertBank
from workbench.experts.lora import Expert
from workbench.methods.plan import Plan
from workbench.models import Base


class BranchCache(DynamicCache):
    """Keys and values of branches × rows; `reorder_cache` speaks of rows, as beam search does."""

    def __init__(self, branches: int, config: Any) -> None:
        super().__init__(config=config)
        self.branches = branches
        self.rows = 0

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Row j becomes what row beam_idx[j] was, in every branch; rows may be left out or repeated."""
        offsets = torch.arange(self.branches, device=beam_idx.device)[:, None] * self.rows
        super().reorder_cache((offsets + beam_idx).flatten())  # type: ignore[arg-type]
        self.rows = len(beam_idx)


def check_experts(base: Base, experts: Sequence[Expert]) -> None:
    """Raises AdapterError if one belongs to another base: by its layers, weights or vocabulary."""
    for expert in experts:
        expert.check_fits(base.model, base.sha256)
        expert.check_vocabulary(base.tokenizer.get_vocab())


class Branches:
    """`log_probs` of the composition that `plan` describes; always in one forward pass."""

    def __init__(self, model: Any, bank: ExpertBank, plan: Plan) -> None:
        self.model, self.bank, self.plan = model, bank, plan

    def new_cache(self) -> BranchCache:
        return BranchCache(self.plan.branches, self.model.config.get_text_config(decoder=True))

    def log_probs(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: BranchCache | None = None,
        logits_to_keep: int | Tensor = 0,
    ) -> Tensor:
        """(rows, positions) token ids -> (rows, kept positions, vocab) normalised log-probabilities."""
        branches, rows = self.plan.branches, input_ids.shape[0]
        if cache is not None:
            cache.rows = rows
        with self.bank.gated(self.plan.gate.repeat_interleave(rows, dim=0)):
            logits = self.model(
                input_ids=input_ids.repeat(branches, 1),
                attention_mask=None if attention_mask is None else attention_mask.repeat(branches, 1),
                position_ids=None if position_ids is None else position_ids.repeat(branches, 1),
                cache=cache,
                use_cache=cache is not None,
                logits_to_keep=logits_to_keep,
            ).logits
        vocab = logits.shape[-1]
        return self.plan.join(logits.reshape(branches, -1, vocab)).reshape(rows, -1, vocab)
