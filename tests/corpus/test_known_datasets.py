"""Data sets by short names: what is asked of the Hub, how their rows are read, and that their licence is said."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.cli.cli_support import ok
from tests.worlds import byte_tokenizer
from vocabforge.cli.app import build_app
from vocabforge.cli.vocab.count_freq import count_freq
from vocabforge.core.errors import DataError
from vocabforge.corpus.prepared.options import source_digests
from vocabforge.corpus.sources import hub, inputs
from vocabforge.corpus.sources.inputs import DataOrigin, origin_of, parse_hub
from vocabforge.corpus.sources.known import DATASETS
from vocabforge.corpus.sources.sources import Problems, SourceOptions, iter_documents
from vocabforge.vocab.counts.table import load_counts

TURNS = [{"from": "human", "value": "Q"}, {"from": "gpt", "value": "A"}]
CHATS = [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}]
# A row of each in the columns that it is published with.
ROWS: dict[str, dict[str, Any]] = {
    "sharegpt": {"id": "a_0", "conversations": [TURNS[0], {"from": "bing", "value": "A"}]},
    "ultrachat": {"prompt": "Q", "prompt_id": "f0", "messages": CHATS},
    "perfectblend": {"conversations": TURNS, "source": "s"},
    "magpie": {"uuid": "u", "instruction": "Q", "response": "A", "conversations": TURNS, "intent": "i"},
    "openhermes": {"conversations": TURNS, "source": "s", "system_prompt": None, "title": "t"},
    "gsm8k": {"question": "Q", "answer": "A"},
    "magicoder": {"instruction": "Q", "response": "A"},
    "nemotron": {
        **dict.fromkeys(("uuid", "license", "generator", "version", "category", "reasoning"), "m"),
        "messages": [{**turn, "tool_calls": []} for turn in CHATS],
        "metadata": "{}",
    },
    "slimpajama": {"text": "T", "meta": {"redpajama_set_name": "RedPajamaC4"}},
    "fineweb-edu": {
        **dict.fromkeys(("text", "id", "dump", "url", "file_path", "language"), "T"),
        "language_score": 0.9, "token_count": 1, "score": 3.2, "int_score": 3,
    },
    "cnn-dm": {"article": "T", "highlights": "short", "id": "a0"},
}  # fmt: skip
TEXTS = ("slimpajama", "fineweb-edu", "cnn-dm")


# Columns that are not read.
METADATA = {
    "sharegpt": {"id"}, "ultrachat": {"prompt_id"}, "perfectblend": {"source"}, "magpie": {"uuid", "intent"},
    "openhermes": {"source", "title"}, "gsm8k": set(), "magicoder": set(),
    "nemotron": {"uuid", "license", "generator", "version", "category", "reasoning", "metadata"},
}  # fmt: skip


class Stream:
    """What ``load_dataset(..., streaming=True)`` gives."""

    num_shards = 1

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows

    def with_format(self, kind: str) -> Stream:
        assert kind == "arrow"
        return self

    def shard(self, *, num_shards: int, index: int) -> Stream:
        assert (num_shards, index) == (1, 0)
        return self

    def iter(self, batch_size: int) -> list[Any]:
        return [pytest.importorskip("pyarrow").Table.from_pylist(self.rows)]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """What the library ``datasets`` was asked for."""
    calls: list[dict[str, Any]] = []
    by_hub_name = {parse_hub(row.source).name: ROWS[name] for name, row in DATASETS.items()}

    def load_dataset(name: str, config: str | None, **given: Any) -> Stream:
        calls.append({"name": name, "config": config, **given})
        return Stream([by_hub_name[name]])

    def load_dataset_builder(name: str, config: str | None, revision: str | None) -> Any:
        return SimpleNamespace(config=SimpleNamespace(data_files=None), hash=f"{name} {config} {revision}")

    fake = SimpleNamespace(
        load_dataset=load_dataset,
        load_dataset_builder=load_dataset_builder,
        disable_progress_bars=lambda: None,
    )
    monkeypatch.setitem(sys.modules, "datasets", fake)
    cached = (hub._stream, hub._files, inputs._known_source)
    for one in cached:
        one.cache_clear()
    yield calls
    for one in cached:
        one.cache_clear()


@pytest.mark.parametrize("name", DATASETS)
def test_a_row_in_its_published_columns_is_read(name, asked, capsys):
    problems = Problems()
    (document,) = iter_documents([name], SourceOptions(), problems=problems)
    assert (document.text, document.messages) == (("T", None) if name in TEXTS else (None, CHATS))
    assert not problems.total
    left = {kind.removeprefix("not read: ").removesuffix(" in rows") for kind in problems.kinds}
    assert left == METADATA.get(name, set())
    row = DATASETS[name]
    assert f"licence: {row.licence or 'its card states none'}" in capsys.readouterr().err
    (call,) = asked
    assert call.pop("streaming") is True
    assert call.keys() == {"name", "config", "split", "revision"}
    assert call["revision"] is None or len(call["revision"]) == 40


def test_what_is_asked_of_the_hub(asked: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    chats = "HuggingFaceH4/ultrachat_200k"
    list(iter_documents(["gsm8k", "ultrachat", "ultrachat"], SourceOptions()))
    assert [(call["name"], call["config"], call["split"]) for call in asked] == [
        ("openai/gsm8k", "main", "train"),
        (chats, None, "train_sft"),
    ]
    list(iter_documents(["ultrachat", f"hub:{chats}@main::test_sft"], SourceOptions()))
    assert (asked[-1]["revision"], asked[-1]["split"]) == ("main", "test_sft")
    assert capsys.readouterr().err.count(chats) == 1  # its licence is said once
    with pytest.raises(DataError, match=r"data set: sharegpt(.|\n)*did you mean ultrachat\?"):
        list(iter_documents(["ultrachta"], SourceOptions()))


def test_a_file_of_that_name_comes_first(asked, tmp_path, monkeypatch):
    (tmp_path / "gsm8k").mkdir()
    (tmp_path / "gsm8k" / "a.txt").write_text("mine")
    monkeypatch.chdir(tmp_path)
    assert [one.text for one in iter_documents(["gsm8k"], SourceOptions())] == ["mine"]
    assert not asked


def test_prepared_data_follow_the_pinned_revision(asked: list[dict[str, Any]]) -> None:
    pinned = source_digests(["gsm8k"])
    assert pinned == source_digests([DATASETS["gsm8k"].source])
    hub._files.cache_clear()
    assert pinned != source_digests(["hub:openai/gsm8k:main"])


def test_count_freq_takes_a_name(asked: list[dict[str, Any]], tmp_path: Path) -> None:
    byte_tokenizer(tmp_path / "t")
    words = ["--tokenizer", tmp_path / "t", "--input", "gsm8k", "--output", tmp_path / "out", "--workers", 1]
    app = build_app({"count-freq": count_freq}, ["count-freq"])
    ok(CliRunner().invoke(app, ["count-freq", *map(str, words)]))
    assert load_counts(tmp_path / "out").tokens == len("Q\nA")


def test_what_others_are_told_of_an_input(tmp_path: Path) -> None:
    for source in ("ultrachat", DATASETS["ultrachat"].source):
        assert origin_of(source) == DataOrigin("ultrachat", "HuggingFaceH4/ultrachat_200k", "mit")
    assert origin_of("hub:org/texts@main:a") == DataOrigin("org/texts", "org/texts")
    assert origin_of(f"hub:{tmp_path}") == DataOrigin(tmp_path.name)
    assert origin_of("/secret/place/chats.jsonl") == DataOrigin("chats.jsonl")
