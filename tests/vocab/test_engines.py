"""Counting engines count what the tokenizers library counts, on whole texts and on texts cut in parts."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from tests.corpus.test_cutting import TEXTS
from tests.vocab.engine_tokenizers import CROSSING, PROVEN, REFUSED, SENTENCES, built, engines_of, wrapped
from vocabforge.core.errors import UsageError
from vocabforge.corpus.tokenizer.cuts import CutRule, NoCut, cut_rule
from vocabforge.corpus.tokenizer.tokenizer import TextTokenizer
from vocabforge.vocab.counts.engines import FastEngine, choose_engine

FAST = {
    "gpt2", "gpt2_prefix", "llama3", "llama3_nfc", "qwen2", "qwen35", "o200k", "tekken", "deepseek",
    "starcoder", "added_plain", "added_nfc", "added_lstrip", "added_rstrip", "added_both", "added_word",
    "added_letter_lstrip", "added_spaces", "added_newline",
}  # fmt: skip
KITOKEN = {"sp_prepend", "sp_first", "sp_always", "sp_gemma", "sp_gemma_runs"}
SAMPLE = list(SENTENCES) * 20


def expected(tokenizer: TextTokenizer, texts: Sequence[str]) -> npt.NDArray[np.int64]:
    """Counts by the library alone, no text cut."""
    ids = [i for text in texts for i in tokenizer.backend.encode(text, add_special_tokens=False).ids]
    return np.bincount(np.asarray(ids, np.int64), minlength=tokenizer.vocab_size)


def in_parts(rule: CutRule | NoCut, texts: Sequence[str], size: int) -> tuple[list[str], list[bool]]:
    parts: list[str] = []
    begins: list[bool] = []
    for text in texts:
        some = rule.parts(text, size) if isinstance(rule, CutRule) else [text]
        parts += some
        begins += [True, *[False] * (len(some) - 1)]
    return parts, begins


@pytest.mark.parametrize("name", [*PROVEN, *CROSSING])
def test_all_engines_count_alike(name: str) -> None:
    tokenizer = built(name)
    rule = cut_rule(tokenizer)
    made = engines_of(tokenizer, rule)
    assert [engine.name for engine in made][-1] == "plain"

    @settings(max_examples=5, deadline=None)
    @given(st.lists(TEXTS, min_size=1, max_size=6), st.integers(1, 4))
    def run(texts: list[str], times: int) -> None:
        texts = [text * times for text in texts]
        right = expected(tokenizer, texts)
        rows = [tokenizer.encode(text) for text in texts]
        for size in (5, 10**6):
            parts, begins = in_parts(rule, texts, size)
            for engine in made:
                counts = engine.count(parts, begins)
                assert counts.dtype == np.int64
                np.testing.assert_array_equal(counts, right, err_msg=engine.name)
        for engine in made:
            assert engine.rows(texts, [True] * len(texts)) == rows

    run()


@pytest.mark.parametrize("name", [*PROVEN, *REFUSED, "sp_gemma_runs"])
def test_the_fastest_proven_engine_is_chosen(name: str) -> None:
    pytest.importorskip("fastokens")
    pytest.importorskip("kitoken")
    engine, reasons = choose_engine(built(name), SAMPLE)
    assert engine.name == ("fast" if name in FAST else "kitoken" if name in KITOKEN else "plain"), reasons
    assert f"engine {engine.name} counts" in reasons[-1] or name == "dropout"
    assert not any("DIFFER" in reason for reason in reasons)
    if name in REFUSED:
        assert any(REFUSED[name][1] in reason for reason in reasons)


@pytest.mark.parametrize(("package", "name"), [("fastokens", "qwen2"), ("kitoken", "sp_prepend")])
def test_without_a_package_the_reason_says_so(package, name, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    engine, reasons = choose_engine(built(name), SAMPLE)
    assert engine.name == "plain"
    assert any(f"{package} is not installed" in reason for reason in reasons)


def test_an_engine_asked_for_by_name() -> None:
    for name in ("plain", "fast"):
        assert choose_engine(built("qwen2"), SAMPLE, only=name)[0].name == name
    with pytest.raises(UsageError, match="no counting engine") as wrong:
        choose_engine(built("qwen2"), SAMPLE, only="quick")
    assert "fast, kitoken, plain" in str(wrong.value)
    with pytest.raises(UsageError, match="BertNormalizer"):
        choose_engine(built("bert"), SAMPLE, only="fast")
    with pytest.raises(UsageError, match="normalizer"):
        choose_engine(built("dropout"), SAMPLE, only="kitoken")


@pytest.mark.parametrize("method", ["rows", "count"])
def test_an_engine_that_errs_on_the_sample_is_not_used(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fastokens")
    right = getattr(FastEngine, method)

    def wrong(self: FastEngine, texts: list[str], begins: list[bool]) -> object:
        return right(self, [text.replace("猫", "犬") for text in texts], begins)

    monkeypatch.setattr(FastEngine, method, wrong)
    engine, reasons = choose_engine(built("qwen2"), SAMPLE)
    assert engine.name == "plain"
    assert "DIFFER" in reasons[0]
    with pytest.raises(UsageError, match="DIFFER"):
        choose_engine(built("qwen2"), SAMPLE, only="fast")


def test_cuts_that_err_on_the_sample_are_not_used() -> None:
    tokenizer = built("qwen2")
    rule = cut_rule(built("gpt2"))  # cuts behind punctuation: not sound for this tokenizer
    assert isinstance(rule, CutRule)
    unsound = CutRule(
        backend=tokenizer.backend,
        interior=tokenizer.backend,
        margin=rule.margin,
        _cut=rule._cut,
        _added=rule._added,
    )
    texts = ["word.\n" * 5_000]
    engine, reasons = choose_engine(tokenizer, texts, rule=unsound)
    assert engine.name == "plain"
    assert any("DIFFER" in reason for reason in reasons)
    np.testing.assert_array_equal(engine.count(texts, [True]), expected(tokenizer, texts))


def test_kitoken_is_not_used_where_its_merges_would_differ() -> None:
    pytest.importorskip("kitoken")
    whole = json.loads(built("sp_prepend").backend.to_str())
    merges = whole["model"]["merges"]
    made = ["".join(pair) for pair in merges]
    left_out = next(pair for pair in merges if made.count("".join(pair)) > 1)
    whole["model"]["merges"] = [pair for pair in merges if pair != left_out]
    with pytest.raises(UsageError, match="has no merge"):
        choose_engine(wrapped(Tokenizer.from_str(json.dumps(whole))), SAMPLE, only="kitoken")


def test_texts_of_which_kitoken_would_make_one_token_take_the_plain_path() -> None:
    pytest.importorskip("kitoken")
    whole = json.loads(built("sp_gemma").backend.to_str())
    # "zq" merges first, so that "xzqy" is never reached from the ends.
    letters = [letter for letter in ("x", "z", "q", "y") if letter not in whole["model"]["vocab"]]
    for token in (*letters, "zq", "xz", "qy", "xzqy"):
        whole["model"]["vocab"].setdefault(token, len(whole["model"]["vocab"]))
    whole["model"]["merges"] += [["z", "q"], ["x", "z"], ["q", "y"], ["xz", "qy"]]
    tokenizer = wrapped(Tokenizer.from_str(json.dumps(whole)))
    texts = ["xzqy", " xzqy", "a xzqy", "xz qy", "so xzqyxzqy so"]
    engine, _ = choose_engine(tokenizer, SAMPLE, only="kitoken")
    rows = [tokenizer.encode(text) for text in texts]
    assert engine.rows(texts, [True] * len(texts)) == rows
    assert len(rows[0]) > 1


def test_long_words_and_long_texts() -> None:
    texts = ["x" * 3000 + " y", " ".join(["long" * 100] * 30), "a b\n" * 40_000, " " * 5000, "\n" * 5000]
    for name in ("qwen2", "sp_prepend", "sp_gemma_runs", "bert"):
        tokenizer = built(name)
        right = expected(tokenizer, texts)
        for engine in engines_of(tokenizer, cut_rule(tokenizer)):
            np.testing.assert_array_equal(engine.count(texts, [True] * 5), right, err_msg=engine.name)
