"""Skill factorizability: when an expert acts (Kumar, Bucarelli, Natale 2026).

Assumption: expert i has stopping times τ_1 ≤ τ_2 on every sequence (whether t < τ_j is known from x_<t) and
is the base outside:  p_i(x_t | x_<t) = p_b(x_t | x_<t)  for t < τ_1 and t ≥ τ_2.
Claim: its active interval is where its next-token distribution leaves the base, KL(p_i ‖ p_b) > 0.

A trained expert leaves the base a little everywhere, so "leaves" needs a threshold. It is calibrated: the
KL that best tells the positions where an expert is known to act. On tables that is known by construction; of
trained experts, an act is that the likeliest token is no longer the base's. The twins act outside their
interval.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from workbench.decode.activity import calibrate
from workbench.evaluate.tasks.mini import REPLACES, Letters
from workbench.report.statement import Finding, Row
from workbench.theory.subject import Subject, ask
from workbench.theory.tables import Draw, Prefix, Table, prefixes, table

V, T = 3, 6
STRINGS = 64


def exact() -> Finding:
    base, experts = skills()
    threshold, _ = calibrate(kl(experts[0], base), torch.tensor([active(0, p) for p in every_prefix()]))
    wrong = _wrong(experts[1], base, threshold)
    _, leaking = skills(leak=0.5)
    S = "tables with known stopping times"
    return Finding(
        [
            Row(S, f"prefixes told wrongly by KL > {threshold:.2g} nats", wrong, at_most=0),
            Row(S, "largest KL outside the interval", _outside(experts, base), at_most=1e-12),
            Row(
                "an expert that also acts outside, by η = 0.5",
                "share of prefixes told wrongly",
                _wrong(leaking[1], base, threshold) / len(list(every_prefix())),
                at_least=0.1,
                broken=True,
            ),
        ]
    )


def active(skill: int, prefix: Prefix, early: int = 0) -> bool:
    """Skill 0 until the first 0, skill 1 from there until the second; `early`: so many 0s sooner."""
    zeros = prefix.count(0)
    return skill - early <= zeros <= skill


def skills(leak: float = 0.0, early: int = 0) -> tuple[Table, list[Table]]:
    """A base and two experts, each the base outside its interval, but for the share `leak`."""
    draw = Draw(3)
    rows = {prefix: draw(V) for prefix in every_prefix()}
    base = table(V, T, rows.__getitem__)
    experts = []
    for skill in range(2):
        own = {prefix: draw(V) for prefix in rows}

        def conditional(prefix: Prefix, skill: int = skill, own: dict[Prefix, Tensor] = own) -> Tensor:
            share = 1.0 if active(skill, prefix, early * skill) else leak
            return (1 - share) * rows[prefix] + share * own[prefix]

        experts.append(table(V, T, conditional))
    return base, experts


def every_prefix() -> Iterator[Prefix]:
    for t in range(T):
        yield from prefixes(V, t)


def kl(expert: Table, base: Table) -> Tensor:
    """KL(p_i ‖ p_b) at every prefix."""
    pairs = zip(expert.conditionals, base.conditionals, strict=True)
    return torch.cat([(p.exp() * (p - b)).sum(-1) for p, b in pairs])


def _outside(experts: Sequence[Table], base: Table) -> float:
    return max(
        float(value)
        for skill, expert in enumerate(experts)
        for value, prefix in zip(kl(expert, base), every_prefix(), strict=True)
        if not active(skill, prefix)
    )


def _wrong(expert: Table, base: Table, threshold: float, skill: int = 1) -> int:
    told = kl(expert, base) > threshold
    return int((told != torch.tensor([active(skill, prefix) for prefix in every_prefix()])).sum())


def shipped(subject: Subject) -> Finding:
    """Do the letters experts come out at the letters they replace, and only there?"""
    rows = []
    for name in tuple(REPLACES)[:2]:
        precision, recall, threshold = _replaced(subject, Letters(), name)
        S = f"{name} acts at the letters it replaces (KL > {threshold:.2g} nats)"
        rows += [
            Row(S, "share of its active positions that are replaced letters", precision, at_least=0.95),
            Row(S, "share of the replaced letters that are active positions", recall, at_least=0.95),
        ]
    name = next(iter(REPLACES))
    precision, _, _ = _replaced(subject, Letters("letters_open", "", open=True), name)
    rows.append(
        Row(
            f"{name} in the form where it also has to end, and the base goes on",
            "share of its active positions that are replaced letters",
            precision,
            at_most=0.8,
            broken=True,
        )
    )
    return Finding(rows)


def _replaced(subject: Subject, task: Letters, name: str) -> tuple[float, float, float]:
    """(precision, recall, threshold) along the expert's own answers."""
    asked, expert = ask([task], [name], STRINGS, 0), subject.only([name])
    answers = expert.answers(expert.alone(name), asked)
    found = expert.activity(expert.sequences(asked, answers))
    threshold, _ = calibrate(torch.cat([a.kl[0] for a in found]), torch.cat([a.changes[0] for a in found]))
    letter = REPLACES[name][0]
    acts = torch.cat([a.kl[0] > threshold for a in found])
    should = []
    for item, activity in zip(asked, found, strict=True):
        string = item.problem.data["string"]
        should += [t < len(string) and string[t] == letter for t in range(len(activity.answer))]
    truth = torch.tensor(should)
    both = float((acts & truth).sum())
    return both / max(1.0, float(acts.sum())), both / float(truth.sum()), threshold
