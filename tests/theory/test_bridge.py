"""The bridge on real architectures with random experts, and that a fault breaks it."""

from __future__ import annotations

import pytest
import torch

from workbench.evaluate.tasks import TASKS
from workbench.experts.lora import read_expert
from workbench.methods.linearized import Linearized
from workbench.methods.plan import Mix, Plan
from workbench.models import open_base
from workbench.theory import bridge
from workbench.theory.subject import Subject, ask


@pytest.fixture(params=["gemma2", "llama"])
def subject(request, models_folder) -> Subject:
    folder = models_folder(request.param)
    names = ["plain", "rslora", "subset"]
    experts = tuple(read_expert(name, str(folder / name)) for name in names)
    return Subject(open_base(str(folder / "base")), experts, ask([TASKS["letters"]], names, 6, 0))


def rows(subject: Subject):
    return {row.quantity: row for row in bridge.measured(subject).rows}


def test_the_bridge_holds(subject):
    found = rows(subject)
    assert [row for row in found.values() if row.holds is False] == []
    assert sum(row.holds is True for row in found.values()) == 5
    assert subject.base.model.dtype == torch.float32  # it went to float64 and came back


def test_the_linear_model_misses_little_of_a_small_expert(subject):
    """KL is of second order in the change, and what is missed of fourth."""
    one = subject.only(["plain"])
    sequences = one.sequences(one.asked, one.answers(one.alone("plain"), one.asked))

    def missed(scale: float) -> float:
        gate, join = torch.tensor([[scale]]), Mix(torch.ones(1))
        plans = [Plan(gate, join), Plan(0 * gate, join, gate), Plan(0 * gate, join)]
        with bridge._exact(one):
            found = list(bridge._rows(one, plans, sequences))
        return float(
            torch.cat([bridge.divergence(t, lin) for t, lin, _ in found]).sum()
            / torch.cat([bridge.divergence(t, b) for t, _, b in found]).sum()
        )

    assert missed(0.02) < 1e-2
    assert missed(0.01) == pytest.approx(missed(0.02) / 4, rel=0.3)


def test_a_wrong_scale_breaks_the_slopes(subject, monkeypatch):
    true = bridge._scaled

    def wrong(of: Subject, eps: float) -> tuple[Plan, Plan]:
        logit, arithmetic = true(of, eps)
        return logit, Plan(arithmetic.gate * 1.05, arithmetic.join)

    monkeypatch.setattr(bridge, "_scaled", wrong)
    found = rows(subject)
    assert found["slope of max |Δ log p| in ε"].holds is False
    assert found["slope of the divergence in ε"].holds is False


def test_a_lost_tangent_breaks_the_equality(subject, monkeypatch):
    def plan(self: Linearized, weights: torch.Tensor) -> Plan:
        made = true(self, weights)
        if not self.separately:
            return made
        tangent = made.tangent.clone()
        tangent[-1] = 0  # the last expert is forgotten
        return Plan(made.gate, made.join, tangent)

    true = Linearized.plan
    monkeypatch.setattr(Linearized, "plan", plan)
    found = rows(subject)
    assert [row.holds for row in found.values()].count(False) >= 1


def test_divergence_is_kl_and_exact_where_both_are_close():
    p = torch.tensor([[0.2, 0.3, 0.5]], dtype=torch.float64).log()
    q = torch.tensor([[0.25, 0.25, 0.5]], dtype=torch.float64).log()
    assert float(bridge.divergence(p, q)) == pytest.approx(float((p.exp() * (p - q)).sum()), rel=1e-12)
    shift = 1e-9 * torch.tensor([[1.0, -1.0, 0.2]], dtype=torch.float64)
    close = (p + shift).log_softmax(-1)
    second_order = float((p.exp() * (close - p) ** 2).sum() / 2)
    assert float(bridge.divergence(p, close)) == pytest.approx(second_order, rel=1e-5)
