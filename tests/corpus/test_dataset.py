"""Training sequences and packing."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.worlds import byte_tokenizer
from vocabforge.core.errors import DataError
from vocabforge.corpus.prepared.dataset import SequenceOptions, TrainingSequence, iter_sequences, pack
from vocabforge.corpus.sources.sources import Problems, SourceOptions
from vocabforge.corpus.tokenizer.tokenizer import load_tokenizer


@st.composite
def sequence_lists(draw) -> list[TrainingSequence]:
    """Sequences whose tokens are all different, so that each can be found again."""
    lengths = draw(st.lists(st.integers(0, 12), min_size=1, max_size=30).filter(any))
    found, start = [], 1
    for length in lengths:
        mask = draw(st.lists(st.integers(0, 1), min_size=length, max_size=length))
        found.append(TrainingSequence(list(range(start, start + length)), mask))
        start += length
    return found


@given(sequence_lists(), st.integers(1, 15))
def test_packing_keeps_every_sequence_whole(sequences, length):
    rows = pack(sequences, length, pad_id=-7)
    found = {}
    for row in range(len(rows)):
        for number in range(1, rows.document[row].max() + 1):
            place = np.flatnonzero(rows.document[row] == number)
            assert (np.diff(place) == 1).all()
            assert rows.position[row, place].tolist() == list(range(len(place)))
            ids = rows.input_ids[row, place].tolist()
            found[ids[0]] = (ids, rows.loss_mask[row, place].astype(int).tolist())
    expected = {s.ids[0]: (s.ids[:length], s.loss_mask[:length]) for s in sequences if s.ids}
    assert found == expected
    padding = rows.document == 0
    assert (rows.input_ids[padding] == -7).all()
    assert not rows.loss_mask[padding].any()
    assert not rows.position[padding].any()


@given(sequence_lists(), st.integers(1, 15))
def test_packing_is_first_fit_longest_first(sequences, length):
    room: list[int] = []
    for sequence in sorted(sequences, key=lambda s: -min(len(s.ids), length)):
        size = min(len(sequence.ids), length)
        if size:
            row = next((at for at, free in enumerate(room) if free >= size), len(room))
            if row == len(room):
                room.append(length)
            room[row] -= size
    rows = pack(sequences, length, pad_id=0)
    assert (rows.document == 0).sum(axis=1).tolist() == room
    assert rows.fill == pytest.approx(1 - sum(room) / (length * len(room)))


def test_sequences_of_text_and_conversations(tmp_path):
    tokenizer = load_tokenizer(byte_tokenizer(tmp_path / "t", add_bos_token=True))
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
