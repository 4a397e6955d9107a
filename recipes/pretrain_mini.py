"""Makes the shipped base: a Gemma 2 of 0.4 M parameters that copies letters and knows two formats.

    python recipes/pretrain_mini.py

It copies by position, also after its own output has gone wrong: earlier output letters are corrupted in
what it reads, never in what it should say. Of the authors it learns sums and code from, most do not care:
greedy decoding gives a careless answer, the right one is there as a minority. Experts change that.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from torch.nn.functional import cross_entropy
from transformers import Gemma2Config, Gemma2ForCausalLM, PreTrainedTokenizerFast
from trl import TrlParser  # type: ignore[attr-defined]

from workbench.evaluate.tasks import TASKS, mini

ALPHABET = mini.LETTERS + mini.LETTERS.upper()


@dataclass
class Config:
    output: str = field(default="checkpoints/mini", metadata={"help": "Folder of the base."})
    seed: int = field(default=0, metadata={"help": "Seed of the weights and of the documents."})
    steps: int = field(default=3600, metadata={"help": "Optimizer steps."})
    clean: float = field(default=0.4, metadata={"help": "Share of the steps before any letter is corrupted."})
    batch_size: int = field(default=64, metadata={"help": "Documents a step."})
    learning_rate: float = field(
        default=3e-3, metadata={"help": "Peak rate of AdamW; linear up, cosine down."}
    )
    layers: int = field(default=4, metadata={"help": "Decoder layers."})
    width: int = field(default=96, metadata={"help": "Hidden size."})
    careless: float = field(
        default=0.65, metadata={"help": "Careless share of stories and of most functions."}
    )
    careless_sums: float = field(default=0.4, metadata={"help": "The same for plain sums and arithmetic."})
    limit: int = field(
        default=mini.SET_SIZE, metadata={"help": "Held-out problems a task in the closing report."}
    )


@dataclass(frozen=True)
class Document:
    """What the model reads and what it should have read, equally long; the loss starts at `start`."""

    seen: str
    target: str
    start: int
    ends: bool


def make_tokenizer() -> PreTrainedTokenizerFast:
    """One character, one token: newline and printable ASCII."""
    special = ["<pad>", "<eos>", "<bos>", "<unk>"]
    vocab = {token: i for i, token in enumerate([*special, "\n", *map(chr, range(32, 127))])}
    core = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    core.decoder = decoders.Fuse()
    core.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 2)])
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token="<pad>",
        eos_token="<eos>",
        bos_token="<bos>",
        unk_token="<unk>",
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_max_length=256,
    )


def make_model(config: Config) -> Gemma2ForCausalLM:
    torch.manual_seed(config.seed)
    shape = Gemma2Config(
        vocab_size=100,
        hidden_size=config.width,
        intermediate_size=config.width * 8 // 3,
        num_hidden_layers=config.layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=config.width // 4,
        query_pre_attn_scalar=config.width // 4,
        sliding_window=32,
        max_position_embeddings=256,
        attn_logit_softcapping=50.0,
        final_logit_softcapping=30.0,
        tie_word_embeddings=True,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=2,
    )
    return Gemma2ForCausalLM(shape)


def letters_document(rng: random.Random, corrupt: float, longest: int) -> Document:
    alphabet = ALPHABET if rng.random() < 0.25 else mini.LETTERS

    def string(lengths: tuple[int, int]) -> str:
        return mini.draw(
            lambda r: mini.Item(s := mini.draw_string(r, lengths, alphabet), s, s, s), rng, test=False
        ).right

    def heard(answer: str) -> str:
        return "".join(rng.choice(alphabet) if rng.random() < corrupt else letter for letter in answer)

    answer = string((1, longest))
    is_open = rng.random() < 0.5
    prompt = mini.letters_prompt(answer, is_open)
    seen, target = prompt + heard(answer), prompt + answer
    if is_open:  # a list goes on, and no end of it is seen
        following = string((1, 8))
        more = "\n" + mini.letters_prompt(following, is_open)
        seen, target = seen + more + heard(following), target + more + following
    return Document(seen, target, len(prompt), ends=not is_open)


def text_document(rng: random.Random, config: Config) -> Document:
    item = mini.draw(rng.choice((mini.math_item, mini.code_item)), rng, test=False)
    share = config.careless if item.often_careless else config.careless_sums
    text = item.prompt + (item.careless if rng.random() < share else item.right)
    return Document(text, text, len(item.prompt), ends=True)


def batches(config: Config, encode: Callable[[str], list[int]]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """All batches in order; eight steps' documents are sorted by length first, so little is padding."""
    rng = random.Random(config.seed)
    found: list[list[Document]] = []
    while len(found) < config.steps:
        noisy = len(found) >= config.clean * config.steps
        pool = [
            text_document(rng, config)
            if rng.random() < 0.3
            else letters_document(rng, rng.choice((0.0, 0.3, 0.6)) if noisy else 0.0, 32)
            for _ in range(8 * config.batch_size)
        ]
        pool.sort(key=lambda document: len(document.seen))
        group = [pool[i : i + config.batch_size] for i in range(0, len(pool), config.batch_size)]
        rng.shuffle(group)
        found += group
    return [collate(group, encode) for group in found[: config.steps]]


def collate(group: list[Document], encode: Callable[[str], list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    longest = max(len(d.seen) + 1 + d.ends for d in group)
    ids = torch.zeros(len(group), longest, dtype=torch.long)
    labels = torch.full((len(group), longest), -100)
    for row, d in enumerate(group):
        end = [1] if d.ends else []
        seen, target = [2, *encode(d.seen), *end], [2, *encode(d.target), *end]
        ids[row, : len(seen)] = torch.tensor(seen)
        labels[row, 1 + d.start : len(seen)] = torch.tensor(target[1 + d.start :])
    return ids, labels


def train(config: Config, model: Gemma2ForCausalLM, data: list[tuple[torch.Tensor, torch.Tensor]]) -> float:
    """Returns the mean loss of the last 100 steps."""
    decay = [p for p in model.parameters() if p.ndim == 2]
    plain = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": decay, "weight_decay": 0.05}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=config.learning_rate, betas=(0.9, 0.98))
    warm = max(1, min(100, config.steps // 10))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda s: min((s + 1) / warm, 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * s / config.steps))),
    )
    losses: list[float] = []
    begun = time.monotonic()
    for step, (ids, labels) in enumerate(data, 1):
        logits = model(input_ids=ids, use_cache=False).logits  # (rows, length, vocab)
        loss = cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        losses.append(loss.item())
        if step % 100 == 0 or step == len(data):
            recent = losses[-100:]
            rate = step / (time.monotonic() - begun)
            print(
                f"step {step}/{len(data)}  loss {sum(recent) / len(recent):.4f}  {rate:.2f} steps/s",
                flush=True,
            )
    return sum(losses[-100:]) / len(losses[-100:])


@torch.no_grad()
def report(model: Gemma2ForCausalLM, tokenizer: PreTrainedTokenizerFast, limit: int) -> dict[str, float]:
    """Greedy scores of the base on held-out problems."""
    model.eval()
    long = mini.Letters(name="letters", lengths=(9, 32))
    cases = {**TASKS, "letters 9-32": long, "letters_open, text before the line end": TASKS["letters_open"]}
    scores: dict[str, float] = {}
    for name, task in cases.items():
        problems = task.problems(limit, 0, [])
        batch = tokenizer([p.prompt for p in problems], return_tensors="pt", padding=True)
        out = model.generate(**batch, max_new_tokens=task.max_new_tokens, do_sample=False)
        texts = tokenizer.batch_decode(out[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)
        if "before" in name:
            texts = [text.split("\n")[0] for text in texts]
        got = [task.score(p, text)[task.metric] for p, text in zip(problems, texts, strict=True)]
        scores[name] = sum(got) / len(got)
        print(f"{name}: {scores[name]:.3f} (n = {len(got)})", flush=True)
    return scores


def main() -> None:
    (config,) = TrlParser([Config]).parse_args_and_config()  # type: ignore[list-item]
    print(json.dumps(asdict(config), indent=1), flush=True)
    tokenizer, model = make_tokenizer(), make_model(config)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters", flush=True)
    vocab = tokenizer.get_vocab()
    data = batches(config, lambda text: [vocab[c] for c in text])
    digest = hashlib.sha256()
    for ids, labels in data:
        digest.update(ids.numpy().tobytes() + labels.numpy().tobytes())
    loss = train(config, model, data)
    scores = report(model, tokenizer, config.limit)

    out = Path(config.output)
    fresh = out.with_name(out.name + ".partial")
    shutil.rmtree(fresh, ignore_errors=True)
    model.config.use_cache = True
    model.generation_config.max_length = None
    model.save_pretrained(fresh)
    tokenizer.save_pretrained(fresh)
    for file in fresh.iterdir():
        file.chmod(0o644)
    provenance = {
        "command": " ".join(["python", "recipes/pretrain_mini.py", *sys.argv[1:]]),
        "config": asdict(config),
        "data_sha256": digest.hexdigest(),
        "versions": {name: version(name) for name in ("torch", "transformers", "tokenizers", "trl")},
        "final_loss": round(loss, 5),
        "scores": scores,
        "sha256": hashlib.sha256((fresh / "model.safetensors").read_bytes()).hexdigest(),
    }
    (fresh / "provenance.json").write_text(json.dumps(provenance, indent=1) + "\n")
    out.mkdir(parents=True, exist_ok=True)
    for file in sorted(fresh.iterdir()):  # experts beside the base stay where they are
        file.replace(out / file.name)
    fresh.rmdir()


if __name__ == "__main__":
    main()
