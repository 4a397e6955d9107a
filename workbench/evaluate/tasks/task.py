"""What a task is: problems in, scores out. It knows no model and no method.

problems(limit, seed, experts) -> [Problem]     fixed by its arguments
score(problem, text) -> {"exact_match": 0.0 or 1.0, ...}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True)
class Problem:
    id: str
    prompt: str
    reference: str  # the completion that an expert would have been trained on
    data: Mapping[str, Any] = field(default_factory=dict)  # what `score` needs besides


class Task(Protocol):
    """Attributes are the defaults of decoding; `metric` names the score that summaries lead with."""

    @property
    def name(self) -> str: ...
    @property
    def about(self) -> str: ...
    @property
    def metric(self) -> str: ...
    @property
    def stop(self) -> tuple[str, ...]: ...
    @property
    def max_new_tokens(self) -> int: ...

    def problems(self, limit: int | None, seed: int, experts: Sequence[str]) -> list[Problem]:
        """The first `limit` held-out problems (None: the whole set). `experts` names the composed ones,
        for a task whose right answer depends on them, like letters."""
        ...

    def score(self, problem: Problem, text: str) -> dict[str, float]:
        """Scores of one completion, each in [0, 1]; always the same keys."""
        ...
