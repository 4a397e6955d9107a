"""Factorization in feature space (Kumar, Bucarelli, Natale 2026).

Assumption: an invertible map D from tokens to features, x ↔ (z_1, …, z_n), and disjoint sets of features such
that expert i changes the law of its own features alone, independently of the rest.
Claim: the composition has every expert's features, though each expert may change every token: with letters as
(letter, case), one expert that substitutes letters and one that changes the case give the substituted letter
in the changed case.

D is invertible, so p(x) = p(z) and the rule in tokens is the rule in features. The twins let the case
depend on the letter, and leave out the reference whose doubts factorize.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import torch
from torch import Tensor

from workbench.evaluate.tasks.features import EXPERTS, Features
from workbench.methods.logit import Logit
from workbench.report.statement import Finding, Row
from workbench.theory.masks import ETAS, EXACT, twin
from workbench.theory.subject import Subject, ask
from workbench.theory.tables import Draw, gap

LETTERS, CASES, T = 4, 2, 3
STRINGS = 256


def exact() -> Finding:
    right, overlap = case_gap()
    S = "letters as (letter, case), exactly"
    return Finding(
        [
            Row(S, "share of tokens that both experts change", overlap, at_least=1.0),
            Row(S, "|composed − (law of letters changed) × (law of cases changed)|", right, at_most=EXACT),
            *twin("the case depends on the letter by η", [case_gap(eta)[0] for eta in ETAS]),
        ]
    )


def case_gap(eta: float = 0.0) -> tuple[float, float]:
    """(distance of the composed conditionals from the claim, share of tokens that both experts change) on
    sequences of T tokens; each feature's law depends on its own past only."""
    draw = Draw(5)
    letters = [[draw(*[LETTERS] * t, LETTERS) for t in range(T)] for _ in range(2)]  # base's, changed
    cases = [[draw(*[CASES] * t, CASES) for t in range(T)] for _ in range(2)]
    foreign = [draw(*[LETTERS] * t, *[CASES] * t, LETTERS, CASES) for t in range(T)]

    def conditional(t: int, letter: int, case: int) -> Tensor:
        """p(letter, case | past) as (LETTERS^t, CASES^t, LETTERS · CASES)."""
        own = letters[letter][t].reshape(-1, 1, LETTERS, 1) * cases[case][t].reshape(1, -1, 1, CASES)
        return own.flatten(-2)

    def tied(t: int) -> Tensor:
        whole = foreign[t].reshape(LETTERS**t, CASES**t, LETTERS, CASES)
        tied_case = letters[0][t].reshape(-1, 1, LETTERS, 1) * whole / whole.sum(-1, keepdim=True)
        return (1 - eta) * conditional(t, 0, 1) + eta * tied_case.flatten(-2)

    join = Logit().plan(torch.ones(2, dtype=torch.float64)).join
    furthest, both, all_tokens = 0.0, 0, 0
    for t in range(T):
        base, letter, case = conditional(t, 0, 0), conditional(t, 1, 0), tied(t)
        branches = torch.stack([base, letter, case]).flatten(1, 2)  # (3, prefixes, tokens)
        claim = conditional(t, 1, 1).flatten(0, 1)
        furthest = max(furthest, gap(join(branches.log()).exp(), claim))
        both += int(((letter != base) & (case != base)).sum())
        all_tokens += base.numel()
    return furthest, both / all_tokens


def shipped(subject: Subject) -> Finding:
    """The same with trained experts, on held-out strings; `features-copy` takes the base's place."""
    copy, letter, case = EXPERTS
    S = "(letter, case), trained experts, held-out strings"

    def success(names: Sequence[str], weights: Sequence[float]) -> float:
        some, asked = subject.only(names), ask([Features()], names, STRINGS, 0)
        plan = Logit().plan(torch.tensor(weights, dtype=torch.float64))
        return fmean(some.success(plan, asked))

    return Finding(
        [
            Row(S, f"{letter} alone", success([letter], [1]), at_least=0.95),
            Row(S, f"{case} alone", success([case], [1]), at_least=0.95),
            Row(
                S,
                f"composed over {copy}: the substituted letter in the changed case",
                success([copy, letter, case], [-1, 1, 1]),
                at_least=0.95,
            ),
            Row(
                "the same over the base, whose doubts do not factorize",
                "composed: the substituted letter in the changed case",
                success([letter, case], [1, 1]),
                at_most=0.5,
                broken=True,
            ),
        ]
    )
