"""LM head rows read from the disk against transformers' own weights."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, GPTNeoXConfig, GPTNeoXForCausalLM

from tests.folders import edit_folder
from tests.worlds import tiny_target
from vocabforge.core.errors import DataError
from vocabforge.models.target.head import open_head

WEIGHTS, HEAD = "model.safetensors", "lm_head.weight"


def reference(folder) -> np.ndarray:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.get_output_embeddings().weight.detach().numpy()


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rows_are_those_of_transformers(tmp_path, tied, dtype):
    folder = tiny_target(tmp_path / "m", tie_word_embeddings=tied)
    edit_folder(folder, lambda t: t.update({name: value.to(dtype) for name, value in t.items()}))
    head, expected = open_head(folder), reference(folder)
    assert head.tied is tied
    assert head.item.dtype == {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}[dtype]
    np.testing.assert_array_equal(head.rows(), expected, strict=True)


def test_shards_are_found_through_the_index(tmp_path):
    folder = tiny_target(tmp_path / "m")
    expected = reference(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    shutil.rmtree(folder)
    model.save_pretrained(folder, max_shard_size="12KB")
    assert (folder / f"{WEIGHTS}.index.json").is_file()
    head = open_head(folder)
    np.testing.assert_array_equal(head.rows(), expected)
    head.item.file.unlink()
    with pytest.raises(DataError, match="shards"):
        open_head(folder)


@pytest.mark.parametrize("kind", ["gpt2", "gpt2-silent", "neox"])
def test_other_families(tmp_path, kind):
    torch.manual_seed(0)
    if kind == "neox":
        model = GPTNeoXForCausalLM(
            GPTNeoXConfig(vocab_size=40, hidden_size=16, num_hidden_layers=1, num_attention_heads=2)
        )
    else:
        model = GPT2LMHeadModel(GPT2Config(vocab_size=40, n_embd=16, n_layer=1, n_head=2))
    model.save_pretrained(tmp_path)
    if kind == "gpt2-silent":
        edit_folder(tmp_path, config=lambda body: body.pop("tie_word_embeddings", None))
    head = open_head(tmp_path)
    np.testing.assert_array_equal(head.rows(), reference(tmp_path))
    assert head.tied is (kind != "neox")


def test_a_stored_head_wins_over_a_tied_configuration(tmp_path):
    folder = edit_folder(tiny_target(tmp_path / "m"), tie_word_embeddings=True)
    head = open_head(folder)
    assert head.item.name == "lm_head.weight"
    np.testing.assert_array_equal(head.rows(), load_file(folder / WEIGHTS)["lm_head.weight"].numpy())


def test_the_digest_is_that_of_the_rows(tmp_path):
    folder = tiny_target(tmp_path / "a", tie_word_embeddings=True)
    first = open_head(folder).digest(50)
    assert first != open_head(folder).digest(51)
    other = shutil.copytree(folder, tmp_path / "b")
    edit_folder(other, lambda t: t.update({HEAD: t["model.embed_tokens.weight"].clone()}))
    assert open_head(other).digest(50) == first, "a stored copy of a tied head"
    edit_folder(other, lambda t: t.update({HEAD: t[HEAD].double()}))
    assert open_head(other).digest(50) == first, "an exact change of dtype"

    edit_folder(other, lambda t: t[HEAD][49, 3].add_(1))
    assert open_head(other).digest(50) != first
    assert open_head(other).digest(49) == open_head(folder).digest(49)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop(HEAD), "no LM head"),
        (lambda t: t.update({"lm_head.qweight": t.pop(HEAD).int()}), "one plain matrix"),
        (lambda t: t.update({"lm_head.0.weight": t.pop(HEAD)}), "one plain matrix"),
        (lambda t: t.update({HEAD: t[HEAD].to(torch.int8)}), "packed, quantised"),
        (lambda t: t.update({HEAD: t[HEAD].to(torch.float8_e4m3fn)}), "packed, quantised"),
        (lambda t: t.update({HEAD: t[HEAD][None]}), "packed, quantised or no matrix"),
        (lambda t: t.update({"output.weight": t[HEAD].clone()}), "cannot be determined"),
    ],
)
def test_heads_that_cannot_be_read(tmp_path, change, message):
    with pytest.raises(DataError, match=message):
        open_head(edit_folder(tiny_target(tmp_path / "m"), change))


def test_a_tied_head_of_unknown_name(tmp_path):
    folder = tiny_target(tmp_path / "m", tie_word_embeddings=True)
    edit_folder(folder, lambda t: t.update({"model.words.weight": t.pop("model.embed_tokens.weight")}))
    with pytest.raises(DataError, match="embedding, which is its LM head"):
        open_head(folder)


def test_an_unknown_architecture_without_a_word_on_tying(tmp_path):
    folder = tiny_target(tmp_path / "m", tie_word_embeddings=True)
    edit_folder(folder, config=lambda body: body.pop("tie_word_embeddings"), model_type="nobody-knows")
    with pytest.raises(DataError, match="no LM head"):
        open_head(folder)


def test_damaged_and_missing_files(tmp_path):
    with pytest.raises(DataError, match="no model here"):
        open_head(tmp_path)
    folder = tiny_target(tmp_path / "m")
    data = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(data[: len(data) // 2])
    with pytest.raises(DataError, match="cannot be read"):
        open_head(folder)
