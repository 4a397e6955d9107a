"""Length generalization (Kumar, Bucarelli, Natale 2026).

Assumption: the experts act on disjoint parts of the answer, at every length.
Claim: the composition generalizes in length as its components do. Where component i succeeds with
probability a_i, the composition succeeds at least with Π_i a_i, at 1, 2 and 4 times the length that the
experts were tuned on; none of the bound is lost by composing.

The twin composes experts whose small shifts overlap: all eight.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from math import prod
from statistics import fmean

from workbench.evaluate.tasks.mini import EXPERT_LENGTHS, REPLACES, Letters
from workbench.report.statement import Curves, Finding, Row
from workbench.theory.subject import Subject, ask

STRINGS = 128
TIMES = (1, 2, 4)
PAIR = tuple(REPLACES)[:2]
ALL = tuple(REPLACES)


def shipped(subject: Subject) -> Finding:
    lines: dict[str, list[tuple[float, float]]] = {name: [] for name in (*PAIR, "product", "composed")}
    rows = []
    for times in TIMES:
        length = times * EXPERT_LENGTHS[1]
        alone = [_success(subject, [name], length) for name in PAIR]
        composed = _success(subject, PAIR, length)
        rows.append(_row(f"length {length}, {times} × what the experts were tuned on", alone, composed))
        for name, values in zip(PAIR, alone, strict=True):
            lines[name].append((length, fmean(values)))
        lines["product"].append((length, prod(map(fmean, alone))))
        lines["composed"].append((length, fmean(composed)))
    length = EXPERT_LENGTHS[1]
    alone = [_success(subject, [name], length) for name in ALL]
    S = f"length {length}, all eight letters experts, whose small shifts overlap"
    rows.append(_row(S, alone, _success(subject, ALL, length), broken=True))
    curves = Curves(f"Length generalization: {PAIR[0]} and {PAIR[1]}", "letters", "exact match", lines)
    return Finding(rows, [curves])


def _row(
    statement: str, alone: Sequence[Sequence[float]], composed: Sequence[float], broken: bool = False
) -> Row:
    """Composed success against the product of the components', as the upper end of the difference."""
    bound = prod(map(fmean, alone))
    difference = fmean(composed) - bound
    return Row(
        statement,
        f"composed {fmean(composed):.3f} − product {bound:.3f}, upper end of the 95 % interval",
        difference + 1.96 * standard_error(alone, composed),
        at_most=-0.1 if broken else None,
        at_least=None if broken else 0.0,
        broken=broken,
    )


def standard_error(alone: Sequence[Sequence[float]], composed: Sequence[float]) -> float:
    """Of  c − Π a_i  to first order, all estimated from samples of their own:
    Var = Var(c) + (Π a_i)² Σ Var(a_i) / a_i²."""

    def variance(values: Sequence[float]) -> float:
        mean = fmean(values)
        return mean * (1 - mean) / len(values)

    relative = sum(variance(own) / fmean(own) ** 2 for own in alone if any(own))
    return math.sqrt(variance(composed) + prod(map(fmean, alone)) ** 2 * relative)


def _success(subject: Subject, names: Sequence[str], length: int) -> list[float]:
    some = subject.only(names)
    return some.success(some.plan("logit"), ask([Letters(lengths=(length, length))], names, STRINGS, 0))
