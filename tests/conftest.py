"""Small random models of real architectures, and adapters that peft itself writes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    LlamaConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
)
from transformers.utils import logging

logging.disable_progress_bar()
# These models are so small that threads only wait for each other.
os.environ["OMP_NUM_THREADS"] = "1"
torch.set_num_threads(1)

PROJECTIONS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
CHARACTERS = "\n" + "".join(chr(code) for code in range(32, 127))

_SIZES: dict[str, Any] = {
    "vocab_size": 4 + len(CHARACTERS),
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "bos_token_id": 2,
}
CONFIGS = {
    "gemma2": Gemma2Config(**_SIZES, head_dim=8, sliding_window=8, query_pre_attn_scalar=8),
    "gemma3": Gemma3TextConfig(**_SIZES, head_dim=8, sliding_window=8, query_pre_attn_scalar=8),
    "llama": LlamaConfig(**_SIZES, tie_word_embeddings=False),
    "qwen3": Qwen3Config(**_SIZES, head_dim=8, tie_word_embeddings=True),
}


def make_tokenizer() -> PreTrainedTokenizerFast:
    """One token a character, <bos> in front."""
    vocabulary = {token: i for i, token in enumerate(["<pad>", "<eos>", "<bos>", "<unk>", *CHARACTERS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.post_processor = processors.TemplateProcessing("<bos> $A", special_tokens=[("<bos>", 2)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="<eos>",
        bos_token="<bos>",
        unk_token="<unk>",
        padding_side="left",
    )


def save_model(kind: str, folder: Path, seed: int = 0, **sizes: int) -> Path:
    """A random model of that architecture on disk, with sharp enough logits to tell tokens apart."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(type(CONFIGS[kind])(**CONFIGS[kind].to_dict() | sizes))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.normal_(std=0.15)
    model.save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


def save_adapter(base: Path, folder: Path, seed: int, std: float = 0.1, **options: Any) -> Path:
    """A LoRA adapter of `base` with random factors, written by peft."""
    torch.manual_seed(seed)
    options = {"r": 4, "lora_alpha": 8, "target_modules": PROJECTIONS, **options}
    model = get_peft_model(
        AutoModelForCausalLM.from_pretrained(base), LoraConfig(task_type="CAUSAL_LM", **options)
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                parameter.normal_(std=std)
                assert "lora_" in name or "modules_to_save" in name
    model.save_pretrained(folder)
    return folder


# Ranks, scaling rules and layer subsets that an expert bank meets side by side.
ADAPTERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "rslora": {"r": 3, "lora_alpha": 5, "use_rslora": True},
    "patterns": {
        "r": 4,
        "rank_pattern": {"layers.1.self_attn.q_proj": 2, "down_proj": 6},
        "alpha_pattern": {"layers.1.self_attn.q_proj": 16, r"layers\.2\.mlp\.up_proj": 3},
    },
    "subset": {"r": 2, "target_modules": ["q_proj", "v_proj"], "layers_to_transform": [0, 3]},
}


@pytest.fixture(scope="session")
def models_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of one architecture: `base/` and an adapter for each of ADAPTERS; made once a session."""
    root = tmp_path_factory.mktemp("models")

    def folder(kind: str) -> Path:
        if not (root / kind).exists():
            save_model(kind, root / kind / "base")
            for seed, (name, options) in enumerate(ADAPTERS.items(), start=1):
                save_adapter(root / kind / "base", root / kind / name, seed, **options)
        return root / kind

    return folder


@pytest.fixture
def workbench(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs the command as a user does, in an empty folder; returns what it printed."""

    def run(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "workbench", *map(str, arguments)]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240, **options)

    return run
