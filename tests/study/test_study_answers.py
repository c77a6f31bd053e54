"""What the target itself writes in a study."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.study.decoding_support import END, make_study, question, study_config, write_rows
from vocabforge.core.artifact import open_artifact, write_artifact
from vocabforge.core.errors import ArtifactError, DataError, UsageError
from vocabforge.corpus.chat.conversation import parse_conversation
from vocabforge.corpus.regenerate.log import AnswerLog
from vocabforge.corpus.tokenizer.tokenizer import load_tokenizer
from vocabforge.decode.engine import Decoder
from vocabforge.evaluate.run.prompts import PromptBuilder
from vocabforge.models.lean.model import load_target
from vocabforge.study import stage_answers as answers
from vocabforge.study.layout import StudyLayout
from vocabforge.study.stage_answers import GAP, fit_prompt, spread_by_source, training_prompts
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
    found = fit_prompt(tokenizer, [{"role": "user", "content": "Hello"}], 60)
    assert tokenizer.decode(list(found.ids)) == "Hello[no thoughts]"


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


def test_own_texts_are_conversations_of_every_source(layout: StudyLayout) -> None:
    rows = own_rows(layout)
    assert {row["source"] for row in rows} == {"stories", "chats", "rare words"}
    for row in rows:
        messages = parse_conversation(row)
        assert messages is not None
        assert messages[-1]["role"] == "assistant"
        assert messages[-2]["role"] == "user"
    assert {row["generation"]["temperature"] for row in rows} == {0.0, 1.0}
    meta = open_artifact(layout.answers).meta["training"]
    assert len(rows) == meta["answers"] - meta["empty"]


def test_counts_are_of_the_very_tokens(
    layout: StudyLayout, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kept: list[tuple[int, ...]] = []
    add = AnswerLog.add

    def watching(self: AnswerLog, key: str, answer: Any) -> None:
        if answer.completion_tokens is not None and len(answer.response_ids) <= 5:
            kept.append(answer.response_ids)
        add(self, key, answer)

    monkeypatch.setattr(AnswerLog, "add", watching)
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
    assert not again.answers.with_name("answers.partial").exists()
    monkeypatch.setattr("vocabforge.study.stage_answers.Decoder", None)
    answers.run(study_config(tmp_path, answers={"rows": 1}), again)  # how many side by side changes nothing
    with pytest.raises(TypeError):
        answers.run(study_config(tmp_path, answers={"tokens": 9}), again)
    monkeypatch.undo()
    answers.run(study_config(tmp_path, answers={"tokens": 9}), again)
    assert max(len(one.continuation.tokens) for one in answers.load_answers(again, "drawn")) == 9


def test_a_killed_stage_goes_on(layout: StudyLayout, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    again, config = copy_of(layout, tmp_path), study_config(tmp_path)
    add, made = AnswerLog.add, []

    def until_killed(self: AnswerLog, key: str, answer: Any) -> None:
        if len(made) == 5:
            raise KeyboardInterrupt
        made.append(key)
        add(self, key, answer)

    monkeypatch.setattr(AnswerLog, "add", until_killed)
    with pytest.raises(KeyboardInterrupt):
        answers.run(config, again)
    with pytest.raises(ArtifactError):
        answers.load_answers(again, "greedy")
    monkeypatch.setattr(AnswerLog, "add", lambda self, key, one: (made.append(key), add(self, key, one)))
    answers.run(config, again)
    assert len(made) == len(set(made)) == len(own_rows(layout)) + 2 * 4  # nothing twice
    assert written(again) == written(layout)


def test_long_prompts_lose_their_middle(layout: StudyLayout) -> None:
    tokenizer = load_tokenizer(layout.target)
    meta = open_artifact(layout.answers).meta
    assert meta["shortened"] == {"spec": 0, "rare": 1}
    long = next(one for one in answers.load_answers(layout, "greedy") if one.shortened)
    text = tokenizer.decode(long.continuation.prompt, skip_special=False)
    assert 50 < len(long.continuation.prompt) <= 60
    assert text.startswith("<|user|>\nÇa va? ")
    assert text.endswith("Ça va? <|end|>\n<|assistant|>\n")
    assert text.count(GAP) == 1


def test_a_short_last_turn_behind_a_long_one_can_be_fitted(layout: StudyLayout) -> None:
    tokenizer = load_tokenizer(layout.target)
    talk = [
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": "a" * 90},
        {"role": "tool", "content": "t"},
    ]
    limit = len(fit_prompt(tokenizer, talk, 1000).ids) - 40
    found = fit_prompt(tokenizer, talk, limit)
    assert len(found.ids) <= limit
    assert found.messages[-1] == talk[-1]
    assert found.shortened
    lonely = fit_prompt(tokenizer, [{"role": "system", "content": "s" * 90}], 60)
    assert len(lonely.messages) == 1


def test_fitting_drops_early_turns_first_and_keeps_the_system_message(layout: StudyLayout) -> None:
    tokenizer = load_tokenizer(layout.target)
    talk = [
        {"role": role, "content": role[0] * 20}
        for role in ("system", "user", "assistant", "user", "assistant", "user")
    ]
    whole = fit_prompt(tokenizer, talk, 1000)
    assert whole.messages == tuple(talk)
    assert not whole.shortened
    fewer = fit_prompt(tokenizer, talk, len(whole.ids) - 1)
    assert fewer.messages == (talk[0], *talk[3:])
    assert fewer.shortened
    last = fit_prompt(tokenizer, talk, len(fewer.ids) - 1)
    assert last.messages == (talk[0], talk[-1])
    for limit in range(len(last.ids) - 1, len(last.ids) - 12, -1):
        cut = fit_prompt(tokenizer, talk, limit)
        assert len(cut.ids) <= limit
        assert cut.messages[0] == talk[0]
        assert GAP in cut.messages[1]["content"]
    with pytest.raises(UsageError, match="short enough"):
        fit_prompt(tokenizer, talk, 10)


def test_every_source_is_met() -> None:
    sources = ["a"] * 90 + ["b"] * 9 + ["c"] + ["a"] * 10
    chosen = spread_by_source(sources, 11)
    met = [sources[place] for place in chosen]
    assert (met.count("a"), met.count("b"), met.count("c")) == (10, 1, 1)
    assert chosen == sorted(chosen)
    assert max(chosen) > 90
    assert spread_by_source(sources, 1000) == list(range(110))


def test_turns_are_taken_in_turn_and_damage_is_told(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    messages = [{"role": role, "content": role} for role in ("user", "assistant") * 2]
    write_rows(path, [{"messages": messages}, {"messages": [*messages[:3], {**messages[1], "cut": True}]}])
    assert [len(one.messages) for one in training_prompts(path, 2)] == [1, 3]
    write_rows(path, [{"messages": messages}, {"text": "plain"}])
    with pytest.raises(DataError, match="no conversation") as caught:
        training_prompts(path, 2)
    assert f"{path}:2" in caught.value.render()
    write_rows(path, [{"messages": messages[:1]}])
    with pytest.raises(DataError, match="no training conversation"):
        training_prompts(path, 2)
    with pytest.raises(DataError, match="missing"):
        training_prompts(tmp_path / "nowhere", 2)


def test_repeated_prompts_are_drawn_and_answers_without_an_end_marked(
    layout: StudyLayout, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    again = copy_of(layout, tmp_path)
    again.data.unlink()
    with write_artifact(again.data, "study-data", {}) as folder:
        messages = [{"role": role, "content": "Go on"} for role in ("user", "assistant")]
        write_rows(folder / "train.jsonl", [{"messages": messages, "source": ""}] * 5)
        write_rows(folder / "questions-spec.jsonl", [question(1, "Who are they?")])
    kept: dict[int, list[tuple[int, ...]]] = {}
    add = AnswerLog.add

    def watching(self: AnswerLog, key: str, answer: Any) -> None:
        kept.setdefault(answer.prompt_tokens, []).append(answer.response_ids)
        add(self, key, answer)

    monkeypatch.setattr(AnswerLog, "add", watching)
    answers.run(study_config(tmp_path, answers={"train_tokens": 60}), again)
    ids = kept[min(kept)]  # of the shorter prompt
    rows, meta = own_rows(again), open_artifact(again.answers).meta["training"]
    assert len(ids) == 5
    assert meta["empty"] == sum(one == (END,) for one in ids)
    assert [row["generation"]["temperature"] for row in rows] == [0.0, *[1.0] * (4 - meta["empty"])]
    assert len({row["messages"][-1]["content"] for row in rows}) == len(rows)
    ended = sum(one[-1] == END for one in ids)
    assert 0 < ended < 5
    assert sum(bool(row["messages"][-1].get("cut")) for row in rows) == 5 - ended


def test_what_cannot_be_is_refused(layout: StudyLayout, tmp_path: Path) -> None:
    again = copy_of(layout, tmp_path)
    with pytest.raises(UsageError, match="no room"):
        answers.run(study_config(tmp_path, answers={"tokens": 255}), again)
    config = study_config(tmp_path, data={"benchmarks": {"spec": 0, "gone": 0}})
    with pytest.raises(DataError, match="questions-gone"):
        answers.run(config, again)
