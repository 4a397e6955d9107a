"""Joint factorizability: experts that act at different times (Kumar, Bucarelli, Natale 2026).

Assumption: the active intervals of the experts are pairwise disjoint on every sequence.
Claim: at every prefix at most one p_i / p_b differs from 1, so the composition is that expert inside its
interval and the base elsewhere.

Of trained experts the overlap is a number: the share of positions at which two or more are active, and the
shift that the rule counts more than once, with s_i = p_i − p_b at a position

    overlapping shift = ½ Σ_x (Σ_i |s_i(x)| − max_i |s_i(x)|),

in probability per token. The twin lets two intervals overlap.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from math import prod
from statistics import fmean

import torch
from scipy.stats import spearmanr

from workbench.decode.activity import Activity, calibrate
from workbench.evaluate.tasks import TASKS
from workbench.evaluate.tasks.mini import REPLACES
from workbench.report.statement import Curves, Finding, Row
from workbench.theory.intervals import active, every_prefix, skills
from workbench.theory.subject import Subject, ask
from workbench.theory.tables import compose

SAFE = 0.05  # a pair is disjoint if both are active at no more of the positions at which either is
STRINGS = 48
OWN = {"mini_math": ["math"], "mini_code": ["coding"]}  # whose task it is, besides the letters experts'


def exact() -> Finding:
    return Finding(
        [
            Row(
                "tables, disjoint intervals",
                "composed is the active expert, or the base: max |Δ log p|",
                _distance(early=0),
                at_most=1e-9,
            ),
            Row(
                "tables, the second skill starts before the first has ended",
                "composed is the active expert, or the base: max |Δ log p|",
                _distance(early=1),
                at_least=0.1,
                broken=True,
            ),
        ]
    )


def _distance(early: int) -> float:
    base, experts = skills(early=early)
    flat = [torch.cat(list(model.conditionals)) for model in (compose(base, experts), base, *experts)]
    composed, b, *own = flat
    right = torch.stack(
        [
            next((own[s][n] for s in (0, 1) if active(s, prefix, early * s)), b[n])
            for n, prefix in enumerate(every_prefix())
        ]
    )
    return float((composed - right).abs().max())


def measured(subject: Subject) -> Finding:
    """Every pair of experts along the answers of each of the two; ends with what is safe to compose."""
    found: list[Activity] = []
    for name in subject.names:
        answers = subject.answers(subject.alone(name), subject.asked)
        found += subject.activity(subject.sequences(subject.asked, answers))
    kl = torch.cat([activity.kl for activity in found], dim=1)  # (k, all positions)
    threshold, accuracy = calibrate(kl, torch.cat([activity.changes for activity in found], dim=1))
    rows = [
        Row(
            f"active: KL(p_i ‖ p_b) above {threshold:.3g} nats",
            "F1 of telling the positions where an expert's likeliest token is not the base's",
            accuracy,
        )
    ]
    words = []
    asked, k = len(subject.asked), len(subject.names)
    for (a, one), (b, other) in combinations(enumerate(subject.names), 2):
        own = found[a * asked : (a + 1) * asked] + found[b * asked : (b + 1) * asked]
        pair = Pair.of(own, a, b, threshold)
        S = f"{one} and {other}, along their answers"
        rows += [
            Row(S, "share of positions at which both are active", pair.share),
            Row(S, "overlapping shift, probability per token", pair.shift),
        ]
        words.append(pair.sentence(subject, one, other))
    if k < 2:
        words.append("One expert alone overlaps with nothing.")
    return Finding(rows, words=words)


class Pair:
    """How two experts overlap: at which `share` of all positions, of those with an active one, and where."""

    def __init__(self, share: float, of_active: float, shift: float, meeting: Sequence[int]) -> None:
        self.share, self.of_active, self.shift, self.meeting = share, of_active, shift, meeting

    @classmethod
    def of(cls, found: Sequence[Activity], i: int, j: int, threshold: float) -> Pair:
        acts = torch.cat([activity.kl[[i, j]] > threshold for activity in found], dim=1)  # (2, positions)
        both = acts.all(dim=0)
        shared = torch.cat([activity.shared[i, j] for activity in found])
        meeting = torch.cat([activity.meeting[i, j] for activity in found])[both].tolist()
        either = float(acts.any(dim=0).sum())
        return cls(
            float(both.float().mean()) if len(both) else 0.0,
            float(both.sum()) / either if either else 0.0,
            float(shared.mean()) / 2 if len(shared) else 0.0,
            meeting,
        )

    def sentence(self, subject: Subject, one: str, other: str) -> str:
        both = f"both are active at {100 * self.share:.1f} % of positions"
        if self.of_active <= SAFE:
            return f"{one} and {other}: safe to compose; {both}."
        where = self._where(subject)
        share = f"{100 * self.of_active:.0f} % of those where either is"
        return f"{one} and {other}: they overlap {where}; {both}, {share}."

    def _where(self, subject: Subject) -> str:
        """By the tokens that both push or pull the most at the positions they share."""
        base, n = subject.base, len(self.meeting)
        ends = sum(token in base.end_ids for token in self.meeting)
        special = set(base.tokenizer.all_special_ids)
        formatting = sum(
            token in special or not any(letter.isalnum() for letter in base.decode([token]))
            for token in self.meeting
        )
        if ends > n / 2:
            return "at the end of sequence"
        return "at formatting tokens" if formatting > n / 2 else "everywhere"


def shipped(subject: Subject) -> Finding:
    """Does the overlap on the right answers, known before anything is composed, tell what composing loses?"""
    letters = tuple(REPLACES)
    strings = [letters[:k] for k in (2, 4, 6, 8)]
    others = [(*letters[:k], "math", "coding") for k in (0, 2, 4, 8)]
    sets = {"letters": strings, "letters_open": strings, "mini_math": others, "mini_code": others}
    lines = {}
    for task, groups in sets.items():
        alone = {name: _success(subject, task, [name]) for name in OWN.get(task, letters)}
        lines[task] = [
            (
                _shift(subject, task, names),
                prod(alone[name] for name in names if name in alone) - _success(subject, task, names),
            )
            for names in groups
        ]
    return Finding(
        [
            Row(
                "the overlapping shift on right answers tells what composing loses",
                f"rank correlation with the loss, {task}, {len(points)} sets of experts",
                float(spearmanr(points).statistic),
                at_least=0.7,
            )
            for task, points in lines.items()
        ],
        [
            Curves(
                "What logit composition loses against its experts",
                "overlapping shift, probability per token",
                "product of the experts' scores − composed score",
                lines,
                log_x=True,
            )
        ],
    )


def _shift(subject: Subject, task: str, names: Sequence[str]) -> float:
    base = subject.base
    right = [
        (base.encode(item.request.prompt), base.encode_answer(item.problem.reference))
        for item in ask([TASKS[task]], names, STRINGS, 0)
    ]
    return float(torch.cat([activity.excess for activity in subject.only(names).activity(right)]).mean())


def _success(subject: Subject, task: str, names: Sequence[str]) -> float:
    some = subject.only(names)
    return fmean(some.success(some.plan("logit"), ask([TASKS[task]], names, STRINGS, 0)))
