"""What a person is told about a pair of experts, and where they meet."""

from __future__ import annotations

import pytest
import torch

from workbench.decode.activity import Activity
from workbench.evaluate.tasks import TASKS
from workbench.experts.lora import read_expert
from workbench.models import open_base, shipped_experts
from workbench.theory import overlap
from workbench.theory.overlap import Pair
from workbench.theory.subject import Subject, ask


def mini(names: list[str], tasks: list[str]) -> Subject:
    experts = tuple(read_expert(name, str(shipped_experts("mini")[name])) for name in names)
    return Subject(open_base("mini"), experts, ask([TASKS[task] for task in tasks], names, 24, 0))


def test_a_pair_by_hand():
    kl = torch.tensor([[1.0, 0.0, 1.0, 0.0], [1.0, 1.0, 0.0, 0.0], [9.0, 9.0, 9.0, 9.0]])
    shared = torch.zeros(3, 3, 4)
    shared[0, 1] = torch.tensor([0.8, 0.2, 0.0, 0.0])
    meeting = torch.zeros(3, 3, 4, dtype=torch.long)
    meeting[0, 1] = torch.tensor([7, 8, 9, 10])
    pair = Pair.of([Activity((1, 2, 3, 4), kl, kl > 0, shared, meeting, torch.zeros(4))], 0, 1, 0.5)
    assert pair.share == 0.25
    assert pair.of_active == pytest.approx(1 / 3)
    assert pair.shift == pytest.approx(0.125)
    assert pair.meeting == [7]


def test_where_a_pair_meets():
    subject = mini(["letters-1"], ["letters"])
    end, newline, letter = 1, *subject.base.encode("\na")[1:]

    def told(*meeting: int) -> str:
        return Pair(0.1, 0.5, 0.0, meeting).sentence(subject, "one", "other")

    assert told(end, end, letter) == (
        "one and other: they overlap at the end of sequence; both are active at 10.0 % of positions, "
        "50 % of those where either is."
    )
    assert "overlap at formatting tokens" in told(newline, newline, letter)
    assert "overlap everywhere" in told(letter, letter, end)
    safe = Pair(0.0, 0.0, 0.0, []).sentence(subject, "one", "other")
    assert safe == "one and other: safe to compose; both are active at 0.0 % of positions."


def test_shipped_pairs_are_safe_but_for_the_end_where_only_the_experts_end():
    words = overlap.measured(mini(["letters-1", "letters-2"], ["letters"])).words
    assert [word.split(":")[1].strip()[:15] for word in words] == ["safe to compose"]
    (word,) = overlap.measured(mini(["letters-1", "letters-2"], ["letters_open"])).words
    assert "they overlap at the end of sequence" in word


def test_one_expert_has_no_pair():
    found = overlap.measured(mini(["math"], ["mini_math"]))
    assert found.words == ["One expert alone overlaps with nothing."]
