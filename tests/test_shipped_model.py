"""What the shipped model and its experts must show, through the harness that users run."""

from __future__ import annotations

import pytest

from workbench.decode.engine import Engine
from workbench.decode.sampling import Sampling
from workbench.evaluate import comparison, harness
from workbench.evaluate.records import RunFolder
from workbench.evaluate.tasks import TASKS
from workbench.experts.bank import ExpertBank
from workbench.experts.lora import read_expert
from workbench.models import DEFAULT_EXPERTS, open_base, shipped_experts
from workbench.report.summary import summarize

METHODS = ["logit", "task_arith"]


def scores(folder, experts, tasks, plans=None):
    """{(task, method): score} on all 256 held-out problems; `plans` are the methods run, by default all."""
    base = open_base("mini")
    read = [read_expert(name, str(shipped_experts("mini")[name])) for name in experts]
    engine = Engine(base, ExpertBank(base.model, read))
    items = harness.items(
        [TASKS[task] for task in tasks],
        experts=experts,
        limit=None,
        seed=0,
        sampling=Sampling(),
        max_new_tokens=None,
    )
    made = comparison.plans(experts, METHODS, None)
    made = {name: plan for name, plan in made.items() if plans is None or name in plans}
    with RunFolder(folder, {}) as run:
        samples = harness.run(engine, made, items, run, 128, lambda *_: None)
    rows = summarize(samples, {task: TASKS[task].metric for task in tasks}, list(made))
    assert all(row.n == 256 for row in rows)
    return {(row.task, row.method): row.score for row in rows}


def test_two_letter_experts_compose_by_the_papers_rule_on_every_string(tmp_path):
    got = scores(tmp_path, ["letters-1", "letters-2"], ["letters"])
    assert got["letters", "logit"] == 1.0
    assert got["letters", "task_arith"] >= 0.95
    assert max(got["letters", name] for name in ("base", "letters-1", "letters-2")) < 0.8


@pytest.mark.parametrize("expert", [f"letters-{i}" for i in range(1, 9)])
def test_each_letter_expert_alone(tmp_path, expert):
    assert scores(tmp_path, [expert], ["letters"])["letters", expert] >= 0.98


def test_the_base_that_goes_on_and_the_experts_that_end(tmp_path):
    got = scores(tmp_path, ["letters-1", "letters-2"], ["letters_open"])
    assert got["letters_open", "base"] == 0.0
    for method in METHODS:
        assert got["letters_open", method] >= 0.95


def test_math_and_coding_keep_what_each_expert_has(tmp_path):
    got = scores(tmp_path, ["math", "coding"], ["mini_math", "mini_code"])
    for task, expert in (("mini_math", "math"), ("mini_code", "coding")):
        assert got[task, expert] >= 0.9
        assert got[task, "base"] <= 0.6
        for method in METHODS:
            assert got[task, method] >= 0.95 * got[task, expert], (task, method)


def test_all_four_default_experts_at_once(tmp_path):
    tasks = ["letters", "mini_math", "mini_code"]
    got = scores(tmp_path, list(DEFAULT_EXPERTS), tasks, ["math", "coding", *METHODS])
    for method in METHODS:
        assert got["letters", method] >= 0.95
        for task, expert in (("mini_math", "math"), ("mini_code", "coding")):
            assert got[task, method] >= 0.95 * got[task, expert], (task, method)
