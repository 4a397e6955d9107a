"""Really logs offline, in a process of its own, and reads back what W&B wrote to the disk."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

# Logs, then says what is left: the library, child processes, changed variables of the environment.
PROGRAM = """
import json, os, sys
from pathlib import Path
from workbench.errors import WorkbenchError
from workbench.evaluate.records import Sample
from workbench.report.summary import summarize
from workbench.report.wandb import check, log_run

mode, folder = sys.argv[1], Path(sys.argv[2])
samples = [
    Sample(task, method, f"{task}/{number}", "p\\u2028", "r", "</script> é", ("length", "eos", "eos")[number],
           number, {metric: float(number % 2), **({"loose": 1.0} if task == "letters" else {})})
    for task, metric in (("letters", "exact_match"), ("code", "pass"))
    for method in ("base", "v1.0-expert", "logit")
    for number in range(3)
]
rows = summarize(samples, {"letters": "exact_match", "code": "pass"}, ["base", "v1.0-expert", "logit"])
config = {"methods": ["logit"], "weights": [1.0], "limit": None, "experts": {"v1.0-expert": "ab"}, "n": 1}
before = dict(os.environ)
try:
    check(mode)
    log_run(mode, rows, samples, config, folder)
except WorkbenchError as error:
    print("error:", error)
    sys.exit(2)
children = Path("/proc/self/task").glob("*/children")
left = {
    "wandb": "wandb" in sys.modules,
    "children": "".join(c.read_text() for c in children),
    "environment": sorted(set(os.environ.items()) ^ set(before.items())),
}
print(json.dumps(left))
"""


def environment(home: Path, **more: str) -> dict[str, str]:
    """No account, no settings of this machine, and no network: every proxy is a closed port."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("WANDB_") and "proxy" not in name.lower()
    }
    closed = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), "http://127.0.0.1:9")
    root = str(Path(__file__).parents[2])
    return {**kept, **closed, "HOME": str(home), "NETRC": str(home / "netrc"), "PYTHONPATH": root, **more}


def log(mode: str, folder: Path, home: Path, **more: str) -> subprocess.CompletedProcess[str]:
    folder.mkdir()
    command = [sys.executable, "-c", PROGRAM, mode, str(folder)]
    options: dict[str, Any] = {"cwd": folder.parent, "stdin": subprocess.DEVNULL, "capture_output": True}
    return subprocess.run(command, env=environment(home, **more), text=True, timeout=120, **options)


def inspect(folder: Path, *options: str) -> str:
    """What `wandb` itself reads in the run's log."""
    [run] = (folder / "wandb").glob("offline-run-*")
    command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", *options, str(run)]
    env = environment(folder)
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, env=env).stdout


def table(folder: Path, name: str) -> dict[str, Any]:
    [file] = (folder / "wandb").glob(f"offline-run-*/files/media/table/{name}_*.table.json")
    read: dict[str, Any] = json.loads(file.read_text())
    return read


@pytest.fixture(scope="module")
def offline(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """A run logged with a home folder that cannot be written to."""
    folder = tmp_path_factory.mktemp("offline") / "compare-1"
    return folder, log("offline", folder, Path("/proc/nobody"))


def test_offline_is_quiet_and_leaves_no_process(
    offline: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    folder, result = offline
    assert result.stderr == ""
    assert result.returncode == 0
    assert json.loads(result.stdout) == {"wandb": True, "children": "", "environment": []}
    assert [entry.name for entry in folder.iterdir()] == ["wandb"]


def test_offline_logs_config_summary_and_tables(
    offline: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    folder, _ = offline
    read = json.loads(inspect(folder, "--summary"))
    assert (read["project"], read["name"], read["state"], read["exit_code"]) == (
        "workbench",
        "compare-1",
        "finished",
        0,
    )
    config = {"methods": ["logit"], "weights": [1.0], "limit": None, "experts": {"v1.0-expert": "ab"}, "n": 1}
    assert read["config"] == config
    summary = {name: value for name, value in read["summary"].items() if "/" in name}
    assert sorted({name.rpartition("/")[0] for name in summary}) == [
        f"{task}/{method}" for task in ("code", "letters") for method in ("base", "logit", "v1.0-expert")
    ]
    # one of three right: Wilson's interval is 0.0615 to 0.7923
    wanted = {
        "exact_match": 1 / 3,
        "exact_match_low": 0.061492,
        "exact_match_high": 0.792340,
        "n": 3,
        "loose": 1,
    }
    for name, value in wanted.items():
        assert summary[f"letters/v1.0-expert/{name}"] == pytest.approx(value, abs=1e-6)
    assert summary["code/logit/pass"] == pytest.approx(1 / 3)
    assert "code/logit/loose" not in summary

    comparison = table(folder, "comparison")
    assert len(comparison["data"]) == 6
    first = dict(zip(comparison["columns"], comparison["data"][1], strict=True))
    assert first == {
        "task": "letters",
        "method": "v1.0-expert",
        "metric": "exact_match",
        "n": 3,
        "score": 1 / 3,
        "low": pytest.approx(0.061492, abs=1e-6),
        "high": pytest.approx(0.792340, abs=1e-6),
        "eos": 2,
        "stop": 0,
        "length": 1,
        "tokens": 1.0,
    }
    samples = table(folder, "samples")
    assert len(samples["data"]) == 18
    assert dict(zip(samples["columns"], samples["data"][-1], strict=True)) == {
        "task": "code",
        "method": "logit",
        "id": "code/2",
        "prompt": "p\u2028",
        "reference": "r",
        "text": "</script> é",
        "finish": "eos",
        "tokens": 2,
        "exact_match": None,
        "loose": None,
        "pass": 0.0,
    }


def test_both_tables_are_in_the_log_with_what_a_later_sync_needs(
    offline: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    folder, _ = offline
    records = [json.loads(line) for line in inspect(folder).splitlines()]
    [history] = [record["history"]["item"] for record in records if record["type"] == "history"]
    assert (history["comparison.nrows"], history["samples.nrows"]) == (6, 18)
    artifacts = [record["artifact"] for record in records if record["type"] == "artifact"]
    assert len(artifacts) == 2
    for artifact in artifacts:
        for content in artifact["manifest"]["contents"]:
            staged = Path(content["local_path"])
            assert staged.is_relative_to(folder.resolve())
            assert staged.stat().st_size == int(content["size"])


def test_off_never_imports_the_library(tmp_path: Path) -> None:
    result = log("off", tmp_path / "run", tmp_path)
    assert result.returncode == 0
    assert json.loads(result.stdout) == {"wandb": False, "children": "", "environment": []}
    assert list((tmp_path / "run").iterdir()) == []


def test_online_without_an_account_is_one_line_and_no_question_even_at_a_terminal(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    try:
        child = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, "online", str(tmp_path)],
            env=environment(tmp_path),
            stdin=theirs,
            stderr=theirs,
            stdout=subprocess.PIPE,
            text=True,
        )
        printed, _ = child.communicate(timeout=60)
        os.set_blocking(ours, False)
        with pytest.raises(BlockingIOError):
            os.read(ours, 1)
    finally:
        os.close(ours)
        os.close(theirs)
    assert child.returncode == 2
    assert printed.splitlines() == [printed.rstrip("\n")]
    assert printed.startswith("error: not logged in to Weights & Biases. Run `wandb login`")
    assert "--wandb offline" in printed


def test_a_folder_that_cannot_be_written_to_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "wandb").write_text("a file where W&B wants its folder")
    command = [sys.executable, "-c", PROGRAM, "offline", str(tmp_path / "run")]
    options: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 120}
    result = subprocess.run(command, env=environment(tmp_path), **options)
    assert result.returncode == 2, result.stderr
    assert len(result.stdout.splitlines()) == 1
    assert result.stdout.startswith("error: Weights & Biases (offline) cannot log the run")
