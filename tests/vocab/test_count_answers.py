"""Counting the assistant's tokens piece by piece gives what masks of whole conversations give."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.corpus.test_cutting import TEXTS
from tests.shares import by_default
from tests.vocab.engine_tokenizers import built, engines_of
from tests.vocab.real_tokenizers import REAL, real, real_engines
from tests.worlds import DATA, needs_data
from vocabforge.core.errors import DataError
from vocabforge.corpus.chat.render import render_with_mask
from vocabforge.corpus.sources.sources import Document, Problems
from vocabforge.corpus.tokenizer.cuts import CutRule, cut_rule
from vocabforge.corpus.tokenizer.tokenizer import TextTokenizer
from vocabforge.vocab.counts.engines import PlainEngine
from vocabforge.vocab.counts.tally import TokenCounter

# A header that ends in a newline, one that ends in a letter, answers without an end, answers that are marked.
TEMPLATES = {
    "chatml": "{% for m in messages %}<|user|>{{ m.role }}\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|user|>assistant\n{% endif %}",
    "inst": "{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
    "{% else %}{{ m.content }}</s>{% endif %}{% endfor %}",
    "bare": "{% for m in messages %}{{ m.role }}: {{ m.content }} {% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}",
    "marked": "{% for m in messages %}{{ m.role }}:{% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}",
}
LONG = st.builds(lambda some, times: some * times, TEXTS, st.integers(1, 12))
TALKS = st.lists(LONG, min_size=2, max_size=4).map(
    lambda texts: [{"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(texts)]
)


def counted(tokenizer: TextTokenizer, talks: list[Any], engines: Sequence[PlainEngine] | None = None) -> None:
    """Compare all engines with the masks of whole conversations."""
    right = np.zeros(tokenizer.vocab_size, np.int64)
    documents, wrong = 0, []
    for talk in talks:
        try:
            ids, mask = render_with_mask(tokenizer, talk)
        except DataError as error:
            wrong.append(error.message)
            continue
        right += np.bincount(np.asarray(ids, np.int64)[np.asarray(mask, bool)], minlength=len(right))
        documents += 1
    rule = cut_rule(tokenizer)
    for engine in engines or engines_of(tokenizer, rule):
        problems = Problems()
        counter = TokenCounter(tokenizer, engine, "assistant", rule if isinstance(rule, CutRule) else None)
        counter.add([Document(None, talk, Path("t"), at) for at, talk in enumerate(talks)], problems)
        np.testing.assert_array_equal(counter.tally.counts, right, err_msg=engine.name)
        assert (counter.tally.documents, list(problems.kinds.elements())) == (documents, sorted(wrong))


def with_template(tokenizer: TextTokenizer, template: str) -> TextTokenizer:
    return replace(tokenizer, chat_template=TEMPLATES[template])


# Each way to cut, the awkward added tokens, and tokenizers whose texts are not cut.
CUT = ("gpt2", "gpt2_prefix", "llama3", "qwen2", "deepseek", "sp_prepend", "sp_gemma")
AWKWARD = ("added_lstrip", "added_rstrip", "added_letter_lstrip", "added_spaces", "no_space")
WHOLE = ("crossing", "unknown_replace")


@pytest.mark.parametrize("name", [*CUT, *AWKWARD, *WHOLE])
def test_counts_are_those_of_the_masks(name: str) -> None:
    @settings(max_examples=12, deadline=None)
    @given(st.sampled_from([*TEMPLATES]), st.lists(TALKS, min_size=1, max_size=4))
    def run(template: str, talks: list[Any]) -> None:
        counted(with_template(built(name), template), talks)

    run()


@needs_data
@pytest.mark.slow
@pytest.mark.parametrize("name", by_default(REAL, lambda name: name != "o200k"))
def test_counts_of_published_tokenizers(name: str) -> None:
    rows = (DATA / "tokenizers/golden_encodings.jsonl").read_text("utf-8").splitlines()
    texts = [json.loads(row)["text"] for row in rows]
    talks = [
        [{"role": "user", "content": question}, {"role": "assistant", "content": answer * 3}]
        for question, answer in pairwise(texts)
    ]
    for template in TEMPLATES:
        counted(with_template(real(name), template), talks, real_engines(name)[1])


def test_only_the_ends_of_an_answer_are_encoded_with_places(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    right = CutRule.encode_with_starts
    monkeypatch.setattr(
        CutRule,
        "encode_with_starts",
        lambda rule, texts, begins: seen.extend(texts) or right(rule, texts, begins),
    )
    monkeypatch.setattr(TextTokenizer, "encode_with_offsets", None)
    answer = "a few words " * 200
    talk = [{"role": "user", "content": "one two three"}, {"role": "assistant", "content": answer}]
    for name in ("qwen2", "sp_prepend"):
        seen.clear()
        counted_alone(with_template(built(name), "chatml"), talk)
        assert 0 < sum(map(len, seen)) < 150, seen


def counted_alone(tokenizer: TextTokenizer, talk: Any) -> None:
    rule = cut_rule(tokenizer)
    assert isinstance(rule, CutRule)
    counter = TokenCounter(tokenizer, engines_of(tokenizer, rule)[-1], "assistant", rule)
    counter.add([Document(None, talk, Path("t"), 0)], Problems())
    assert counter.tally.tokens > 100


def test_a_batch_holds_no_table_a_conversation() -> None:
    import tracemalloc

    tokenizer = replace(with_template(built("qwen2"), "chatml"), vocab_size=1 << 18)
    rule = cut_rule(tokenizer)
    talk = [{"role": "user", "content": "one two"}, {"role": "assistant", "content": "three four five"}]
    counter = TokenCounter(tokenizer, engines_of(tokenizer, rule)[-1], "assistant", rule)  # type: ignore[arg-type]
    tracemalloc.start()
    counter.add([Document(None, talk, Path("t"), at) for at in range(100)], Problems())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10 * 8 * tokenizer.vocab_size
