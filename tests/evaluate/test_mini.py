"""The mini tasks: the split is real, the right answers score, everything else does not."""

from __future__ import annotations

import random
import re
import subprocess
import sys

import pytest

from workbench.errors import UnknownName
from workbench.evaluate.tasks import TASKS, mini, mini_experts
from workbench.evaluate.tasks.task import Problem

ALL = sorted(TASKS)


@pytest.mark.parametrize("name", ALL)
def test_a_set_is_256_distinct_problems_fixed_by_its_arguments(name: str) -> None:
    task = TASKS[name]
    problems = task.problems(None, 0, ["letters-1"])
    assert len(problems) == len({p.prompt for p in problems}) == len({p.id for p in problems}) == 256
    assert problems == task.problems(None, 0, ["letters-1"])
    assert problems[:10] == task.problems(10, 0, ["letters-1"])
    assert [p.id for p in problems] != [p.id for p in task.problems(None, 1, ["letters-1"])]
    assert max(len(p.reference) for p in problems) < task.max_new_tokens


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ALL)
def test_no_held_out_problem_is_ever_trained_on(name: str, seed: int) -> None:
    held_out = {p.prompt for s in range(4) for p in TASKS[name].problems(None, s, [])}
    trained = {
        prompt
        for expert in mini_experts.EXPERTS
        for prompt, _ in mini_experts.expert_rows(expert, 2000, seed)
    }
    trained |= {
        prompt for expert in mini_experts.EXPERTS for prompt in mini_experts.other_prompts(expert, 500, seed)
    }
    assert not held_out & trained


@pytest.mark.parametrize("name", ALL)
def test_the_reference_scores_one_and_other_texts_zero(name: str) -> None:
    task = TASKS[name]
    for problem in task.problems(24, 0, ["letters-1", "letters-2"]):
        assert task.score(problem, problem.reference) == {task.metric: 1.0}
        for wrong in ("", "#### 999", "    return None", problem.reference[:-1] + "Z"):
            assert task.score(problem, wrong) == {task.metric: 0.0}


@pytest.mark.parametrize(("name", "make"), [("mini_math", mini.math_item), ("mini_code", mini.code_item)])
def test_the_careless_answer_is_well_formed_and_wrong(name: str, make: object) -> None:
    assert callable(make)
    rng = random.Random(0)
    for _ in range(40):
        item = make(rng)
        problem = Problem("", item.prompt, item.right, dict(item.data))
        assert TASKS[name].score(problem, item.careless) == {TASKS[name].metric: 0.0}


def test_math_references_are_true() -> None:
    for problem in TASKS["mini_math"].problems(None, 0, []):
        found = re.fullmatch(r"(\d+)([+*-])(\d+)=(\d+)\n#### (\d+)", problem.reference)
        assert found
        a, op, b, c, d = found.groups()
        assert {"+": int(a) + int(b), "-": int(a) - int(b), "*": int(a) * int(b)}[op] == int(c) == int(d)
        numbers = re.findall(r"\d+", problem.prompt)
        assert numbers == [a, b]


def test_the_right_string_depends_on_the_composed_experts() -> None:
    assert mini.replace("abcop", []) == "abcop"
    assert mini.replace("abcop", ["math", "letters-1"]) == "bbcop"
    assert mini.replace("abcop", ["letters-8", "letters-2", "letters-1"]) == "bbdpp"
    plain, both = (TASKS["letters"].problems(None, 0, e) for e in ([], ["letters-1", "letters-2"]))
    assert [p.id for p in plain] == [p.id for p in both]
    assert all(
        b.reference == p.reference.replace("a", "b").replace("c", "d")
        for p, b in zip(plain, both, strict=True)
    )


def test_lengths_are_a_field() -> None:
    problems = mini.Letters(lengths=(32, 32)).problems(20, 0, [])
    assert {p.data["length"] for p in problems} == {32}
    assert len(mini.Letters(lengths=(1, 1)).problems(None, 0, [])) < 16  # fewer exist, none twice


def test_in_the_open_form_a_missing_end_is_wrong() -> None:
    task = TASKS["letters_open"]
    problem = task.problems(1, 0, [])[0]
    assert problem.prompt == f"> {problem.data['string']}\n< "
    assert task.score(problem, problem.reference + "\n> ab") == {"exact_match": 0.0}


def test_unknown_expert_names_its_neighbours() -> None:
    with pytest.raises(UnknownName, match="letters-1"):
        mini_experts.expert_rows("letter-1", 1, 0)


def test_tasks_need_no_torch() -> None:
    code = "import sys, workbench.evaluate.tasks; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
