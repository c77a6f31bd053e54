"""Answers on the page of an evaluation: every token in the colour of its draft step, foreign text as text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.evaluate.results_sample import sample_results
from tests.evaluate.test_report import Page
from vocabforge.evaluate.benchmarks import Question
from vocabforge.evaluate.reports.answers import SHOWN, answer_blocks
from vocabforge.evaluate.reports.page import PageSection, render_page
from vocabforge.evaluate.results.answers import write_rows
from vocabforge.evaluate.results.schema import Results

SPAN = re.compile(r'<span(?: class="d(\d)")? title="([^"]*)">([^<]*)</span>')


class Bytes:
    """A tokenizer whose tokens are bytes."""

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        return bytes(ids).decode("utf-8", "replace")


@pytest.fixture
def results() -> Results:
    return sample_results(3, 1, categories={"qa": 1}, failures=0)


def page_of(results: Results, folder: Path, answers: dict[str, tuple[bytes, Sequence[int] | None]]) -> str:
    """The page of a category each: name -> answer and its accepted lengths, of the method with the longest ones."""
    plain, method = results.methods[:2]  # the third is faster
    for one in (plain, method):
        (folder / one.details[0]).parent.mkdir(exist_ok=True)
        write_rows(
            folder / one.details[0], [_row(*item, one is plain) for item in enumerate(answers.items())]
        )
    questions = [Question(at, name, ("What?\n<i>",)) for at, name in enumerate(answers)]
    blocks = answer_blocks(results, folder, Bytes(), questions)  # type: ignore[arg-type]
    return render_page("t", [PageSection("Answers", blocks, "answers")])


def _row(at: int, answer: tuple[str, tuple[bytes, Sequence[int] | None]], plain: bool) -> dict[str, object]:
    category, (text, lengths) = answer
    known = None if lengths is None else list(text)
    taken = [] if lengths is None else [1] * len(text) if plain else list(lengths)
    choice = {"index": 0, "token_ids": [known], "accept_lengths": [taken]}
    unused = ("prompt_tokens", "prefill_s", "decode_s", "timings", "target_forwards", "finish")
    choice |= {name: [] for name in (*unused, "drafted", "drafted_by_depth", "accepted_by_depth")}
    return {"question_id": at, "category": category, "choices": [choice]}


def test_every_token_has_the_colour_of_its_draft_step(results: Results, tmp_path: Path) -> None:
    """The prompt's pass gives a token, a cycle its drafts and one of the target; the last cycle is cut at the end."""
    page = page_of(results, tmp_path, {"qa": (b"abcdefghijklmnop", (3, 1, 2, 8, 4))})
    found = [(text, int(step or 0), tip) for step, tip, text in SPAN.findall(page)]
    assert "".join(text for text, _, _ in found) == "abcdefghijklmnop"
    assert [step for _, step, _ in found] == [0, 1, 2, 0, 0, 1, 0, 1, 2, 3, 4, 5, 6, 6, 0, 1]
    tips = {text: tip for text, _, tip in found}
    assert tips["a"] == "target's own token, prompt's pass"
    assert tips["c"] == "draft step 2, accepted length 3"
    assert tips["d"] == "target's own token, accepted length 3"
    assert tips["n"] == "draft step 7, accepted length 8"
    assert tips["p"] == "draft step 1, accepted length 4"
    assert "16 tokens, 5 verifications, accepted length 3.60." in page


def test_text_of_models_is_text_and_long_answers_are_cut(results: Results, tmp_path: Path) -> None:
    hostile = '<script>é"\n\u202e'.encode()
    long = b"x" * (SHOWN + 7)
    page = page_of(
        results, tmp_path, {"a": (hostile, [len(hostile)]), "b": (long, [2] * len(long)), "c": (b"", ())}
    )
    Page(page)
    assert "<i>" not in page
    assert "\u202e" not in page
    spans = [(text, step) for step, _, text in SPAN.findall(page)]
    assert spans[0] == ("&lt;", "")
    assert ("é", "6") in spans, "a character of several tokens is the last one's"
    assert ("↵\n", "6") in spans
    assert f"{SHOWN + 7} tokens, first {SHOWN} shown" in page
    assert sum(text == "x" for text, _ in spans) == SHOWN


@pytest.mark.parametrize("answer", [(b"abc", None), (b"abc", (1,))])
def test_without_single_cycles_there_is_no_section(results, tmp_path, answer):
    assert "Answers" not in page_of(results, tmp_path, {"qa": answer})
