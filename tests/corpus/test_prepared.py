"""Prepared data: sequences, packing, overlong documents, the artefact, and the cache keyed by content."""

from __future__ import annotations

import itertools
import json
import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file

from tests.corpus.thinking_template import PLAIN, TWO_ROUNDS
from tests.worlds import ROOT, byte_tokenizer, other_tokenizer
from vocabforge.core.artifact import open_artifact
from vocabforge.core.errors import ArtifactError, ConfigError, DataError, MismatchError
from vocabforge.corpus.chat.render import ChatOptions
from vocabforge.corpus.prepared import artifact as module
from vocabforge.corpus.prepared.artifact import check_belongs, load_prepared, prepare_in, write_prepared
from vocabforge.corpus.prepared.dataset import SequenceOptions, iter_sequences
from vocabforge.corpus.prepared.options import HeldoutOptions, PrepareOptions, content_key
from vocabforge.corpus.prepared.packing import OverlongTally, StreamPacker, TrainingSequence
from vocabforge.corpus.prepared.writer import ARRAYS
from vocabforge.corpus.sources.sources import Problems, SourceOptions
from vocabforge.corpus.tokenizer.tokenizer import load_tokenizer
from vocabforge.train.ttt import counted_rows

LINES = SequenceOptions(SourceOptions(text_unit="line"), append_eos=True)
OPTIONS = PrepareOptions(32, LINES, heldout=HeldoutOptions(documents=3, prompts=2, prompt_tokens=4))


class Rows:
    """A sink in memory."""

    def __init__(self) -> None:
        self.arrays: list[list[np.ndarray]] = [[], [], [], []]

    def write(self, *row: np.ndarray) -> None:
        for held, array in zip(self.arrays, row, strict=True):
            held.append(array.copy())


def documents_of(ids, mask, document, position):
    """(ids, mask) of every document of every row, in order."""
    for row in range(len(ids)):
        for number in range(1, int(document[row].max()) + 1):
            place = np.flatnonzero(document[row] == number)
            assert (np.diff(place) == 1).all()
            assert position[row, place].tolist() == list(range(len(place)))
            yield ids[row, place].tolist(), mask[row, place].astype(int).tolist()


@given(st.integers(0, 2**32), st.integers(12, 30), st.integers(1, 4))
def test_a_stream_is_packed_first_fit_with_few_open_rows(seed, length, open_rows):
    draw = random.Random(seed)
    starts = list(itertools.accumulate((draw.randint(0, 12) for _ in range(60)), initial=1))
    sequences = [
        TrainingSequence(list(range(start, stop)), [draw.randint(0, 1) for _ in range(start, stop)])
        for start, stop in itertools.pairwise(starts)
    ]
    sink = Rows()
    packer = StreamPacker(length, sink.write, pad_id=-7, open_rows=open_rows)
    opened: list[list[list[int]]] = []  # the plain algorithm: lists of documents
    closed: list[list[list[int]]] = []

    def size(row: list[list[int]]) -> int:
        return sum(map(len, row))

    for sequence in sequences:
        if not sequence.ids:
            continue
        packer.add(sequence.ids, sequence.loss_mask)
        row = next((row for row in opened if size(row) + len(sequence.ids) <= length), None)
        if row is None:
            if len(opened) == open_rows:
                fullest = max(opened, key=size)
                opened = [other for other in opened if other is not fullest]
                closed.append(fullest)
            row = []
            opened.append(row)
        row.append(sequence.ids)
        if size(row) == length:
            opened = [other for other in opened if other is not row]
            closed.append(row)
    packer.finish()
    expected = closed + opened
    ids, mask, document, position = (np.stack(array) for array in sink.arrays)
    assert (packer.rows, packer.tokens) == (len(expected), sum(map(size, expected)))
    assert packer.counted == int(mask.sum()) == sum(sum(s.loss_mask) for s in sequences)
    found = list(documents_of(ids, mask, document, position))
    assert [one for one, _ in found] == [one for row in expected for one in row]
    assert {tuple(one): flags for one, flags in found} == {
        tuple(s.ids): s.loss_mask for s in sequences if s.ids
    }
    padding = document == 0
    assert (ids[padding] == -7).all()
    assert not mask[padding].any()
    assert not position[padding].any()


def test_overlong_documents_are_cut_split_or_skipped_and_counted():
    ids, mask = list(range(10)), [0, 0, 0, 0, 1, 1, 1, 0, 0, 0]
    cut, split, skip = OverlongTally(), OverlongTally(), OverlongTally()
    assert cut.fit(ids, mask, 6, "cut") == [([0, 1, 2, 3, 4, 5], [0, 0, 0, 0, 1, 1])]
    assert cut == OverlongTally(1, 0, 4, 1, 0)
    assert cut.fit(ids, mask, 4, "cut") == []
    assert cut == OverlongTally(2, 0, 14, 4, 1)
    assert split.fit(ids, mask, 4, "split") == [([4, 5, 6, 7], [1, 1, 1, 0])]
    assert split == OverlongTally(1, 1, 6, 0, 2)
    assert skip.fit(ids, mask, 6, "skip") == []
    assert skip == OverlongTally(1, 0, 10, 3, 0)
    for tally in (cut, split, skip):
        before = replace(tally)
        assert tally.fit(ids, mask, 10, "skip") == [(ids, mask)]
        assert tally == before


@pytest.fixture
def tokenizer(tmp_path):
    return load_tokenizer(byte_tokenizer(tmp_path / "tokenizer"))


def write_lines(path: Path, number: int = 40, seed: int = 0) -> Path:
    draw = random.Random(seed)
    path.write_text("".join("x" * draw.randint(1, 50) + f"{at}\n" for at in range(number)))
    return path


@pytest.mark.parametrize("overlong", ["cut", "split", "skip"])
def test_the_artefact_holds_what_packing_in_memory_gives(tmp_path, tokenizer, overlong):
    file = write_lines(tmp_path / "a.txt")
    options = replace(OPTIONS, overlong=overlong)
    done = write_prepared(tmp_path / "out", tokenizer, [file], [], options)
    sequences = list(iter_sequences(tokenizer, [file], LINES))
    for rows, part, name in (
        (done.train, sequences[:-3], "train"),
        (done.heldout, sequences[-3:], "heldout"),
    ):
        sink, tally = Rows(), OverlongTally()
        packer = StreamPacker(32, sink.write)
        for sequence in part:
            for ids, mask in tally.fit(sequence.ids, sequence.loss_mask, 32, overlong):
                packer.add(ids, mask)
        packer.finish()
        for array, expected in zip(ARRAYS, sink.arrays, strict=True):
            assert np.array_equal(getattr(rows, array), np.stack(expected))
        figures = done.figures[name]
        assert (figures["documents"], figures["tokens"]) == (len(part), packer.tokens)
        assert (figures["rows"], figures["counted"]) == (len(rows), packer.counted)
        assert figures["overlong"] == vars(tally)
        assert rows.fill == pytest.approx(float((rows.document > 0).mean()))
    assert isinstance(done.train.input_ids, np.memmap)
    assert done.train.input_ids.dtype == np.int32
    stored = load_file(done.artifact.file("train.input_ids.safetensors"))
    assert np.array_equal(stored["input_ids"], done.train.input_ids)


def test_heldout_files_and_prompts(tmp_path, tokenizer):
    train, apart = write_lines(tmp_path / "a.txt"), tmp_path / "b.jsonl"
    rows = [
        {"text": "a text of some length"},
        {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]},
        {"text": "short"},
        {"prompt": "more", "response": "than asked for"},
    ]
    apart.write_text("\n".join(map(json.dumps, rows)))
    done = write_prepared(tmp_path / "out", tokenizer, [train], [apart], OPTIONS)
    assert (done.figures["train"]["documents"], done.figures["heldout"]["documents"]) == (40, 4)
    assert done.figures["facts"]["texts"] == 42
    assert done.figures["facts"]["conversations"] == 2
    prompts = [json.loads(line) for line in done.prompts.read_text().splitlines()]
    assert prompts == [
        {"question_id": 81, "category": "heldout", "turns": ["a te"], "reference": ["xt of some length"]},
        {"question_id": 82, "category": "heldout", "turns": ["q"], "reference": ["a"]},
    ]


def test_renderings_of_one_conversation_stay_in_one_split(tmp_path):
    tokenizer = load_tokenizer(byte_tokenizer(tmp_path / "t", template=PLAIN))
    file = tmp_path / "a.jsonl"
    file.write_text("\n".join(json.dumps({"messages": TWO_ROUNDS}) for _ in range(5)))
    chat = SequenceOptions(chat=ChatOptions(answers="each"))
    options = PrepareOptions(512, chat, heldout=HeldoutOptions(documents=2))
    done = write_prepared(tmp_path / "out", tokenizer, [file], [], options)
    found = {name: done.figures[name] for name in ("train", "heldout")}
    assert {name: (f["documents"], f["sequences"]) for name, f in found.items()} == {
        "train": (3, 6),
        "heldout": (2, 4),
    }
    assert done.figures["facts"]["tool_calls"] == done.figures["facts"]["thinking"] == 5
    assert done.prompts.read_text() == ""


def test_what_is_skipped_is_counted_by_reason(tmp_path):
    tokenizer = load_tokenizer(byte_tokenizer(tmp_path / "t", template=PLAIN))
    file = tmp_path / "a.jsonl"
    rows = [{"messages": TWO_ROUNDS}] + [{"prompt": "q", "response": "a"}] * 4
    rows += [{"prompt": "q", "response": "a", "tools": "{"}, {"messages": TWO_ROUNDS[:1]}]
    file.write_text("\n".join(map(json.dumps, rows)) + "\nno json\n")
    options = PrepareOptions(
        64, SequenceOptions(chat=ChatOptions(tools="skip")), heldout=HeldoutOptions(documents=1)
    )
    done = write_prepared(tmp_path / "out", tokenizer, [file], [], options)
    skipped = done.figures["skipped"]
    assert sorted(skipped.values()) == [1, 1, 1, 1]
    for reason in ("to be skipped", "not valid JSON", "no assistant turn", "tool list is not valid JSON"):
        assert any(reason in kind for kind in skipped)
    assert done.figures["facts"]["conversations"] == 4


def test_the_cache_knows_the_content_and_nothing_else(tmp_path, tokenizer, capsys):
    file = write_lines(tmp_path / "a.txt")
    cache = tmp_path / "cache"
    first = prepare_in(cache, tokenizer, [file], [], OPTIONS)
    assert "same content" not in capsys.readouterr().err
    renamed = tmp_path / "other" / "b.text"
    renamed.parent.mkdir()
    file.rename(renamed)
    os.utime(renamed, (1, 1))
    again = prepare_in(cache, tokenizer, [renamed], [], OPTIONS)
    assert "same content" in capsys.readouterr().err
    assert again.artifact.path == first.artifact.path
    assert again.digest() == first.digest()
    content = bytearray(renamed.read_bytes())
    content[0] ^= 1
    renamed.write_bytes(content)
    changed = prepare_in(cache, tokenizer, [renamed], [], OPTIONS)
    assert changed.key != first.key
    assert changed.digest() != first.digest()
    assert len(list(cache.iterdir())) == 2


def test_the_key_follows_every_option_and_the_tokenizer(tmp_path, tokenizer):
    file = write_lines(tmp_path / "a.txt")
    chat, sources = LINES.chat, LINES.sources
    others = [
        replace(OPTIONS, length=33),
        replace(OPTIONS, overlong="split"),
        replace(OPTIONS, heldout=HeldoutOptions(4, 2, 4)),
        replace(OPTIONS, heldout=HeldoutOptions(3, 2, 5)),
        replace(OPTIONS, sequences=replace(LINES, append_eos=False)),
        replace(OPTIONS, sequences=replace(LINES, sources=replace(sources, text_field="x"))),
        *(
            replace(OPTIONS, sequences=replace(LINES, chat=replace(chat, **change)))
            for change in (
                {"thinking": "drop"},
                {"tools": "skip"},
                {"answers": "last"},
                {"thinking_tags": ("<a>", "</a>")},
                {"variables": {"x": 1}},
            )
        ),
    ]
    keys = [content_key(tokenizer, [file], [], options)[0] for options in (OPTIONS, *others)]
    keys.append(content_key(tokenizer, [file], [file], OPTIONS)[0])
    keys.append(content_key(tokenizer, [file, write_lines(tmp_path / "b.txt", 3)], [], OPTIONS)[0])
    for name, changes in (("a", {"template": "{{ messages }}"}), ("b", {"bos": True})):
        other = load_tokenizer(byte_tokenizer(tmp_path / name, **changes))
        keys.append(content_key(other, [file], [], OPTIONS)[0])
    assert len(set(keys)) == len(keys)
    strict = replace(OPTIONS, sequences=replace(LINES, sources=replace(sources, strict=True)))
    assert content_key(tokenizer, [file], [], strict)[0] == keys[0]


def test_a_damaged_entry_is_made_again(tmp_path, tokenizer, capsys):
    file = write_lines(tmp_path / "a.txt")
    first = prepare_in(tmp_path / "cache", tokenizer, [file], [], OPTIONS)
    digest = first.digest()
    damaged = first.artifact.file("train.input_ids.safetensors")
    content = bytearray(damaged.read_bytes())
    content[-1] ^= 1
    damaged.write_bytes(content)
    again = prepare_in(tmp_path / "cache", tokenizer, [file], [], OPTIONS)
    assert "preparing it again" in capsys.readouterr().err
    assert again.digest() == digest
    open_artifact(again.artifact.path)
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_several_real_processes(tmp_path, tokenizer):
    file = write_lines(tmp_path / "a.txt", 300)
    code = (
        "import sys; from pathlib import Path\n"
        "from tests.corpus.test_prepared import OPTIONS\n"
        "from vocabforge.corpus.prepared.artifact import prepare_in\n"
        "from vocabforge.corpus.tokenizer.tokenizer import load_tokenizer\n"
        "a, b, c = map(Path, sys.argv[1:])\n"
        "print(prepare_in(a, load_tokenizer(b), [c], [], OPTIONS).digest())\n"
    )
    words = [sys.executable, "-c", code, tmp_path / "cache", tmp_path / "tokenizer", file]
    run = subprocess.Popen([*map(str, words)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    here = prepare_in(tmp_path / "cache", tokenizer, [file], [], OPTIONS).digest()
    assert run.communicate(timeout=100)[0].strip() == here
    assert run.returncode == 0
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_nothing_to_learn_and_too_few_documents(tmp_path, tokenizer):
    file = write_lines(tmp_path / "a.txt", 3)
    with pytest.raises(ConfigError, match="too few documents to hold some out"):
        write_prepared(tmp_path / "out", tokenizer, [file], [], OPTIONS)
    file = tmp_path / "b.txt"
    file.write_text("x" * 40 + "\n" + "x" * 41)
    with pytest.raises(DataError, match="training data has no token to learn from"):
        write_prepared(tmp_path / "out", tokenizer, [file], [file], replace(OPTIONS, overlong="skip"))
    short = write_lines(tmp_path / "c.txt", 9)
    with pytest.raises(DataError, match="held-out data has no token to learn from"):
        write_prepared(tmp_path / "out", tokenizer, [short], [file], replace(OPTIONS, overlong="skip"))
    assert not (tmp_path / "out").exists()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".out")]


def test_rows_that_count_are_counted_and_none_is_refused(tmp_path, tokenizer):
    lines = write_lines(tmp_path / "a.txt")
    done = write_prepared(tmp_path / "ok", tokenizer, [lines], [], OPTIONS)
    for split, rows in (("train", done.train), ("heldout", done.heldout)):
        mask, number = torch.tensor(rows.loss_mask), torch.tensor(rows.document.astype(np.int64))
        assert done.figures[split]["rows_counted"] == int(counted_rows(mask, number, 0).sum()) > 0
    empty = tmp_path / "b.jsonl"
    empty.write_text("\n".join([json.dumps({"prompt": "what", "response": ""})] * 5))
    with pytest.raises(DataError, match="no row of the training data counts"):
        write_prepared(tmp_path / "out", tokenizer, [empty], [], OPTIONS)
    with pytest.raises(DataError, match="no row of the held-out data counts"):
        write_prepared(tmp_path / "out", tokenizer, [lines], [empty], OPTIONS)
    assert not (tmp_path / "out").exists()


def test_data_of_another_tokenizer_or_version_are_refused(tmp_path, tokenizer, monkeypatch, capsys):
    done = write_prepared(tmp_path / "out", tokenizer, [write_lines(tmp_path / "a.txt")], [], OPTIONS)
    check_belongs(done, tokenizer)
    assert "another chat template" not in capsys.readouterr().err
    check_belongs(done, load_tokenizer(byte_tokenizer(tmp_path / "t", template=PLAIN)))
    assert "another chat template" in capsys.readouterr().err
    with pytest.raises(MismatchError, match="different tokenizers"):
        check_belongs(done, load_tokenizer(other_tokenizer(tmp_path / "u")))
    monkeypatch.setattr(module, "READ_FORMATS", (max(module.READ_FORMATS) + 1,))
    with pytest.raises(ArtifactError, match="another version of the format"):
        load_prepared(tmp_path / "out")


def test_sequences_of_text_and_conversations(tmp_path):
    tokenizer = load_tokenizer(byte_tokenizer(tmp_path / "t", bos=True))
    rows = [
        {"text": "one"},
        {"prompt": "Q", "response": "A"},
        {"messages": [{"role": "user", "content": "nobody answers"}]},
        {"text": "two"},
    ]
    file = tmp_path / "a.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    problems = Problems()
    options = SequenceOptions(append_eos=True)
    found = list(iter_sequences(tokenizer, [file], options, problems=problems))
    shown = [tokenizer.decode(sequence.ids, skip_special=False) for sequence in found]
    assert shown == [
        "<|bos|>one<|end|>",
        "<|user|>\nQ<|end|>\n<|assistant|>\nA<|end|>\n",
        "<|bos|>two<|end|>",
    ]
    assert found[0].loss_mask == [0, 1, 1, 1, 1]
    counted = [token for token, mask in zip(found[1].ids, found[1].loss_mask, strict=True) if mask]
    assert tokenizer.decode(counted, skip_special=False) == "A<|end|>"
    assert problems.total == 1
    with pytest.raises(DataError, match=r"all zero(.|\n)*a.jsonl:3"):
        list(iter_sequences(tokenizer, [file], SequenceOptions(SourceOptions(strict=True))))


def test_conversations_need_a_template_and_an_end_token_is_needed_to_append_it(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_text('{"prompt": "Q", "response": "A"}')
    tokenizer = load_tokenizer(byte_tokenizer(tmp_path / "t", template=None))
    with pytest.raises(DataError, match="no chat template"):
        list(iter_sequences(tokenizer, [file], SequenceOptions()))
