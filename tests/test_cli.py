"""The command as a user meets it: real processes where it matters, the same `main` in this one elsewhere."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch
from conftest import CONFIGS, save_adapter, save_model
from safetensors.torch import load_file, save_file

from workbench.cli import main
from workbench.decode.branches import Branches
from workbench.evaluate.tasks import TASKS
from workbench.methods import METHODS


@pytest.fixture
def cli(tmp_path, monkeypatch, capsys):
    """Runs the command in an empty folder; (exit status, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["workbench", *map(str, arguments)])
        status = 0
        try:
            main()
        except SystemExit as leave:
            status = leave.code or 0
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return run


@pytest.fixture
def tiny(models_folder):
    """Options for a small random base with two experts of one's own."""
    folder = models_folder("llama")
    return ["--base", folder / "base", "--experts", f"one={folder / 'plain'},two={folder / 'rslora'}"]


def samples(folder):
    return [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("kind", CONFIGS)
def test_any_architecture_is_opened_through_the_command(models_folder, tmp_path, cli, kind):
    folder = models_folder(kind)
    experts = f"one={folder / 'plain'},{folder / 'patterns'},three={folder / 'subset'}"
    options = ["--base", folder / "base", "--experts", experts, "--weights", "1,0.5,-0.5", "--output", "run"]
    status, out, err = cli(
        "compare", *options, "--limit", 3, "--max-new-tokens", 5, "--tasks", "letters,mini_math"
    )
    assert (status, err.count("error")) == (0, 0), err
    names = ["base", "one", "patterns", "three", *["logit", "task_arith"]]
    for name in names:
        assert name in out
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["weights"] == [1.0, 0.5, -0.5]
    made = samples(tmp_path / "run")
    assert len(made) == 2 * 3 * len(names)
    assert {sample["method"] for sample in made} == set(names)
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert [(row["task"], row["method"], row["n"]) for row in results] == [
        (task, name, 3) for task in ("letters", "mini_math") for name in names
    ]
    assert (tmp_path / "run" / "report.html").stat().st_size > 1000
    assert (tmp_path / "run" / "report.md").stat().st_size > 100


def test_overlap_is_recorded_along_composed_answers(cli, models_folder, tmp_path):
    folder = models_folder("gemma2")
    options = ["compare", "--base", folder / "base", "--tasks", "letters", "--limit", 5]
    experts = ["--experts", f"one={folder / 'plain'},two={folder / 'rslora'}"]
    assert cli(*options, *experts, "--batch-size", 2, "--output", "run")[0] == 0
    for sample in samples(tmp_path / "run"):
        composed = sample["method"] in ("logit", "task_arith")
        assert set(sample["overlap"]) == ({"share", "shift", "threshold"} if composed else set())
    results = {row["method"]: row for row in json.loads((tmp_path / "run" / "results.json").read_text())}
    assert 0 <= results["logit"]["overlap"]["share"] <= 1
    assert results["logit"]["overlap"]["shift"] > 0.001  # random experts shift the same tokens
    assert cli(*options, *experts, "--batch-size", 5, "--output", "other")[0] == 0
    for one, other in zip(*(sorted(samples(tmp_path / f), key=str) for f in ("run", "other")), strict=True):
        assert one["overlap"] == pytest.approx(other["overlap"], abs=2e-4)
    assert cli(*options, "--experts", f"one={folder / 'plain'}", "--output", "alone")[0] == 0
    assert all(sample["overlap"] == {} for sample in samples(tmp_path / "alone"))


VERIFY = ["verify", "--tasks", "letters", "--limit", 4]


def test_verify_ones_own_experts(cli, models_folder, tmp_path):
    folder = models_folder("llama")
    experts = f"one={folder / 'plain'},two={folder / 'subset'}"
    status, out, err = cli(*VERIFY, "--base", folder / "base", "--experts", experts)
    assert status == 0, (out, err)
    assert "one and two: they overlap everywhere" in out
    assert "All 5 statements hold. The report: reports/verify/report.html" in out
    assert "length" not in out  # nothing about the shipped experts
    report = json.loads((tmp_path / "reports" / "verify" / "results.json").read_text())
    assert set(report["checks"]) == {"bridge", "overlap"}
    assert all(row["holds"] is not False for row in report["checks"]["bridge"]["rows"])
    assert cli(*VERIFY, "--base", folder / "base", "--experts", experts)[0] == 0  # replaced by a new one


def test_verify_fails_with_status_1_and_says_what(cli, models_folder, monkeypatch):
    from workbench.theory import bridge

    folder = models_folder("llama")
    monkeypatch.setattr(bridge, "_slope", lambda points: 1.0)
    options = [*VERIFY, "--base", folder / "base", "--experts"]
    status, out, _ = cli(*options, f"one={folder / 'plain'},two={folder / 'subset'}")
    assert status == 1
    assert "FAILS" in out
    assert "2 of 5 statements fail." in out
    status, out, err = cli(*options, f"one={folder / 'plain'}")  # nothing to interact with
    assert status == 0, (out, err)
    assert "All 2 statements hold." in out


def test_the_same_command_twice_gives_the_same_bytes_and_redoes_nothing(cli, tiny, tmp_path, monkeypatch):
    options = [
        "compare",
        *tiny,
        "--limit",
        4,
        "--max-new-tokens",
        6,
        "--temperature",
        1,
        "--tasks",
        "letters",
    ]
    for folder in ("a", "b"):
        assert cli(*options, "--output", folder)[0] == 0
    first = (tmp_path / "a" / "samples.jsonl").read_bytes()
    assert first == (tmp_path / "b" / "samples.jsonl").read_bytes()
    cli(*options, "--output", "c", "--seed", 1)
    assert first != (tmp_path / "c" / "samples.jsonl").read_bytes()

    monkeypatch.setattr(Branches, "logits", lambda *_, **__: pytest.fail("a model was run again"))
    table = cli(*options, "--output", "a")
    assert table[0] == 0
    assert first == (tmp_path / "a" / "samples.jsonl").read_bytes()


def test_a_run_that_lost_samples_goes_on_to_the_same_result(cli, tiny, tmp_path):
    options = ["compare", *tiny, "--limit", 6, "--max-new-tokens", 6, "--tasks", "letters", "--output", "run"]
    assert cli(*options)[0] == 0
    file = tmp_path / "run" / "samples.jsonl"
    whole, results = file.read_bytes(), (tmp_path / "run" / "results.json").read_bytes()
    file.write_bytes(whole[: int(len(whole) * 0.55)])  # within a line
    (tmp_path / "run" / "results.json").unlink()
    assert cli(*options, "--batch-size", 2)[0] == 0
    assert sorted(file.read_bytes().splitlines()) == sorted(whole.splitlines())
    assert (tmp_path / "run" / "results.json").read_bytes() == results


def test_a_killed_run_goes_on(workbench, tiny, tmp_path):
    options = [
        "compare",
        *tiny,
        "--limit",
        40,
        "--batch-size",
        4,
        "--tasks",
        "mini_math",
        "--max-new-tokens",
        16,
    ]
    options += ["--output", "run"]
    command = [sys.executable, "-m", "workbench", *map(str, options)]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    file = tmp_path / "run" / "samples.jsonl"
    deadline = time.monotonic() + 120
    while not (file.exists() and file.read_bytes().count(b"\n") >= 20):
        assert process.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = file.read_bytes()
    before = before[: before.rfind(b"\n") + 1]
    assert 20 <= before.count(b"\n") < 200
    done = workbench(*options)
    assert done.returncode == 0, done.stderr
    assert file.read_bytes().startswith(before)
    assert (
        len({(s["method"], s["id"]) for s in samples(tmp_path / "run")})
        == 5 * 40
        == len(samples(tmp_path / "run"))
    )


def test_generate_prints_the_answer_alone(workbench, tiny):
    results = [
        workbench("generate", "Hello", *tiny, "--max-new-tokens", 8, "--method", m) for m in ("logit", "base")
    ]
    for result in results:
        assert result.returncode == 0, result.stderr
        assert len(result.stdout) == 9
        assert "8 tokens, ended by the length limit" in result.stderr
    assert results[0].stdout != results[1].stdout


def test_a_stray_byte_in_the_prompt(workbench):
    run = workbench("generate", "\udcff")
    assert (run.returncode, run.stdout) == (2, "")
    assert run.stderr.strip() == "error: the prompt is not UTF-8: character 1 is a stray byte"


def test_generate_samples_by_seed_and_stops(cli, tiny):
    texts = [cli("generate", "Hi", *tiny, "--temperature", 1, "--seed", seed)[1] for seed in (1, 2, 1)]
    assert texts[0] == texts[2] != texts[1]
    assert cli("generate", "Hi", *tiny, "--stop", "")[0] == 2
    whole = cli("generate", "Hi", *tiny, "--max-new-tokens", 12, "--method", "one")[1]
    assert (
        cli("generate", "Hi", *tiny, "--stop", whole[4:6], "--method", "one")[1]
        == whole[: whole.index(whole[4:6])] + "\n"
    )


def test_list_names_everything(cli):
    status, out, _ = cli("list")
    assert status == 0
    for name in [*METHODS, *TASKS, "mini", "letters-1", "letters-8", "math", "coding"]:
        assert name in out


def test_help_needs_no_torch():
    code = "import sys; sys.argv = ['workbench', 'compare', '--help']\n"
    code += "from workbench.cli import main\ntry: main()\nexcept SystemExit: pass\n"
    code += "sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0
    for option in ("--base", "--experts", "--methods", "--weights", "--tasks", "--limit", "--batch-size"):
        assert option in done.stdout
    for option in ("--max-new-tokens", "--temperature", "--seed", "--output", "--wandb"):
        assert option in done.stdout


def test_wandb_offline_logs_into_the_run_folder(workbench, tiny, tmp_path):
    options = ["--limit", 2, "--max-new-tokens", 2, "--tasks", "letters", "--output", "run"]
    env = {k: v for k, v in os.environ.items() if not k.startswith("WANDB")}
    done = workbench("compare", *tiny, *options, "--wandb", "offline", env=env)
    assert done.returncode == 0, done.stderr
    [log] = (tmp_path / "run" / "wandb").glob("offline-run-*/run-*.wandb")
    assert b"letters/logit/exact_match" in log.read_bytes()


def test_a_narrow_terminal_without_utf8_gets_its_whole_table(workbench, tiny):
    env = os.environ | {"PYTHONIOENCODING": "ascii", "COLUMNS": "40"}
    done = workbench("compare", *tiny, "--limit", 1, "--max-new-tokens", 1, "--tasks", "letters", env=env)
    assert done.returncode == 0, done.stderr
    assert "task_arith" in done.stdout
    assert "length" in done.stdout


def test_version(cli):
    assert cli("--version")[1].strip().count(".") == 2


# ---- bad input: one line, exit status 2, before any model is run


@pytest.fixture
def refused(cli, monkeypatch):
    monkeypatch.setattr(Branches, "logits", lambda *_, **__: pytest.fail("a model was run"))

    def run(*arguments) -> str:
        status, out, err = cli(*arguments)
        assert status == 2, (status, out, err)
        assert out == ""
        if err.startswith("error: "):
            assert err.count("\n") == 1, err
        else:
            assert "Usage:" in err  # typer's own box
        assert "Traceback" not in err
        return err

    return run


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--methods", "logits"], "unknown method 'logits': did you mean logit?"),
        (["--methods", "logit,logit"], "method 'logit' is given twice"),
        (["--methods", ","], "no method given"),
        (["--tasks", "leters"], "unknown task 'leters': did you mean letters"),
        (["--experts", "leters-1"], "unknown expert 'leters-1': did you mean letters-1"),
        (["--experts", "math,coding,math"], "expert 'math' is given twice"),
        (["--experts", "a=./nowhere"], "./nowhere: no such folder"),
        (["--experts", "logit=./nowhere"], "an expert cannot be called 'logit'"),
        (["--experts", "=./nowhere"], "NAME=PATH"),
        (["--experts", "math,coding", "--weights", "1"], "1 weights for 2 experts"),
        (["--experts", "math,coding", "--weights", "1,nan"], "the weight of 'coding' is nan"),
        (["--experts", "math,coding", "--weights", "1,inf"], "the weight of 'coding' is inf"),
        (["--experts", "math,coding", "--weights", "1;2"], "numbers with commas between"),
        (["--base", "mimi"], "unknown base 'mimi': did you mean mini?"),
        (["--base", "./nowhere"], "./nowhere: no such folder"),
        (["--limit", "0"], "error: --limit 0: a whole number of at least 1"),
        (["--limit", "-1"], "error: --limit -1"),
        (["--batch-size", "0"], "error: --batch-size 0"),
        (["--max-new-tokens", "0"], "error: --max-new-tokens 0"),
        (["--experts", "math,coding", "--weights", "1,1e39"], "the weight of 'coding' is 1e+39"),
        (["--seed", "99999999999999999999999"], "--seed"),
        (["--temperature", "-1"], "temperature -1"),
        (["--temperature", "hot"], "--temperature"),
        (["--wandb", "maybe"], "--wandb"),
    ],
)
def test_wrong_options(refused, options, message):
    assert message in refused("compare", *options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--tasks", "leters"], "unknown task 'leters': did you mean letters"),
        (["--experts", "maths"], "unknown expert 'maths': did you mean math"),
        (["--limit", "0"], "error: --limit 0: a whole number of at least 1"),
        (["--batch-size", "0"], "error: --batch-size 0"),
        (["--base", "./nowhere"], "./nowhere: no such folder"),
        (["--output", "full"], "full: not a report of this kind, and not empty (mine.txt)"),
        (["--output", "full/mine.txt"], "full/mine.txt: cannot be written to"),
    ],
)
def test_wrong_options_of_verify(refused, tmp_path, options, message):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").touch()
    assert message in refused("verify", *options)
    assert [entry.name for entry in (tmp_path / "full").iterdir()] == ["mine.txt"]


def test_two_names_for_one_folder(refused, models_folder):
    folder = models_folder("llama")
    one, two = folder / "plain", folder / "rslora" / ".." / "plain"
    message = refused("compare", "--base", folder / "base", "--experts", f"a={one},b={two}")
    assert "experts 'a' and 'b' are the same folder" in message


def test_a_base_of_ones_own_needs_experts(refused, models_folder):
    assert "no experts for base" in refused("compare", "--base", models_folder("llama") / "base")


def test_an_adapter_of_another_base(refused, models_folder, tmp_path):
    base = save_model("qwen3", tmp_path / "other")
    llama = models_folder("llama")
    head = {"target_modules": ["lm_head", "q_proj"]}
    gemma = save_adapter(save_model("gemma2", tmp_path / "g", seed=5), tmp_path / "a", 1, **head)
    wide = save_adapter(save_model("llama", tmp_path / "w", hidden_size=64), tmp_path / "b", 1)
    words = save_adapter(save_model("llama", tmp_path / "v", vocab_size=120), tmp_path / "c", 1, **head)
    renamed = shutil.copytree(llama / "plain", tmp_path / "renamed")
    weights = renamed / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes().replace(b"base_model.model.model.", b"base_model.model.muddl."))
    for expert, expected in (
        (renamed, "no tensor of the adapter fits the base"),
        (gemma, "carries its own"),
        (wide, "is 64 x 48 in the adapter: 32 x 48 in the base"),
        (words, "'lm_head' is 120 x 32 in the adapter: 100 x 32 in the base"),
    ):
        assert expected in refused("compare", "--base", base, "--experts", f"a={expert}")


def test_damaged_adapters_and_bases(refused, models_folder, tmp_path):
    folder = models_folder("llama")
    base, bad = folder / "base", shutil.copytree(folder / "plain", tmp_path / "bad")
    weights = bad / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    assert "damaged or cut off" in refused("compare", "--base", base, "--experts", f"a={bad}")
    weights.unlink()
    assert "has no weights" in refused("compare", "--base", base, "--experts", f"a={bad}")
    torch.save({}, bad / "adapter_model.bin")
    assert "never loaded" in refused("compare", "--base", base, "--experts", f"a={bad}")
    assert "no adapter_config.json" in refused("compare", "--base", base, "--experts", f"a={tmp_path}")
    good = f"a={folder / 'plain'}"
    assert "it is an adapter" in refused("compare", "--base", bad, "--experts", good)
    assert "not a model" in refused("compare", "--base", tmp_path, "--experts", good)
    broken = shutil.copytree(base, tmp_path / "broken")
    (broken / "model.safetensors").write_bytes((base / "model.safetensors").read_bytes()[:-100])
    assert "cannot be opened as a causal language model" in refused(
        "compare", "--base", broken, "--experts", good
    )
    (broken / "model.safetensors").unlink()
    assert "the model has no weights" in refused("compare", "--base", broken, "--experts", good)
    torch.save({}, broken / "pytorch_model.bin")
    assert "never loaded" in refused("compare", "--base", broken, "--experts", good)


def test_remote_code_is_never_run(refused, models_folder, tmp_path):
    folder = models_folder("llama")
    base = shutil.copytree(folder / "base", tmp_path / "remote")
    config = json.loads((base / "config.json").read_text())
    config |= {"model_type": "mine", "auto_map": {"AutoConfig": "mine.C", "AutoModelForCausalLM": "mine.M"}}
    (base / "config.json").write_text(json.dumps(config))
    (base / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    refused("compare", "--base", base, "--experts", f"a={folder / 'plain'}")
    assert not (tmp_path / "ran").exists()


def test_a_base_without_all_its_weights(refused, models_folder, tmp_path):
    folder = models_folder("llama")
    base = shutil.copytree(folder / "base", tmp_path / "base")
    weights = {
        k: v.clone() for k, v in load_file(base / "model.safetensors").items() if k != "lm_head.weight"
    }
    save_file(weights, base / "model.safetensors", metadata={"format": "pt"})
    message = refused("compare", "--base", base, "--experts", f"a={folder / 'plain'}")
    assert "has no weights for 'lm_head.weight'" in message


def test_a_base_of_the_same_weights_but_other_settings_is_another_base(cli, models_folder, tmp_path):
    folder = models_folder("llama")
    base = shutil.copytree(folder / "base", tmp_path / "base")
    options = ["--base", base, "--experts", f"a={folder / 'plain'}", "--tasks", "letters", "--limit", 1]
    options += ["--max-new-tokens", 1, "--output", "run"]
    assert cli("compare", *options)[0] == 0
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 0.5}))
    status, _, err = cli("compare", *options)
    assert status == 2
    assert "base_settings" in err


def test_names_that_look_like_markup(cli, models_folder):
    folder = models_folder("llama")
    options = ["--base", folder / "base", "--tasks", "letters", "--limit", 1, "--max-new-tokens", 1]
    status, out, _ = cli("compare", *options, "--experts", f"[/x]={folder / 'plain'},[b]={folder / 'rslora'}")
    assert status == 0
    assert "[/x]" in out
    assert "[b]" in out


def test_letters_reads_the_adapter_not_the_name_it_is_given(cli, tmp_path):
    options = ["--tasks", "letters", "--limit", 30, "--output", "run", "--methods", "logit"]
    assert cli("compare", *options, "--experts", "one=letters-1,two=letters-2")[0] == 0
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert {row["method"]: row["score"] for row in results}["logit"] == 1.0


def test_a_folder_with_another_run(cli, tiny, refused):
    options = ["compare", *tiny, "--tasks", "letters", "--limit", 2, "--output"]
    with pytest.MonkeyPatch.context() as undone:
        undone.setattr(
            Branches, "logits", lambda self, ids, *_, **__: torch.zeros(self.plan.branches, *ids.shape, 99)
        )
        assert cli(*options, "run", "--max-new-tokens", 1)[0] == 0
    message = refused(*options, "run", "--max-new-tokens", 2)
    assert "another configuration" in message
    assert "max_new_tokens" in message
    assert "not a run folder" in refused(*options, ".")


def test_a_prompt_longer_than_the_context(refused, tiny):
    assert "the model's context is 128" in refused("generate", "x" * 500, *tiny)


def test_a_folder_that_cannot_be_written(refused, tiny, tmp_path):
    (tmp_path / "file").touch()
    assert "cannot be written to" in refused("compare", *tiny, "--output", tmp_path / "file" / "run")


def test_an_interrupt_leaves_by_one_line(tiny, tmp_path):
    options = ["compare", *map(str, tiny), "--limit", "200", "--tasks", "mini_math", "--output", "run"]
    process = subprocess.Popen(
        [sys.executable, "-m", "workbench", *options], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 120
    while not (tmp_path / "run" / "samples.jsonl").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert "goes on from here" in err
