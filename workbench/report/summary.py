"""Records to rows: the single source for the terminal, the page and Weights & Biases."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean

from workbench.evaluate.records import Sample
from workbench.evaluate.statistics import wilson


@dataclass(frozen=True)
class Row:
    """One task × method: the mean of its leading metric with a 95 % interval, every score's mean, and how
    many samples ended by "eos", "stop" and "length"."""

    task: str
    method: str
    metric: str
    n: int
    score: float
    low: float
    high: float
    scores: Mapping[str, float]
    ended: Mapping[str, int]
    tokens: float  # generated per sample, on average
    overlap: Mapping[str, float]  # of the experts, on average; empty where nothing is composed


def summarize(samples: Iterable[Sample], metrics: Mapping[str, str], methods: Sequence[str]) -> list[Row]:
    """Rows in the order of `metrics` (task -> its leading metric), then of `methods`."""
    groups: dict[tuple[str, str], list[Sample]] = {}
    for sample in samples:
        groups.setdefault((sample.task, sample.method), []).append(sample)
    rows = []
    for task, metric in metrics.items():
        for method in methods:
            group = groups.get((task, method), [])
            if not group:
                continue
            values = [sample.scores[metric] for sample in group]
            rows.append(
                Row(
                    task=task,
                    method=method,
                    metric=metric,
                    n=len(group),
                    score=fmean(values),
                    low=wilson(values)[0],
                    high=wilson(values)[1],
                    scores={name: fmean(s.scores[name] for s in group) for name in group[0].scores},
                    ended=dict(Counter(sample.finish for sample in group)),
                    tokens=fmean(sample.tokens for sample in group),
                    overlap={name: fmean(s.overlap[name] for s in group) for name in _overlap(group)},
                )
            )
    return rows


def _overlap(group: Sequence[Sample]) -> Sequence[str]:
    """What was measured of every sample."""
    return [name for name in group[0].overlap if all(name in sample.overlap for sample in group)]


def results_json(rows: Sequence[Row]) -> str:
    """The rows as the text of results.json."""
    return json.dumps([asdict(row) for row in rows], indent=2, ensure_ascii=False) + "\n"
