"""Methods × tasks -> samples. It knows plans by their names only, and tasks by their protocol."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from itertools import repeat

import torch

from workbench.decode.activity import Activity, Answer, calibrate, measure
from workbench.decode.engine import Completion, Engine, Request
from workbench.decode.sampling import Sampling
from workbench.evaluate.records import RunFolder, Sample
from workbench.evaluate.tasks import Problem, Task
from workbench.methods.plan import Plan

CALIBRATION = 16  # right answers of each task


@dataclass(frozen=True)
class Item:
    """One problem of one task, and the request that asks it."""

    task: Task
    problem: Problem
    request: Request


def items(
    tasks: Sequence[Task],
    *,
    experts: Sequence[str],
    limit: int | None,
    seed: int,
    sampling: Sampling,
    max_new_tokens: int | None,
) -> list[Item]:
    """Every problem of every task, ready to ask; the same for all methods."""
    made = []
    for task in tasks:
        for problem in task.problems(limit, seed, experts):
            request = Request(
                id=f"{task.name}/{problem.id}",
                prompt=problem.prompt,
                max_new_tokens=max_new_tokens or task.max_new_tokens,
                stop=task.stop,
                sampling=sampling,
                seed=_seed(seed, task.name, problem.id),
            )
            made.append(Item(task, problem, request))
    return made


def problems_sha256(made: Sequence[Item]) -> dict[str, str]:
    """A hash of each task's problems, for the record."""
    texts: dict[str, list[str]] = {}
    for item in made:
        texts.setdefault(item.task.name, []).append(json.dumps(asdict(item.problem), default=str))
    return {name: hashlib.sha256("\n".join(lines).encode()).hexdigest() for name, lines in texts.items()}


def run(
    engine: Engine,
    plans: Mapping[str, Plan],
    made: Sequence[Item],
    folder: RunFolder,
    batch_size: int,
    on_samples: Callable[[str, int], None],
    compositions: Collection[str] = (),
) -> list[Sample]:
    """Decodes and scores what `folder` does not hold yet; `on_samples(method, count)` hears of progress.
    Along the answers of `compositions` the overlap of two or more experts is measured.

    Raises WorkbenchError for a prompt that does not fit, before any model is run.
    """
    engine.check([item.request for item in made])
    watched = set(compositions) if len(engine.bank.names) > 1 else set()
    overlap: _Overlap | None = None
    done = {sample.key for sample in folder.samples}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for method, plan in plans.items():
            waiting = {
                item.request.id: item
                for item in made
                if (item.task.name, method, item.problem.id) not in done
            }
            on_samples(method, len(made) - len(waiting))
            if waiting and method in watched:
                overlap = overlap or _Overlap(engine, made)
            requests = [item.request for item in waiting.values()]
            for batch in engine.generate(plan, requests, batch_size):
                asked = [waiting[completion.id] for completion in batch]
                overlaps = overlap(batch) if overlap and method in watched else repeat({})
                folder.append(pool.map(partial(_sample, method), asked, batch, overlaps))
                on_samples(method, len(batch))
    return folder.samples


class _Overlap:
    """Of the experts along answers: the `share` of positions at which two or more are active, and the `shift`
    that they move more than once, in probability per token. Active is a KL above `threshold`, in nats, which
    is calibrated on right answers."""

    def __init__(self, engine: Engine, made: Sequence[Item]) -> None:
        self.engine = engine
        self.prompts = {item.request.id: engine.base.encode(item.request.prompt) for item in made}
        by_task: dict[str, list[Answer]] = {}
        for item in made:
            answer = engine.base.encode_answer(item.problem.reference)
            by_task.setdefault(item.task.name, []).append((self.prompts[item.request.id], answer))
        right = self._measure([answer for answers in by_task.values() for answer in answers[:CALIBRATION]])
        kl, changes = torch.cat([a.kl for a in right], 1), torch.cat([a.changes for a in right], 1)
        self.threshold = float(f"{calibrate(kl, changes)[0]:.3g}")

    def __call__(self, batch: Sequence[Completion]) -> list[dict[str, float]]:
        found = self._measure([(self.prompts[completion.id], completion.ids) for completion in batch])
        return [
            {
                "share": round(float(((activity.kl > self.threshold).sum(0) > 1).float().mean()), 4),
                "shift": round(float(activity.excess.mean()), 4),  # digits that no batch size changes
                "threshold": self.threshold,
            }
            for activity in found
        ]

    def _measure(self, answers: Sequence[Answer]) -> list[Activity]:
        return measure(self.engine.base, self.engine.bank, answers, CALIBRATION)


def _sample(method: str, item: Item, completion: Completion, overlap: Mapping[str, float]) -> Sample:
    return Sample(
        task=item.task.name,
        method=method,
        id=item.problem.id,
        prompt=item.problem.prompt,
        reference=item.problem.reference,
        text=completion.text,
        finish=completion.finish,
        tokens=completion.tokens,
        scores=item.task.score(item.problem, completion.text),
        overlap=overlap,
    )


def _seed(*parts: object) -> int:
    """A seed for each problem, the same for every method, so that methods see the same random numbers."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:7])
