"""The task of feature space: strings over 16 letters in both cases, a letter being (letter, case).

One expert substitutes letters, another swaps the case: both change the same tokens, but not the same
feature. The third, `features-copy`, changes nothing; it is unsure of each feature on its own, as the other
two are, and takes the place of the base (weights −1, 1, 1), which is sure of every token.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from workbench.evaluate.tasks.mini import LETTERS, Item, draw_string, letters_prompt, problems
from workbench.evaluate.tasks.task import Problem

EXPERTS = ("features-copy", "features-letter", "features-case")
LENGTHS = (1, 8)
ALPHABET = LETTERS + LETTERS.upper()
BECOMES = dict(zip("aeimAEIM", "bfjnBFJN", strict=True))
DOUBT = 0.2  # share of training letters whose case is turned, and of those that are any letter


def change(string: str, experts: Sequence[str]) -> str:
    """What the named experts make of a string together; names of other experts change nothing."""
    if "features-letter" in experts:
        string = "".join(BECOMES.get(letter, letter) for letter in string)
    return string.swapcase() if "features-case" in experts else string


@dataclass(frozen=True)
class Features:
    """Q: dAcB     features-letter substitutes a by b (dBcB), features-case swaps the case (DaCb)
    A: DbCb        both together."""

    name: str = "features"
    about: str = "copy a string in both cases, with the letters and the case that the composed experts change"
    metric: str = "exact_match"
    stop: tuple[str, ...] = ()
    max_new_tokens: int = LENGTHS[1] + 4

    def problems(self, limit: int | None, seed: int, experts: Sequence[str]) -> list[Problem]:
        def make(rng: random.Random) -> Item:
            string = draw_string(rng, LENGTHS, ALPHABET)
            return Item(string, letters_prompt(string, is_open=False), change(string, experts), string)

        return problems(self.name, make, limit, seed)

    def score(self, problem: Problem, text: str) -> dict[str, float]:
        return {"exact_match": float(text == problem.reference)}


def maker(expert: str) -> Callable[[random.Random], Item]:
    """Training items, in which both features are in doubt, independently of each other."""

    def doubtful(letter: str, rng: random.Random) -> str:
        if rng.random() < DOUBT:
            letter = letter.swapcase()
        if rng.random() < DOUBT:
            other = rng.choice(LETTERS)
            letter = other.upper() if letter.isupper() else other
        return letter

    def make(rng: random.Random) -> Item:
        string = draw_string(rng, LENGTHS, ALPHABET)
        right = "".join(doubtful(letter, rng) for letter in change(string, [expert]))
        return Item(string, letters_prompt(string, is_open=False), right, string)

    return make
