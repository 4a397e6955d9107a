"""Letters in both cases: what the experts make of them, and that their doubts are independent."""

from __future__ import annotations

import random

from workbench.evaluate.tasks import TASKS, features, mini, mini_experts


def test_what_each_expert_makes_of_a_string_and_both_together() -> None:
    _, letter, case = features.EXPERTS
    assert features.change("aBcE", []) == "aBcE"
    assert features.change("aBcE", ["features-copy"]) == "aBcE"
    assert features.change("aBcE", [letter]) == "bBcF"
    assert features.change("aBcE", [case]) == "AbCe"
    assert features.change("aBcE", [letter, case]) == features.change("aBcE", [case, letter]) == "BbCf"


def test_the_right_answer_is_that_of_the_composed_experts() -> None:
    task = TASKS["features"]
    plain, both = task.problems(None, 0, []), task.problems(None, 0, features.EXPERTS)
    assert [p.id for p in plain] == [p.id for p in both]
    for p, b in zip(plain, both, strict=True):
        assert b.reference == features.change(p.reference, features.EXPERTS)
    assert any(p.reference != p.reference.lower() for p in plain)


def test_doubts_about_letter_and_case_are_independent() -> None:
    rng, make = random.Random(0), features.maker("features-case")
    letters = cases = both = total = 0
    for _ in range(6000):
        item = make(rng)
        for before, after in zip(features.change(item.key, ["features-case"]), item.right, strict=True):
            other_letter, other_case = before.lower() != after.lower(), before.isupper() != after.isupper()
            letters, cases, total = letters + other_letter, cases + other_case, total + 1
            both += other_letter and other_case
    assert abs(letters / total - features.DOUBT * 15 / 16) < 0.01
    assert abs(cases / total - features.DOUBT) < 0.01
    assert abs(both / total - letters / total * cases / total) < 0.005


def test_a_letters_expert_keeps_the_base_on_long_strings_without_its_letter() -> None:
    prompts = mini_experts.other_prompts("letters-3", 600, 0)
    strings = [prompt[3:-4] for prompt in prompts if prompt.startswith("Q: ")]
    assert 100 < len(strings) < 300
    assert max(map(len, strings)) > 24
    assert not any(mini.REPLACES["letters-3"][0] in string for string in strings)
