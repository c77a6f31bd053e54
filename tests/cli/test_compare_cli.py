"""The command compare-vocab as a user runs it."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.cli.cli_support import assert_user_error, facts_of, invoke, succeeds
from tests.vocab.family_tokenizers import byte_level, sentencepiece, word_piece, write_tokenizer
from vocabforge.vocab.overlap.overlap import load_overlap


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three tokenizers."""
    folder = tmp_path_factory.mktemp("compare")
    for name, make in (("plain", byte_level), ("pieces", sentencepiece), ("bert", word_piece)):
        write_tokenizer(folder / name, make())
    return folder


def test_json(folder):
    facts = facts_of(
        invoke("compare-vocab", folder / "plain", folder / "pieces" / "tokenizer.json", "--json")
    )
    assert facts["output"] is None
    assert (facts["a"]["name"], facts["b"]["name"]) == ("plain", "pieces")
    assert facts["a"]["single_bytes"] == 256
    assert facts["pairs"] == facts["forms"]


def test_saved_pairs(folder, tmp_path):
    words = [folder / "plain", folder / "pieces"]
    facts = facts_of(invoke("compare-vocab", *words, "--output", tmp_path / "o", "--json"))
    saved = load_overlap(tmp_path / "o")
    assert len(saved.pairs) == facts["pairs"]
    again = invoke("compare-vocab", *words, "--output", tmp_path / "o")
    assert_user_error(again, 2, "exists already")
    assert invoke("compare-vocab", *words, "--output", tmp_path / "o", "--overwrite").exit_code == 0
    np.testing.assert_array_equal(load_overlap(tmp_path / "o").pairs, saved.pairs)


def test_tables_fit_80_columns(folder, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    done = succeeds("compare-vocab", folder / "bert", folder / "pieces")
    assert max(map(len, done.stdout.splitlines())) <= 80
    for word in ("Vocabularies", "Overlap", "WordPiece", "BPE with byte fallback"):
        assert word in done.stdout


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["@plain", "@nowhere"], 1, "tokenizer is missing"),
        (["@plain", "@pieces", "@bert"], 2, "unexpected extra argument"),
        (["@plain"], 2, "Missing argument"),
        (["@plain", "@pieces", "--output", "@plain"], 2, "not an artefact"),
        (["@plain", "@odd"], 1, "bytes that this tokenizer's tokens stand for are not known"),
    ],
)
def test_mistakes_are_told(folder, words, code, message):
    (folder / "odd").mkdir(exist_ok=True)
    content = json.loads((folder / "plain" / "tokenizer.json").read_text("utf-8"))
    odd = {
        **content,
        "pre_tokenizer": None,
        "decoder": {"type": "CTC", "pad_token": "x", "word_delimiter_token": "|", "cleanup": True},
    }
    (folder / "odd" / "tokenizer.json").write_text(json.dumps(odd), "utf-8")
    done = invoke("compare-vocab", *(word.replace("@", f"{folder}/") for word in words))
    assert_user_error(done, code, message)
