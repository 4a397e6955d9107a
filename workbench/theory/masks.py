"""Factorized conditionals in token space (Kumar, Bucarelli, Natale 2026; after Bradley et al. 2025).

Assumption: disjoint masks M_1 … M_k. Under p_b the masks and the rest M_b are independent, and expert i
differs from p_b on M_i alone:  p_i(x) = p_i(x|M_i) p_b(x|M_i^c).
Claim: the composition is projective, p̂(x) = p_b(x|M_b) Π_i p_i(x|M_i): its marginal on each mask is that
mask's expert's, on the rest the base's, and no step needs renormalising (Z_t = 1).

A mask is a set of positions of the sequence, or a block of the vocabulary at one step. The twins mix a
foreign change of size η into each expert outside its mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from workbench.methods.logit import Logit
from workbench.report.statement import Finding, Row
from workbench.theory.tables import Draw, Prefix, Table, compose, gap, normaliser, table

EXACT = 1e-9
ETAS = (0.0, 0.1, 0.2, 0.4, 0.8)
V, T = 3, 6


def exact() -> Finding:
    positions = [positions_gaps(k) for k in range(2, 6)]
    blocks = [blocks_gaps(k) for k in range(2, 6)]
    by_position = [max(positions_gaps(3, eta)[:2]) for eta in ETAS]
    by_block = [max(blocks_gaps(3, eta)[:2]) for eta in ETAS]
    P = "masks of positions, k = 2 … 5"
    B = "blocks of the vocabulary, k = 2 … 5"
    return Finding(
        (
            Row(P, "marginal on M_i: |composed − expert i|", max(g[0] for g in positions), at_most=EXACT),
            Row(P, "marginal elsewhere: |composed − base|", max(g[1] for g in positions), at_most=EXACT),
            Row(P, "|Z_t − 1|", max(g[2] for g in positions), at_most=EXACT),
            Row(B, "on M_i: |composed − expert i|", max(g[0] for g in blocks), at_most=EXACT),
            Row(B, "elsewhere: |composed − base|", max(g[1] for g in blocks), at_most=EXACT),
            Row(B, "|Z − 1|", max(g[2] for g in blocks), at_most=EXACT),
            *twin("masks of positions, k = 3", by_position),
            *twin("blocks of the vocabulary, k = 3", by_block),
        )
    )


def twin(statement: str, gaps: Sequence[float]) -> list[Row]:
    """Rows on the gap at each of ETAS: none at 0, and each larger than the one before."""
    grows = min(later - earlier for earlier, later in pairwise(gaps))
    return [
        Row(statement, "gap at η = 0", gaps[0], at_most=EXACT),
        Row(statement, f"gap at η = {ETAS[1]:g}", gaps[1], at_least=1e-3, broken=True),
        Row(statement, "smallest growth of the gap from η to the next", grows, at_least=1e-4, broken=True),
    ]


def positions_gaps(k: int, eta: float = 0.0) -> tuple[float, float, float]:
    """(gap on the masks, gap on the rest, |Z − 1|) for k experts; position t is of mask t mod (k + 1)."""
    draw = Draw(k)
    mask = [[t for t in range(T) if t % (k + 1) == i] for i in range(k + 1)]  # the last one is the rest
    base_rows = [_independent(draw) for _ in mask]
    experts = []
    for i in range(k):
        rows = [_independent(draw) if j == i else base_rows[j] for j in range(k + 1)]
        experts.append(_model(rows, mask, foreign=(i, eta, draw)))
    base = _model(base_rows, mask)
    composed = compose(base, experts)
    on_masks = max(gap(composed.marginal(mask[i]), experts[i].marginal(mask[i])) for i in range(k))
    rest = gap(composed.marginal(mask[k]), base.marginal(mask[k])) if mask[k] else 0.0
    return on_masks, rest, float((normaliser(base, experts) - 1).abs().max())


def _independent(draw: Draw) -> list[Tensor]:
    """Conditionals of one mask's tokens given the mask's own past: [n] is (V,)*n + (V,)."""
    return [draw(*[V] * n, V) for n in range(T)]


def _model(
    rows: Sequence[Sequence[Tensor]],
    mask: Sequence[Sequence[int]],
    foreign: tuple[int, float, Draw] | None = None,
) -> Table:
    own, eta, draw = foreign or (None, 0.0, Draw(0))

    def conditional(prefix: Prefix) -> Tensor:
        j = next(j for j, positions in enumerate(mask) if len(prefix) in positions)
        past = tuple(prefix[t] for t in mask[j] if t < len(prefix))
        right: Tensor = rows[j][len(past)][past]
        if j == own or eta == 0:
            return right
        return (1 - eta) * right + eta * draw(V)

    return table(V, T, conditional)


def blocks_gaps(k: int, eta: float = 0.0) -> tuple[float, float, float]:
    """The same at one step: k + 1 blocks of three tokens; expert i deals the mass of block i anew."""
    draw, size = Draw(10 + k), 3
    base = draw(size * (k + 1))
    experts = []
    for i in range(k):
        expert, block = base.clone(), slice(size * i, size * (i + 1))
        expert[block] = base[block].sum() * draw(size)
        experts.append((1 - eta) * expert + eta * draw(len(base)))
    join = Logit().plan(torch.ones(k, dtype=torch.float64)).join
    log_p = torch.stack([base, *experts]).log()
    composed = join(log_p[:, None])[0].exp()
    on_masks = max(
        gap(composed[size * i : size * (i + 1)], experts[i][size * i : size * (i + 1)]) for i in range(k)
    )
    Z = (log_p[1:].sum(0) - (k - 1) * log_p[0]).exp().sum()
    return on_masks, gap(composed[size * k :], base[size * k :]), float((Z - 1).abs())
