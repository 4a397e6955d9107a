"""TASKS: every task by name, written out."""

from __future__ import annotations

from workbench.evaluate.tasks.features import Features
from workbench.evaluate.tasks.mini import Letters, MiniCode, MiniMath
from workbench.evaluate.tasks.task import Problem, Task

TASKS: dict[str, Task] = {
    "letters": Letters(),
    "letters_open": Letters(
        "letters_open", "the same, in a form that the base alone would go on with", open=True
    ),
    "features": Features(),
    "mini_math": MiniMath(),
    "mini_code": MiniCode(),
}

__all__ = ["TASKS", "Problem", "Task"]
