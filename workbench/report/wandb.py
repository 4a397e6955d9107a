"""Rows and samples to Weights & Biases: off, offline (no account, no network) or online.

    summary   letters/logit/exact_match, with its interval and number of samples beside it:
              letters/logit/exact_match_low, letters/logit/exact_match_high, letters/logit/n
    tables    comparison (one line a row), samples (one line a sample)
    config    the run's config.json

Offline runs land in FOLDER/wandb/offline-run-*; `wandb sync` sends them later. W&B itself is imported only
when it is asked for.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from workbench.errors import WorkbenchError
from workbench.evaluate.records import Sample
from workbench.report.summary import Row

Mode = Literal["off", "offline", "online"]
ENDINGS = ("eos", "stop", "length")
_OFFLINE = "Give --wandb offline (`wandb sync` sends the run later), or --wandb off."


def check(mode: Mode) -> None:
    """Raises WorkbenchError if `mode` is online and nobody is logged in; asks neither user nor network."""
    if mode == "online":
        with _session(mode):
            pass


def log_run(
    mode: Mode, rows: Sequence[Row], samples: Sequence[Sample], config: Mapping[str, Any], folder: Path
) -> None:
    """Logs one run, named as its folder; raises WorkbenchError if it cannot."""
    if mode == "off":
        return
    folder = folder.resolve()
    with _home(folder / "wandb"), _session(mode) as wandb:
        run = wandb.init(
            project="workbench",
            mode=mode,
            dir=folder,
            config=dict(config),
            name=folder.name,
            reinit="create_new",
            settings=_settings(wandb, mode),
        )
        try:
            names = list(dict.fromkeys(name for sample in samples for name in sample.scores))
            run.log(
                {
                    "comparison": wandb.Table(columns=list(_COMPARISON), data=[_line(row) for row in rows]),
                    "samples": wandb.Table(
                        columns=[*_SAMPLES, *names],
                        data=[
                            [*(getattr(s, column) for column in _SAMPLES), *(s.scores.get(n) for n in names)]
                            for s in samples
                        ],
                    ),
                }
            )
            for row in rows:
                run.summary.update(_metrics(row))
        except BaseException:
            run.finish(exit_code=1)
            raise
        run.finish()


_COMPARISON = ("task", "method", "metric", "n", "score", "low", "high", *ENDINGS, "tokens")
_SAMPLES = ("task", "method", "id", "prompt", "reference", "text", "finish", "tokens")


def _line(row: Row) -> list[Any]:
    ended = [row.ended.get(why, 0) for why in ENDINGS]
    return [row.task, row.method, row.metric, row.n, row.score, row.low, row.high, *ended, row.tokens]


def _metrics(row: Row) -> dict[str, float]:
    name = f"{row.task}/{row.method}"
    return {
        **{f"{name}/{score}": value for score, value in row.scores.items()},
        f"{name}/{row.metric}": row.score,
        f"{name}/{row.metric}_low": row.low,
        f"{name}/{row.metric}_high": row.high,
        f"{name}/n": row.n,
        **{f"{name}/overlap_{part}": value for part, value in row.overlap.items()},
    }


def _settings(wandb: Any, mode: Mode) -> Any:
    return wandb.Settings(
        mode=mode,
        silent=True,  # which also keeps it from asking for an account at the terminal
        console="off",
        disable_git=True,
        save_code=False,
        x_disable_stats=True,
        init_timeout=30,
    )


@contextmanager
def _session(mode: Mode) -> Iterator[Any]:
    """The library, logged in if it must be, with its process gone afterwards and its errors as ours."""
    import wandb

    alone = wandb.run is None
    try:
        wandb.setup(_settings(wandb, mode))
        if mode == "online" and alone and not wandb.login(prompt=False, verify=False):
            raise WorkbenchError(
                "not logged in to Weights & Biases",
                way_out=f"Run `wandb login`, or set WANDB_API_KEY. {_OFFLINE}",
            )
        yield wandb
    except (wandb.Error, OSError) as error:
        reason = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise WorkbenchError(f"Weights & Biases ({mode}) cannot log the run", reason, _OFFLINE) from error
    finally:
        if alone:
            wandb.teardown()


@contextmanager
def _home(folder: Path) -> Iterator[None]:
    """Keeps what W&B stages and caches in the run folder, where the user has not said otherwise.

    A table waits there until it is sent; in the home folder it would be left behind when the run is moved
    or removed.
    """
    new = {name: str(folder) for name in ("WANDB_DATA_DIR", "WANDB_CACHE_DIR") if not os.environ.get(name)}
    os.environ.update(new)
    try:
        yield
    finally:
        for name in new:
            del os.environ[name]
