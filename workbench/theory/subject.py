"""The models that a check is run on: an engine with experts, and the prompts they are asked."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from workbench.decode.activity import Activity, Answer, measure
from workbench.decode.engine import Completion, Engine
from workbench.decode.sampling import Sampling
from workbench.evaluate.harness import Item, items
from workbench.evaluate.tasks import Task
from workbench.experts.bank import ExpertBank
from workbench.experts.lora import Expert, read_expert
from workbench.methods import METHODS
from workbench.methods.plan import Method, Plan, expert_plan
from workbench.models import Base, shipped_experts


@dataclass(frozen=True, eq=False)
class Subject:
    """A base, experts of it, and the prompts that they are asked."""

    base: Base
    experts: tuple[Expert, ...]
    asked: tuple[Item, ...] = ()
    batch_size: int = 64

    @cached_property
    def engine(self) -> Engine:
        return Engine(self.base, ExpertBank(self.base.model, self.experts))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(expert.name for expert in self.experts)

    def only(self, names: Sequence[str]) -> Subject:
        """The same with some of the experts, in the order of `names`."""
        by_name = {expert.name: expert for expert in self.experts}
        return replace(self, experts=tuple(by_name[name] for name in names))

    def plan(self, method: str | Method, names: Sequence[str] | None = None) -> Plan:
        """Of `method` with λ = 1 for `names`, by default all, and 0 for the other experts."""
        chosen = METHODS[method] if isinstance(method, str) else method
        weights = [float(names is None or name in names) for name in self.names]
        return chosen.plan(torch.tensor(weights, dtype=torch.float64))

    def alone(self, name: str) -> Plan:
        return expert_plan(len(self.names), self.names.index(name))

    def answers(self, plan: Plan, asked: Sequence[Item]) -> list[Completion]:
        """One for each item, in their order."""
        batches = self.engine.generate(plan, [item.request for item in asked], self.batch_size)
        by_id = {completion.id: completion for batch in batches for completion in batch}
        return [by_id[item.request.id] for item in asked]

    def success(self, plan: Plan, asked: Sequence[Item]) -> list[float]:
        """The leading score of each answer."""

        def score(item: Item, answer: Completion) -> float:
            return item.task.score(item.problem, answer.text)[item.task.metric]

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            return list(pool.map(score, asked, self.answers(plan, asked)))

    def sequences(self, asked: Sequence[Item], completions: Sequence[Completion]) -> list[Answer]:
        """(prompt ids, answer ids) of each completion."""
        encode = self.base.encode
        return [(encode(i.request.prompt), list(c.ids)) for i, c in zip(asked, completions, strict=True)]

    def activity(self, sequences: Sequence[Answer]) -> list[Activity]:
        batch = max(1, self.batch_size // (len(self.experts) + 1))
        return measure(self.base, self.engine.bank, sequences, batch)


def ask(tasks: Sequence[Task], experts: Sequence[str], limit: int | None, seed: int) -> tuple[Item, ...]:
    made = items(tasks, experts=experts, limit=limit, seed=seed, sampling=Sampling(), max_new_tokens=None)
    return tuple(made)


def shipped_subject(base: Base, batch_size: int) -> Subject:
    """The shipped base with every expert that ships."""
    experts = [read_expert(name, str(path)) for name, path in shipped_experts(base.name).items()]
    return Subject(base, tuple(experts), batch_size=batch_size)
