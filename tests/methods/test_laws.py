"""Every method against the laws, against movement, and against a definition written by hand.

A law that does not hold for a method is a row of EXCEPTIONS with its reason, not a missing test.
"""

from __future__ import annotations

import itertools

import pytest
import torch
from conftest import ADAPTERS, make_tokenizer
from peft import PeftModel
from transformers import AutoModelForCausalLM

from workbench.decode.branches import Branches
from workbench.errors import UnknownName, WorkbenchError
from workbench.experts.bank import ExpertBank
from workbench.experts.lora import read_expert
from workbench.methods import METHODS, plan
from workbench.methods.linearized import Linearized
from workbench.methods.plan import Mix, base_plan, expert_plan

NOT_LINEAR = "an expert is not linear in its weights, the linearized model is"
EXCEPTIONS: dict[tuple[str, str], str] = {  # (method, law) -> why it does not hold
    ("linearized", "one expert at weight 1 is that expert"): NOT_LINEAR,
    ("linearized", "one of several at weight 1, the rest at 0, is that expert"): NOT_LINEAR,
}
NAMES = list(ADAPTERS)
WEIGHTS = [1.0, 0.5, -0.7, 1.3]


def law(name):
    """Runs a test on every method that the law holds for."""
    return pytest.mark.parametrize("method", [m for m in METHODS if (m, name) not in EXCEPTIONS])


class Case:
    """An architecture with its experts; compositions by our code, and PEFT's log-probabilities."""

    def __init__(self, folder):
        self.folder = folder
        self.batch = make_tokenizer()(
            ["Hello world", "a much longer prompt, past the window"], return_tensors="pt", padding=True
        )

    def composed(self, made, names=NAMES):
        model = AutoModelForCausalLM.from_pretrained(self.folder / "base").eval()
        bank = ExpertBank(model, [read_expert(name, str(self.folder / name)) for name in names])
        with torch.no_grad():
            return self.real(Branches(model, bank, made).log_probs(**self.batch))

    def real(self, values):
        """Without the padding, whose values mean nothing."""
        return values[self.batch["attention_mask"].bool()]

    def base(self):
        model = AutoModelForCausalLM.from_pretrained(self.folder / "base").eval()
        with torch.no_grad():
            return self.real(model(**self.batch).logits.double().log_softmax(-1))

    def expert(self, name):
        model = AutoModelForCausalLM.from_pretrained(self.folder / "base")
        model = PeftModel.from_pretrained(model, self.folder / name).eval()
        with torch.no_grad():
            return self.real(model(**self.batch).logits.double().log_softmax(-1))


@pytest.fixture(params=["gemma2", "llama"])
def case(request, models_folder):
    return Case(models_folder(request.param))


def assert_close(ours, reference, tolerance=1e-5):
    torch.testing.assert_close(ours.double(), reference.double(), atol=tolerance, rtol=0)


@law("normalised")
def test_is_normalised(case, method):
    total = case.composed(plan(method, NAMES, WEIGHTS)).double().logsumexp(-1)
    assert_close(total, torch.zeros_like(total))


@law("one expert at weight 1 is that expert")
def test_one_expert_is_that_expert(case, method):
    for name in NAMES:
        assert_close(case.composed(plan(method, [name]), [name]), case.expert(name))


@law("one of several at weight 1, the rest at 0, is that expert")
def test_weight_one_among_zeros_is_that_expert(case, method):
    for i, name in enumerate(NAMES):
        weights = [float(i == j) for j in range(len(NAMES))]
        assert_close(case.composed(plan(method, NAMES, weights)), case.expert(name))


@law("all weights 0 is the base")
def test_all_weights_zero_is_the_base(case, method):
    assert_close(case.composed(plan(method, NAMES, [0.0] * len(NAMES))), case.base())


@law("order does not matter")
def test_order_does_not_matter(case, method):
    expected = case.composed(plan(method, NAMES, WEIGHTS))
    for order in list(itertools.permutations(range(len(NAMES))))[1::7]:
        names = [NAMES[i] for i in order]
        assert_close(case.composed(plan(method, names, [WEIGHTS[i] for i in order]), names), expected)


@law("movement")
def test_every_weight_moves_the_distribution(case, method):
    here = case.composed(plan(method, NAMES, WEIGHTS))
    assert (here - case.base()).abs().max() > 0.1
    for i in range(len(NAMES)):
        weights = [weight + 0.25 * (i == j) for j, weight in enumerate(WEIGHTS)]
        assert (case.composed(plan(method, NAMES, weights)) - here).abs().max() > 0.01, NAMES[i]


@pytest.mark.parametrize("weights", [[1.0] * 4, WEIGHTS, [0.5, 0.5, 0.0, 0.0], [0.0, 0.0, 0.0, -0.5]])
def test_logit_is_its_definition(case, weights):
    base = case.base()
    total = base + sum(w * (case.expert(name) - base) for w, name in zip(weights, NAMES, strict=True))
    assert_close(case.composed(plan("logit", NAMES, weights)), total.log_softmax(-1))


@pytest.mark.parametrize("weights", [[1.0] * 4, WEIGHTS, [0.5, 0.5, 0.0, 0.0], [0.0, 0.0, 0.0, -0.5]])
def test_task_arithmetic_is_a_dense_merge(case, weights):
    merged = AutoModelForCausalLM.from_pretrained(case.folder / "base").eval()
    layers = dict(merged.named_modules())
    for weight, name in zip(weights, NAMES, strict=True):
        model = AutoModelForCausalLM.from_pretrained(case.folder / "base")
        model = PeftModel.from_pretrained(model, case.folder / name)
        for path, module in model.named_modules():
            if hasattr(module, "lora_A"):
                a, b = module.lora_A["default"].weight.double(), module.lora_B["default"].weight.double()
                target = layers[path.removeprefix("base_model.model.")].weight
                total = getattr(target, "total", target.detach().double())
                target.total = total + weight * module.scaling["default"] * (b @ a)
    for layer in layers.values():
        if hasattr(getattr(layer, "weight", None), "total"):
            layer.weight.data = layer.weight.total.detach().float()
    with torch.no_grad():
        expected = case.real(merged(**case.batch).logits.double().log_softmax(-1))
    assert_close(case.composed(plan("task_arith", NAMES, weights)), expected)


def by_hand(case, weights):
    """f(θ_b) + J Σ λ_i τ_i: dense task vectors of PEFT's, one Jacobian-vector product in float64."""
    base = AutoModelForCausalLM.from_pretrained(case.folder / "base", attn_implementation="eager")
    base = base.double().eval()
    parameters = dict(base.named_parameters())
    tangents = {name: torch.zeros_like(parameter) for name, parameter in parameters.items()}
    for weight, name in zip(weights, NAMES, strict=True):
        model = AutoModelForCausalLM.from_pretrained(case.folder / "base")
        model = PeftModel.from_pretrained(model, case.folder / name)
        for path, module in model.named_modules():
            if hasattr(module, "lora_A"):
                a, b = module.lora_A["default"].weight.double(), module.lora_B["default"].weight.double()
                tangents[path.removeprefix("base_model.model.") + ".weight"] += (
                    weight * module.scaling["default"] * (b @ a)
                )

    rows = []
    for ids, mask in zip(*case.batch.values(), strict=True):  # one at a time: eager float64 dislikes padding
        real = ids[mask.bool()][None]
        with torch.no_grad():
            value, tangent = torch.func.jvp(
                lambda values, real=real: torch.func.functional_call(base, values, real).logits,
                (parameters,),
                (tangents,),
            )
        assert tangent.abs().max() > 1
        rows.append((value + tangent)[0])
    return torch.cat(rows).log_softmax(-1)


@pytest.mark.parametrize("weights", [[1.0] * 4, WEIGHTS])
@pytest.mark.parametrize("separately", [False, True])
def test_linearized_is_one_jacobian_vector_product(case, weights, separately):
    made = Linearized(separately).plan(torch.tensor(weights, dtype=torch.float64))
    assert made.branches == (5 if separately else 1)
    assert_close(case.composed(made), by_hand(case, weights), 2e-5)


def test_base_and_expert_plans(case):
    assert_close(case.composed(base_plan(4)), case.base())
    assert_close(case.composed(expert_plan(4, 2)), case.expert(NAMES[2]))


def test_logit_runs_no_branch_of_weight_zero():
    assert plan("logit", ["a", "b"], [0.5, 0.5]).branches == 2  # the base has weight 0
    assert plan("logit", ["a", "b"], [1.0, 0.0]).branches == 1
    assert plan("logit", ["a", "b"], [0.0, 0.0]).branches == 1
    assert plan("logit", ["a", "b"], [1.0, 1.0]).branches == 3


def test_mix_in_float64_and_with_tokens_ruled_out():
    rows = [[0.5, 0.25, 0.25, 0.0], [0.4, 0.6, 0.0, 0.0], [0.1, 0.2, 0.3, 0.4]]
    p = torch.tensor(rows, dtype=torch.float64)
    mixed = Mix(torch.tensor([-1.0, 1.0, 1.0]))(p.log()[:, None]).exp()[0]
    expected = torch.tensor([0.4 * 0.1 / 0.5, 0.6 * 0.2 / 0.25, 0, 0]).double()
    torch.testing.assert_close(mixed, expected / expected.sum(), atol=1e-12, rtol=0)
    assert Mix(torch.ones(1))(p.log()[:1, None].to(torch.bfloat16)).dtype == torch.float32


def test_what_is_refused():
    with pytest.raises(UnknownName, match=r"unknown method 'logits': did you mean logit\?"):
        plan("logits", ["a"])
    with pytest.raises(WorkbenchError, match="2 weights for 1 experts"):
        plan("logit", ["a"], [1.0, 2.0])
    with pytest.raises(WorkbenchError, match="the weight of 'a' is inf"):
        plan("logit", ["a"], [float("inf")])
    with pytest.raises(WorkbenchError, match="no experts"):
        plan("logit", [])
