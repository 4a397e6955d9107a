"""Reading adapters: exact, or refused with the file and the field named."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from conftest import ADAPTERS, PROJECTIONS, save_adapter
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import LoraLayer
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from workbench.errors import AdapterError
from workbench.experts.lora import read_expert


@pytest.fixture
def adapter(models_folder, tmp_path):
    """A copy of a good adapter, to be spoilt."""
    return shutil.copytree(models_folder("llama") / "plain", tmp_path / "adapter")


def edit(adapter, **fields):
    file = adapter / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


@pytest.mark.parametrize("name", ADAPTERS)
def test_task_vectors_equal_pefts(models_folder, name):
    folder = models_folder("llama")
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(folder / "base"), folder / name)
    reference = {
        path.removeprefix("base_model.model."): module.get_delta_weight("default")
        for path, module in model.named_modules()
        if isinstance(module, LoraLayer)
    }
    expert = read_expert(name, str(folder / name))
    assert set(expert.layers) == set(reference)
    for layer, delta in reference.items():
        torch.testing.assert_close(expert.layers[layer].delta(torch.float32), delta, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"use_dora": True}, "DoRA"),
        ({"bias": "lora_only"}, "bias"),
        ({"lora_bias": True}, "lora_bias"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"trainable_token_indices": [1, 2]}, "trainable_token_indices"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights"),
        ({"init_lora_weights": "olora"}, "init_lora_weights"),
        ({"target_modules": [], "target_parameters": ["mlp.up_proj.weight"]}, "target_parameters"),
    ],
)
def test_variants_written_by_peft_are_refused_by_name(models_folder, tmp_path, options, field):
    base = models_folder("llama") / "base"
    torch.manual_seed(0)
    options = {"target_modules": PROJECTIONS, **options}
    folder = tmp_path / "variant"
    get_peft_model(
        AutoModelForCausalLM.from_pretrained(base), LoraConfig(task_type="CAUSAL_LM", **options)
    ).save_pretrained(folder)
    with pytest.raises(AdapterError, match=field) as caught:
        read_expert("variant", str(folder))
    assert "adapter_config.json" in str(caught.value)


def test_lora_on_embeddings_is_refused(models_folder, tmp_path):
    base = models_folder("llama") / "base"
    folder = save_adapter(base, tmp_path / "a", 1, target_modules=["embed_tokens", "q_proj"])
    with pytest.raises(AdapterError, match="lora_embedding"):
        read_expert("a", str(folder))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"peft_type": "IA3"}, "peft_type is 'IA3'"),
        ({"a_field_of_tomorrow": 3}, "a_field_of_tomorrow = 3"),
        ({"r": 8}, "rank 4 in lora_A and 4 in lora_B: 8"),
        ({"r": 0}, "r is 0"),
        ({"lora_alpha": float("nan")}, "lora_alpha is nan"),
        ({"lora_alpha": None}, "lora_alpha is None"),
        ({"rank_pattern": [4]}, r"rank_pattern is \[4\]: an object"),
        ({"alpha_pattern": {"(": 4}}, "alpha_pattern is no pattern"),
    ],
)
def test_a_wrong_configuration_is_refused(adapter, fields, message):
    edit(adapter, **fields)
    with pytest.raises(AdapterError, match=message):
        read_expert("a", str(adapter))


def test_wrong_tensors_are_refused(adapter):
    good = {key: value.clone() for key, value in load_file(adapter / "adapter_model.safetensors").items()}
    first = next(key for key in good if "lora_A" in key)
    for change, message in (
        ({first.replace("lora_A.weight", "lora_C.weight"): good[first].clone()}, "is not a LoRA factor"),
        ({first: torch.full_like(good[first], torch.inf)}, "not finite"),
        ({first: good[first].to(torch.int32)}, "a float matrix"),
        ({first: good[first][0].clone()}, "a float matrix"),
    ):
        save_file(good | change, adapter / "adapter_model.safetensors")
        with pytest.raises(AdapterError, match=message):
            read_expert("a", str(adapter))
    save_file(
        {key: value for key, value in good.items() if key != first}, adapter / "adapter_model.safetensors"
    )
    with pytest.raises(AdapterError, match="has lora_B only"):
        read_expert("a", str(adapter))
    save_file({}, adapter / "adapter_model.safetensors")
    with pytest.raises(AdapterError, match="holds no tensors"):
        read_expert("a", str(adapter))


def test_damaged_and_missing_files(adapter, tmp_path):
    weights = adapter / "adapter_model.safetensors"
    whole = weights.read_bytes()
    for content in (whole[: len(whole) // 2], whole[:5], b"", b"\xff" * 100):
        weights.write_bytes(content)
        with pytest.raises(AdapterError, match="damaged or cut off"):
            read_expert("a", str(adapter))
    weights.unlink()
    with pytest.raises(AdapterError, match="no weights"):
        read_expert("a", str(adapter))
    torch.save({"x": torch.ones(1)}, adapter / "adapter_model.bin")
    with pytest.raises(AdapterError, match="never loaded"):
        read_expert("a", str(adapter))
    (adapter / "adapter_config.json").write_text("{")
    with pytest.raises(AdapterError, match="cannot be read as JSON"):
        read_expert("a", str(adapter))
    (adapter / "adapter_config.json").write_text("[1]")
    with pytest.raises(AdapterError, match="not a JSON object"):
        read_expert("a", str(adapter))
    (adapter / "adapter_config.json").unlink()
    with pytest.raises(AdapterError, match="not a PEFT adapter"):
        read_expert("a", str(adapter))
    with pytest.raises(AdapterError, match="no such folder"):
        read_expert("a", str(tmp_path / "nowhere"))
    with pytest.raises(AdapterError, match="a file"):
        read_expert("a", str(adapter / "adapter_model.bin"))


def test_a_tokenizer_of_another_vocabulary_is_refused(adapter, models_folder):
    tokenizer = models_folder("llama") / "base" / "tokenizer.json"
    shutil.copy(tokenizer, adapter)
    vocabulary = json.loads(tokenizer.read_text())["model"]["vocab"]
    expert = read_expert("a", str(adapter))
    expert.check_vocabulary(vocabulary)
    (adapter / "tokenizer.json").write_text(tokenizer.read_text().replace('"a":', '"é":'))
    with pytest.raises(AdapterError, match="such as 'a'"):
        read_expert("a", str(adapter)).check_vocabulary(vocabulary)


def test_the_base_it_was_trained_on_is_compared_where_known(adapter, models_folder):
    model = AutoModelForCausalLM.from_pretrained(models_folder("llama") / "base")
    (adapter / "provenance.json").write_text(json.dumps({"base_sha256": "a" * 64}))
    expert = read_expert("a", str(adapter))
    expert.check_fits(model, "a" * 64)
    expert.check_fits(model)
    expert.check_fits(
        model, "commit:0123"
    )  # the hub names a commit, which says nothing about the file's hash
    for foreign in ("[]", "{", '{"base_sha256": 3}'):
        (adapter / "provenance.json").write_text(foreign)
        read_expert("a", str(adapter)).check_fits(model, "b" * 64)
    with pytest.raises(AdapterError, match="trained on a base with weights aaaa"):
        expert.check_fits(model, "b" * 64)
