"""Opens a base: the shipped model, a local folder or a hub name; its tokenizer; what identifies it.

Weights come from safetensors only, and no code of a checkpoint is ever run.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from workbench.errors import UnknownName, WorkbenchError

_PACKAGE = Path(__file__).parent
# An installed wheel carries the models inside; in a checkout they lie beside the package.
CHECKPOINTS = next(
    (folder for folder in (_PACKAGE / "checkpoints", _PACKAGE.parent / "checkpoints") if folder.is_dir()),
    _PACKAGE / "checkpoints",
)
DEFAULT_BASE = "mini"
DEFAULT_EXPERTS = ("letters-1", "letters-2", "math", "coding")
SHIPPED = {DEFAULT_BASE: CHECKPOINTS / "mini"}


@dataclass(frozen=True, eq=False)
class Base:
    """A causal language model ready to decode, with its tokenizer and a content hash of its weights."""

    name: str
    model: Any  # any transformers causal LM: their classes share no typed interface
    tokenizer: PreTrainedTokenizerBase
    sha256: str

    @property
    def context(self) -> int | None:
        """The longest sequence the model was made for, in tokens; None where its configuration is silent."""
        return getattr(self.model.config.get_text_config(), "max_position_embeddings", None)

    @property
    def settings_sha256(self) -> str:
        """A hash of what else the text depends on: the configurations and the tokenizer."""
        config = self.model.config.to_dict() | {"_name_or_path": None}
        ends = sorted(self.end_ids)
        vocabulary = sorted(self.tokenizer.get_vocab().items())
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        parts = [config, ends, vocabulary if backend is None else backend.to_str()]
        return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()

    @property
    def end_ids(self) -> frozenset[int]:
        """The tokens that end an answer (some models have several)."""
        ids = self.model.generation_config.eos_token_id
        if ids is None:
            ids = self.tokenizer.eos_token_id
        return frozenset([ids] if isinstance(ids, int) else ids or [])

    def special_ids(self, texts: Sequence[str]) -> frozenset[int]:
        """The ids of those texts that are special tokens, such as <end_of_turn>."""
        special = set(self.tokenizer.all_special_tokens) | {
            str(token) for token in self.tokenizer.added_tokens_decoder.values() if token.special
        }
        vocabulary = self.tokenizer.get_vocab()
        return frozenset(vocabulary[text] for text in texts if text in special)

    def encode(self, text: str) -> list[int]:
        """Token ids of a prompt; never two <bos> in a row, and exactly one in front for Gemma."""
        ids: list[int] = self.tokenizer(text)["input_ids"]
        bos = self.tokenizer.bos_token_id
        if bos is None:
            return ids
        while ids[:2] == [bos, bos]:
            ids = ids[1:]
        if self.model.config.model_type.startswith("gemma") and ids[:1] != [bos]:
            ids = [bos, *ids]
        return ids

    def encode_answer(self, text: str) -> list[int]:
        """Token ids of an answer, with the end of sequence where the model has one."""
        ids: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return [*ids, *sorted(self.end_ids)[:1]]

    def decode(self, ids: list[int], after: list[int] | None = None) -> str:
        """The text of `ids` as it follows the ids `after`: alone, some tokenizers drop its first space."""
        before = self._text((after or [])[-1:])
        text = self._text([*(after or [])[-1:], *ids])
        return text.removeprefix(before) if text.startswith(before) else self._text(ids)

    def _text(self, ids: list[int]) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))


def shipped_experts(base: str) -> dict[str, Path]:
    """The experts that ship with a base, by name; none for a base that does not ship."""
    if base not in SHIPPED:
        return {}
    folder = SHIPPED[base] / "experts"
    return {path.name: path for path in sorted(folder.glob("*")) if (path / "adapter_config.json").exists()}


def base_source(name: str) -> str:
    """What transformers loads for `name`: a folder's path or a hub name.

    Raises WorkbenchError for a name that is none of these, or a folder that holds no safe model.
    """
    if name in SHIPPED:
        return str(SHIPPED[name])
    folder = Path(name).expanduser()
    if folder.is_dir():
        _check_folder(folder)
        return str(folder)
    if folder.exists():
        raise WorkbenchError(
            f"{name}: a file", "a base is a folder with config.json and *.safetensors, or a hub name"
        )
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise WorkbenchError(f"{name}: no such folder", way_out="Give a folder with a model or a hub name.")
    if "/" not in name:
        raise UnknownName("base", name, SHIPPED)
    return name


def _check_folder(folder: Path) -> None:
    if not (folder / "config.json").exists():
        hint = "it is an adapter: give it with --experts" if (folder / "adapter_config.json").exists() else ""
        raise WorkbenchError(f"{folder}: not a model", f"it has no config.json{'; ' + hint if hint else ''}")
    if not any(folder.glob("*.safetensors")):
        pickles = sorted(folder.glob("*.bin"))
        if pickles:
            raise WorkbenchError(
                f"{pickles[0]}: a pickle file, which can run code and is never loaded",
                "*.safetensors were expected",
                "Save the model again with save_pretrained where you trust it.",
            )
        raise WorkbenchError(f"{folder}: the model has no weights", "*.safetensors were expected")


def open_base(name: str) -> Base:
    """The base `name` in evaluation mode: float32 on a CPU, the checkpoint's own dtype on an accelerator."""
    source = base_source(name)
    device = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    try:
        config = AutoConfig.from_pretrained(source, trust_remote_code=False)
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
        opened: Any = AutoModelForCausalLM.from_pretrained(
            source,
            config=config,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
            dtype=torch.float32 if device.type == "cpu" else "auto",
        )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError, TypeError) as error:
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise WorkbenchError(f"{name}: cannot be opened as a causal language model", reason) from error
    model, loaded = opened
    if loaded["missing_keys"]:
        raise WorkbenchError(
            f"{name}: has no weights for '{min(loaded['missing_keys'])}'",
            "every weight of a causal language model",
            "The checkpoint is another kind of model, or its tensors were renamed.",
        )
    if tokenizer.vocab_size > config.get_text_config().vocab_size:
        raise WorkbenchError(
            f"{name}: its tokenizer has {tokenizer.vocab_size} tokens",
            f"its model has {config.get_text_config().vocab_size}",
            "The folder mixes two models.",
        )
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    model.eval().requires_grad_(False).to(device)
    return Base(name, model, tokenizer, fingerprint(source, getattr(config, "_commit_hash", None)))


def fingerprint(source: str, commit: str | None = None) -> str:
    """sha256 of a local folder's weights (of the one file, or of the files' hashes); a hub model's commit."""
    files = sorted(Path(source).glob("*.safetensors")) if Path(source).is_dir() else []
    if not files:
        return f"commit:{commit}"
    hashes = []
    for file in files:
        with file.open("rb") as content:
            hashes.append(hashlib.file_digest(content, "sha256").hexdigest())
    return hashes[0] if len(hashes) == 1 else hashlib.sha256(json.dumps(hashes).encode()).hexdigest()
