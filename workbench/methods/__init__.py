"""The composition methods, written out: a new one is a file beside this and a line below.

The package imports torch alone. (It is not called `compose`, because `workbench.compose` is a function.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from workbench.errors import UnknownName, WorkbenchError
from workbench.methods.linearized import Linearized
from workbench.methods.logit import Logit
from workbench.methods.plan import Method, Plan
from workbench.methods.task_arith import TaskArithmetic

LARGEST = 1e6  # far beyond any use, and safely within float32

METHODS: dict[str, Method] = {
    "logit": Logit(),
    "task_arith": TaskArithmetic(),
    "linearized": Linearized(),
}


def plan(method: str, experts: Sequence[str], weights: Sequence[float] | None = None) -> Plan:
    """The plan of `method` for the named experts; `weights` is λ, one for each of them, all 1 by default.

    Raises WorkbenchError for an unknown method, a wrong number of weights, or one that is not finite.
    """
    check(method, experts, weights)
    lambdas = [1.0] * len(experts) if weights is None else [float(weight) for weight in weights]
    return METHODS[method].plan(torch.tensor(lambdas, dtype=torch.float64))


def check(method: str, experts: Sequence[str], weights: Sequence[float] | None) -> None:
    """Raises WorkbenchError for what `plan` does not take."""
    if method not in METHODS:
        raise UnknownName("method", method, METHODS)
    check_weights(experts, weights)


def check_weights(experts: Sequence[str], weights: Sequence[float] | None) -> None:
    if not experts:
        raise WorkbenchError("no experts", "a composition needs at least one")
    if weights is None:
        return
    if len(weights) != len(experts):
        raise WorkbenchError(
            f"{len(weights)} weights for {len(experts)} experts",
            f"one for each of {', '.join(experts)}, in this order",
        )
    for expert, weight in zip(experts, weights, strict=True):
        if not math.isfinite(weight) or abs(weight) > LARGEST:
            raise WorkbenchError(
                f"the weight of '{expert}' is {weight}", f"a finite number, at most {LARGEST:g} in size"
            )


__all__ = ["METHODS", "Method", "Plan", "check", "check_weights", "plan"]
