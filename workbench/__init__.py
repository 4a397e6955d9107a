"""Compose LoRA experts of one language model: logit composition, task arithmetic, side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workbench.errors import WorkbenchError

if TYPE_CHECKING:
    from workbench.decode.causal_lm import compose

__all__ = ["WorkbenchError", "compose"]


def __getattr__(name: str) -> Any:
    # torch takes seconds to import; `workbench --help` does without it.
    if name == "compose":
        from workbench.decode.causal_lm import compose

        return compose
    raise AttributeError(f"module 'workbench' has no attribute '{name}'")
