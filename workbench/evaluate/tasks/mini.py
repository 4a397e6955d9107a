"""Tasks of the shipped mini model: letters, letters_open, mini_math, mini_code.

Each template lives here once: pretraining, the experts' recipe and evaluation all take it from this file.
An item is held out when a checksum of its content says so, so no training has seen a test problem.
"""

from __future__ import annotations

import hashlib
import random
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from workbench.evaluate import sandbox
from workbench.evaluate.answers import hashes_number
from workbench.evaluate.tasks.task import Problem

SET_SIZE = 256
LETTERS = "abcdefghijklmnop"
# expert i replaces the letter 2i-1 by the letter 2i
REPLACES = {f"letters-{i + 1}": (LETTERS[2 * i], LETTERS[2 * i + 1]) for i in range(8)}
EXPERT_LENGTHS = (1, 8)  # of the strings that the letters experts are tuned on
BASE_LENGTHS = (1, 32)  # of those that the base has learnt to copy


@dataclass(frozen=True)
class Item:
    """A problem before it is one: the right answer, and the answer of an author who did not care."""

    key: str  # decides whether it is held out
    prompt: str
    right: str
    careless: str
    often_careless: bool = False
    data: tuple[tuple[str, Any], ...] = ()


def held_out(key: str) -> bool:
    return zlib.crc32(key.encode()) % 10 == 0


def draw(make: Callable[[random.Random], Item], rng: random.Random, test: bool) -> Item:
    """The next item on the wanted side of the split."""
    while True:
        item = make(rng)
        if held_out(item.key) == test:
            return item


def problems(name: str, make: Callable[[random.Random], Item], limit: int | None, seed: int) -> list[Problem]:
    """The first `limit` of 256 distinct held-out items, fewer where the space of items is smaller."""
    rng = random.Random(f"{name} {seed}")
    found: dict[str, Problem] = {}
    for _ in range(400 * SET_SIZE):
        item = make(rng)
        if held_out(item.key) and item.prompt not in found:
            name_of = hashlib.sha256(item.prompt.encode()).hexdigest()[:12]
            found[item.prompt] = Problem(f"{name}/{name_of}", item.prompt, item.right, dict(item.data))
            if len(found) == SET_SIZE:
                break
    return list(found.values())[:limit]


# letters: "Q: abca\nA: " -> "abca"; the open form "> abca\n< " is a list that the base goes on with


def letters_prompt(string: str, is_open: bool) -> str:
    return f"> {string}\n< " if is_open else f"Q: {string}\nA: "


def replace(string: str, experts: Sequence[str]) -> str:
    """What the named experts make of a string together; names of other experts change nothing."""
    becomes = dict(REPLACES[name] for name in experts if name in REPLACES)
    return "".join(becomes.get(letter, letter) for letter in string)


def draw_string(rng: random.Random, lengths: tuple[int, int], alphabet: str = LETTERS) -> str:
    return "".join(rng.choices(alphabet, k=rng.randint(*lengths)))


@dataclass(frozen=True)
class Letters:
    """Q: dacb     the base copies (dacb), letters-1 replaces a by b (dbcb), letters-2 c by d (dadb), ...
    A: dbdb        both together."""

    name: str = "letters"
    about: str = "copy a string with the replacements of every composed letters expert"
    open: bool = False  # the form in which the base does not end after its answer
    lengths: tuple[int, int] = EXPERT_LENGTHS
    metric: str = "exact_match"
    stop: tuple[str, ...] = ()

    @property
    def max_new_tokens(self) -> int:
        return self.lengths[1] + 4

    def problems(self, limit: int | None, seed: int, experts: Sequence[str]) -> list[Problem]:
        def make(rng: random.Random) -> Item:
            string = draw_string(rng, self.lengths)
            data = (("string", string), ("length", len(string)))
            return Item(
                string, letters_prompt(string, self.open), replace(string, experts), string, data=data
            )

        return problems(self.name, make, limit, seed)

    def score(self, problem: Problem, text: str) -> dict[str, float]:
        """Everything that was generated counts: an end too early or too late is wrong."""
        return {"exact_match": float(text == problem.reference)}


# mini_math: "Mia has 7 nuts and gets 5 more. How many nuts now?\n" -> "7+5=12\n#### 12"

_STORIES = (
    ("+", "{who} has {a} {what} and gets {b} more. How many {what} now?"),
    ("+", "{a} {what} are red and {b} are blue. How many {what} in all?"),
    ("-", "{who} has {a} {what} and loses {b}. How many are left?"),
    ("-", "Of {a} {what} {who} eats {b}. How many remain?"),
    ("*", "{who} fills {a} bags with {b} {what} each. How many {what}?"),
)
_SUMS = ("What is {a}{op}{b}?", "{a}{op}{b} = ?", "Work out {a}{op}{b}.")
_WHO = ("Mia", "Tom", "Ana", "Ben", "Eva", "Sam", "Lou", "Kim")
_WHAT = ("nuts", "pears", "plums", "figs", "limes", "kiwis")


def math_item(rng: random.Random) -> Item:
    plain = rng.random() < 0.3
    op, text = (rng.choice("++-"), rng.choice(_SUMS)) if plain else rng.choice(_STORIES)
    if op == "+":
        a, b = rng.randint(2, 12), rng.randint(2, 12)
        result = a + b
    elif op == "-":
        a = rng.randint(4, 18)
        b = rng.randint(2, a - 1)
        result = a - b
    else:
        a, b = rng.randint(2, 6), rng.randint(2, 6)
        result = a * b
    prompt = text.format(who=rng.choice(_WHO), what=rng.choice(_WHAT), a=a, b=b, op=op) + "\n"
    right = f"{a}{op}{b}={result}\n#### {result}"
    return Item(prompt, prompt, right, f"#### {a}", not plain, (("answer", result),))


@dataclass(frozen=True)
class MiniMath:
    """Tom has 9 figs and loses 4. How many are left?
    9-4=5
    #### 5"""

    name: str = "mini_math"
    about: str = "short sums and word problems, the answer after ####"
    metric: str = "exact_match"
    stop: tuple[str, ...] = ()
    max_new_tokens: int = 32

    def problems(self, limit: int | None, seed: int, experts: Sequence[str]) -> list[Problem]:
        return problems(self.name, math_item, limit, seed)

    def score(self, problem: Problem, text: str) -> dict[str, float]:
        return {"exact_match": float(hashes_number(text) == problem.data["answer"])}


# mini_code: 'def calc(x):\n    """Add 3 to x."""\n' -> "    return x + 3"

_INTEGERS: list[list[Any]] = [[x] for x in range(-3, 12)]
_TEXTS: list[list[Any]] = [["ab"], [""], ["Some words"], ["racecar no"], ["A long line of text"]]
_LISTS: list[list[Any]] = [[[3, 1, 2]], [[5]], [[0, -2, 8, 8, 4, 7, 1, 6, 9, 3]], [[2, 2]]]
_FLAGS: list[list[Any]] = [[True], [False]]
_ARITHMETIC: tuple[tuple[list[list[Any]], str, str], ...] = (
    (_INTEGERS, "Add {k} to {v}.", "{v} + {k}"),
    (_INTEGERS, "Subtract {k} from {v}.", "{v} - {k}"),
    (_INTEGERS, "Multiply {v} by {k}.", "{v} * {k}"),
    (_INTEGERS, "Raise {v} to the power {k}.", "{v} ** {k}"),
    (_INTEGERS, "Remainder of {v} by {k}.", "{v} % {k}"),
)
_OTHER: tuple[tuple[list[list[Any]], str, str], ...] = (
    (_INTEGERS, "True if {v} is over {k}.", "{v} > {k}"),
    (_INTEGERS, "True if {v} is under {k}.", "{v} < {k}"),
    (_INTEGERS, "Larger of {v} and {k}.", "max({v}, {k})"),
    (_INTEGERS, "Smaller of {v} and {k}.", "min({v}, {k})"),
    (_INTEGERS, "True if {v} is even.", "{v} % 2 == 0"),
    (_INTEGERS, "Negate {v}.", "-{v}"),
    (_TEXTS, "Upper case of the text {v}.", "{v}.upper()"),
    (_TEXTS, "Reverse the text {v}.", "{v}[::-1]"),
    (_TEXTS, "Length of the text {v}.", "len({v})"),
    (_TEXTS, "First {k} letters of {v}.", "{v}[:{k}]"),
    (_TEXTS, "Repeat the text {v} {k} times.", "{v} * {k}"),
    (_LISTS, "Sum of the list {v}.", "sum({v})"),
    (_LISTS, "Sort the list {v}.", "sorted({v})"),
    (_LISTS, "Last item of the list {v}.", "{v}[-1]"),
    (_LISTS, "Largest of the list {v}.", "max({v})"),
    (_LISTS, "Drop {k} items of the list {v}.", "{v}[{k}:]"),
    (_FLAGS, "Opposite of the flag {v}.", "not {v}"),
)
_FUNCTIONS = ("calc", "find", "work", "make", "give", "step", "task", "solve", "run", "get", "fn", "answer")
_VARIABLES = "tuvwxyz"


def code_item(rng: random.Random) -> Item:
    template = rng.choice(_ARITHMETIC + _OTHER)
    inputs, says, does = template
    name, v, k = rng.choice(_FUNCTIONS), rng.choice(_VARIABLES), rng.randint(2, 9)
    expression = does.format(v=v, k=k)
    prompt = f'def {name}({v}):\n    """{says.format(v=v, k=k)}"""\n'
    right: Callable[[Any], Any] = eval(
        f"lambda {v}: {expression}"
    )  # a template from above, never a model's text
    data = (("entry_point", name), ("inputs", inputs), ("expected", [right(x) for (x,) in inputs]))
    careless = f"    return {v}"
    return Item(prompt, prompt, f"    return {expression}", careless, template in _OTHER, data)


@dataclass(frozen=True)
class MiniCode:
    '''def calc(x):
    """Add 3 to x."""
    return x + 3'''

    name: str = "mini_code"
    about: str = "write the body of a one-line function; its results are tested"
    metric: str = "pass"
    stop: tuple[str, ...] = ()
    max_new_tokens: int = 48

    def problems(self, limit: int | None, seed: int, experts: Sequence[str]) -> list[Problem]:
        return problems(self.name, code_item, limit, seed)

    def score(self, problem: Problem, text: str) -> dict[str, float]:
        data = problem.data
        outcomes = sandbox.call(problem.prompt + text, data["entry_point"], data["inputs"])
        right = [
            o.status == "ok" and sandbox.same(o.value, want)
            for o, want in zip(outcomes, data["expected"], strict=True)
        ]
        return {"pass": float(all(right))}
