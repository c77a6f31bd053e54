"""Every command in README, CONTRIBUTING and docs is one that the program (or make) understands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.doc_commands import Command, commands, documents
from tests.docs.doc_parse import Wrong, check, check_keys, program
from tests.support import ROOT
from vocabforge.train.config import TrainConfig

NAMES = [path.relative_to(ROOT).as_posix() for path in documents()]


def problems(found: list[Command]) -> list[str]:
    lines = []
    for command in found:
        try:
            check(command)
        except Wrong as error:
            lines.append(f"{command.place}: {command.text}\n    {error}")
    return lines


@pytest.mark.parametrize("name", NAMES)
def test_every_command_is_understood(name: str) -> None:
    wrong = problems(commands(ROOT / name))
    assert not wrong, "\n" + "\n".join(wrong)


def test_the_examples_of_the_help_pages_are_understood() -> None:
    wrong = []
    for name, command in program().commands.items():
        text = re.sub(r"`[^`]*`", lambda match: " ".join(match[0].split()), command.help or "")
        wrong += problems(commands(Path(f"vocabforge {name} --help"), text))
    assert not wrong, "\n" + "\n".join(wrong)


def test_the_first_lines_of_the_recipes_are_understood() -> None:
    wrong = []
    for path in sorted((ROOT / "recipes").rglob("*.yaml")):
        lines = [
            line.removeprefix("#") for line in path.read_text("utf-8").split("\n") if line.startswith("#")
        ]
        text = "\n".join(re.sub(r"^ (accelerate|vocabforge) ", r"    \1 ", line) for line in lines)
        wrong += problems(commands(path, text))
    assert not wrong, "\n" + "\n".join(wrong)


# --- the reader of documents itself


def read(text: str) -> list[Command]:
    return commands(Path("page.md"), text)


def test_lines_are_joined_and_comments_left_out() -> None:
    text = "```\nvocabforge eval --target a \\\n  --output b   # a remark\n\nvocabforge doctor\n```\n"
    assert [(one.line, one.text) for one in read(text)] == [
        (2, "vocabforge eval --target a --output b"),
        (5, "vocabforge doctor"),
    ]


def test_quotes_hold_and_redirections_do_not() -> None:
    words = read("```bash\nvocabforge count-freq --separator '<|end|>' 'a b' > out.txt\n```")[0].words
    assert words == ("vocabforge", "count-freq", "--separator", "<|end|>", "a b")


def test_variables_take_their_values() -> None:
    text = '```\nD=../data; P="--limit 2 --fresh"\nOMP_NUM_THREADS=1 vocabforge eval $P --data $D/x ${D}\n```'
    assert [one.text for one in read(text)] == ["vocabforge eval --limit 2 --fresh --data ../data/x ../data"]


def test_optional_parts_are_read_without_and_with_each_choice() -> None:
    (one,) = read("```\nvocabforge x data.a=[b] [--mode corpus|assistant] [--plan]\n```")
    assert [v.text for v in one.variants()] == [
        "vocabforge x data.a=[b]",
        "vocabforge x data.a=[b] --mode corpus --plan",
        "vocabforge x data.a=[b] --mode assistant --plan",
    ]


def test_output_and_other_languages_are_no_commands() -> None:
    assert not read("```\n method  tokens/s\n```\n```python\nvocabforge = 1\n```\n```text\nvocabforge x\n```")


def test_indented_and_inline_commands_are_found() -> None:
    found = read("Text:\n\n    vocabforge report A\n\nand `make test` or `vocabforge doctor --keys`.")
    assert [(one.text, one.whole) for one in found] == [
        ("vocabforge report A", True),
        ("make test", False),
        ("vocabforge doctor --keys", False),
    ]


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("vocabforge evaluate --target a", "evaluate"),
        ("vocabforge doctor --targets a", "--targets"),
        ("vocabforge count-freq --input a", "--tokenizer"),
        ("vocabforge regenerate --input a --output b --empty perhaps", "perhaps"),
        ("vocabforge train-drafter -c r.yaml optim.step=3", "optim.step"),
        ("vocabforge train-drafter -c r.yaml optim.steps=few", "optim.steps"),
        ("vocabforge bench training shape=[tiny]", "shape"),
        ("vocabforge bench kernels part=ops", "part"),
        ("vocabforge study targets --size ci", "targets"),
        ("vocabforge study all --size ci answer.tokens=3", "answer"),
        ("accelerate launch --config_file recipes/none.yaml -m vocabforge doctor", "none.yaml"),
        ("accelerate launch --processes 2 -m vocabforge doctor", "--processes"),
        ("torchrun --nproc-per-node 2 -m vocabforge doctors", "doctors"),
        ("make tests", "tests"),
        ("make gpu-check GPU_CHEK=1", "GPU_CHEK"),
        ("python -m pytest tests/nothing.py", "nothing.py"),
    ],
)
def test_a_wrong_command_is_told(line: str, word: str) -> None:
    (one,) = read(f"```\n{line}\n```")
    with pytest.raises(Wrong, match=re.escape(word)):
        check(one)


def test_a_wrong_option_within_a_sentence_is_told() -> None:
    (one,) = read("Give `vocabforge eval --limits 3` a try.")
    with pytest.raises(Wrong, match="--limits"):
        check(one)


def test_a_right_key_is_taken_whatever_else_the_recipe_lacks() -> None:
    check_keys(TrainConfig, {}, ["optim.lr=1e-4", "data.train=[a.jsonl]"])
    with pytest.raises(Wrong):
        check_keys(TrainConfig, {}, ["optim.rl=1e-4", "data.train=[a.jsonl]"])
