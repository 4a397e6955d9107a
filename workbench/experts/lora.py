"""One PEFT LoRA adapter, read exactly from its folder into a frozen `Expert`.

The expert changes the linear layer m by  τ[m] = s[m] · B[m] A[m]  with  A: (r, in), B: (out, r) and
s = α/r, or α/√r for rsLoRA; r and α may differ per layer (`rank_pattern`, `alpha_pattern`).
Everything is taken from the files, never from a live model. What this form cannot say (DoRA, a bias,
whole saved modules, a base changed at initialisation, ...) is refused by the name of its field.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
from peft.utils.other import get_pattern_key
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from workbench.errors import AdapterError

CONFIG, WEIGHTS, PROVENANCE = "adapter_config.json", "adapter_model.safetensors", "provenance.json"

# Fields that say how an adapter was trained or found, and change nothing about what it computes.
_READ = {"peft_type", "r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern"}
_HARMLESS = {
    "task_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision", "inference_mode",
    "lora_dropout", "target_modules", "exclude_modules", "layers_to_transform", "layers_pattern",
    "fan_in_fan_out", "megatron_core", "qalora_group_size", "loftq_config", "eva_config", "corda_config",
    "lora_ga_config", "runtime_config", "tuner_type",
}  # fmt: skip
# Initialisations that leave the base's weights as they were.
_INITS = (True, False, "gaussian", "eva", "orthogonal")
_FACTOR = re.compile(r"base_model\.model\.(?P<layer>.+)\.lora_(?P<side>[AB])\.weight")
# PEFT saves a copy of the base's embeddings or head beside LoRA on them.
_COPY = re.compile(
    r"base_model\.model\.(?P<layer>.*(?:embed|lm_head|wte|output)\w*?)(?:\.base_layer)?\.weight"
)


@dataclass(frozen=True, eq=False)
class Factors:
    """τ = scale · B A for one linear layer; A: (r, in), B: (out, r), float as stored."""

    A: Tensor
    B: Tensor
    scale: float

    @property
    def rank(self) -> int:
        return self.A.shape[0]

    def delta(self, dtype: torch.dtype = torch.float64) -> Tensor:
        """The dense task vector, (out, in)."""
        return self.scale * (self.B.to(dtype) @ self.A.to(dtype))


@dataclass(frozen=True, eq=False)
class Expert:
    """One adapter: its factors by the base's layer names, and what identifies it."""

    name: str
    layers: Mapping[str, Factors]
    sha256: str
    path: str
    base_sha256: str | None = None  # content hash of the base it was trained on, where its recipe wrote one
    vocabulary: Mapping[str, int] | None = field(default=None, repr=False)  # of a tokenizer beside it
    copies: Mapping[str, Tensor] = field(default_factory=dict, repr=False)  # of the base's own weights

    def check_fits(self, model: nn.Module, base_sha256: str | None = None) -> None:
        """Raises AdapterError unless every layer is an `nn.Linear` of `model` of the right shape."""
        modules = dict(model.named_modules())
        present = [layer for layer in self.layers if layer in modules]
        if not present:
            raise AdapterError(
                f"{self.path}: no tensor of the adapter fits the base",
                f"its first layer is '{next(iter(self.layers))}', which the base does not have",
                "Was it trained on another architecture, or were its keys renamed?",
            )
        for layer, factors in self.layers.items():
            if layer not in modules:
                raise AdapterError(
                    f"{self.path}: the base has no layer '{layer}'",
                    f"{len(self.layers) - len(present)} of its {len(self.layers)} layers are missing",
                    "Use the base the adapter was trained on.",
                )
            linear = modules[layer]
            if not isinstance(linear, nn.Linear):
                raise AdapterError(
                    f"{self.path}: layer '{layer}' is a {type(linear).__name__} in the base",
                    "only LoRA on nn.Linear layers is supported",
                )
            wanted = (linear.out_features, linear.in_features)
            found = (factors.B.shape[0], factors.A.shape[1])
            if wanted != found:
                raise AdapterError(
                    f"{self.path}: layer '{layer}' is {found[0]} x {found[1]} in the adapter",
                    f"{wanted[0]} x {wanted[1]} in the base",
                    "The adapter belongs to another base.",
                )
        for name, copy in self.copies.items():
            weight = modules[name].weight if name in modules else None
            if weight is None or weight.shape != copy.shape or not torch.equal(copy.to(weight), weight):
                raise AdapterError(
                    f"{self.path}: carries its own '{name}.weight' {tuple(copy.shape)}",
                    "a copy of the base's, or none",
                    "A changed or resized embedding or head is not supported.",
                )
        known = self.base_sha256 and base_sha256 and not base_sha256.startswith("commit:")
        if known and self.base_sha256 != base_sha256:
            raise AdapterError(
                f"{self.path}: trained on a base with weights {str(self.base_sha256)[:12]}",
                f"this base has weights {str(base_sha256)[:12]}",
                "Train the expert again on this base, or give the base it was trained on.",
            )

    def check_vocabulary(self, vocabulary: Mapping[str, int]) -> None:
        """Raises AdapterError if a tokenizer saved beside the adapter numbers the base's tokens otherwise."""
        if self.vocabulary is None:
            return
        moved = [token for token, index in vocabulary.items() if self.vocabulary.get(token) != index]
        if moved:
            raise AdapterError(
                f"{self.path}: its tokenizer has {len(self.vocabulary)} tokens",
                f"the base has {len(vocabulary)}, and {len(moved)} of them differ, such as {moved[0]!r}",
                "The adapter belongs to a base with another vocabulary.",
            )


def read_expert(name: str, path: str) -> Expert:
    """The adapter in folder `path` (or under that name on the hub) as an Expert called `name`.

    Raises AdapterError if the folder is no adapter, is damaged, or holds what cannot be represented.
    """
    folder = _folder(path)
    config = _json(folder / CONFIG)
    _refuse_variants(folder / CONFIG, config)
    tensors = _tensors(folder)
    copies = {m["layer"]: tensors.pop(key) for key in list(tensors) if (m := _COPY.fullmatch(key))}
    layers = _factors(folder / WEIGHTS, config, tensors)
    digest = hashlib.sha256((folder / CONFIG).read_bytes() + (folder / WEIGHTS).read_bytes()).hexdigest()
    return Expert(name, layers, digest, path, _recorded_base(folder), _vocabulary(folder), copies)


def _folder(path: str) -> Path:
    folder = Path(path).expanduser()
    if folder.is_dir():
        if not (folder / CONFIG).exists():
            raise AdapterError(f"{path}: not a PEFT adapter", f"it has no {CONFIG}")
        return folder
    if folder.exists():
        raise AdapterError(f"{path}: a file", f"an adapter is a folder with {CONFIG} and {WEIGHTS}")
    if path.startswith((".", "/", "~")) or path.count("/") != 1:
        raise AdapterError(
            f"{path}: no such folder", way_out="Give NAME=PATH with the folder of a PEFT adapter."
        )
    try:
        return Path(snapshot_download(path, allow_patterns=[CONFIG, WEIGHTS, PROVENANCE, "tokenizer.json"]))
    except (HfHubHTTPError, LocalEntryNotFoundError, HFValidationError, OSError) as error:
        raise AdapterError(
            f"{path}: no such folder here, and it could not be fetched from the hub",
            type(error).__name__,
            "Check the name, the network and your access.",
        ) from error


def _json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise AdapterError(f"{file}: cannot be read as JSON", str(error)) from error
    if not isinstance(content, dict):
        raise AdapterError(f"{file}: not a JSON object")
    return content


def _refuse_variants(file: Path, config: Mapping[str, Any]) -> None:
    if config.get("peft_type") != "LORA":
        raise AdapterError(
            f"{file}: peft_type is {config.get('peft_type')!r}", "only LORA adapters can be composed"
        )
    init = config.get("init_lora_weights", True)
    if init not in _INITS:
        raise AdapterError(
            f"{file}: init_lora_weights is {init!r}",
            "this initialisation changes the base's weights, so the adapter alone is not the expert",
            "Save it with PEFT's path_initial_model_for_weight_conversion, which converts it to plain LoRA.",
        )
    for name, value in config.items():
        if name in _READ or name in _HARMLESS or name == "init_lora_weights":
            continue
        if value and not (name == "bias" and value == "none"):
            what = "DoRA" if name == "use_dora" else f"{name} = {json.dumps(value)[:60]}"
            raise AdapterError(
                f"{file}: {what} is not supported",
                f"field '{name}' changes the model by more than scale · B A",
                "Train a plain LoRA expert, or merge this one into a base of its own.",
            )


def _tensors(folder: Path) -> dict[str, Tensor]:
    file = folder / WEIGHTS
    if not file.exists():
        pickles = sorted(folder.glob("*.bin")) + sorted(folder.glob("*.pt")) + sorted(folder.glob("*.pth"))
        if pickles:
            raise AdapterError(
                f"{pickles[0]}: a pickle file, which can run code and is never loaded",
                f"{WEIGHTS} was expected",
                "Load it with PEFT where you trust it and save it again with save_pretrained.",
            )
        raise AdapterError(f"{folder}: the adapter has no weights", f"{WEIGHTS} was expected")
    try:
        return load_file(file)
    except (SafetensorError, OSError) as error:
        raise AdapterError(
            f"{file}: damaged or cut off", str(error), "Copy or save the adapter again."
        ) from error


def _factors(file: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, Factors]:
    sides: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        match = _FACTOR.fullmatch(key)
        if match is None:
            raise AdapterError(
                f"{file}: tensor '{key}' is not a LoRA factor of a linear layer",
                "keys end in .lora_A.weight or .lora_B.weight",
            )
        if tensor.ndim != 2 or not tensor.is_floating_point():
            raise AdapterError(
                f"{file}: tensor '{key}' is {tensor.dtype} {tuple(tensor.shape)}", "a float matrix"
            )
        if not tensor.isfinite().all():
            raise AdapterError(f"{file}: tensor '{key}' holds numbers that are not finite")
        sides.setdefault(match["layer"], {})[match["side"]] = tensor
    if not sides:
        raise AdapterError(f"{file}: holds no tensors")
    layers = {}
    for layer, pair in sorted(sides.items()):
        if len(pair) != 2:
            raise AdapterError(
                f"{file}: layer '{layer}' has lora_{next(iter(pair))} only", "lora_A and lora_B"
            )
        A, B = pair["A"], pair["B"]
        rank, scale = _scale(file.with_name(CONFIG), config, layer)
        if not A.shape[0] == B.shape[1] == rank:
            raise AdapterError(
                f"{file}: layer '{layer}' has rank {A.shape[0]} in lora_A and {B.shape[1]} in lora_B",
                f"{rank}, as {CONFIG} says",
            )
        layers[layer] = Factors(A, B, scale)
    return layers


def _scale(file: Path, config: Mapping[str, Any], layer: str) -> tuple[int, float]:
    """(r, s) of one layer: the patterns of the configuration are PEFT's own."""

    def of(default: str, pattern: str) -> Any:
        by_layer = config.get(pattern) or {}
        if not isinstance(by_layer, dict):
            raise AdapterError(f"{file}: {pattern} is {by_layer!r}", "an object of layer patterns")
        try:
            key = get_pattern_key(tuple(by_layer), layer)
        except re.error as error:
            raise AdapterError(f"{file}: {pattern} is no pattern", str(error)) from error
        return by_layer.get(key, config.get(default))

    rank, alpha = of("r", "rank_pattern"), of("lora_alpha", "alpha_pattern")
    if not isinstance(rank, int) or rank < 1:
        raise AdapterError(f"{file}: r is {rank!r} for layer '{layer}'", "a positive integer")
    if not isinstance(alpha, (int, float)) or not math.isfinite(alpha):
        raise AdapterError(f"{file}: lora_alpha is {alpha!r} for layer '{layer}'", "a finite number")
    return rank, alpha / math.sqrt(rank) if config.get("use_rslora") else alpha / rank


def _recorded_base(folder: Path) -> str | None:
    """The base's hash where our recipe left one; a file of that name from elsewhere says nothing."""
    try:
        recorded = json.loads((folder / PROVENANCE).read_text(encoding="utf-8"))["base_sha256"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return recorded if isinstance(recorded, str) else None


def _vocabulary(folder: Path) -> Mapping[str, int] | None:
    if not (folder / "tokenizer.json").exists():
        return None
    from tokenizers import Tokenizer

    try:
        vocabulary: Mapping[str, int] = Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab()
    except Exception as error:  # tokenizers raises a bare Exception
        raise AdapterError(f"{folder / 'tokenizer.json'}: cannot be read", str(error)) from error
    return vocabulary
