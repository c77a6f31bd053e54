"""From turns to prompts: formats, system messages, and the model's own template."""

from __future__ import annotations

import lzma
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.evaluate.eval_fakes import (
    ASSISTANT,
    BOS,
    EOS,
    FIRST_WORD,
    USER,
    FakeGenerator,
    FakeMethod,
    continuation,
    make_benchmark,
    make_tokenizer,
    run_fakes,
)
from tests.worlds import DATA, needs_data
from vocabforge.core.errors import UsageError
from vocabforge.corpus.tokenizer.prompt_format import resolve_format
from vocabforge.corpus.tokenizer.tokenizer import TextTokenizer, load_tokenizer
from vocabforge.evaluate.benchmarks import Question
from vocabforge.evaluate.run.prompts import PromptBuilder, check_system, longest_conversation

PLAIN = Question(1, "qa", ("w1", "w2"))
CODE = replace(PLAIN, system="w9 w9")
REFUSES = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for message in messages %}{{ message.content }}{% endfor %}"
)
DROPS = "{% for message in messages if message.role != 'system' %}{{ message.content }}{% endfor %}"


def with_template(folder: Path, template: str) -> TextTokenizer:
    return replace(make_tokenizer(folder), chat_template=template)


def test_formats(tmp_path: Path) -> None:
    chat, base = make_tokenizer(tmp_path / "a"), make_tokenizer(tmp_path / "b", chat=False)
    assert [resolve_format(chat, name) for name in ("auto", "chat", "raw")] == ["chat", "chat", "raw"]
    assert resolve_format(base, "auto") == "raw"
    with pytest.raises(UsageError, match="no chat template"):
        resolve_format(base, "chat")
    with pytest.raises(UsageError, match="no prompt format"):
        resolve_format(base, "vicuna")


def test_the_system_message_begins_every_turns_prompt(tmp_path: Path) -> None:
    methods = [FakeMethod("plain", FakeGenerator())]
    run_fakes(tmp_path, methods, rows=[(1, "qa", ("w1", "w2"))], system="w8")
    first, second = methods[0].generator.prompts
    # The little tokenizer knows no <|system|>: it is the unknown token, 0.
    start = [BOS, 0, FIRST_WORD + 8, USER, FIRST_WORD + 1]
    assert first == [*start, ASSISTANT]
    assert second == [*first, *continuation(first, 7), EOS, USER, FIRST_WORD + 2, ASSISTANT]


def test_raw_leaves_the_benchmarks_system_message_out_and_refuses_the_users(tmp_path: Path) -> None:
    base = make_tokenizer(tmp_path, chat=False)
    assert PromptBuilder(base, "raw", "w9 w9").ask("w1") == [BOS, FIRST_WORD + 1]
    check_system(base, "raw", None, [CODE])
    check_system(base, "raw", "", [CODE])
    with pytest.raises(UsageError, match=r"no place for a system message[^$]*--prompt-format chat"):
        check_system(base, "raw", "Be brief.", [PLAIN])
    with pytest.raises(UsageError, match="no place for a system message"):
        run_fakes(tmp_path / "run", [FakeMethod("plain", FakeGenerator())], chat=False, system="Be brief.")
    assert not (tmp_path / "run" / "out.partial").exists()


@pytest.mark.parametrize(
    ("template", "why"), [(REFUSES, "System role not supported"), (DROPS, "leaves it out")]
)
def test_a_template_without_a_system_role_is_named_with_what_to_do(tmp_path, template, why):
    tokenizer = with_template(tmp_path, template)
    check_system(tokenizer, "chat", None, [PLAIN])
    check_system(tokenizer, "chat", "", [CODE])
    with pytest.raises(UsageError) as caught:
        check_system(tokenizer, "chat", "Be brief.", [PLAIN])
    for part in (why, "'Be brief.'", f"chat template of {tmp_path}", "leave --system out"):
        assert part in str(caught.value)
    with pytest.raises(UsageError) as caught:
        check_system(tokenizer, "chat", None, [PLAIN, CODE])
    for part in (why, "'w9 w9'", "the benchmark's questions", "--system ''"):
        assert part in str(caught.value)


@pytest.mark.parametrize("chat", [True, False])
def test_the_longest_conversation_holds_every_prompt_and_answer(tmp_path: Path, chat: bool) -> None:
    rows = [(1, "qa", ("w1 w2", "w3", "w4 w5 w6"))]
    (question,) = make_benchmark(rows).questions
    tokenizer = make_tokenizer(tmp_path, chat=chat)
    form = resolve_format(tokenizer, "auto")
    most = longest_conversation(question, tokenizer, form, None, 8)
    talk = PromptBuilder(tokenizer, form)
    words = [FIRST_WORD] * 8  # to the limit
    for text in question.turns:
        prompt = talk.ask(text)
        talk.answer(words, tokenizer.decode(words))
    assert most == len(prompt) + 8


@needs_data
@pytest.mark.shared
def test_conversations_of_a_published_model_equal_those_of_its_library(tmp_path: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    source = DATA / "tokenizers" / "qwen3"
    (tmp_path / "tokenizer.json").write_bytes(lzma.decompress((source / "tokenizer.json.xz").read_bytes()))
    shutil.copyfile(source / "tokenizer_config.json", tmp_path / "tokenizer_config.json")
    ours = load_tokenizer(tmp_path)
    theirs = PreTrainedTokenizerFast(tokenizer_object=ours.backend, chat_template=ours.chat_template)
    for system in (None, "Answer in one word."):
        check_system(ours, resolve_format(ours, "auto"), system)
        talk = PromptBuilder(ours, "chat", system)
        messages = [{"role": "system", "content": system}] if system else []
        turns = [
            ("Name a colour.\n", "<think>\nred?\n</think>\n\nRed é <b>"),
            ("你好, and another?", "Blue"),
            ("?", ""),
        ]
        for text, answer in turns:
            messages.append({"role": "user", "content": text})
            expected = theirs.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
            assert talk.ask(text) == expected
            talk.answer(ours.encode(answer), answer)
            messages.append({"role": "assistant", "content": answer})
