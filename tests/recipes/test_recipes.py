"""The recipes end to end, a few steps each, and what ships in checkpoints/mini."""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer

from workbench.errors import WorkbenchError
from workbench.evaluate.tasks import mini, mini_experts

ROOT = Path(__file__).resolve().parents[2]
MINI = ROOT / "checkpoints/mini"
Recipe = Callable[..., int]


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / f"recipes/{name}.py")
    assert spec
    assert spec.loader
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


expert, pretrain = load("train_expert"), load("pretrain_mini")


@pytest.fixture
def recipe(monkeypatch: pytest.MonkeyPatch) -> Recipe:
    """Runs the recipe in this process, in the project's folder; returns its exit status."""
    monkeypatch.chdir(ROOT)

    def run(*options: object) -> int:
        monkeypatch.setattr(sys, "argv", ["train_expert.py", *map(str, options)])
        status = expert.main()
        assert isinstance(status, int)
        return status

    return run


def launch(output: Path, *options: str) -> None:
    command = ["-m", "accelerate.commands.launch", *options, "recipes/train_expert.py"]
    config = [
        "--config",
        "recipes/mini/letters-1.yaml",
        "--steps",
        "3",
        "--batch_size",
        "8",
        "--rows",
        "200",
        "--keep",
        "0.1",
    ]
    done = subprocess.run(
        [sys.executable, *command, *config, "--output", str(output), "--cpu"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert '"rank": 4' in done.stdout
    assert re.search(r"(19\d|200) rows, 0 dropped", done.stdout)  # a sample without an end is not kept


def test_launched_twice_with_one_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    launch(tmp_path / "a")
    launch(tmp_path / "b")
    a, b = ((tmp_path / n / "adapter_model.safetensors").read_bytes() for n in "ab")
    assert a == b
    assert (tmp_path / "a/adapter_config.json").read_bytes() == (
        tmp_path / "b/adapter_config.json"
    ).read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]  # nothing half-made is left
    for folder in (tmp_path / "a", tmp_path / "b"):
        check_expert(folder, steps=3)


def test_two_processes_are_two(tmp_path: Path) -> None:
    two = "--multi_gpu --num_processes 2 --num_machines 1 --mixed_precision no --dynamo_backend no"
    launch(tmp_path / "a", *two.split())
    assert check_expert(tmp_path / "a", steps=3)["processes"] == 2


def check_expert(folder: Path, steps: int | None = None) -> dict[str, object]:
    names = {"adapter_config.json", "adapter_model.safetensors", "provenance.json"}
    assert {path.name for path in folder.iterdir()} == names
    provenance: dict[str, object] = json.loads((folder / "provenance.json").read_text())
    config = json.loads((folder / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == provenance["base"] == "checkpoints/mini"
    assert provenance["base_sha256"] == hashlib.sha256((MINI / "model.safetensors").read_bytes()).hexdigest()
    assert isinstance(provenance["config"], dict)
    assert steps is None or provenance["config"]["steps"] == steps
    assert isinstance(provenance["final_loss"], float)
    weights = load_file(folder / "adapter_model.safetensors")
    assert all(bool(torch.isfinite(w).all()) for w in weights.values())
    assert all(bool(w.any()) for name, w in weights.items() if "lora_B" in name)  # it has learnt something
    for name in ("adapter_config.json", "provenance.json"):
        text = (folder / name).read_text()
        assert str(ROOT) not in text
        assert "/tmp" not in text
        assert str(folder) not in text
    return provenance


def test_your_own_rows(tmp_path: Path, recipe: Recipe, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"prompt": f"say {i}\n", "completion": f"it is {i}", "text": "ignored"} for i in range(40)]
    rows.append({"prompt": "long\n", "completion": "a" * 200})
    data = tmp_path / "mine.jsonl.gz"
    with gzip.open(data, "wt") as file:
        file.write("\n".join(map(json.dumps, rows)))
    output = tmp_path / "own"
    assert recipe("--data", data, "--output", output, "--steps", 2, "--batch_size", 4, "--cpu", "true") == 0
    assert "40 rows, 1 dropped: over 128 tokens" in capsys.readouterr().out
    provenance = check_expert(output)
    assert provenance["rows"] == 40
    assert provenance["dropped"] == 1


def test_every_row_opens_once_ends_once_and_learns_the_completion_alone() -> None:
    tokenizer = AutoTokenizer.from_pretrained(MINI)
    pairs = [pair for name in mini_experts.EXPERTS for pair in mini_experts.expert_rows(name, 50, 0)]
    rows = expert.tokenize(pairs, tokenizer, 128)
    assert rows.dropped == 0
    for (prompt, completion), ids, labels in zip(pairs, rows.input_ids, rows.labels, strict=True):
        assert ids.count(tokenizer.bos_token_id) == ids.count(tokenizer.eos_token_id) == 1
        assert ids[0] == tokenizer.bos_token_id
        assert ids[-1] == labels[-1] == tokenizer.eos_token_id
        learnt = [label for label in labels if label != -100]
        assert tokenizer.decode(learnt[:-1]) == completion
        assert tokenizer(prompt)["input_ids"] == ids[: len(ids) - len(learnt)]  # what generation will see
        assert labels[: len(ids) - len(learnt)] == [-100] * (len(ids) - len(learnt))
    with pytest.raises(WorkbenchError, match="more than one <bos>"):
        expert.tokenize([("<bos>hi", "x")], tokenizer, 128)
    with pytest.raises(WorkbenchError, match="<eos> inside"):
        expert.tokenize([("hi", "x<eos>")], tokenizer, 128)
    with pytest.raises(WorkbenchError, match="no row of at most 4"):
        expert.tokenize([("hi", "long")], tokenizer, 4)


BAD: list[tuple[str, dict[str, str], str]] = [
    ("", {"data": "lettrs-1"}, "did you mean letters-1"),
    ("", {"data": "none.jsonl"}, "no data file 'none.jsonl'"),
    ("", {"base": "/none/such"}, "no folder '/none/such'"),
    ("", {"report_to": "wandbb"}, "did you mean wandb"),
    ("", {"target_modules": "q_proj k_projj"}, "unknown target module 'k_projj': did you mean k_proj"),
    ("", {"rank": "0"}, "rank is 0: an integer of at least 1"),
    ("", {"learning_rate": "nan"}, "learning_rate is nan"),
    ("", {"keep": "1"}, "keep is 1.0: from 0 to below 1"),
    ("", {"keep": "0.2", "data": "mine.jsonl"}, "0 with rows of your own"),
    ("", {"colour": "red"}, "--colour"),
    ("rnk: 3\n", {}, "did you mean rank"),
    ("rank: [1\n", {}, "is no YAML"),
    ("just words\n", {}, "is no mapping"),
]


@pytest.mark.parametrize(("text", "options", "says"), BAD)
def test_a_mistake_is_one_line_and_status_2(
    text: str,
    options: dict[str, str],
    says: str,
    tmp_path: Path,
    recipe: Recipe,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config, output = tmp_path / "c.yaml", tmp_path / "out"
    config.write_text(text or f"data: math\noutput: {output}\nsteps: 1\n")
    assert (
        recipe("--config", config, *[part for k, v in options.items() for part in (f"--{k}", *v.split())])
        == 2
    )
    error = capsys.readouterr().err
    assert says in error
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert not output.exists()


def test_more_mistakes(tmp_path: Path, recipe: Recipe, capsys: pytest.CaptureFixture[str]) -> None:
    assert recipe("--config", tmp_path / "none.yaml") == 2
    assert "no config file" in capsys.readouterr().err
    for line in ('{"prompt": "a"}', "not json", '{"prompt": "a", "completion": ""}', "[1]"):
        data = tmp_path / "bad.jsonl"
        data.write_text('{"prompt": "a", "completion": "b"}\n' + line + "\n")
        assert recipe("--data", data, "--output", tmp_path / "out") == 2
        assert "bad.jsonl" in capsys.readouterr().err
    (tmp_path / "bad.jsonl.gz").write_bytes(b"no gzip")
    assert recipe("--data", tmp_path / "bad.jsonl.gz", "--output", tmp_path / "out") == 2
    assert "cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize("path", sorted((ROOT / "recipes/mini").glob("*.yaml")), ids=lambda p: p.stem)
def test_each_config_opens_with_its_command_and_makes_its_own_expert(path: Path) -> None:
    first, *rest = path.read_text().splitlines()
    assert first == f"# accelerate launch recipes/train_expert.py --config recipes/mini/{path.name}"
    assert f"data: {path.stem}" in rest
    assert f"output: checkpoints/mini/experts/{path.stem}" in rest


def test_pretraining_makes_a_base_and_leaves_experts_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "base/experts").mkdir(parents=True)
    sizes = {"steps": 3, "batch_size": 8, "layers": 2, "width": 32, "limit": 2, "output": tmp_path / "base"}
    options = [str(part) for key, value in sizes.items() for part in (f"--{key}", value)]
    hashes = []
    for _ in range(2):
        monkeypatch.setattr(sys, "argv", ["pretrain_mini.py", *options])
        pretrain.main()
        hashes.append(json.loads((tmp_path / "base/provenance.json").read_text())["sha256"])
    assert (
        hashes[0]
        == hashes[1]
        == hashlib.sha256((tmp_path / "base/model.safetensors").read_bytes()).hexdigest()
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base"]
    assert (tmp_path / "base/experts").is_dir()


def test_corruption_never_reaches_the_labels() -> None:
    rng = random.Random(0)
    wrong = 0
    for _ in range(200):
        document = pretrain.letters_document(rng, 0.6, 32)
        assert len(document.seen) == len(document.target)
        assert document.seen[: document.start] == document.target[: document.start]
        string = document.target.splitlines()[0].split(" ", 1)[1]
        assert document.target[document.start :].startswith(string)
        assert not mini.held_out(string)
        wrong += document.seen != document.target
    assert wrong > 150


# what ships


def test_the_shipped_folder_is_small_whole_and_free_of_pickles() -> None:
    files = [path for path in MINI.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 8_000_000
    assert {path.suffix for path in files} == {".json", ".safetensors"}
    assert {path.name for path in (MINI / "experts").iterdir()} == set(mini_experts.EXPERTS)
    provenance = json.loads((MINI / "provenance.json").read_text())
    assert provenance["sha256"] == hashlib.sha256((MINI / "model.safetensors").read_bytes()).hexdigest()


@pytest.mark.parametrize("name", mini_experts.EXPERTS)
def test_each_shipped_expert_is_of_the_shipped_base(name: str) -> None:
    check_expert(MINI / "experts" / name)


def test_the_shipped_base_is_a_whole_gemma_2() -> None:
    config = json.loads((MINI / "config.json").read_text())
    assert config["architectures"] == ["Gemma2ForCausalLM"]
    assert (config["attn_logit_softcapping"], config["final_logit_softcapping"]) == (50.0, 30.0)
    assert set(config["layer_types"]) == {"sliding_attention", "full_attention"}
    assert config["num_key_value_heads"] < config["num_attention_heads"]
    assert config["sliding_window"] < config["max_position_embeddings"]
    assert "lm_head.weight" not in load_file(MINI / "model.safetensors")


def test_the_tokenizer_returns_what_it_was_given() -> None:
    tokenizer = AutoTokenizer.from_pretrained(MINI)
    assert [
        tokenizer.pad_token_id,
        tokenizer.eos_token_id,
        tokenizer.bos_token_id,
        tokenizer.unk_token_id,
    ] == [0, 1, 2, 3]
    assert tokenizer.padding_side == "left"
    text = "".join(map(chr, range(32, 127))) + '\ndef f(x):\n    """a  b ."""\n\n    return x , y\n '
    ids = tokenizer(text)["input_ids"]
    assert ids[0] == 2
    assert len(ids) == len(text) + 1
    assert tokenizer.decode(ids, skip_special_tokens=True) == text
    assert tokenizer("é", add_special_tokens=False)["input_ids"] == [3]
