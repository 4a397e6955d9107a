"""Where experts act: KL and shared shift against sums by hand over PEFT's distributions."""

from __future__ import annotations

import pytest
import torch
from conftest import ADAPTERS
from peft import PeftModel
from transformers import AutoModelForCausalLM

from workbench.decode.activity import _measures, calibrate, measure
from workbench.experts.bank import ExpertBank
from workbench.experts.lora import read_expert
from workbench.models import open_base

NAMES = list(ADAPTERS)[:3]
ANSWERS = [("Hello world", "a b c"), ("x", "much longer than the window of eight"), ("12 + 3", "")]


@pytest.mark.parametrize("kind", ["gemma2", "llama"])
def test_activity_is_that_of_pefts_experts(models_folder, kind):
    folder = models_folder(kind)
    base = open_base(str(folder / "base"))
    bank = ExpertBank(base.model, [read_expert(name, str(folder / name)) for name in NAMES])
    answers = [(base.encode(prompt), base.encode_answer(answer)) for prompt, answer in ANSWERS]
    found = measure(base, bank, answers, batch_size=2)

    def log_p(adapter: str | None, ids: list[int]) -> torch.Tensor:
        model = AutoModelForCausalLM.from_pretrained(folder / "base").eval()
        if adapter:
            model = PeftModel.from_pretrained(model, folder / adapter).eval()
        with torch.no_grad():
            return model(torch.tensor([ids])).logits[0].double().log_softmax(-1)

    for (prompt, answer), activity in zip(answers, found, strict=True):
        assert activity.answer == tuple(answer)
        assert activity.kl.shape == (3, len(answer))
        at = slice(len(prompt) - 1, -1)
        b = log_p(None, [*prompt, *answer])[at]
        p = [log_p(name, [*prompt, *answer])[at] for name in NAMES]
        shift = [(own.exp() - b.exp()).abs() for own in p]
        for i in range(3):
            expected = (p[i].exp() * (p[i] - b)).sum(-1)
            torch.testing.assert_close(activity.kl[i].double(), expected, atol=2e-5, rtol=0)
            assert activity.changes[i].tolist() == (p[i].argmax(-1) != b.argmax(-1)).tolist()
            for j in range(3):
                common = torch.minimum(shift[i], shift[j]).sum(-1)
                torch.testing.assert_close(activity.shared[i, j].double(), common, atol=1e-5, rtol=0)
        total = torch.stack(shift)
        excess = (total.sum(0) - total.amax(0)).sum(-1) / 2
        torch.testing.assert_close(activity.excess.double(), excess, atol=1e-5, rtol=0)
    assert found[1].kl.max() > 0.01


def test_experts_meet_at_the_token_they_raise_together():
    log_p = torch.tensor(
        [
            [[0.8, 0.1, 0.05, 0.05]],  # the base
            [[0.1, 0.8, 0.05, 0.05]],  # raises 1
            [[0.2, 0.7, 0.05, 0.05]],  # raises 1
            [[0.1, 0.1, 0.05, 0.75]],  # raises 3, and lowers 0 as the others do
        ]
    ).log()
    meeting = _measures(log_p)[3]
    assert meeting[0, 1].tolist() == [1]
    assert meeting[0, 2].tolist() == meeting[1, 2].tolist() == [0]
    assert meeting[2, 2].tolist() == [3]


def test_the_threshold_is_the_one_of_the_best_f1():
    generator = torch.Generator().manual_seed(0)
    kl = torch.rand(3, 40, generator=generator)
    acts = kl + 0.3 * torch.rand(3, 40, generator=generator) > 0.8
    threshold, f1 = calibrate(kl, acts)

    def score(cut: float) -> float:
        told = kl > cut
        return float(2 * (told & acts).sum() / (told.sum() + acts.sum()))

    assert f1 == pytest.approx(score(threshold))
    assert f1 == pytest.approx(max(score(float(cut)) for cut in kl.flatten() - 1e-6))


def test_thresholds_at_the_edges():
    kl = torch.tensor([0.0, 0.0, 1e-3, 5.0])
    acts = torch.tensor([False, False, False, True])
    threshold, f1 = calibrate(kl, acts)
    assert 1e-3 < threshold < 5.0
    assert f1 == 1.0
    threshold, _ = calibrate(kl, torch.zeros(4, dtype=torch.bool))
    assert not (kl > threshold).any()
    threshold, _ = calibrate(kl + 1, torch.ones(4, dtype=torch.bool))
    assert (kl + 1 > threshold).all()
    assert calibrate(torch.zeros(2, 0), torch.zeros(2, 0, dtype=torch.bool)) == (0.0, 1.0)
