"""The composed model under transformers' own `generate`."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from conftest import ADAPTERS, CONFIGS, make_tokenizer
from transformers import (
    AutoModelForCausalLM,
    DynamicCache,
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
)

import workbench
from workbench.decode.branches import Branches
from workbench.methods import METHODS

PROMPTS = ["Hello world", "a much longer prompt, far past the window of eight"]
WEIGHTS = [0.8, 0.4, 0.6, 0.5]


def compose(folder, method="logit", weights=WEIGHTS):
    base = AutoModelForCausalLM.from_pretrained(folder / "base").eval()
    return workbench.compose(base, {name: str(folder / name) for name in ADAPTERS}, method, weights)


@pytest.fixture(
    params=[*((kind, "logit") for kind in CONFIGS), ("gemma2", "linearized"), ("llama", "linearized")]
)
def lm(request, models_folder):
    kind, method = request.param
    return compose(models_folder(kind), method)


@pytest.fixture
def batch():
    return make_tokenizer()(PROMPTS, return_tensors="pt", padding=True)


def alone(lm, prompt, **options):
    """New tokens of one prompt, unpadded and uncached."""
    single = make_tokenizer()(prompt, return_tensors="pt")
    out = lm.generate(**single, use_cache=False, max_new_tokens=16, **options)
    return out[0, single["input_ids"].shape[1] :].tolist()


@pytest.mark.parametrize("options", [{"do_sample": False}, {"num_beams": 3, "do_sample": False}])
def test_greedy_and_beams_batched_and_cached_equal_alone_and_uncached(lm, batch, options):
    out = lm.generate(**batch, max_new_tokens=16, **options)[:, batch["input_ids"].shape[1] :].tolist()
    for prompt, new in zip(PROMPTS, out, strict=True):
        expected = alone(lm, prompt, **options)
        assert new == expected + [0] * (len(new) - len(expected))


def test_beams_are_really_reordered(models_folder, batch):
    lm = compose(models_folder("llama"))
    greedy = lm.generate(**batch, max_new_tokens=16, do_sample=False)
    beams = lm.generate(**batch, max_new_tokens=16, do_sample=False, num_beams=4, num_return_sequences=4)
    assert len({tuple(row) for row in beams.tolist()}) == 8
    assert not torch.equal(beams[::4, : greedy.shape[1]], greedy[:, : beams.shape[1]])


def test_sampling_several_sequences_with_a_cache_equals_without(models_folder, batch):
    lm = compose(models_folder("gemma2"))
    outs = []
    for use_cache in (True, False):
        torch.manual_seed(3)
        outs.append(
            lm.generate(
                **batch, max_new_tokens=12, do_sample=True, num_return_sequences=3, use_cache=use_cache
            )
        )
    assert torch.equal(*outs)
    assert len({tuple(row) for row in outs[0].tolist()}) == 6


def test_a_generation_config_without_a_cache_is_heard(models_folder, batch):
    lm = compose(models_folder("gemma2"))
    expected = lm.generate(**batch, max_new_tokens=12, do_sample=False)
    for use_cache in (True, False):
        config = GenerationConfig(
            max_new_tokens=12, do_sample=False, use_cache=use_cache, pad_token_id=0, eos_token_id=1
        )
        assert torch.equal(lm.generate(**batch, generation_config=config), expected)
    with pytest.raises(workbench.WorkbenchError, match="no cache_implementation"):
        lm.generate(**batch, max_new_tokens=2, cache_implementation="static")


def test_stop_strings_and_logits_processors(models_folder, batch):
    lm, tokenizer = compose(models_folder("llama")), make_tokenizer()
    single = tokenizer(PROMPTS[0], return_tensors="pt")
    out = lm.generate(**single, max_new_tokens=16, do_sample=False)
    text = tokenizer.decode(out[0, single["input_ids"].shape[1] :])
    stopped = lm.generate(
        **single, max_new_tokens=16, do_sample=False, stop_strings=[text[3:5]], tokenizer=tokenizer
    )
    assert tokenizer.decode(stopped[0, single["input_ids"].shape[1] :]) == text[: text.index(text[3:5]) + 2]

    class Never(LogitsProcessor):
        def __call__(self, input_ids, scores):
            assert (scores.logsumexp(-1).abs() < 1e-4).all()  # what it sees is the composed distribution
            scores[:, out[0, -1]] = -torch.inf
            return scores

    without = lm.generate(
        **single, max_new_tokens=16, do_sample=False, logits_processor=LogitsProcessorList([Never()])
    )
    assert out[0, -1] not in without[0, single["input_ids"].shape[1] :]


@pytest.mark.parametrize("method", METHODS)
def test_forward_is_the_composed_distribution(models_folder, batch, method):
    lm = compose(models_folder("gemma2"), method)
    with torch.no_grad():
        result = lm(**batch)
        expected = Branches(lm.base, lm.bank, lm.branches.plan).log_probs(**batch)
    with torch.no_grad(), lm.branches.level():
        last = lm(**batch, logits_to_keep=1, use_cache=True)
        torch.testing.assert_close(last.logits[:, 0], expected[:, -1], atol=1e-5, rtol=0)
        mask = torch.cat([batch["attention_mask"], torch.ones(2, 1, dtype=torch.long)], 1)
        step = lm(torch.tensor([[7], [8]]), attention_mask=mask, cache=last.cache, use_cache=True)
    assert result.cache is None
    torch.testing.assert_close(result.logits, expected)
    assert step.logits.shape == (2, 1, result.logits.shape[-1])


def test_the_loss_is_that_of_the_composed_distribution(models_folder):
    lm = compose(models_folder("llama"))
    ids = make_tokenizer()(PROMPTS[1], return_tensors="pt")["input_ids"]
    with torch.no_grad():
        result = lm(ids, labels=ids)
    picked = result.logits[0, :-1].gather(1, ids[0, 1:, None])
    torch.testing.assert_close(result.loss, -picked.mean())


def test_a_tuple_for_those_who_ask(models_folder, batch):
    lm = compose(models_folder("llama"))
    assert torch.equal(lm(**batch, return_dict=False)[0], lm(**batch).logits)


def test_the_base_stays_the_base(models_folder, batch):
    folder = models_folder("llama")
    base = AutoModelForCausalLM.from_pretrained(folder / "base").eval()
    with torch.no_grad():
        before = base(**batch).logits
        lm = workbench.compose(base, [str(folder / "plain")], "task_arith")
        assert not torch.allclose(lm(**batch).logits, before.log_softmax(-1), atol=0.1)
        assert torch.equal(base(**batch).logits, before)


def test_a_base_by_its_folder(models_folder, batch):
    folder = models_folder("llama")
    opened = AutoModelForCausalLM.from_pretrained(folder / "base").eval()
    expected = workbench.compose(opened, [str(folder / "plain")])(**batch).logits
    for base, expert in (
        (str(folder / "base"), [str(folder / "plain")]),
        (folder / "base", folder / "plain"),
    ):
        lm = workbench.compose(base, expert, weights=torch.ones(1))
        assert torch.equal(lm(**batch).logits, expected)


def test_the_hybrid_cache_that_older_gemma_checkpoints_name(models_folder, batch):
    lm = compose(models_folder("gemma2"))
    expected = lm.generate(**batch, max_new_tokens=6, do_sample=False)
    lm.base.generation_config.cache_implementation = "hybrid"
    again = type(lm)(lm.base, lm.bank, lm.branches.plan)
    assert torch.equal(again.generate(**batch, max_new_tokens=6, do_sample=False), expected)


def test_a_base_by_its_folder_is_compared_with_the_experts(models_folder, tmp_path):
    folder = models_folder("llama")
    adapter = shutil.copytree(folder / "plain", tmp_path / "adapter")
    (adapter / "provenance.json").write_text(json.dumps({"base_sha256": "a" * 64}))
    with pytest.raises(workbench.WorkbenchError, match="trained on a base with weights aaaa"):
        workbench.compose(folder / "base", adapter)


def test_what_it_cannot_do_it_says(models_folder, batch, tmp_path):
    lm = compose(models_folder("llama"))
    with pytest.raises(TypeError, match="cache is a DynamicCache"):
        lm(**batch, cache=DynamicCache())
    for wrong in ({"past_key_values": DynamicCache()}, {"inputs_embeds": torch.ones(2, 3, 32)}):
        with pytest.raises(TypeError, match="a composed model takes no"):
            lm(**batch, **wrong)
    with pytest.raises(TypeError, match="a composed model takes no 'output_attentions'"):
        lm(**batch, output_attentions=True)
    with pytest.raises(workbench.WorkbenchError, match="the same expert is given twice"):
        workbench.compose(lm.base, ["a", "a"])
    plain = models_folder("llama") / "plain"
    with pytest.raises(workbench.WorkbenchError, match="the same expert is given twice"):
        workbench.compose(lm.base, {"a": plain, "b": f"{plain}/../plain"})
    with pytest.raises(workbench.WorkbenchError, match="not one set of weights"):
        lm.save_pretrained(tmp_path)


def test_tangents_are_never_lost_in_silence(models_folder, batch):
    lm = compose(models_folder("llama"), "linearized")
    with torch.inference_mode(), pytest.raises(workbench.WorkbenchError, match="inference_mode drops"):
        lm(**batch)
    ids = batch["input_ids"][:1, -4:]
    with torch.no_grad():
        whole = lm(ids).logits[0, -1]
        cache = lm(ids[:, :-1], use_cache=True).cache
        with pytest.raises(workbench.WorkbenchError, match="has lost its tangents"):
            lm(ids[:, -1:], cache=cache)
        with lm.branches.level():
            cache = lm(ids[:, :-1], use_cache=True).cache
            torch.testing.assert_close(lm(ids[:, -1:], cache=cache).logits[0, -1], whole, atol=1e-5, rtol=0)
    base = compose(models_folder("llama"), "linearized", [0.0] * len(WEIGHTS))
    assert (whole - base(ids).logits[0, -1]).abs().max() > 0.1


def test_a_model_without_a_forward_mode_is_refused(models_folder, batch):
    lm = compose(models_folder("llama"), "linearized")
    lm.base.lm_head.register_forward_hook(lambda module, inputs, output: torch.tensor(output.tolist()))
    with torch.no_grad(), pytest.raises(workbench.WorkbenchError, match="the model gave no tangent"):
        lm(**batch)
