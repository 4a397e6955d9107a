"""The engine against a loop that has no cache, no batch and no padding."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from conftest import ADAPTERS, CONFIGS

from workbench.decode.branches import Branches
from workbench.decode.engine import Engine, Request
from workbench.decode.sampling import Picker, Sampling
from workbench.errors import WorkbenchError
from workbench.experts.bank import ExpertBank
from workbench.experts.lora import read_expert
from workbench.methods import METHODS, plan
from workbench.models import open_base

NAMES = list(ADAPTERS)
WEIGHTS = [0.8, 0.4, 0.6, 0.5]
PROMPTS = ["x", "Hello world", "a much longer prompt, far past the window of eight", "12 + 30 =", "\n\n"]


def open_engine(folder) -> Engine:
    base = open_base(str(folder / "base"))
    return Engine(base, ExpertBank(base.model, [read_expert(name, str(folder / name)) for name in NAMES]))


@pytest.fixture(params=CONFIGS)
def engine(request, models_folder) -> Engine:
    return open_engine(models_folder(request.param))


@pytest.fixture
def llama(models_folder) -> Engine:
    return open_engine(models_folder("llama"))


def oracle(engine: Engine, made, request: Request) -> list[int]:
    """The tokens of one request alone, each from a fresh forward pass over the whole text."""
    branches = Branches(engine.base.model, engine.bank, made)
    ids, pick = engine.base.encode(request.prompt), Picker(request.sampling, request.seed)
    new: list[int] = []
    while len(new) < request.max_new_tokens and not (new and new[-1] in engine.base.end_ids):
        with torch.no_grad():
            new.append(pick(branches.log_probs(torch.tensor([ids + new]))[0, -1]))
    return new


def completions(engine: Engine, made, requests, batch_size):
    return {c.id: c for batch in engine.generate(made, requests, batch_size) for c in batch}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_batched_and_cached_equals_alone_and_uncached(engine, method, temperature):
    made = plan(method, NAMES, WEIGHTS)
    requests = [
        Request(str(i), prompt, 4 + 7 * i, sampling=Sampling(temperature), seed=i)
        for i, prompt in enumerate(PROMPTS)
    ]
    together = completions(engine, made, requests, 3)
    assert set(together) == {request.id for request in requests}
    for request in requests:
        expected = oracle(engine, made, request)
        ended = expected[-1] in engine.base.end_ids
        assert together[request.id].text == engine.base.decode(expected[:-1] if ended else expected)
        assert together[request.id].tokens == len(expected)
        assert together[request.id].finish == ("eos" if ended else "length")


def test_the_methods_differ_from_the_base_and_from_each_other(llama):
    requests = [Request(str(i), prompt, 20) for i, prompt in enumerate(PROMPTS)]
    texts = [
        tuple(c.text for c in completions(llama, made, requests, 8).values())
        for made in (*(plan(method, NAMES, WEIGHTS) for method in METHODS), plan("logit", NAMES, [0.0] * 4))
    ]
    assert len(set(texts)) == len(texts)


def test_samples_depend_on_the_seed_of_their_request_alone(llama):
    made = plan("logit", NAMES, WEIGHTS)
    requests = [Request(str(i), "Hello world", 20, sampling=Sampling(1.0), seed=i % 3) for i in range(6)]
    texts = [c.text for _, c in sorted(completions(llama, made, requests, 4).items())]
    assert texts[:3] == texts[3:]
    assert len(set(texts)) == 3


def test_stop_strings_and_why_a_sample_ended(llama):
    made = plan("logit", NAMES, WEIGHTS)
    [[whole]] = llama.generate(made, [Request("0", "Hello world", 24)], 1)
    assert (whole.finish, whole.tokens, len(whole.text)) == ("length", 24, 24)
    stop = whole.text[5:7]
    cut = whole.text[: whole.text.index(stop)]
    [[stopped]] = llama.generate(made, [Request("0", "Hello world", 24, stop=("\0", stop))], 1)
    assert (stopped.text, stopped.finish, stopped.tokens) == (cut, "stop", len(cut) + 2)
    first = llama.base.encode(whole.text)[1]
    base = dataclasses.replace(llama.base)
    base.model.generation_config.eos_token_id = [1, first]  # some models have several
    [[ended]] = Engine(base, llama.bank).generate(made, [Request("0", "Hello world", 24)], 1)
    assert (ended.text, ended.finish, ended.tokens) == ("", "eos", 1)


def test_a_special_token_as_a_stop_string(llama):
    """Special tokens never show in the text, so they are told by their number."""
    made = plan("logit", NAMES, WEIGHTS)
    [[whole]] = llama.generate(made, [Request("0", "Hello world", 24)], 1)
    fourth = whole.text[3]
    llama.base.tokenizer.add_special_tokens({"additional_special_tokens": [fourth]})
    [[stopped]] = llama.generate(made, [Request("0", "Hello world", 24, stop=(fourth,))], 1)
    at = whole.text.index(fourth)
    assert (stopped.text, stopped.finish, stopped.tokens) == (whole.text[:at], "stop", at + 1)


def test_generation_ends_where_the_context_ends(llama):
    made = plan("task_arith", NAMES)
    [[completion]] = llama.generate(made, [Request("0", "x" * 119, 50)], 1)  # 120 tokens with <bos>, of 128
    assert (completion.finish, completion.tokens) == ("length", 8)


@pytest.mark.parametrize(("length", "fits"), [(126, True), (127, False), (500, False)])
def test_a_prompt_longer_than_the_context_is_refused_before_any_work(llama, length, fits):
    requests = [Request("short", "x", 1), Request("long", "x" * length, 1)]
    if fits:
        llama.check(requests)
        return
    with pytest.raises(
        WorkbenchError, match=f"prompt 'long' has {length + 1} tokens: the model's context is 128"
    ):
        next(llama.generate(plan("logit", NAMES), requests, 1))


def test_an_empty_prompt_without_bos_is_refused(llama):
    llama.check([Request("0", "", 1)])  # one <bos>
    llama.base.tokenizer._tokenizer.post_processor = None
    with pytest.raises(WorkbenchError, match="prompt '0' is empty"):
        llama.check([Request("0", "", 1)])


def test_a_token_that_the_model_does_not_know_is_refused(llama):
    llama.base.tokenizer.add_tokens(["new"])
    with pytest.raises(
        WorkbenchError, match="prompt '0' has the token 'new': number 100, and the model knows 100"
    ):
        llama.check([Request("0", "a new one", 1)])
