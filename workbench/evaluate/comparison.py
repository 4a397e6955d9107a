"""What one comparison is: its plans by name, and the configuration that identifies it."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

from workbench import methods
from workbench.evaluate.harness import Item, problems_sha256
from workbench.evaluate.records import FREE
from workbench.experts.lora import Expert
from workbench.methods.plan import Plan, base_plan, expert_plan
from workbench.models import CHECKPOINTS, Base

_LIBRARIES = ("compose-workbench", "torch", "transformers", "tokenizers")


def plans(experts: Sequence[str], names: Sequence[str], weights: Sequence[float] | None) -> dict[str, Plan]:
    """The base, every expert alone, and each of the composition methods `names`."""
    k = len(experts)
    return {
        "base": base_plan(k),
        **{name: expert_plan(k, i) for i, name in enumerate(experts)},
        **{name: methods.plan(name, experts, weights) for name in names},
    }


def config(
    *,
    base: Base,
    experts: Sequence[Expert],
    methods: Sequence[str],
    weights: Sequence[float] | None,
    items: Sequence[Item],
    settings: Mapping[str, Any],
    batch_size: int,
    command: Sequence[str],
) -> dict[str, Any]:
    """Everything that is needed to run the comparison again; see `records.FREE` for what may change."""
    hashes = problems_sha256(items)
    tasks = {item.task.name: item.task for item in items}
    return {
        "base": base.sha256,
        "base_settings": base.settings_sha256,
        "experts": {expert.name: expert.sha256 for expert in experts},
        "methods": list(methods),
        "baselines": ["base", *(expert.name for expert in experts)],
        "weights": list(weights) if weights is not None else [1.0] * len(experts),
        "tasks": {
            name: {
                "metric": task.metric,
                "stop": list(task.stop),
                "max_new_tokens": settings["max_new_tokens"] or task.max_new_tokens,
                "problems_sha256": hashes[name],
            }
            for name, task in tasks.items()
        },
        **settings,
        "dtype": str(base.model.dtype).removeprefix("torch."),
        "versions": {"python": platform.python_version(), **{name: version(name) for name in _LIBRARIES}},
        "paths": {"base": base.name, **{expert.name: _path(expert.path) for expert in experts}},
        "batch_size": batch_size,
        "command": list(command),
    }


def _path(path: str) -> str:
    """A shipped expert by its place in the project, wherever that is installed."""
    return path.removeprefix(f"{CHECKPOINTS.parent}/")


def identity(config: Mapping[str, Any]) -> str:
    """A hash of all that the samples depend on."""
    fixed = {name: value for name, value in config.items() if name not in FREE}
    return hashlib.sha256(json.dumps(fixed, sort_keys=True).encode()).hexdigest()
