"""Tables against sums over every sequence, written out."""

from __future__ import annotations

import math
from itertools import product

import torch

from workbench.theory.tables import Draw, Prefix, Table, compose, normaliser, table

V, T = 2, 3


def random_table(seed: int) -> Table:
    draw = Draw(seed)
    rows = {prefix: draw(V) for t in range(T) for prefix in product(range(V), repeat=t)}
    return table(V, T, rows.__getitem__)


def p(model: Table, token: int, prefix: Prefix) -> float:
    index = sum(x * V ** (len(prefix) - 1 - n) for n, x in enumerate(prefix))
    return float(model.conditionals[len(prefix)][index, token].exp())


def test_the_joint_is_the_product_of_the_conditionals():
    model = random_table(0)
    joint = model.joint()
    for x in product(range(V), repeat=T):
        expected = math.prod(p(model, x[t], x[:t]) for t in range(T))
        assert abs(float(joint[x]) - expected) < 1e-12
    assert abs(float(joint.sum()) - 1) < 1e-12


def test_marginals_are_sums_over_the_rest():
    model = random_table(1)
    marginal = model.marginal([0, 2])
    for a, c in product(range(V), repeat=2):
        assert abs(float(marginal[a, c]) - sum(float(model.joint()[a, b, c]) for b in range(V))) < 1e-12


def test_composition_is_the_papers_rule_at_every_prefix():
    base, *experts = (random_table(seed) for seed in range(4))
    composed, z = compose(base, experts), normaliser(base, experts)
    number = 0
    for t in range(T):
        for prefix in product(range(V), repeat=t):
            weight = [
                p(base, x, prefix) * math.prod(p(e, x, prefix) / p(base, x, prefix) for e in experts)
                for x in range(V)
            ]
            assert abs(float(z[number]) - sum(weight)) < 1e-12
            for x in range(V):
                assert abs(p(composed, x, prefix) - weight[x] / sum(weight)) < 1e-12
            number += 1


def test_one_expert_alone_is_that_expert():
    base, expert = random_table(0), random_table(1)
    torch.testing.assert_close(compose(base, [expert]).joint(), expert.joint())
