"""Opening bases: exactly one <bos>, the ends of an answer, what identifies the weights."""

from __future__ import annotations

import hashlib
import json
import shutil

import pytest
from conftest import CONFIGS, make_tokenizer
from tokenizers import decoders
from transformers import AutoModelForCausalLM

from workbench.errors import UnknownName, WorkbenchError
from workbench.evaluate.tasks import mini_experts
from workbench.models import SHIPPED, base_source, fingerprint, open_base, shipped_experts


def test_the_first_space_of_an_answer_is_kept(models_folder, tmp_path):
    """Tokenizers of the Llama 2 kind strip a text's first space, which is the indentation of code."""
    folder = shutil.copytree(models_folder("llama") / "base", tmp_path / "base")
    tokenizer = make_tokenizer()
    tokenizer._tokenizer.decoder = decoders.Sequence([decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer.save_pretrained(folder)
    base = open_base(str(folder))
    prompt, answer = base.encode("def f(x):"), base.encode(" return x")[1:]
    assert base.decode(answer) == "return x"
    assert base.decode(answer, after=prompt) == " return x"
    assert base.decode(answer, after=[2]) == "return x"  # <bos>: the text begins here


@pytest.mark.parametrize("kind", CONFIGS)
def test_exactly_one_bos_in_front(models_folder, kind):
    base = open_base(str(models_folder(kind) / "base"))
    assert base.encode("ab")[0] == 2
    assert base.encode("ab").count(2) == 1
    base.tokenizer._tokenizer.pre_tokenizer = None  # "<bos>" in the text is then one token
    assert base.encode("<bos>").count(2) == 1


def test_gemma_gets_its_bos_where_the_tokenizer_adds_none(models_folder, tmp_path):
    for kind, expected in (("gemma2", [2, 70]), ("llama", [70])):
        folder = shutil.copytree(models_folder(kind) / "base", tmp_path / kind)
        tokenizer = make_tokenizer()
        tokenizer._tokenizer.post_processor = None
        tokenizer.save_pretrained(folder)
        assert open_base(str(folder)).encode("a") == expected


def test_text_survives_the_tokenizer():
    base = open_base("mini")
    text = "def f(x):\n    return  x , y ! 'a' do n't\n"
    assert base.decode(base.encode(text)) == text


def test_every_token_that_ends_an_answer_counts(models_folder, tmp_path):
    folder = shutil.copytree(models_folder("llama") / "base", tmp_path / "base")
    assert open_base(str(folder)).end_ids == {1}
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 7]}))
    assert open_base(str(folder)).end_ids == {1, 7}


def test_a_fingerprint_is_of_the_content(models_folder, tmp_path):
    folder = shutil.copytree(models_folder("llama") / "base", tmp_path / "base")
    weights = folder / "model.safetensors"
    assert fingerprint(str(folder)) == hashlib.sha256(weights.read_bytes()).hexdigest()
    sharded = tmp_path / "sharded"
    model = AutoModelForCausalLM.from_pretrained(folder)
    model.save_pretrained(sharded, max_shard_size="40kB")
    assert len(list(sharded.glob("*.safetensors"))) > 1
    before = fingerprint(str(sharded))
    assert before == fingerprint(str(shutil.copytree(sharded, tmp_path / "copy")))
    model.lm_head.weight.data[0, 0] += 1
    model.save_pretrained(sharded, max_shard_size="40kB")
    assert fingerprint(str(sharded)) != before
    assert fingerprint("org/name", "abc") == "commit:abc"


def test_a_model_without_pad_token_is_padded_with_its_end(models_folder, tmp_path):
    folder = shutil.copytree(models_folder("llama") / "base", tmp_path / "base")
    file = folder / "tokenizer_config.json"
    config = json.loads(file.read_text())
    del config["pad_token"]
    file.write_text(json.dumps(config))
    assert open_base(str(folder)).tokenizer.pad_token_id == 1


def test_a_folder_of_two_models_is_refused(models_folder, tmp_path):
    folder = shutil.copytree(models_folder("llama") / "base", tmp_path / "base")
    file = folder / "tokenizer.json"
    content = json.loads(file.read_text())
    content["model"]["vocab"] |= {f"word{i}": i for i in range(100, 130)}
    file.write_text(json.dumps(content))
    with pytest.raises(WorkbenchError, match="its tokenizer has 130 tokens: its model has 100"):
        open_base(str(folder))


def test_names_of_bases(tmp_path):
    assert base_source("google/gemma-2-2b") == "google/gemma-2-2b"
    assert base_source("mini") == str(SHIPPED["mini"])
    (tmp_path / "file").touch()
    with pytest.raises(WorkbenchError, match="a file"):
        base_source(str(tmp_path / "file"))
    with pytest.raises(UnknownName, match="did you mean mini"):
        base_source("minni")


def test_the_shipped_experts_are_of_the_shipped_base():
    folder = SHIPPED["mini"]
    assert set(shipped_experts("mini")) == set(mini_experts.EXPERTS)
    for expert in shipped_experts("mini").values():
        provenance = json.loads((expert / "provenance.json").read_text())
        assert provenance["base_sha256"] == fingerprint(str(folder))
    assert shipped_experts("google/gemma-2-2b") == {}
