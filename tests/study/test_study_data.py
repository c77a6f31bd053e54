"""Stage data: every kind of source becomes conversations; what is held out stays out; nothing is made twice."""

from __future__ import annotations

import hashlib
import json
import lzma
import random
import re
import zipfile
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.worlds import CHAT_TEMPLATE, DATA, byte_tokenizer, needs_data
from vocabforge.core.artifact import open_artifact
from vocabforge.core.config import parse_config
from vocabforge.core.errors import ConfigError, DataError, UsageError
from vocabforge.corpus.sources.sources import SourceOptions, iter_documents
from vocabforge.evaluate.benchmarks import read_questions
from vocabforge.study.config import SourceConfig, StudyConfig, StudyDataConfig
from vocabforge.study.layout import StudyLayout
from vocabforge.study.sources.registry import Talk, read_source
from vocabforge.study.sources.texts import clean, joined, parted, passages, quoted, sentences, weight
from vocabforge.study.stage_data import KIND, make, run
from vocabforge.study.stage_target import unpack_tokenizer

NOUNS = (
    "dog",
    "cat",
    "tree",
    "river",
    "stone",
    "house",
    "garden",
    "window",
    "teacher",
    "letter",
    "bridge",
    "moon",
)


def prose(seed: int, count: int = 12) -> str:
    """Sentences that no other seed has."""
    chance = random.Random(seed)
    made = (
        f"The {chance.choice(NOUNS)} of {seed} {chance.choice(['saw', 'found', 'lost'])} a "
        f"{chance.choice(NOUNS)} near the {chance.choice(NOUNS)} number {chance.randrange(10**6)}."
        for _ in range(count)
    )
    return " ".join(made)


def jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")
    return path


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def read(folder: Path, name: str, kind: str, size: int = 200, **changes: Any) -> list[Talk]:
    source = SourceConfig.model_validate({"name": "it", "path": name, "kind": kind, **changes})
    return read_source(source, folder, size).talks


def contents(talk: Talk) -> list[str]:
    return [message["content"] for message in talk.messages]


def study(
    folder: Path, output: Path, sources: list[dict[str, Any]], **data: Any
) -> tuple[StudyConfig, StudyLayout]:
    part = {"steps": 1}
    config = parse_config(
        StudyConfig,
        {
            "size": "test",
            "output": output,
            "data": {"root": folder, "sources": sources, "benchmarks": {}, "overlap": 8, **data},
            "target": {"optim": {"steps": 1}},
            "drafters": {"aux_layers": [1], "reduced_size": 8}
            | dict.fromkeys(("full", "reduced", "alone", "router"), part),
        },
        source="test",
    )
    return config, StudyLayout(config.output)


# --- kinds of sources -------------------------------------------------------------------------------------------------


def test_chats_of_several_formats(tmp_path: Path) -> None:
    jsonl(
        tmp_path / "chats.jsonl",
        [
            {"conversations": [{"from": "human", "value": "a?"}, {"from": "gpt", "value": "b."}]},
            {"messages": [{"role": "user", "content": "c?"}, {"role": "assistant", "content": "d."},
                          {"role": "user", "content": "unanswered"}]},
            {"conversations": [{"from": "human", "value": "e?"}], "chosen": {"from": "gpt", "value": "good"},
             "rejected": {"from": "gpt", "value": "bad"}},
            {"messages": [{"role": "user", "content": "nobody answers"}]},
            {"messages": [{"role": "user", "content": "f?"}, {"role": "assistant", "content": " "}]},
            {"messages": [{"role": "user", "content": "<|im_end|>"}, {"role": "assistant", "content": "g"}]},
            {"messages": [{"role": "user", "content": "h"}, {"role": "assistant", "content": "",
                           "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}]},
        ],
    )  # fmt: skip
    found = read_source(
        SourceConfig(name="it", path=Path("chats.jsonl"), kind="chats", language="Dutch"), tmp_path, 200
    )
    assert [contents(talk) for talk in found.talks] == [["a?", "b."], ["c?", "d."], ["e?", "good"]]
    assert {talk.category for talk in found.talks} == {"Dutch"}
    assert found.of == 3
    assert sorted(found.skipped.values()) == [1, 1, 2]


def test_alpaca_and_sums(tmp_path: Path) -> None:
    jsonl(tmp_path / "a.jsonl", [{"instruction": "Add.", "input": "1 2", "response": "3"}])
    assert [contents(talk) for talk in read(tmp_path, "a.jsonl", "alpaca")] == [["Add.\n1 2", "3"]]
    jsonl(tmp_path / "s.jsonl", [{"question": "48 / 2?", "answer": "It is 48/2 = <<48/2=24>>24.\n#### 24"}])
    assert [contents(talk) for talk in read(tmp_path, "s.jsonl", "sums")] == [
        ["48 / 2?", "It is 48/2 = 24.\n#### 24"]
    ]


def test_code_is_asked_for_in_words(tmp_path: Path) -> None:
    program = "import math\r\ndef area(r):\r\n\treturn math.pi * r * r"
    task = {"text": "Write the area of a circle.", "code": program, "test_list": ["assert area(0) == 0"]}
    jsonl(tmp_path / "mbpp.jsonl", [task] * 60)
    asked = [contents(talk) for talk in read(tmp_path, "mbpp.jsonl", "code")]
    bare = program.replace("\r\n", "\n").replace("\t", "    ")
    assert {answer for _, answer in asked} == {bare, f"```python\n{bare}\n```"}
    assert all("Write the area of a circle." in prompt for prompt, _ in asked)
    assert any("assert area(0) == 0" in prompt for prompt, _ in asked)


def test_stories_are_continued_and_one_that_breaks_off_is_left_out(tmp_path: Path) -> None:
    made = [prose(number) for number in range(40)]
    (tmp_path / "s.txt").write_text("\n<|endoftext|>\n".join([*made, "This one breaks off in the"]), "utf-8")
    found = read(tmp_path, "s.txt", "stories")
    assert [f"{contents(talk)[0].partition(chr(10) * 2)[2]} {contents(talk)[1]}" for talk in found] == made


def test_text_is_continued(tmp_path: Path) -> None:
    whole = prose(1, 60)
    (tmp_path / "b.txt").write_text(whole, "utf-8")
    found = read(tmp_path, "b.txt", "text", language="Danish")
    parts = [(prompt.partition("\n\n")[2], answer) for prompt, answer in map(contents, found)]
    assert " ".join(part for pair in parts for part in pair) == whole
    assert len(found) > 5
    assert all(0.5 < weight(answer) / 200 < 1.5 for _, answer in parts)
    assert any("Danish" in contents(talk)[0] for talk in found)
    assert len({contents(talk)[0].partition("\n\n")[0] for talk in found}) >= 3


def test_verses_are_joined_within_chapters(tmp_path: Path) -> None:
    def chapter(name: str) -> str:
        lines = (
            f'<seg id="{name}.{number}" type="verse">\n  {name} &amp; verse {number} said so.\n</seg>'
            for number in range(30)
        )
        return f'<div id="{name}" type="chapter">{"".join(lines)}</div>'

    (tmp_path / "b.xml.xz").write_bytes(
        lzma.compress(f"<body>{chapter('One')}{chapter('Two')}</body>".encode())
    )
    found = read(tmp_path, "b.xml.xz", "verses", language="Manx")
    texts = [" ".join(contents(talk)) for talk in found]
    assert not any("One" in text and "Two" in text for text in texts)
    verses = [match for text in texts for match in re.findall(r"(?:One|Two) & verse \d+ said so\.", text)]
    assert verses == [f"{name} & verse {number} said so." for name in ("One", "Two") for number in range(30)]


def test_archives_give_their_members_with_their_languages(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "u.zip", "w") as packed:
        for number, name in enumerate(("deu", "1999-Smith", "fra")):
            packed.writestr(f"u/{name}.txt", b"\xef\xbb\xbf" + prose(number).encode())
        packed.writestr("u/bad.txt", b"\xff\xfe\xff")
        packed.writestr("u/README", "not a text")
    source = SourceConfig(name="it", path=Path("u.zip"), kind="archive", language="English")
    found = read_source(source, tmp_path, 2000)
    assert [talk.category for talk in found.talks] == ["English"] * 3
    assert found.skipped == {"the file is not UTF-8": 1}
    chosen = source.model_copy(update={"members": {"deu": "German", "fra": "French"}})
    assert [talk.category for talk in read_source(chosen, tmp_path, 2000).talks] == ["German", "French"]
    with pytest.raises(DataError, match="no text file of these names"):
        read_source(source.model_copy(update={"members": {"none": "X"}}), tmp_path, 200)
    (tmp_path / "u.zip").write_bytes(b"PK no zip")
    with pytest.raises(DataError, match="archive is missing or damaged"):
        read_source(source, tmp_path, 200)


def test_the_sample_has_three_roles(tmp_path: Path) -> None:
    def prompts(role: str, count: int) -> set[str]:
        source = SourceConfig.model_validate(
            {"name": "s", "kind": "sample", "role": role, "documents": count}
        )
        found = read_source(source, None, 200).talks
        assert len(found) == count
        return {talk.prompts[0] for talk in found}

    train, heldout, rare = prompts("train", 200), prompts("heldout", 30), prompts("rare", 9)
    assert not train & heldout
    assert len(rare) == 9


def test_a_source_needs_its_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no file"):
        read_source(SourceConfig(name="it", kind="text"), tmp_path, 200)
    (tmp_path / "empty.txt").write_text("\n", "utf-8")
    with pytest.raises(DataError, match="gives no conversation"):
        read(tmp_path, "empty.txt", "text")


# --- cutting ----------------------------------------------------------------------------------------------------------

TEXT = st.text(st.sampled_from("ab. !\n。ю語🙂"), max_size=300)


@settings(max_examples=150, deadline=None)
@given(text=TEXT, size=st.integers(min_value=1, max_value=40))
def test_nothing_is_lost_in_cutting(text: str, size: int) -> None:
    pieces = list(sentences(text, size))
    assert "".join(pieces) == text
    assert all(weight(piece) <= size or len(piece) == 1 for piece in pieces)
    assert "".join("".join(joined(pieces, size)).split()) == "".join(text.split())
    assert "".join("".join(passages(text, size)).split()) == "".join(text.split())


@settings(max_examples=150, deadline=None)
@given(text=TEXT, seed=st.integers(min_value=0, max_value=99))
def test_parts_are_the_passage(text: str, seed: int) -> None:
    parts = parted(text, random.Random(seed))
    if parts is None:
        assert len(text.split()) < 3 or len(text.strip()) < 6
    else:
        assert all(parts)
        assert "".join("".join(parts).split()) == "".join(text.split())


def test_what_libraries_add_is_left_out() -> None:
    assert clean(
        "Title\n*** START OF THIS X ***\r\n  The   text.\n\n\n\nMore. \n*** END OF THIS X ***\nbye"
    ) == ("The text.\n\nMore.")
    line = "-" * 40
    aozora = f"題\n{line}\n《》：ルビ\n{line}\n吾輩《わがはい》は｜猫［＃「猫」に傍点］である。\n底本：本\n青空文庫"
    assert clean(aozora) == "吾輩はである。".replace("は", "は猫")
    assert clean("《红楼梦》曹雪芹") == "《红楼梦》曹雪芹"


# --- the stage --------------------------------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder of data: chats of which three meet what is held out, and three held-out sources."""
    folder = tmp_path / "files"
    folder.mkdir()

    def talk(prompt: str, answer: str) -> dict[str, Any]:
        return {"messages": [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]}

    chats = [talk(f"Question {number}?", prose(number, 2)) for number in range(20)]
    chats.append(talk("Copied?", f"Well: {prose(101, 3)}"))
    chats.append(talk(f"My friend asks: {prose(103, 1)}", "No."))
    chats.append(talk(prose(101, 1), prose(103, 1)))
    jsonl(folder / "chats.jsonl", chats)
    (folder / "book.txt").write_text(prose(100, 30), "utf-8")
    (folder / "held.txt").write_text(prose(101, 30), "utf-8")
    with zipfile.ZipFile(folder / "rare.zip", "w") as packed:
        packed.writestr("deu.txt", prose(102, 300))
        packed.writestr("fin.txt", prose(104, 9))
    row = {"question_id": 7, "category": "math", "turns": [prose(103, 2), "And then?"], "reference": ["x"]}
    (folder / "spec_bench").mkdir()
    jsonl(
        folder / "spec_bench" / "question.jsonl",
        [row, {"question_id": 9, "category": "qa", "turns": ["Who is it?"]}],
    )
    return folder


SOURCES: list[dict[str, Any]] = [
    {"name": "chats", "path": "chats.jsonl", "kind": "chats"},
    {"name": "book", "path": "book.txt", "kind": "text"},
    {"name": "held", "path": "held.txt", "kind": "text", "role": "heldout"},
    {
        "name": "rare",
        "path": "rare.zip",
        "kind": "archive",
        "role": "rare",
        "members": {"deu": "German", "fin": "Finnish"},
    },
]


def rows_of(layout: StudyLayout) -> list[dict[str, Any]]:
    """The sources' part of the summary."""
    return json.loads((layout.data / "summary.json").read_text("utf-8"))["sources"]


def made_at(layout: StudyLayout) -> int:
    return (layout.data / "manifest.json").stat().st_mtime_ns


def test_the_stage_writes_all_and_leaves_out_what_overlaps(files: Path, tmp_path: Path) -> None:
    benchmarks = {"spec-bench": 0}
    config, layout = study(files, tmp_path / "out", SOURCES, benchmarks=benchmarks, answer_characters=150)
    run(config, layout)
    open_artifact(layout.data, KIND)
    train = rows(layout.train_texts)
    said = "\n".join(message["content"] for row in train for message in row["messages"])
    assert {row["source"] for row in train} == {"chats", "book"}
    assert sum(row["source"] == "chats" for row in train) == 20
    assert all(word not in said for word in ("of 101", "of 102", "of 103"))
    assert sum(one["source"] != other["source"] for one, other in pairwise(train)) > 5, "not shuffled"
    summary = json.loads((layout.data / "summary.json").read_text("utf-8"))
    figures = {one["name"]: one for one in summary["sources"]}
    assert figures["chats"]["left_out"] == 3
    assert figures["chats"]["met"] == {"heldout held": 2, "questions spec-bench": 2}
    assert figures["chats"]["documents"] == 20
    assert figures["chats"]["of"] == 23
    assert figures["book"]["left_out"] == 0
    assert summary["train"]["conversations"] == len(train)
    assert summary["train"]["characters"] == sum(len(m["content"]) for row in train for m in row["messages"])
    heldout = rows(layout.heldout_texts("held"))
    assert heldout
    assert {row["source"] for row in heldout} == {"held"}
    asked = read_questions(layout.questions("spec-bench"))
    assert [(one.question_id, one.category, len(one.turns)) for one in asked] == [
        (7, "math", 2),
        (9, "qa", 1),
    ]
    rare = read_questions(layout.questions("rare"))
    assert summary["questions"]["rare"]["categories"]["German"] == 36
    assert {one.category for one in rare} == {"German", "Finnish"}
    known = {row["messages"][0]["content"] for row in rows(layout.heldout_texts("rare"))}
    assert {one.turns[0] for one in rare} <= known
    documents = list(iter_documents([layout.train_texts], SourceOptions(strict=True)))
    assert [document.messages for document in documents] == [row["messages"] for row in train]


def test_what_is_made_is_left_until_something_changes(
    files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, layout = study(files, tmp_path / "out", SOURCES)
    run(config, layout)
    first, content = made_at(layout), layout.train_texts.read_bytes()
    run(config, layout)
    assert made_at(layout) == first
    assert "up to date" in capsys.readouterr().err
    layout.train_texts.write_bytes(content[:-1] + b" ")  # damaged
    run(config, layout)
    assert layout.train_texts.read_bytes() == content
    second = made_at(layout)
    assert second != first
    (files / "book.txt").write_text(prose(105, 20), "utf-8")
    run(config, layout)
    assert "of 105" in layout.train_texts.read_text("utf-8")
    third = made_at(layout)
    run(study(files, tmp_path / "out", SOURCES, overlap=9)[0], layout)
    assert made_at(layout) != third
    moved = files.rename(tmp_path / "elsewhere")  # the same files in another folder are the same
    fourth = made_at(layout)
    run(study(moved, tmp_path / "out", SOURCES, overlap=9)[0], layout)
    assert made_at(layout) == fourth


def test_a_foreign_folder_is_never_replaced(files: Path, tmp_path: Path) -> None:
    config, layout = study(files, tmp_path / "out", SOURCES)
    layout.data.mkdir(parents=True)
    (layout.data / "letter.txt").write_text("mine", "utf-8")
    with pytest.raises(UsageError, match="not an artefact"):
        run(config, layout)
    assert (layout.data / "letter.txt").read_text("utf-8") == "mine"


def test_what_cannot_be_made_says_why(files: Path, tmp_path: Path) -> None:
    layout = StudyLayout(tmp_path / "out")
    with pytest.raises(ConfigError, match="questions of rare sources"):
        study(files, tmp_path / "out", SOURCES, benchmarks={"rare": 0})
    with pytest.raises(ConfigError, match="name"):
        study(files, tmp_path / "out", [*SOURCES[:2], {**SOURCES[2], "name": "a/b"}])
    sources = [{**SOURCES[0], "path": "none.jsonl"}, *SOURCES[1:]]
    with pytest.raises(DataError, match="source chats is missing"):
        run(study(files, tmp_path / "out", sources)[0], layout)
    sources = [{**SOURCES[2], "name": "again", "role": "train"}, SOURCES[2]]
    with pytest.raises(DataError, match="nothing is left"):
        run(study(files, tmp_path / "out", sources)[0], layout)
    assert not layout.data.exists()


TOOL_TEMPLATE = CHAT_TEMPLATE.replace(
    "+ message.content +", "+ message.content + (message.tool_calls | tojson if message.tool_calls else '') +"
)


def packed_tokenizer(folder: Path, template: str) -> bytes:
    """A tokenizer whose tokenizer.json is packed; its content."""
    byte_tokenizer(folder, template=template)
    content = (folder / "tokenizer.json").read_bytes()
    (folder / "tokenizer.json.xz").write_bytes(lzma.compress(content))
    (folder / "tokenizer.json").unlink()
    return content


def test_the_tokenizer_is_unpacked_byte_for_byte(files: Path, tmp_path: Path) -> None:
    content = packed_tokenizer(files / "tok", CHAT_TEMPLATE)
    config, layout = study(files, tmp_path / "out", SOURCES, tokenizer="tok")
    run(config, layout)
    made = layout.tokenizer / "tokenizer.json"
    assert made.read_bytes() == content
    side = "tokenizer_config.json"
    assert (layout.tokenizer / side).read_bytes() == (files / "tok" / side).read_bytes()
    first = made.stat().st_mtime_ns
    run(config, layout)
    assert made.stat().st_mtime_ns == first
    made.write_bytes(b"{}")
    run(config, layout)
    assert made.read_bytes() == content
    (files / "tok" / "tokenizer.json.xz").unlink()
    with pytest.raises(DataError, match=r"holds no tokenizer\.json"):
        run(config, layout)


@pytest.mark.parametrize(("template", "kept"), [(CHAT_TEMPLATE, 20), (TOOL_TEMPLATE, 21), (None, 20)])
def test_tools_are_kept_where_the_template_writes_them(
    files: Path, tmp_path: Path, template: str | None, kept: int
) -> None:
    tools = [{"name": "f", "description": "d", "parameters": {}}]
    call = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"function": {"name": "f", "arguments": {"x": 1}}}],
    }
    talk = [{"role": "user", "content": "Call it."}, call, {"role": "tool", "content": "1"},
            {"role": "assistant", "content": "Done."}]  # fmt: skip
    with (files / "chats.jsonl").open("a", encoding="utf-8") as handle:
        handle.write(json.dumps({"messages": talk, "tools": json.dumps(tools)}) + "\n")
    if template is not None:
        packed_tokenizer(files / "tok", template)
    config, layout = study(files, tmp_path / "out", SOURCES, tokenizer=template and "tok")
    run(config, layout)
    train = [row for row in rows(layout.train_texts) if row["source"] == "chats"]
    assert len(train) == kept + 1  # nothing is asked in this study, so one more is kept
    assert [json.loads(row["tools"]) for row in train if "tools" in row] == [tools] * (kept - 20)
    (figures,) = (one for one in rows_of(layout) if one["name"] == "chats")
    assert sum(figures["skipped"].values()) == 21 - kept


def test_the_sample_alone_makes_a_study(tmp_path: Path) -> None:
    sources = [
        {"name": "sample", "kind": "sample", "documents": 150},
        {"name": "unseen", "kind": "sample", "role": "heldout", "documents": 20},
        {"name": "odd", "kind": "sample", "role": "rare", "documents": 8},
    ]
    config, layout = study(
        tmp_path, tmp_path / "out", sources, root=None, benchmarks={"sample": 9}, overlap=24
    )
    run(config, layout)
    assert 100 < len(rows(layout.train_texts)) <= 150
    assert len(rows(layout.heldout_texts("unseen"))) == 20
    assert len(read_questions(layout.questions("sample"))) == 9
    assert {one.category for one in read_questions(layout.questions("rare"))} == {"code", "translation"}


@needs_data
def test_real_data(tmp_path: Path) -> None:
    unpack_tokenizer(DATA / "tokenizers" / "qwen3", tmp_path / "tok")
    digest = hashlib.sha256((tmp_path / "tok" / "tokenizer.json").read_bytes()).hexdigest()
    assert digest == "aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4"
    sources = [
        {"name": "mbpp", "path": "chat/mbpp.jsonl", "kind": "code"},
        {
            "name": "udhr",
            "path": "corpus/nltk_udhr2.zip",
            "kind": "archive",
            "role": "rare",
            "members": {"rus": "Russian", "tha": "Thai"},
        },
    ]  # fmt: skip
    config, layout = study(DATA, tmp_path / "out", sources, benchmarks={"human-eval": 5}, overlap=24)
    run(config, layout)
    assert len(rows(layout.train_texts)) == 974
    assert {one.category for one in read_questions(layout.questions("rare"))} == {"Russian", "Thai"}
    asked = rows(layout.questions("human-eval"))
    assert len(asked) == 5
    assert all(row["system"].startswith("Please complete") for row in asked)


def test_quotes_stand_in_their_prompts() -> None:
    """Every answer is a part of what was asked about, of each kind of question and in scripts without spaces, too."""
    texts = {
        "English": "Ann saw a heron. The river was high. Nobody crossed it, and Bertram went home.",
        "Chinese": "话说大荒山无稽崖下。有一块顽石落在此处。日夜悲号惭愧。",
    }
    whole = set()
    for text in texts.values():
        for number in range(60):
            prompt, answer = quoted(text, 400, random.Random(number))
            assert text in prompt
            assert answer
            assert answer in text
            whole.add(answer == text)
    assert whole == {True, False}


def test_a_text_is_quoted_in_shorter_passages(tmp_path: Path) -> None:
    lines = " ".join(f"Sentence number {n} tells of the thing {n * 7}." for n in range(80))
    (tmp_path / "a.txt").write_text(lines, "utf-8")
    source = SourceConfig.model_validate({"name": "a", "path": "a.txt", "kind": "text", "task": "quote"})
    quotes = read_source(source, tmp_path, 400).talks
    plain = read_source(source.model_copy(update={"task": "continue"}), tmp_path, 400).talks
    assert len(quotes) > 2 * len(plain)
    for talk in quotes:
        prompt, answer = (str(message["content"]) for message in talk.messages)
        assert answer in prompt


def test_a_size_may_limit_a_source(tmp_path: Path) -> None:
    data = StudyDataConfig.model_validate(
        {
            "sources": [{"name": "a", "kind": "sample", "documents": 9}, {"name": "b", "kind": "sample"}],
            "limits": {"a": 3, "b": 5},
            "benchmarks": {},
        }
    )
    made = make(data, {}, None)
    counts = Counter(str(row["source"]) for row in made.train)
    assert counts == {"a": 3, "b": 5}
