"""What the target itself writes in a study."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.study.decoding_support import END, make_study, study_config, write_rows
from vocabforge.core.artifact import open_artifact
from vocabforge.corpus.chat.conversation import parse_conversation
from vocabforge.corpus.tokenizer.tokenizer import load_tokenizer
from vocabforge.decode.engine import Decoder
from vocabforge.evaluate.run.prompts import PromptBuilder
from vocabforge.models.lean.model import load_target
from vocabforge.study.config import StudyLayout
from vocabforge.study.stages import answers
from vocabforge.study.stages.answers import AnsweringTarget, prompt_ids, training_prompts
from vocabforge.vocab.counts.table import load_counts


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> StudyLayout:
    found = make_study(tmp_path_factory.mktemp("answers"))
    answers.run(study_config(found.root), found)
    return found


def copy_of(layout: StudyLayout, root: Path) -> StudyLayout:
    """The same inputs without answers."""
    for name in ("data", "target"):
        (root / name).symlink_to(layout.root / name)
    return StudyLayout(root)


def written(layout: StudyLayout) -> dict[str, str]:
    """Hash of every file of rows."""
    files = open_artifact(layout.answers).manifest["files"]
    return {name: one["sha256"] for name, one in files.items() if name.endswith(".jsonl")}


def own_rows(layout: StudyLayout) -> list[dict[str, Any]]:
    return [json.loads(line) for line in layout.own_texts.read_text("utf-8").splitlines()]


def test_the_empty_block_of_thoughts_belongs_to_the_prompt(layout: StudyLayout, tmp_path: Path) -> None:
    """Else every answer would begin with the same tokens, whatever is asked."""
    folder = tmp_path / "target"
    shutil.copytree(layout.target, folder)
    template = (
        "{% for m in messages %}{{ m.content }}{% endfor %}"
        "{% if enable_thinking is defined and enable_thinking is false %}[no thoughts]{% endif %}"
    )
    (folder / "chat_template.jinja").write_text(template, "utf-8")
    tokenizer = load_tokenizer(folder)
    found = prompt_ids(tokenizer, [{"role": "user", "content": "Hello"}])
    assert tokenizer.decode(list(found)) == "Hello[no thoughts]"


def test_answers_are_plain_decodings(layout: StudyLayout) -> None:
    """Greedy and drawn, each as the decoder alone writes it from prompt and seed."""
    decoder = Decoder(load_target(layout.target))
    tokenizer = load_tokenizer(layout.target)
    for which, temperature in (("greedy", 0.0), ("drawn", 1.0)):
        found = answers.load_answers(layout, which)
        assert [(one.set, one.question, one.category) for one in found] == [
            *(("spec", number, "qa") for number in (1, 2, 5)),
            ("rare", 1, "french"),
        ]
        for one in found:
            alone = decoder.generate(
                one.continuation.prompt,
                max_new_tokens=8,
                stop_ids=(END,),
                temperature=temperature,
                seed=one.seed,
            )
            assert list(one.continuation.tokens) == alone.token_ids
    assert list(found[0].continuation.prompt) == PromptBuilder(tokenizer, "chat").ask("What is 1?")
    assert len({one.seed for one in found}) == len(found)


def test_own_texts_are_conversations(layout: StudyLayout) -> None:
    rows = own_rows(layout)
    assert 0 < len(rows) <= 6
    for row in rows:
        messages = parse_conversation(row)
        assert messages is not None
        assert [one["role"] for one in messages] == ["user", "assistant"]
    assert any(row["messages"][-1].get("cut") for row in rows)


def test_counts_are_of_the_very_tokens(
    layout: StudyLayout, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kept: list[tuple[int, ...]] = []
    answer = AnsweringTarget.answer

    def watching(self: AnsweringTarget, asked: Any) -> list[tuple[int, ...]]:
        found = answer(self, asked)
        kept.extend(ids for ids, one in zip(found, asked) if one.max_new_tokens == 5)
        return found

    monkeypatch.setattr(AnsweringTarget, "answer", watching)
    again = copy_of(layout, tmp_path)
    config = study_config(tmp_path, answers={"tokens": 6, "train_prompts": 12})
    answers.run(config, again)
    table = load_counts(again.answers / answers.COUNTS)
    tokens = load_tokenizer(again.target)
    # Questions are answered by 6 tokens, of which this target ends none.
    assert all(len(one.continuation.tokens) == 6 for one in answers.load_answers(again, "greedy"))
    expected = np.bincount([token for ids in kept for token in ids], minlength=270)
    assert table.counts.tolist() == expected[: tokens.vocab_size].tolist()
    assert expected[tokens.vocab_size :].sum() > 0  # padded rows, which are no tokens
    assert (table.mode, table.documents, table.fingerprint) == ("assistant", 12, tokens.fingerprint)


def test_a_finished_stage_is_taken_over_and_made_again_for_other_inputs(
    layout: StudyLayout, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    again = copy_of(layout, tmp_path)
    answers.run(study_config(tmp_path), again)
    assert len(written(again)) == 3
    assert written(again) == written(layout)  # drawn answers, too
    monkeypatch.setattr("vocabforge.study.stages.answers.Decoder", None)
    answers.run(study_config(tmp_path, answers={"rows": 1}), again)  # how many side by side changes nothing
    with pytest.raises(TypeError):
        answers.run(study_config(tmp_path, answers={"tokens": 9}), again)
    monkeypatch.undo()
    answers.run(study_config(tmp_path, answers={"tokens": 9}), again)
    assert max(len(one.continuation.tokens) for one in answers.load_answers(again, "drawn")) == 9


def test_of_a_long_prompt_the_end_is_left(layout: StudyLayout) -> None:
    long = next(one for one in answers.load_answers(layout, "greedy") if one.shortened)
    assert len(long.continuation.prompt) == 60
    text = load_tokenizer(layout.target).decode(long.continuation.prompt, skip_special=False)
    assert text.endswith("Ça va? <|end|>\n<|assistant|>\n")


def test_prompts_end_before_the_first_answer(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    messages = [{"role": role, "content": role} for role in ("assistant", "user", "assistant", "user")]
    write_rows(path, [{"messages": messages}] * 3)
    assert [len(one) for one in training_prompts(path, 2)] == [2, 2]
