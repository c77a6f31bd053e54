"""The command prepare-data: what it writes, shows and refuses."""

from __future__ import annotations

import json

import pytest

from tests.cli.cli_support import assert_user_error, facts_of, invoke, ok
from tests.corpus.thinking_template import PLAIN, TOOLS, TWO_ROUNDS
from tests.worlds import byte_tokenizer
from vocabforge.corpus.prepared.artifact import load_prepared


@pytest.fixture
def place(tmp_path):
    byte_tokenizer(tmp_path / "tokenizer", template=PLAIN)
    rows = [{"messages": TWO_ROUNDS, "tools": TOOLS}] * 3 + [{"prompt": "q", "response": "a"}] * 3
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n{\n")
    return tmp_path


def run(place, *words, output="out"):
    fixed = ("--input", place / "a.jsonl", "--output", place / output, "--heldout-documents", 2)
    return invoke("prepare-data", "--tokenizer", place / "tokenizer", *fixed, *words)


def test_figures_as_json_and_the_same_content_is_used_again(place):
    facts = facts_of(run(place, "--length", 512, "--thinking", "mask", "--json"))
    assert facts["figures"]["facts"] == {
        "conversations": 6,
        "thinking": 3,
        "tool_list": 3,
        "tool_calls": 3,
        "thinking_turns_left_out": 6,
        "empty_thinking_blocks": 3,
    }
    assert facts["figures"]["skipped"] == {"the line is not valid JSON": 1}
    assert facts["digest"] == load_prepared(place / "out").digest()
    again = run(place, "--length", 512, "--thinking", "mask", "--json")
    assert "is already up to date" in again.stderr
    assert json.loads(again.stdout) == facts
    other = run(place, "--length", 256)
    assert_user_error(other, 2, "exists already")
    assert run(place, "--length", 256, "--overwrite").exit_code == 0
    assert load_prepared(place / "out").train.length == 256


def test_what_is_learnt_is_shown(place):
    done = ok(run(place, "--length", 512, "--show", 1))
    assert "⟦<think>\nhm 3\n</think>\n\n<call>" in done.stdout
    assert "⟦nine<|end|>⟧" in done.stdout
    assert "with tool calls" in done.stdout
    assert "document 2" not in done.stdout
    lean = run(place, "--thinking", "drop", "--answers", "last", "--show", 1, output="lean")
    assert "hm" not in lean.stdout
    assert "⟦eight<|end|>⟧" in lean.stdout
    assert "⟦nine" not in lean.stdout


def test_tools_and_long_documents_are_left_out_on_request(place):
    done = run(place, "--tools", "skip", "--json")
    facts = json.loads(done.stdout)["figures"]
    assert facts["facts"]["conversations"] == 3
    assert sum(facts["skipped"].values()) == 4
    split = json.loads(run(place, "--length", 64, "--overlong", "split", "--json", output="b").stdout)
    assert split["figures"]["train"]["overlong"]["pieces"] > 3


def test_mistakes_are_told(place):
    file, output = place / "a.jsonl", place / "out"
    both = invoke(
        "prepare-data", "--target", place, "--tokenizer", place, "--input", file, "--output", output
    )
    assert_user_error(both, 2, "either --target DIR or --tokenizer PATH")
    assert_user_error(
        invoke("prepare-data", "--tokenizer", place / "tokenizer", "--output", output), 2, "no input"
    )
    assert_user_error(run(place, "--template", "x"), 2, "--template NAME=VALUE")
    assert_user_error(run(place, "--strict"), 1, "not valid JSON")
    (place / "foreign").mkdir()
    (place / "foreign" / "x").write_text("x")
    assert_user_error(run(place, output="foreign"), 2, "not an artefact of VocabForge")
    assert not output.exists()


def test_cut_answers_are_counted_and_their_end_is_not_learnt(place):
    cut = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "abc", "cut": True}]
    (place / "a.jsonl").write_text("\n".join([json.dumps({"messages": cut})] * 4))
    done = ok(run(place, "--show", 1))
    assert "⟦abc⟧<|end|>" in done.stdout
    assert "answers cut: end not learnt" in done.stdout
    assert load_prepared(place / "out").figures["facts"]["cut_turns"] == 4


def test_template_variables(place):
    words = ("--template", "enable_thinking=false", "--template", "date=1 Jan")
    assert run(place, *words).exit_code == 0
    options = load_prepared(place / "out").artifact.meta["options"]
    assert options["sequences"]["chat"]["variables"] == {"enable_thinking": False, "date": "1 Jan"}
