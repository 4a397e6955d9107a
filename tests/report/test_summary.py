"""Samples to rows."""

from __future__ import annotations

import json
import random

import pytest

from workbench.evaluate.records import Sample
from workbench.evaluate.statistics import wilson
from workbench.report.summary import results_json, summarize


def sample(task: str, method: str, number: int, scores: dict[str, float], **more: object) -> Sample:
    made = {"prompt": "p", "reference": "r", "text": "t", "finish": "eos", "tokens": 4, **more}
    return Sample(task=task, method=method, id=f"{task}/{number}", scores=scores, **made)  # type: ignore[arg-type]


SAMPLES = [
    sample("sums", "logit", 0, {"strict": 1.0, "loose": 1.0}),
    sample("sums", "logit", 1, {"strict": 0.0, "loose": 1.0}, finish="length", tokens=10),
    sample("sums", "logit", 2, {"strict": 0.0, "loose": 0.0}, finish="stop", tokens=1),
    sample("sums", "logit", 3, {"strict": 0.0, "loose": 0.0}),
    sample("sums", "base", 0, {"strict": 0.0, "loose": 1.0}),
    sample("code", "base", 0, {"pass": 1.0}),
]
METRICS = {"code": "pass", "sums": "strict"}
METHODS = ["base", "math", "logit"]


def test_rows_by_hand() -> None:
    rows = summarize(SAMPLES, METRICS, METHODS)
    assert [(row.task, row.method) for row in rows] == [("code", "base"), ("sums", "base"), ("sums", "logit")]
    row = rows[-1]
    assert (row.metric, row.n, row.score) == ("strict", 4, 0.25)
    assert (row.low, row.high) == wilson([1, 0, 0, 0])
    assert row.scores == {"strict": 0.25, "loose": 0.5}
    assert row.ended == {"eos": 2, "length": 1, "stop": 1}
    assert row.tokens == (4 + 10 + 1 + 4) / 4


def test_the_order_of_the_samples_does_not_matter() -> None:
    shuffled = random.Random(0).sample(SAMPLES, len(SAMPLES))
    assert shuffled != SAMPLES
    assert summarize(shuffled, METRICS, METHODS) == summarize(SAMPLES, METRICS, METHODS)


def test_the_order_of_the_rows_is_that_of_tasks_and_methods() -> None:
    rows = summarize(SAMPLES, dict(reversed(METRICS.items())), METHODS[::-1])
    assert [(row.task, row.method) for row in rows] == [("sums", "logit"), ("sums", "base"), ("code", "base")]


def test_a_leading_metric_that_no_task_scores_is_an_error_not_a_zero() -> None:
    with pytest.raises(KeyError, match="missing"):
        summarize(SAMPLES, {"sums": "missing"}, METHODS)


def test_overlap_is_averaged_where_every_sample_has_it() -> None:
    overlaps: list[dict[str, float]] = [{"share": 0.0, "shift": 0.5}, {"share": 0.5, "shift": 0.1}]
    both = [sample("sums", "logit", n, {"strict": 1.0}, overlap=o) for n, o in enumerate(overlaps)]
    (row,) = summarize(both, METRICS, METHODS)
    assert row.overlap == {"share": 0.25, "shift": 0.3}
    (row,) = summarize([*both, sample("sums", "logit", 2, {"strict": 1.0})], METRICS, METHODS)
    assert row.overlap == {}


def test_nothing_gives_no_rows() -> None:
    assert summarize([], METRICS, METHODS) == []
    assert summarize(SAMPLES, {}, METHODS) == []


def test_results_are_json_with_every_field() -> None:
    rows = summarize(SAMPLES, METRICS, METHODS)
    text = results_json(rows)
    assert text.endswith("\n")
    read = json.loads(text)
    assert [entry["method"] for entry in read] == ["base", "base", "logit"]
    assert read[-1] == {
        "task": "sums",
        "method": "logit",
        "metric": "strict",
        "n": 4,
        "score": 0.25,
        "low": rows[-1].low,
        "high": rows[-1].high,
        "scores": {"strict": 0.25, "loose": 0.5},
        "ended": {"eos": 2, "length": 1, "stop": 1},
        "tokens": 4.75,
        "overlap": {},
    }
