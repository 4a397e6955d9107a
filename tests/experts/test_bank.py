"""The bank against PEFT itself, on real architectures and adapters that peft wrote."""

from __future__ import annotations

import copy
import gc

import pytest
import torch
from conftest import ADAPTERS, CONFIGS, make_tokenizer, save_adapter, save_model
from peft import PeftModel
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from workbench.errors import AdapterError, WorkbenchError
from workbench.experts.bank import ExpertBank
from workbench.experts.lora import Expert, Factors, read_expert

PROMPTS = ["Hello world", "a much longer prompt, past the window", "x"]


def load(folder):
    return AutoModelForCausalLM.from_pretrained(folder).eval()


def peft_logits(base, adapter, batch) -> Tensor:
    with torch.no_grad():
        return PeftModel.from_pretrained(load(base), adapter).eval()(**batch).logits


def largest_difference(ours: Tensor, reference: Tensor, mask: Tensor) -> float:
    return (ours - reference)[mask.bool()].abs().max().item()


@pytest.fixture(params=CONFIGS)
def case(request, models_folder):
    """(folder, base model, bank with every adapter, batch of prompts of different lengths)."""
    folder = models_folder(request.param)
    model = load(folder / "base")
    bank = ExpertBank(model, [read_expert(name, str(folder / name)) for name in ADAPTERS])
    return folder, model, bank, make_tokenizer()(PROMPTS, return_tensors="pt", padding=True)


def test_each_expert_equals_peft_with_all_loaded(case):
    folder, model, bank, batch = case
    with torch.no_grad():
        base = model(**batch).logits
        for i, name in enumerate(ADAPTERS):
            with bank.gated(torch.eye(len(ADAPTERS))[i : i + 1].repeat(len(PROMPTS), 1)):
                ours = model(**batch).logits
            reference = peft_logits(folder / "base", folder / name, batch)
            assert largest_difference(ours, reference, batch["attention_mask"]) <= 1e-5, name
            assert largest_difference(ours, base, batch["attention_mask"]) > 0.1, name


def test_rows_of_one_batch_see_their_own_expert(case):
    folder, model, bank, batch = case
    rows = ["subset", "plain", "rslora"]
    gate = torch.stack([torch.eye(len(ADAPTERS))[list(ADAPTERS).index(name)] for name in rows])
    with torch.no_grad(), bank.gated(gate):
        ours = model(**batch).logits
    for row, name in enumerate(rows):
        reference = peft_logits(folder / "base", folder / name, batch)[row]
        assert largest_difference(ours[row], reference, batch["attention_mask"][row]) <= 1e-5, name


def test_nothing_is_left_behind(case):
    _, model, bank, batch = case
    fresh = load(model.config._name_or_path)
    with torch.no_grad():
        expected = fresh(**batch).logits
        assert torch.equal(model(**batch).logits, expected)  # attached, but outside `gated`
        bank.detach()
        with bank.gated(torch.ones(3, len(ADAPTERS))):
            assert torch.equal(model(**batch).logits, expected)
    assert list(model.state_dict()) == list(fresh.state_dict())
    assert [type(module) for module in model.modules()] == [type(module) for module in fresh.modules()]
    assert not any(module._forward_hooks for module in model.modules())


def test_an_error_inside_the_gate_closes_it(case):
    _, model, bank, batch = case
    with torch.no_grad():
        expected = model(**batch).logits
        with pytest.raises(KeyError), bank.gated(torch.ones(3, len(ADAPTERS))):
            raise KeyError
        assert torch.equal(model(**batch).logits, expected)


def test_two_banks_on_one_base_do_not_see_each_other(models_folder):
    folder = models_folder("llama")
    model = load(folder / "base")
    plain, rslora = (ExpertBank(model, [read_expert(n, str(folder / n))]) for n in ("plain", "rslora"))
    batch = make_tokenizer()(PROMPTS, return_tensors="pt", padding=True)
    for name, bank in (("plain", plain), ("rslora", rslora)):
        with torch.no_grad(), bank.gated(torch.ones(3, 1)):
            ours = model(**batch).logits
        reference = peft_logits(folder / "base", folder / name, batch)
        assert largest_difference(ours, reference, batch["attention_mask"]) <= 1e-5


def test_lora_on_a_tied_head_equals_peft(tmp_path):
    base = save_model("gemma2", tmp_path / "base")
    adapter = save_adapter(base, tmp_path / "head", 1, target_modules=["lm_head", "q_proj"])
    model = load(base)
    batch = make_tokenizer()(PROMPTS, return_tensors="pt", padding=True)
    bank = ExpertBank(model, [read_expert("head", str(adapter))])
    with torch.no_grad(), bank.gated(torch.ones(3, 1)):
        ours = model(**batch).logits
    assert largest_difference(ours, peft_logits(base, adapter, batch), batch["attention_mask"]) <= 1e-5


def test_a_changed_copy_of_the_head_is_refused(tmp_path):
    base = save_model("llama", tmp_path / "base")
    adapter = save_adapter(base, tmp_path / "head", 1, target_modules=["lm_head", "q_proj"])
    file = adapter / "adapter_model.safetensors"
    tensors = {key: tensor.clone() for key, tensor in load_file(file).items()}
    tensors["base_model.model.lm_head.base_layer.weight"][0, 0] += 1
    save_file(tensors, file)
    with pytest.raises(AdapterError, match=r"carries its own 'lm_head\.weight'"):
        ExpertBank(load(base), [read_expert("head", str(adapter))])


def test_bfloat16_base(models_folder):
    folder = models_folder("gemma3")
    model = load(folder / "base").to(torch.bfloat16)
    bank = ExpertBank(model, [read_expert("plain", str(folder / "plain"))])
    batch = make_tokenizer()(PROMPTS[1], return_tensors="pt")
    with torch.no_grad(), bank.gated(torch.ones(1, 1)):
        ours = model(**batch).logits
    assert ours.dtype == torch.bfloat16
    reference = peft_logits(folder / "base", folder / "plain", batch)
    assert (ours.float() - reference).abs().mean() < 0.1 * reference.std()


def test_a_gate_is_not_rounded_to_the_layers_dtype():
    linear = nn.Linear(1, 1, bias=False, dtype=torch.bfloat16)
    nn.init.zeros_(linear.weight)
    bank = ExpertBank(nn.Sequential(linear), [Expert("a", {"0": Factors(*torch.ones(2, 1, 1), 1.0)}, "", "")])
    with torch.no_grad(), bank.gated(torch.full((1, 1), 1 + 1 / 256)):  # bfloat16 has 8 bits
        assert linear(torch.full((1, 1, 1), 255.0, dtype=torch.bfloat16)).item() == 256


def test_the_bank_follows_its_model(models_folder):
    folder = models_folder("llama")
    model = load(folder / "base")
    bank = ExpertBank(model, [read_expert("plain", str(folder / "plain"))])
    batch = make_tokenizer()(PROMPTS[0], return_tensors="pt")
    model.to(torch.float64)
    with torch.no_grad(), bank.gated(torch.ones(1, 1)):
        ours = model(**batch).logits
    assert ours.dtype == torch.float64
    reference = peft_logits(folder / "base", folder / "plain", batch)
    assert largest_difference(ours, reference, batch["attention_mask"]) <= 1e-5


def test_a_bank_that_nobody_holds_leaves_the_model(models_folder):
    folder = models_folder("llama")
    model = load(folder / "base")
    bank = ExpertBank(model, [read_expert("plain", str(folder / "plain"))])
    assert any(module._forward_hooks for module in model.modules())
    del bank
    gc.collect()
    assert not any(module._forward_hooks for module in model.modules())


def factors(out: int, width: int) -> Factors:
    return Factors(torch.randn(2, width), torch.randn(out, 2), 1.0)


def test_gates_are_checked_against_the_rows():
    model = nn.Sequential(nn.Linear(3, 4))
    bank = ExpertBank(
        model, [Expert("a", {"0": factors(4, 3)}, "", ""), Expert("b", {"0": factors(4, 3)}, "", "")]
    )
    with pytest.raises(ValueError, match=r"expected \(rows, 2\)"), bank.gated(torch.ones(1, 3)):
        pass
    deep = torch.randn(2, 3, 3)
    with bank.gated(torch.eye(2)):  # some models flatten rows and positions
        assert torch.equal(model(deep.flatten(0, 1)).unflatten(0, (2, 3)), model(deep))
    some = torch.randn(5, 3)  # a part of the positions: which row is which is lost
    with bank.gated(torch.eye(2)), pytest.raises(ValueError, match="layer '0'"):
        model(some)
    with bank.gated(torch.ones(2, 2)):  # the same for every row: no matter
        both = model(some)
    with bank.gated(torch.ones(1, 2)):
        assert torch.equal(model(some[None])[0], both)


def test_experts_that_do_not_fit_are_refused():
    model = nn.Sequential(nn.Linear(3, 4), nn.Embedding(5, 3))
    for layers, message in (
        ({"9": factors(4, 3)}, "no tensor of the adapter fits the base"),
        ({"0": factors(4, 3), "9": factors(4, 3)}, "the base has no layer '9'"),
        ({"0": factors(4, 5)}, "4 x 5 in the adapter: 4 x 3 in the base"),
        ({"1": factors(4, 3)}, "is a Embedding in the base"),
    ):
        with pytest.raises(AdapterError, match=message):
            ExpertBank(copy.deepcopy(model), [Expert("a", layers, "", "somewhere")])
    same = Expert("a", {"0": factors(4, 3)}, "", "")
    with pytest.raises(WorkbenchError, match="two experts are called 'a'"):
        ExpertBank(model, [same, same])
    assert not model[0]._forward_hooks
