"""A base, its bank and a plan as one model: token ids in, the composed distribution out.

Rows are laid out branch by branch: row r of branch b is row  b · rows + r  of the forward pass and of
the cache, so that an index over rows of prompts means the same in every branch.

A plan with a tangent runs in forward-mode differentiation. Its tangents live no longer than the level they
were made in, so one level stays open as long as a cache is used: see `Branches.level`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers.cache_utils import DynamicCache

from workbench.errors import WorkbenchError
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
        self.level: object = None  # in which its tangents live

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
        self._level: object = None

    def new_cache(self) -> BranchCache:
        return BranchCache(self.plan.branches, self.model.config.get_text_config(decoder=True))

    @contextmanager
    def level(self) -> Iterator[None]:
        """Within it, a cache of a plan with a tangent can be used again; for other plans it is nothing."""
        if self.plan.tangent is None or self._level is not None:
            yield
            return
        # The fused attention kernels have no forward-mode formula.
        with forward_ad.dual_level(), sdpa_kernel(SDPBackend.MATH):
            self._level = object()
            try:
                yield
            finally:
                self._level = None

    def log_probs(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: BranchCache | None = None,
        logits_to_keep: int | Tensor = 0,
    ) -> Tensor:
        """(rows, positions) token ids -> (rows, kept positions, vocab) normalised log-probabilities.

        Raises WorkbenchError where a tangent would be lost: in torch.inference_mode, or with a cache that
        was filled in another level.
        """
        logits = self.logits(input_ids, attention_mask, position_ids, cache, logits_to_keep)
        branches, rows, _, vocab = logits.shape
        return self.plan.join(logits.reshape(branches, -1, vocab)).reshape(rows, -1, vocab)

    def logits(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: BranchCache | None = None,
        logits_to_keep: int | Tensor = 0,
    ) -> Tensor:
        """The same before the branches are joined: (branches, rows, kept positions, vocab)."""
        branches, rows = self.plan.branches, input_ids.shape[0]
        if cache is not None:
            cache.rows = rows
        with self.level():
            gate = self._gate(cache).repeat_interleave(rows, dim=0)
            with self.bank.gated(gate):
                logits: Tensor = self.model(
                    input_ids=input_ids.repeat(branches, 1),
                    attention_mask=None if attention_mask is None else attention_mask.repeat(branches, 1),
                    position_ids=None if position_ids is None else position_ids.repeat(branches, 1),
                    cache=cache,
                    use_cache=cache is not None,
                    logits_to_keep=logits_to_keep,
                ).logits
            logits = self._first_order(logits)
        return logits.reshape(branches, rows, -1, logits.shape[-1])

    def _gate(self, cache: BranchCache | None) -> Tensor:
        if self.plan.tangent is None:
            return self.plan.gate
        if torch.is_inference_mode_enabled():
            raise WorkbenchError(
                "torch.inference_mode drops the tangents of a linearized model", "torch.no_grad"
            )
        if cache is not None:
            if cache.get_seq_length() and cache.level is not self._level:
                raise WorkbenchError(
                    "this cache of a linearized model has lost its tangents",
                    "they live within one `with lm.branches.level():`",
                    "Open it around all calls that share the cache, as generate does.",
                )
            cache.level = self._level
        tangent = self.plan.tangent
        dual: Tensor = forward_ad.make_dual(self.plan.gate.to(tangent), tangent)
        return dual

    def _first_order(self, logits: Tensor) -> Tensor:
        if self.plan.tangent is None:
            return logits
        value: Tensor
        value, tangent = forward_ad.unpack_dual(logits)
        if tangent is None and self.plan.tangent.any():
            raise WorkbenchError(
                "the model gave no tangent", "layers that PyTorch can differentiate in forward mode"
            )
        return value if tangent is None else value + tangent
