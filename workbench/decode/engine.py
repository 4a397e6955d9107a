"""Decodes prompts in batches: prefill, step, retire. It knows no task and no method's name.

A batch is left-padded and cached; a request that has finished leaves it at once, in all branches.
Requests are independent: each has its own stop strings, limits and seed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from workbench.decode.branches import BranchCache, Branches
from workbench.decode.sampling import Picker, Sampling
from workbench.errors import WorkbenchError
from workbench.experts.bank import ExpertBank
from workbench.methods.plan import Plan
from workbench.models import Base

Finish = Literal["eos", "stop", "length"]


@dataclass(frozen=True)
class Request:
    id: str
    prompt: str
    max_new_tokens: int
    stop: tuple[str, ...] = ()
    sampling: Sampling = Sampling()
    seed: int = 0


@dataclass(frozen=True)
class Completion:
    """`text` ends before the stop string; `finish` says why: end-of-sequence, stop string, length."""

    id: str
    text: str
    ids: tuple[int, ...]  # generated, the end-of-sequence token included
    finish: Finish

    @property
    def tokens(self) -> int:
        return len(self.ids)


class _Running:
    """A request in the batch, and what it has generated so far."""

    def __init__(self, request: Request, base: Base) -> None:
        self.request, self.prompt_ids = request, base.encode(request.prompt)
        self.stop_ids = base.special_ids(request.stop)  # special tokens never show in the text
        self.pick = Picker(request.sampling, request.seed)
        self.ids: list[int] = []


class Engine:
    """Decodes with `base` and the experts in `bank`."""

    def __init__(self, base: Base, bank: ExpertBank) -> None:
        self.base, self.bank = base, bank

    def check(self, requests: Sequence[Request]) -> None:
        """Raises WorkbenchError for a prompt that leaves no room in the model's context."""
        rows = self.base.model.get_input_embeddings().weight.shape[0]
        for request in requests:
            ids, context = self.base.encode(request.prompt), self.base.context
            length = len(ids)
            if length == 0:
                raise WorkbenchError(f"prompt '{request.id}' is empty", "at least one token")
            if max(ids) >= rows:
                token = self.base.tokenizer.convert_ids_to_tokens(max(ids))
                raise WorkbenchError(
                    f"prompt '{request.id}' has the token {token!r}",
                    f"number {max(ids)}, and the model knows {rows}",
                    "The tokenizer belongs to another model, or the embedding was not resized.",
                )
            if context is not None and length >= context:
                raise WorkbenchError(
                    f"prompt '{request.id}' has {length} tokens",
                    f"the model's context is {context}",
                    "Shorten it, or use a base with a longer context.",
                )

    def generate(
        self, plan: Plan, requests: Sequence[Request], batch_size: int
    ) -> Iterator[list[Completion]]:
        """Yields the completions of one batch after the other; longest prompts first."""
        self.check(requests)
        branches = Branches(self.base.model, self.bank, plan)
        waiting = [_Running(request, self.base) for request in requests]
        waiting.sort(key=lambda row: -len(row.prompt_ids))
        for start in range(0, len(waiting), batch_size):
            yield self._batch(branches, waiting[start : start + batch_size])

    @torch.no_grad()
    def _batch(self, branches: Branches, rows: list[_Running]) -> list[Completion]:
        cache = branches.new_cache()
        input_ids, mask = self._left_padded(rows)
        with branches.level():
            return self._decode(branches, rows, cache, input_ids, mask)

    def _decode(
        self, branches: Branches, rows: list[_Running], cache: BranchCache, input_ids: Tensor, mask: Tensor
    ) -> list[Completion]:
        done: list[Completion] = []
        while True:
            positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, -input_ids.shape[1] :]
            log_probs = branches.log_probs(input_ids, mask, positions, cache, logits_to_keep=1)[:, -1]
            for row, token in zip(rows, self._pick(rows, log_probs), strict=True):
                row.ids.append(token)
            finished = [self._finished(row) for row in rows]
            done += [completion for completion in finished if completion]
            stay = [i for i, completion in enumerate(finished) if completion is None]
            if not stay:
                return done
            if len(stay) < len(rows):
                kept = torch.tensor(stay, device=mask.device)
                cache.reorder_cache(kept)
                mask, rows = mask[kept], [rows[i] for i in stay]
            input_ids = torch.tensor([[row.ids[-1]] for row in rows], device=mask.device)
            mask = torch.cat([mask, mask.new_ones(len(rows), 1)], dim=1)

    def _left_padded(self, rows: list[_Running]) -> tuple[Tensor, Tensor]:
        """(rows, longest prompt) token ids and attention mask."""
        width = max(len(row.prompt_ids) for row in rows)
        pad = self.base.tokenizer.pad_token_id or 0
        ids = [[pad] * (width - len(row.prompt_ids)) + row.prompt_ids for row in rows]
        mask = [[0] * (width - len(row.prompt_ids)) + [1] * len(row.prompt_ids) for row in rows]
        device = self.base.model.device
        return torch.tensor(ids, device=device), torch.tensor(mask, device=device)

    def _pick(self, rows: list[_Running], log_probs: Tensor) -> list[int]:
        if all(row.request.sampling.temperature == 0 for row in rows):
            return log_probs.argmax(-1).tolist()
        return [row.pick(log_probs[i]) for i, row in enumerate(rows)]

    def _finished(self, row: _Running) -> Completion | None:
        request, ids = row.request, row.ids
        if ids[-1] in self.base.end_ids:
            return Completion(request.id, self._text(row, ids[:-1]), tuple(ids), "eos")
        if ids[-1] in row.stop_ids:
            return Completion(request.id, self._text(row, ids[:-1]), tuple(ids), "stop")
        if request.stop:
            text = self._text(row, ids)
            cuts = [at for stop in request.stop if (at := text.find(stop)) >= 0]
            if cuts:
                return Completion(request.id, text[: min(cuts)], tuple(ids), "stop")
        full = self.base.context is not None and len(row.prompt_ids) + len(ids) >= self.base.context
        if full or len(ids) >= request.max_new_tokens:
            return Completion(request.id, self._text(row, ids), tuple(ids), "length")
        return None

    def _text(self, row: _Running, ids: list[int]) -> str:
        return self.base.decode(ids, after=row.prompt_ids)
