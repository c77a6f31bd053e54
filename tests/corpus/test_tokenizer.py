"""Loading tokenizers: golden ids, BOS and EOS rules, fingerprints, errors."""

from __future__ import annotations

import json

import pytest

from tests.worlds import DATA, byte_tokenizer, needs_data
from vocabforge.core.errors import DataError, MismatchError
from vocabforge.corpus.tokenizer.tokenizer import check_fingerprint, encode_prompt, load_tokenizer

TOK512 = DATA / "models" / "tok512"
TOK105 = DATA / "models" / "babyllama-tok105"


@needs_data
def test_prompts_of_the_golden_generations_get_one_bos():
    rows = [
        json.loads(line)
        for line in (DATA / "models/golden_generations.jsonl").read_text("utf-8").splitlines()
    ]
    tokenizers = {True: load_tokenizer(TOK105), False: load_tokenizer(TOK512 / "tokenizer.json")}
    for row in rows:
        tokenizer = tokenizers["tok105" in row["model"]]
        assert encode_prompt(tokenizer, row["prompt"]) == row["prompt_ids"]
        assert encode_prompt(tokenizer, "<s>" + row["prompt"]).count(tokenizer.bos_id) == 1


@needs_data
def test_fingerprint_survives_saving_by_another_tool(qwen3, qwen3_elsewhere, tmp_path):
    qwen3_elsewhere.save_pretrained(tmp_path)
    assert (tmp_path / "tokenizer.json").read_bytes() != qwen3.source.read_bytes()
    assert load_tokenizer(tmp_path).fingerprint == qwen3.fingerprint


def test_fingerprint_changes_with_a_token_but_not_with_truncation(tmp_path):
    first = load_tokenizer(byte_tokenizer(tmp_path / "a"))
    content = json.loads((tmp_path / "a" / "tokenizer.json").read_text("utf-8"))
    content["truncation"] = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "tokenizer.json").write_text(json.dumps(content), "utf-8")
    second = load_tokenizer(tmp_path / "b")
    assert second.fingerprint == first.fingerprint
    assert len(second.encode("more than three")) == 15
    content["added_tokens"][1]["content"] = "<|other|>"
    (tmp_path / "b" / "tokenizer.json").write_text(json.dumps(content), "utf-8")
    third = load_tokenizer(tmp_path / "b")
    assert third.fingerprint != first.fingerprint
    check_fingerprint(first.fingerprint, second.fingerprint, expected_from="a", got_from="b")
    with pytest.raises(MismatchError, match="different tokenizers"):
        check_fingerprint(first.fingerprint, third.fingerprint, expected_from="a", got_from="b")


def test_eos_comes_from_every_file_without_repeats(tmp_path):
    folder = byte_tokenizer(tmp_path)
    (folder / "generation_config.json").write_text('{"eos_token_id": [257, 256]}')
    (folder / "config.json").write_text('{"eos_token_id": 3}')  # generation_config decides over config
    assert load_tokenizer(folder).eos_ids == (257, 256)


@pytest.mark.parametrize("said", [None, True, False])
def test_the_prefix_is_that_of_transformers(tmp_path, said):
    """tokenizer.json decides; ``add_bos_token`` beside it says nothing."""
    import transformers

    config = {} if said is None else {"add_bos_token": said}
    for name, bos in (("a", False), ("b", True)):
        folder = byte_tokenizer(tmp_path / name, bos=bos, tokenizer_class="PreTrainedTokenizerFast", **config)
        theirs = transformers.AutoTokenizer.from_pretrained(folder)
        assert encode_prompt(load_tokenizer(folder), "a") == theirs("a")["input_ids"]
    with_bos = load_tokenizer(tmp_path / "b")
    assert encode_prompt(with_bos, "a")[0] == with_bos.bos_id == 256
    assert with_bos.encode("a") == encode_prompt(with_bos, "a")[1:]


def test_chat_template_file_stands_before_the_config(tmp_path):
    folder = byte_tokenizer(tmp_path)
    (folder / "chat_template.jinja").write_text(
        "X{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}"
    )
    assert load_tokenizer(folder).render([{"role": "user", "content": "a"}]) == "X<|bos|>a"


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "holds no tokenizer.json"),
        ({"tokenizer.model": "x"}, "save_pretrained"),
        ({"tokenizer.json": '{"model": '}, "not valid JSON"),
        ({"tokenizer.json": "[]"}, "not a tokenizer"),
        ({"tokenizer.json": '{"model": {"type": "Nonsense"}}'}, "refuses this tokenizer.json"),
    ],
)
def test_unusable_tokenizers(tmp_path, files, message):
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=message):
        load_tokenizer(tmp_path)


def test_missing_path_and_sentencepiece_file(tmp_path):
    with pytest.raises(DataError, match="missing"):
        load_tokenizer(tmp_path / "nowhere")
    (tmp_path / "t.model").write_bytes(b"\x0a")
    with pytest.raises(DataError, match="save_pretrained"):
        load_tokenizer(tmp_path / "t.model")


def test_broken_side_file_is_named(tmp_path):
    folder = byte_tokenizer(tmp_path)
    (folder / "generation_config.json").write_text("{")
    with pytest.raises(DataError, match=r"generation_config.json is not valid JSON"):
        load_tokenizer(folder)
