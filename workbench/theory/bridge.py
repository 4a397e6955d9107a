"""The bridge between logit composition and task arithmetic (Kumar, Bucarelli, Natale 2026).

Assumption: the model is linear in its weights around the base,  z(θ_b + τ) = z_b + J τ  for its logits z.
Claim: the two compositions are one:  z_b + Σ_i ((z_b + J τ_i) − z_b) = z_b + J Σ_i τ_i  at every prefix, so
they also pick the same tokens.

A real model is not linear. With every τ scaled by ε its two compositions differ by the interaction of the
experts, which is of second order: max |Δ log p| ~ ε², and the divergence, itself of second order in
Δ log p, ~ ε⁴. A wrong scale, a cross term or a rounded weight breaks these slopes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from scipy.stats import linregress
from torch import Tensor

from workbench.decode.activity import Answer, along
from workbench.decode.branches import Branches
from workbench.methods.linearized import Linearized
from workbench.methods.plan import Mix, Plan
from workbench.report.statement import Curves, Finding, Row
from workbench.theory.subject import Subject

EPSILONS = (0.04, 0.02, 0.01)
SEQUENCES = 16  # answers that the slopes are measured along
SMALL = 50_000_000  # parameters; smaller models are measured in float64
TOLERANCE = 1e-5
NO_INTERACTION = 1e-5  # max |Δ log p| of experts of which no two meet, such as one alone


def measured(subject: Subject) -> Finding:
    one, each = subject.plan("linearized"), subject.plan(Linearized(separately=True))
    answers = subject.answers(one, subject.asked)
    others = subject.answers(each, subject.asked)
    sequences = subject.sequences(subject.asked, answers)
    differing = sum(a.ids != b.ids for a, b in zip(answers, others, strict=True))
    apart, change = _apart(subject, one, each, sequences)
    some = sequences[:: max(1, len(sequences) // SEQUENCES)][:SEQUENCES]
    with _exact(subject):
        ordinary, points = _ordinary(subject, some)
        nonlinear = list(_nonlinear(subject, some))
    S = "linearized: logit composition = task arithmetic"
    tolerance = max(TOLERANCE, 1e-6 * change)  # float32 keeps seven digits of a large change
    along = f"along decoded answers, which change log p by up to {change:.0f}"
    return Finding(
        [
            Row(S, f"max |Δ log p| {along}, float32", apart, at_most=tolerance),
            Row(S, f"of {len(answers)} greedy answers, those that differ", differing, at_most=0),
            *ordinary,
            *nonlinear,
        ],
        [
            Curves(
                "Logit composition against task arithmetic, every task vector scaled by ε",
                "ε",
                "max |Δ log p|",
                {"measured": points},
                log_x=True,
                log_y=True,
            )
        ],
    )


def _ordinary(subject: Subject, answers: Sequence[Answer]) -> tuple[list[Row], list[tuple[float, float]]]:
    """The two compositions of the ordinary model with all τ scaled: rows, and max |Δ log p| by ε."""
    found = [(eps, *_interaction(subject, eps, answers)) for eps in (1.0, *EPSILONS)]
    points = [(eps, difference) for eps, difference, _ in found[1:]]
    S = "ordinary model, every τ scaled by ε ≤ 0.1"
    if found[0][1] <= NO_INTERACTION:
        return [Row(S, "max |Δ log p| at ε = 1: the experts do not interact", found[0][1])], points
    return [
        Row(
            "ordinary model, ε = 1: not linear",
            "max |Δ log p| along the same answers",
            found[0][1],
            at_least=100 * NO_INTERACTION,
            broken=True,
        ),
        Row(S, "slope of max |Δ log p| in ε", _slope(points), 1.8, 2.2),
        Row(S, "slope of the divergence in ε", _slope([(eps, kl) for eps, _, kl in found[1:]]), 3.6, 4.4),
    ], points


def _slope(points: Sequence[tuple[float, float]]) -> float:
    """Of log y against log x."""
    x, y = torch.tensor(points, dtype=torch.float64).T.log()
    return float(linregress(x.numpy(), y.numpy()).slope)


@contextmanager
def _exact(subject: Subject) -> Iterator[None]:
    """Within it, a small model computes in float64 where it does not insist on float32 (norms, softmax); the
    way back is exact."""
    model = subject.base.model
    if model.dtype != torch.float32 or model.num_parameters() > SMALL:
        yield
        return
    try:
        model.double()
        yield
    finally:
        model.float()


def _rows(subject: Subject, plans: Sequence[Plan], answers: Sequence[Answer]) -> Iterator[tuple[Tensor, ...]]:
    """log p (T, vocab) of each plan along each answer; the branches are joined in float64."""
    base, bank = subject.base, subject.engine.bank
    batch = max(1, subject.batch_size // max(plan.branches for plan in plans))
    logits = [along(base, Branches(base.model, bank, plan), answers, batch) for plan in plans]
    for found in zip(*logits, strict=True):
        yield tuple(plan.join(own.double()) for plan, own in zip(plans, found, strict=True))


def _apart(subject: Subject, one: Plan, each: Plan, answers: Sequence[Answer]) -> tuple[float, float]:
    """(max |Δ log p| between the two, max |Δ log p| from the base)."""
    apart = change = 0.0
    for a, b, base in _rows(subject, [one, each, subject.plan("task_arith", [])], answers):
        apart, change = max(apart, _largest(a - b)), max(change, _largest(a - base))
    return apart, change


def _largest(difference: Tensor) -> float:
    return float(difference.abs().max()) if len(difference) else 0.0


def divergence(p: Tensor, q: Tensor) -> Tensor:
    """KL(p ‖ q) from log-probabilities (T, vocab): Σ p (q/p − 1 − log(q/p)), whose terms are all positive, so
    that nothing cancels where the two are close."""
    ratio = (q - p).double()
    return (p.double().exp() * (ratio.expm1() - ratio)).sum(-1)


def _scaled(subject: Subject, eps: float) -> tuple[Plan, Plan]:
    """Logit composition of the experts ε τ_i, and task arithmetic of the same."""
    k = len(subject.names)
    gates = eps * torch.eye(k, dtype=torch.float64)
    mix = Mix(torch.tensor([1.0 - k, *[1.0] * k], dtype=torch.float64))
    return Plan(torch.cat([torch.zeros_like(gates[:1]), gates]), mix), Plan(
        gates.sum(0)[None], Mix(torch.ones(1))
    )


def _interaction(subject: Subject, eps: float, answers: Sequence[Answer]) -> tuple[float, float]:
    """(max |Δ log p|, mean KL) between the two compositions of experts scaled by ε."""
    pairs = list(_rows(subject, _scaled(subject, eps), answers))
    kl = torch.cat([divergence(a, b) for a, b in pairs])
    return max(_largest(a - b) for a, b in pairs), float(kl.mean())


def _nonlinear(subject: Subject, answers: Sequence[Answer]) -> Iterator[Row]:
    """The share of each expert's change that the linear model misses, of the sum's, and their interaction."""
    zero = subject.plan("task_arith", [])
    changes = {name: (subject.alone(name), subject.plan("linearized", [name])) for name in subject.names}
    changes[f"the sum of {len(subject.names)}"] = (subject.plan("task_arith"), subject.plan("linearized"))
    S = "how far from linear, ε = 1"
    for name, (true, linear) in changes.items():
        found = list(_rows(subject, [true, linear, zero], answers))
        missed = torch.cat([divergence(t, lin) for t, lin, _ in found]).sum()
        whole = torch.cat([divergence(t, b) for t, _, b in found]).sum()
        share = float(missed / whole) if whole > 0 else 0.0
        yield Row(S, f"{name}: KL(f(τ) ‖ linearized) over KL(f(τ) ‖ base)", share)
    rest = all_of_it = 0.0
    plans = [subject.plan("task_arith"), subject.plan("logit"), zero]
    for sum_of, apart, base in _rows(subject, plans, answers):
        rest += float(_centred(sum_of - apart).square().sum())
        all_of_it += float(_centred(sum_of - base).square().sum())
    share = (rest / all_of_it) ** 0.5 if all_of_it else 0.0
    yield Row(S, "f(Στ) − f(0) − Σ(f(τ_i) − f(0)), relative to f(Στ) − f(0)", share)


def _centred(log_p: Tensor) -> Tensor:
    """Without the normaliser, which is constant over the vocabulary."""
    return log_p - log_p.mean(-1, keepdim=True)
