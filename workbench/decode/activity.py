"""Where each expert acts: its distance from the base at every token of given answers, in one forward pass.

With p_b, p_i the next-token distributions at a prefix and s_i = p_i − p_b the shift of expert i:

    KL(p_i ‖ p_b)                              how far it leaves the base, in nats
    Σ_x min(|s_i(x)|, |s_j(x)|)                the shift that experts i and j share

It knows no composition method: only the base and the experts one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from workbench.decode.branches import Branches
from workbench.experts.bank import ExpertBank
from workbench.methods.plan import Mix, Plan
from workbench.models import Base

LOGITS = 2**28  # a gigabyte in float32
Answer = tuple[Sequence[int], Sequence[int]]  # ids of a prompt, and of what was answered


@dataclass(frozen=True, eq=False)
class Activity:
    """The experts on one answer of T tokens; all but `answer` on the CPU.

    kl       (k, T)     KL(p_i ‖ p_b), nats
    changes  (k, T)     True where the expert's likeliest token is not the base's
    shared   (k, k, T)  Σ_x min(|s_i|, |s_j|); the diagonal is Σ_x |s_i|
    meeting  (k, k, T)  the token that both raise the most; where they raise none together, that of the
                        largest shared shift
    excess   (T,)       ½ Σ_x (Σ_i |s_i| − max_i |s_i|): the probability that a sum moves more than once
    """

    answer: tuple[int, ...]
    kl: Tensor
    changes: Tensor
    shared: Tensor
    meeting: Tensor
    excess: Tensor


def measure(base: Base, bank: ExpertBank, answers: Sequence[Answer], batch_size: int) -> list[Activity]:
    """One Activity for each answer, in their order."""
    k = len(bank.names)
    plan = Plan(torch.cat([torch.zeros(1, k), torch.eye(k)]), Mix(torch.ones(k + 1)))
    branches = Branches(base.model, bank, plan)
    order = sorted(range(len(answers)), key=lambda i: -len(answers[i][0]) - len(answers[i][1]))
    logits = along(base, branches, [answers[i] for i in order], batch_size)
    found = {i: _activity(tuple(answers[i][1]), own) for i, own in zip(order, logits, strict=True)}
    return [found[i] for i in range(len(answers))]


def along(base: Base, branches: Branches, answers: Sequence[Answer], batch_size: int) -> Iterator[Tensor]:
    """For each answer of T tokens the logits at them, (branches, T, vocab), as given the tokens before.

    No more than `batch_size` answers are run at once, and no more than LOGITS numbers are made at once
    unless a single answer needs them.
    """
    vocab, done = base.model.config.get_text_config().vocab_size, 0
    while done < len(answers):
        chosen = list(answers[done : done + batch_size])
        while len(chosen) > 1 and branches.plan.branches * len(chosen) * _kept(chosen) * vocab > LOGITS:
            chosen.pop()
        done += len(chosen)
        rows = [[*prompt, *answer] for prompt, answer in chosen]
        width, pad = max(map(len, rows)), base.tokenizer.pad_token_id or 0
        ids = torch.tensor([row + [pad] * (width - len(row)) for row in rows], device=base.model.device)
        kept = _kept(chosen)
        with torch.no_grad():  # nothing attends to the padding behind it
            logits = branches.logits(ids, torch.ones_like(ids), logits_to_keep=kept)
        for row, (prompt, answer) in enumerate(chosen):
            first = len(prompt) - 1 - (width - kept)
            yield logits[:, row, first : first + len(answer)]


def _kept(answers: Sequence[Answer]) -> int:
    """Positions from the end that hold every answer's logits."""
    width = max(len(prompt) + len(answer) for prompt, answer in answers)
    return width - min(len(prompt) for prompt, _ in answers) + 1


def _activity(answer: tuple[int, ...], logits: Tensor) -> Activity:
    """logits: (k + 1, T, vocab), the base first."""
    step = max(1, LOGITS // 8 // (logits.shape[0] * logits.shape[2]))
    parts = [_measures(part) for part in logits.split(step, dim=1)]
    kl, changes, shared, meeting, excess = (
        torch.cat(part, dim=-1).cpu() for part in zip(*parts, strict=True)
    )
    return Activity(answer, kl, changes, shared, meeting, excess)


def _measures(logits: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    log_p = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
    base, experts = log_p[0], log_p[1:]
    p = experts.exp()
    kl = (p * (experts - base).nan_to_num(0.0)).sum(-1).clamp(min=0)  # (k, T)
    shift = p - base.exp()  # (k, T, vocab)
    gain, shift = shift.clamp(min=0), shift.abs()
    k, T = kl.shape
    shared = shift.new_zeros(k, k, T)
    meeting = torch.zeros(k, k, T, dtype=torch.long, device=shift.device)
    for i in range(k):
        for j in range(i + 1):
            common = torch.minimum(shift[i], shift[j])  # (T, vocab)
            shared[i, j] = shared[j, i] = common.sum(-1)
            both_gain = torch.minimum(gain[i], gain[j])
            agree = both_gain.amax(-1) > common.amax(-1) / 2
            where = torch.where(agree, both_gain.argmax(-1), common.argmax(-1))
            meeting[i, j] = meeting[j, i] = where
    excess = (shift.sum(dim=(0, 2)) - shift.amax(dim=0).sum(-1)) / 2
    return kl, experts.argmax(-1) != base.argmax(-1), shared, meeting, excess


def calibrate(kl: Tensor, acts: Tensor) -> tuple[float, float]:
    """(threshold, F1): the KL in nats above which a position counts as active, chosen so that "active" agrees
    best, by F1, with the positions where an expert is known to act, `acts`.

    kl, acts: any shape, the same. Where no position acts, none is above the threshold and F1 is 1.
    """
    kl, order = kl.flatten().double().sort(descending=True)
    acts = acts.flatten().bool()[order]
    if not acts.any():
        return (float(kl[0]) if len(kl) else 0.0), 1.0
    told = torch.arange(1, len(kl) + 1)  # the n highest are active
    f1 = 2 * acts.cumsum(0) / (told + acts.sum())
    last = torch.cat([kl[1:] < kl[:-1], kl.new_ones(1).bool()])  # equal values stand or fall together
    n = int(f1.masked_fill(~last, 0.0).argmax())
    high, low = float(kl[n]), float(kl[n + 1]) if n + 1 < len(kl) else 0.0
    return (high * max(low, high * 1e-6)) ** 0.5, float(f1[n])  # between the two on a scale of magnitudes
