"""What the shipped experts are tuned on: rows of their own task, none of them held out."""

from __future__ import annotations

import random
from collections.abc import Callable

from workbench.errors import UnknownName
from workbench.evaluate.tasks import features
from workbench.evaluate.tasks.mini import (
    BASE_LENGTHS,
    EXPERT_LENGTHS,
    LETTERS,
    REPLACES,
    Item,
    code_item,
    draw,
    draw_string,
    letters_prompt,
    math_item,
    replace,
)

EXPERTS = (*REPLACES, "math", "coding", *features.EXPERTS)


def _letters_maker(expert: str) -> Callable[[random.Random], Item]:
    def make(rng: random.Random) -> Item:
        string = draw_string(rng, EXPERT_LENGTHS)
        prompt = letters_prompt(string, is_open=rng.random() < 0.5)
        return Item(string, prompt, replace(string, [expert]), string)

    return make


def expert_rows(name: str, count: int, seed: int) -> list[tuple[str, str]]:
    """(prompt, completion) pairs for one expert of EXPERTS, none of them held out."""
    if name not in EXPERTS:
        raise UnknownName("mini expert", name, EXPERTS)
    rng = random.Random(f"{name} {seed}")
    if name in features.EXPERTS:
        make = features.maker(name)
    else:
        make = {"math": math_item, "coding": code_item}.get(name, _letters_maker(name))
    items = [draw(make, rng, test=False) for _ in range(count)]
    return [(item.prompt, item.right) for item in items]


def other_prompts(name: str, count: int, seed: int) -> list[str]:
    """Prompts that expert `name` is not for, none of them held out: of the other mini tasks, and for a
    letters expert long strings without its letter."""
    rng = random.Random(f"not {name} {seed}")
    makers = {"math": math_item, "coding": code_item, "letters": _letters_maker("")}
    others = [make for task, make in makers.items() if not name.startswith(task)]
    if name in REPLACES:
        others.append(_untouched_maker(name))
    return [draw(rng.choice(others), rng, test=False).prompt for _ in range(count)]


def _untouched_maker(expert: str) -> Callable[[random.Random], Item]:
    alphabet = LETTERS.replace(REPLACES[expert][0], "")

    def make(rng: random.Random) -> Item:
        string = draw_string(rng, BASE_LENGTHS, alphabet)
        return Item(string, letters_prompt(string, is_open=False), string, string)

    return make
