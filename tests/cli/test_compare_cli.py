"""The command compare-vocab as a user runs it."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.cli.cli_support import assert_user_error, invoke
from tests.vocab.family_tokenizers import TEXTS, byte_level, sentencepiece, word_piece, write_tokenizer
from vocabforge.vocab.overlap.overlap import load_overlap


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three tokenizers and two texts."""
    folder = tmp_path_factory.mktemp("compare")
    for name, make in (("plain", byte_level), ("pieces", sentencepiece), ("bert", word_piece)):
        write_tokenizer(folder / name, make())
    (folder / "a.txt").write_text("\n\n".join(TEXTS[:3]), "utf-8")
    (folder / "b.jsonl").write_text(json.dumps({"text": "the [sea] shells "}) + "\n", "utf-8")
    return folder


def test_json_without_a_corpus(folder):
    done = invoke("compare-vocab", folder / "plain", folder / "pieces" / "tokenizer.json", "--json")
    assert done.exit_code == 0, done.output
    facts = json.loads(done.stdout)
    assert facts["corpus"] is None
    assert facts["output"] is None
    assert (facts["a"]["name"], facts["b"]["name"]) == ("plain", "pieces")
    assert facts["a"]["single_bytes"] == 256
    assert facts["pairs"] == facts["forms"]


def test_corpus_and_saved_pairs(folder, tmp_path):
    words = [folder / "plain", folder / "pieces", "--input", folder / "a.txt", folder / "b.jsonl"]
    done = invoke("compare-vocab", *words, "--output", tmp_path / "o", "--json")
    assert done.exit_code == 0, done.output
    facts = json.loads(done.stdout)
    assert facts["corpus"]["documents"] == 4  # three paragraphs and one row
    assert facts["corpus"]["b"]["exact"] == 3
    saved = load_overlap(tmp_path / "o")
    assert saved.to_json()["corpus"] == facts["corpus"]
    assert len(saved.pairs) == facts["pairs"]
    few = invoke("compare-vocab", *words, "--max-documents", 2, "--text-unit", "file", "--json")
    assert json.loads(few.stdout)["corpus"]["documents"] == 2
    again = invoke("compare-vocab", *words, "--output", tmp_path / "o")
    assert_user_error(again, 2, "exists already")
    assert invoke("compare-vocab", *words, "--output", tmp_path / "o", "--overwrite").exit_code == 0
    np.testing.assert_array_equal(load_overlap(tmp_path / "o").pairs, saved.pairs)


def test_tables_fit_80_columns(folder, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    done = invoke(
        "compare-vocab", folder / "bert", folder / "pieces", "--input", folder / "a.txt", folder / "b.jsonl"
    )
    assert done.exit_code == 0, done.output
    assert max(map(len, done.stdout.splitlines())) <= 80
    for word in ("Vocabularies", "Overlap", "WordPiece", "BPE with byte fallback", "given back unchanged"):
        assert word in done.stdout


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["@plain", "@nowhere"], 1, "tokenizer is missing"),
        (["@plain", "@pieces", "@bert"], 2, "more than two tokenizers"),
        (["@plain"], 2, "Missing argument"),
        (["@plain", "@pieces", "--input", "@nowhere.txt"], 1, "missing"),
        (["@plain", "@pieces", "--input", "@empty.txt"], 1, "no text"),
        (["@plain", "@pieces", "--output", "@plain"], 2, "not an artefact"),
        (["@plain", "@pieces", "--text-unit", "word"], 2, "word"),
        (["@plain", "@odd"], 1, "bytes that this tokenizer's tokens stand for are not known"),
    ],
)
def test_mistakes_are_told(folder, words, code, message):
    (folder / "empty.txt").write_text("")
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
