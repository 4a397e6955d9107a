"""TASKS: every task by name, written out."""

from __future__ import annotations

from workbench.evaluate.tasks.mini import Letters, MiniCode, MiniMath
from workbench.evaluate.tasks.task import Problem, Task

TASKS: dict[str, Task] = {
    "letters": Letters(),
    "letters_open": Letters(name="letters_open", open=True),
    "mini_math": MiniMath(),
    "mini_code": MiniCode(),
}

__all__ = ["TASKS", "Problem", "Task"]
