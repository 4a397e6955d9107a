"""Tunes one LoRA expert: trl's SFTTrainer, peft, loss on the completion alone, every row ends with <eos>.

    accelerate launch recipes/train_expert.py --config recipes/mini/math.yaml

Every option can stand in the YAML or on the command line, which wins. `data` is a mini expert's name or your
own .jsonl (.jsonl.gz) of {"prompt": ..., "completion": ...}; `base` is a folder or a hub name.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import yaml  # type: ignore[import-untyped]
from datasets import Dataset
from peft import LoraConfig, PeftModel
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase, set_seed
from trl import SFTConfig, SFTTrainer, TrlParser  # type: ignore[attr-defined]

from workbench.errors import UnknownName, WorkbenchError
from workbench.evaluate.tasks import mini_experts

PROJECTIONS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
VERSIONS = ("torch", "transformers", "trl", "peft", "accelerate", "datasets")


@dataclass
class Config:
    data: str = field(metadata={"help": "A shipped expert, such as math, or a .jsonl[.gz] file."})
    output: str = field(metadata={"help": "Folder of the adapter; one that is there is replaced."})
    base: str = field(default="checkpoints/mini", metadata={"help": "Folder or hub name of the base."})
    rows: int = field(default=8000, metadata={"help": "Rows drawn of a mini expert's data."})
    keep: float = field(
        default=0.0,
        metadata={
            "help": "Share of rows that are other mini tasks' prompts with the base's own sampled answers."
        },
    )
    max_length: int = field(default=128, metadata={"help": "Rows of more tokens are dropped and counted."})
    target_modules: list[str] = field(
        default_factory=lambda: list(PROJECTIONS), metadata={"help": "Names of the layers that are adapted."}
    )
    rank: int = field(default=8, metadata={"help": "Rank r of every adapted layer."})
    alpha: int = field(default=16, metadata={"help": "The adapter is scaled by alpha / r."})
    steps: int = field(default=150, metadata={"help": "Optimizer steps."})
    batch_size: int = field(default=32, metadata={"help": "Rows a step and process."})
    accumulate: int = field(default=1, metadata={"help": "Batches summed into one step."})
    learning_rate: float = field(
        default=2e-3, metadata={"help": "Peak rate: linear up over 10 steps, cosine down."}
    )
    weight_decay: float = field(default=0.0, metadata={"help": "AdamW's, on the adapter."})
    seed: int = field(default=0, metadata={"help": "Seed of the data, their order and the adapter."})
    bf16: bool = field(
        default=False, metadata={"help": "Base in bfloat16 and autocast; the adapter stays float32."}
    )
    cpu: bool = field(default=False, metadata={"help": "Stay on the CPU where there is an accelerator."})
    report_to: str = field(
        default="none", metadata={"help": "none, or wandb (WANDB_MODE=offline needs no account)."}
    )


@dataclass(frozen=True)
class Rows:
    """Tokenized rows: the ids of prompt, completion and end; labels of the prompt are -100."""

    input_ids: list[list[int]]
    labels: list[list[int]]
    dropped: int

    @property
    def sha256(self) -> str:
        return hashlib.sha256(json.dumps([self.input_ids, self.labels]).encode()).hexdigest()


def read_config() -> Config:
    """YAML under command line; a mistake in either is one clear line."""
    arguments = sys.argv[1:]
    if "--config" in arguments:
        path = Path([*arguments, ""][arguments.index("--config") + 1])
        if not path.is_file():
            raise WorkbenchError(f"no config file '{path}'", "--config FILE.yaml")
        try:
            given = yaml.safe_load(path.read_text())
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise WorkbenchError(f"'{path}' is no YAML", " ".join(str(error).split())) from error
        if not isinstance(given, dict):
            raise WorkbenchError(f"'{path}' is no mapping", "lines such as 'rank: 8'")
        known = Config.__dataclass_fields__
        for key in given:
            if key not in known:
                raise UnknownName(f"key in {path}", str(key), known)
    try:
        (config,) = TrlParser([Config]).parse_args_and_config()  # type: ignore[list-item]
    except (ValueError, TypeError) as error:
        raise WorkbenchError("the options cannot be read", " ".join(str(error).split())) from error
    check(config)
    return config


def check(config: Config) -> None:
    for name in ("rows", "max_length", "rank", "alpha", "steps", "batch_size", "accumulate"):
        value = getattr(config, name)
        if not isinstance(value, int) or value < 1:
            raise WorkbenchError(f"{name} is {value!r}", "an integer of at least 1")
    for name, low in (("learning_rate", 0.0), ("weight_decay", -1e-300)):
        value = getattr(config, name)
        if not isinstance(value, (int, float)) or not low < value < float("inf"):
            raise WorkbenchError(f"{name} is {value!r}", "a finite number, with a point in YAML (2.0e-3)")
    if not 0.0 <= config.keep < 1.0 or (config.keep and is_file(config)):
        raise WorkbenchError(f"keep is {config.keep!r}", "from 0 to below 1, and 0 with rows of your own")
    if config.report_to not in ("none", "wandb"):
        raise UnknownName("report_to", config.report_to, ("none", "wandb"))


def check_targets(config: Config, model: torch.nn.Module) -> None:
    linear = {name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)}
    for target in config.target_modules:
        if not any(name.endswith(f".{target}") or name == target for name in linear):
            raise UnknownName("target module", target, {name.rpartition(".")[2] for name in linear})


def is_file(config: Config) -> bool:
    return config.data.endswith((".jsonl", ".jsonl.gz"))


def read_pairs(config: Config) -> list[tuple[str, str]]:
    if not is_file(config):
        return mini_experts.expert_rows(
            config.data, config.rows - round(config.keep * config.rows), config.seed
        )
    path = Path(config.data)
    if not path.is_file():
        raise WorkbenchError(f"no data file '{path}'", "a .jsonl or .jsonl.gz file, or a mini expert's name")
    return list(_pairs_of(path))


def _pairs_of(path: Path) -> Iterator[tuple[str, str]]:
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as lines:
        try:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                row = json.loads(line)
                fields: dict[str, object] = row if isinstance(row, dict) else {}
                prompt, completion = fields.get("prompt"), fields.get("completion")
                if not (isinstance(prompt, str) and isinstance(completion, str) and completion):
                    raise WorkbenchError(
                        f"{path} line {number}", 'two strings "prompt" and "completion", not empty'
                    )
                yield prompt, completion
        except (ValueError, OSError, EOFError) as error:
            raise WorkbenchError(f"{path} cannot be read", " ".join(str(error).split())) from error


def tokenize(pairs: list[tuple[str, str]], tokenizer: PreTrainedTokenizerBase, max_length: int) -> Rows:
    """The border is ours: what generation sees as the prompt is exactly what is masked here."""
    opens = tokenizer.bos_token_id in tokenizer("")["input_ids"]
    ids, labels, dropped = [], [], 0
    for prompt, completion in pairs:
        asked: list[int] = tokenizer(prompt)["input_ids"]
        told: list[int] = tokenizer(completion, add_special_tokens=False)["input_ids"]
        row = [*asked, *told, tokenizer.eos_token_id]
        if len(row) > max_length:
            dropped += 1
            continue
        if opens and row.count(tokenizer.bos_token_id) != 1:
            raise WorkbenchError(
                f"a row with more than one {tokenizer.bos_token}", "plain text", repr(prompt[:60])
            )
        if tokenizer.eos_token_id in row[1:-1]:
            raise WorkbenchError(f"a row with {tokenizer.eos_token} inside", "plain text", repr(prompt[:60]))
        ids.append(row)
        labels.append([-100] * len(asked) + row[len(asked) :])
    if not ids:
        raise WorkbenchError(f"no row of at most {max_length} tokens", "shorter rows or a larger max_length")
    return Rows(ids, labels, dropped)


def open_base(config: Config) -> tuple[Any, PreTrainedTokenizerBase]:
    if config.base.startswith((".", "/", "~")) and not Path(config.base).is_dir():
        raise WorkbenchError(f"no folder '{config.base}'", "a base's folder or its name on the hub")
    try:
        tokenizer = AutoTokenizer.from_pretrained(config.base, trust_remote_code=False)
        model = AutoModelForCausalLM.from_pretrained(
            config.base,
            dtype=torch.bfloat16 if config.bf16 else torch.float32,
            use_safetensors=True,
            trust_remote_code=False,
        )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise WorkbenchError(
            f"base '{config.base}' cannot be opened", " ".join(str(error).split())[:200]
        ) from error
    if tokenizer.eos_token_id is None:
        raise WorkbenchError(f"the tokenizer of '{config.base}' has no end-of-sequence token", "one that has")
    bos = tokenizer.bos_token_id
    if model.config.model_type.startswith("gemma") and bos not in tokenizer("")["input_ids"]:
        raise WorkbenchError(
            f"the tokenizer of '{config.base}' adds no {tokenizer.bos_token}", "one, as Gemma needs"
        )
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return model, tokenizer


def kept_pairs(config: Config, model: Any, tokenizer: PreTrainedTokenizerBase) -> list[tuple[str, str]]:
    """What the base itself says on other tasks: an expert that repeats it changes nothing there."""
    prompts = mini_experts.other_prompts(config.data, round(config.keep * config.rows), config.seed)
    pairs = []
    for start in range(0, len(prompts), 256):
        some = prompts[start : start + 256]
        asked = tokenizer(some, return_tensors="pt", padding=True, padding_side="left").to(model.device)
        told = model.generate(**asked, do_sample=True, top_k=0, max_new_tokens=48)
        for prompt, ids in zip(some, told[:, asked["input_ids"].shape[1] :].tolist(), strict=True):
            answer = ids[: ids.index(tokenizer.eos_token_id)] if tokenizer.eos_token_id in ids else []
            if answer and not set(answer) & set(tokenizer.all_special_ids):
                pairs.append((prompt, str(tokenizer.decode(answer))))
    return pairs


def train(
    config: Config, model: Any, tokenizer: PreTrainedTokenizerBase, rows: Rows, scratch: str
) -> SFTTrainer:
    arguments = SFTConfig(
        output_dir=scratch,
        max_steps=config.steps,
        per_device_train_batch_size=config.batch_size,
        gradient_accumulation_steps=config.accumulate,
        learning_rate=config.learning_rate,
        weight_decay=config.weight_decay,
        lr_scheduler_type="cosine",
        warmup_steps=min(10, config.steps // 2),
        max_length=None,  # nothing is cut; too long rows are gone already
        seed=config.seed,
        data_seed=config.seed,
        bf16=config.bf16,
        use_cpu=config.cpu,
        save_strategy="no",
        logging_steps=max(1, config.steps // 10),
        report_to=config.report_to,
        run_name=f"{Path(config.output).name}",
        ddp_find_unused_parameters=False,
        activation_checkpointing=False,
        dataloader_pin_memory=False,
    )
    lora = LoraConfig(
        r=config.rank,
        lora_alpha=config.alpha,
        lora_dropout=0.0,
        target_modules=config.target_modules,
        task_type="CAUSAL_LM",
    )
    trainer = SFTTrainer(
        model=model,
        args=arguments,
        train_dataset=Dataset.from_dict({"input_ids": rows.input_ids, "labels": rows.labels}),
        processing_class=tokenizer,
        peft_config=lora,
    )
    trainer.train()
    return trainer


@torch.no_grad()
def save(config: Config, trainer: SFTTrainer, rows: Rows) -> None:
    """Into a folder beside `output`, read back, compared, and only then put in its place."""
    out = Path(config.output)
    out.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        fresh.chmod(0o755)
        trained = trainer.accelerator.unwrap_model(trainer.model).eval()
        trained.peft_config["default"].base_model_name_or_path = portable(config.base)
        trained.save_pretrained(fresh, safe_serialization=True, save_embedding_layers=False)
        for file in fresh.iterdir():
            if file.name not in ("adapter_config.json", "adapter_model.safetensors"):
                file.unlink()
            else:
                file.chmod(0o644)
        settings = json.loads((fresh / "adapter_config.json").read_text())
        settings["target_modules"].sort()  # a set: its order would change from run to run
        (fresh / "adapter_config.json").write_text(json.dumps(settings, indent=2) + "\n")

        sample = torch.tensor([rows.input_ids[0]], device=trained.device)
        expected = trained(input_ids=sample, use_cache=False).logits
        base = AutoModelForCausalLM.from_pretrained(
            config.base, dtype=trained.dtype, use_safetensors=True, trust_remote_code=False
        )
        again = PeftModel.from_pretrained(base, fresh).to(trained.device).eval()
        apart = (again(input_ids=sample, use_cache=False).logits - expected).abs().max().item()
        if not apart <= (0.1 if config.bf16 else 1e-4):
            raise WorkbenchError(
                "the saved adapter differs from the trained one", f"equal logits, not {apart:g} apart"
            )

        (fresh / "provenance.json").write_text(json.dumps(provenance(config, trainer, rows), indent=1) + "\n")
        old = out.with_name(f".{fresh.name}.old")
        if out.exists():
            out.rename(old)
        fresh.rename(out)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def provenance(config: Config, trainer: SFTTrainer, rows: Rows) -> dict[str, Any]:
    weights = Path(config.base) / "model.safetensors"
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return {
        "command": " ".join(["accelerate launch recipes/train_expert.py", *map(portable, sys.argv[1:])]),
        "config": {key: portable(v) if isinstance(v, str) else v for key, v in asdict(config).items()},
        "base": portable(config.base),
        "base_sha256": hashlib.sha256(weights.read_bytes()).hexdigest() if weights.is_file() else None,
        "data_sha256": rows.sha256,
        "rows": len(rows.input_ids),
        "dropped": rows.dropped,
        "processes": trainer.accelerator.num_processes,
        "final_loss": round(losses[-1], 5),
        "versions": {name: version(name) for name in VERSIONS},
    }


def portable(text: str) -> str:
    """A path without this machine in it: relative to here, or its last part."""
    path = Path(text)
    if not path.is_absolute():
        return text
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else path.name


def first_process() -> bool:
    return os.environ.get("RANK", "0") == "0"


def run() -> None:
    config = read_config()
    pairs = read_pairs(config)
    set_seed(config.seed)
    model, tokenizer = open_base(config)
    check_targets(config, model)
    if config.keep:
        pairs += kept_pairs(config, model, tokenizer)
        set_seed(config.seed)
    rows = tokenize(pairs, tokenizer, config.max_length)
    if first_process():
        print(json.dumps(asdict(config), indent=1))
        print(
            f"{len(rows.input_ids)} rows, {rows.dropped} dropped: over {config.max_length} tokens", flush=True
        )
    with tempfile.TemporaryDirectory() as scratch:
        trainer = train(config, model, tokenizer, rows, scratch)
    if trainer.accelerator.is_main_process:
        save(config, trainer, rows)
        print(f"wrote {config.output}")
    trainer.accelerator.wait_for_everyone()


def main() -> int:
    try:
        run()
    except WorkbenchError as error:
        if first_process():
            print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("WANDB_PROJECT", "workbench")
    sys.exit(main())
