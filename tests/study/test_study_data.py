"""Stage data: sources become conversations; what is held out stays out; nothing is made twice."""

from __future__ import annotations

import json
import lzma
import random
from pathlib import Path
from typing import Any

import pytest

from tests.study.decoding_support import study_config
from tests.worlds import byte_tokenizer
from vocabforge.core.artifact import open_artifact
from vocabforge.core.errors import ConfigError, DataError
from vocabforge.corpus.tokenizer.tokenizer import load_tokenizer
from vocabforge.evaluate.benchmarks import read_questions
from vocabforge.study.config import SourceConfig, StudyConfig, StudyDataConfig, StudyLayout, load_study
from vocabforge.study.sources import OVERLAP, PASSAGE, passages, read_source, runs
from vocabforge.study.stages.data import KIND, run

RECIPE = Path(__file__).parents[2] / "recipes/study/study.yaml"


def words(seed: int, count: int = 12) -> list[str]:
    chance = random.Random(seed)
    return [f"w{chance.randrange(10**6)}" for _ in range(count)]


def prose(seed: int, count: int = 300) -> str:
    """Sentences of ten words that no other seed has."""
    found = words(seed, count)
    return " ".join(" ".join(found[at : at + 10]) + "." for at in range(0, count, 10))


def chat(*texts: str, **more: Any) -> dict[str, Any]:
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[at % 2], "content": t} for at, t in enumerate(texts)], **more}


def jsonl(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


def study(root: Path, *sources: dict[str, Any], **data: Any) -> StudyConfig:
    return study_config(root / "out", data={"root": root, "sources": sources, "benchmarks": {}, **data})


def read(root: Path, **source: Any) -> Any:
    data = StudyDataConfig(root=root, sources=(SourceConfig(name="one", **source),), benchmarks={})
    return read_source(data.sources[0], data)


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_conversations_end_with_an_answer_and_what_cannot_be_used_is_counted(tmp_path: Path) -> None:
    jsonl(
        tmp_path / "a.jsonl",
        chat("Hi", "Hello", "Who?"),
        {"instruction": "Add", "input": "2 and 3", "output": "5"},
        chat("nobody answers"),
        chat("", "empty"),
        chat("Say", "<|im_end|>"),
        chat("Call", "it", tools=[{"type": "function", "function": {"name": "f"}}]),
    )
    found = read(tmp_path, path=Path("a.jsonl"), language="German")
    assert [len(talk.messages) for talk in found.talks] == [2, 2]
    assert {talk.category for talk in found.talks} == {"German"}
    assert found.talks[1].prompts == ["Add\n2 and 3"]
    assert sum(found.skipped.values()) == 4
    assert len(found.skipped) == 3


@pytest.mark.parametrize("script", ["latin", "chinese"])
def test_a_plain_text_becomes_passages_that_are_continued(tmp_path: Path, script: str) -> None:
    text = prose(1, 2000) if script == "latin" else "".join(chr(0x4E00 + n % 997) for n in range(9000))
    text = text.replace("。", "") + "\n" + "x" * 3000
    with lzma.open(tmp_path / "book.txt.xz", "wt", encoding="utf-8") as file:
        file.write(text + "<|endoftext|>" + prose(2))
    found = read(tmp_path, path=Path("book.txt.xz"))
    assert "".join("".join(passages(text)).split()) in "".join(text.split())
    for talk in found.talks:
        ask, answer = (str(message["content"]) for message in talk.messages)
        beginning = ask.removeprefix("Continue this text:\n\n")
        assert beginning
        assert len(answer) >= len(beginning) > 0
        assert len((beginning + answer).encode()) <= PASSAGE
        assert "endoftext" not in ask + answer
    assert len(found.talks) > len(text.encode()) // PASSAGE
    assert len(read(tmp_path, path=Path("book.txt.xz"), documents=3).talks) == 3


def test_a_source_without_a_conversation_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("too short")
    with pytest.raises(DataError, match="gives no conversation"):
        read(tmp_path, path=Path("a.txt"))
    with pytest.raises(DataError, match="file of the source one is missing"):
        run(study(tmp_path, {"name": "one", "path": "gone.txt"}), StudyLayout(tmp_path / "out"))


def test_overlap_is_a_run_of_words_or_the_whole_of_a_short_text() -> None:
    def meet(*texts: str) -> bool:
        return not held.isdisjoint(runs(texts))

    text = words(1, 60)
    chinese = "".join(chr(0x4E00 + n) for n in range(40))
    short = "Who, then, wrote the ten books on all things?"
    held = {run for one in (" ".join(text), chinese, short) for run in runs([one])}
    shared = text[20 : 20 + OVERLAP]
    assert meet("so: " + " ".join(shared).upper() + "!")
    assert meet(" ".join(shared[:9]), " ".join(shared[9:]))  # across turns
    assert not meet(" ".join(shared[:-1]))
    assert meet("who then wrote the ten books on all things", "x")
    assert not meet("Who, then, wrote the ten books on all things, and why?")
    assert meet("「" + chinese[5 : 5 + OVERLAP] + "」")


def test_what_is_held_out_is_not_learnt_and_becomes_questions(tmp_path: Path) -> None:
    shared = prose(7, 40)
    jsonl(tmp_path / "train.jsonl", chat("Hi", "Hello"), chat("Again", shared), chat("More", prose(8)))
    jsonl(tmp_path / "held.jsonl", chat("What?", shared))
    jsonl(tmp_path / "rare.jsonl", *(chat(f"Was ist {n}?", "Das", "Und?", "So") for n in range(5)))
    config = study(
        tmp_path,
        {"name": "train", "path": "train.jsonl"},
        {"name": "held", "path": "held.jsonl", "role": "heldout"},
        {"name": "rare", "path": "rare.jsonl", "role": "rare", "language": "German"},
        benchmarks={"sample": 3},
        rare_questions=2,
    )
    layout = StudyLayout(config.output)
    run(config, layout)
    assert {row["messages"][0]["content"] for row in rows(layout.train_texts)} == {"Hi", "More"}
    assert [row["source"] for row in rows(layout.heldout_texts("held"))] == ["held"]
    assert len(rows(layout.heldout_texts("rare"))) == 5
    asked = read_questions(layout.questions("rare"))
    assert [(one.category, one.turns) for one in asked] == [
        ("German", ("Was ist 0?", "Und?")),
        ("German", ("Was ist 2?", "Und?")),
    ]
    assert len(read_questions(layout.questions("sample"))) == 3
    sources = open_artifact(layout.data, KIND).meta["sources"]
    assert sources["train"] == {"conversations": 2, "left_out": 1, "skipped": {}}
    jsonl(tmp_path / "train.jsonl", chat("Again", shared))
    with pytest.raises(DataError, match="nothing is left to learn from"):
        run(config, layout)


def test_it_is_made_again_only_for_other_inputs_and_unpacks_the_tokenizer(tmp_path: Path) -> None:
    byte_tokenizer(tmp_path / "plain")
    (tmp_path / "packed").mkdir()
    for path in (tmp_path / "plain").iterdir():
        packed = path.name == "tokenizer.json"
        content = lzma.compress(path.read_bytes()) if packed else path.read_bytes()
        (tmp_path / "packed" / f"{path.name}{'.xz' if packed else ''}").write_bytes(content)
    config = study(tmp_path, {"name": "one", "documents": 9}, tokenizer="packed")
    layout = StudyLayout(config.output)
    run(config, layout)
    whole = load_tokenizer(tmp_path / "plain").fingerprint
    assert load_tokenizer(layout.tokenizer).fingerprint == whole
    assert len(rows(layout.train_texts)) == 9
    first = (layout.data / "manifest.json").stat().st_mtime_ns
    run(config, layout)
    assert (layout.data / "manifest.json").stat().st_mtime_ns == first
    run(study(tmp_path, {"name": "one", "documents": 8}, tokenizer="plain"), layout)
    assert len(rows(layout.train_texts)) == 8
    assert open_artifact(layout.data, KIND).manifest["parents"].keys() >= {"tokenizer tokenizer.json"}
    (tmp_path / "packed" / "tokenizer.json.xz").unlink()
    with pytest.raises(DataError, match=r"holds no tokenizer\.json"):
        run(config, layout)


def test_a_study_needs_something_to_learn_from(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no source has the role train"):
        study(tmp_path, {"name": "one", "role": "rare"})


def test_a_given_target_names_its_own_sizes(tmp_path: Path) -> None:
    sizes = {"vocab_size": 999, "hidden_size": 48, "num_hidden_layers": 5, "max_position_embeddings": 8192}
    (tmp_path / "config.json").write_text(json.dumps(sizes))
    own = load_study(
        RECIPE, "gpu", [f"target.path={tmp_path}", "methods.ranks=[4]", "drafters.aux_layers=[1]"]
    )
    assert (own.target.rows, own.target.hidden_size, own.target.num_layers) == (999, 48, 5)
    assert own.target.max_position_embeddings == 8192
