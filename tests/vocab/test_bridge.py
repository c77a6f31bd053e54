"""Bridges between two vocabularies: pairs that both models have rows for, end tokens, beginnings, spelling."""

from __future__ import annotations

import re

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from tests.vocab.family_tokenizers import FAMILIES, loaded
from tests.vocab.overlap_support import Prepared, hand_made
from tests.vocab.real_tokenizers import real
from tests.worlds import needs_data
from vocabforge.core.errors import MismatchError
from vocabforge.corpus.tokenizer.token_bytes import token_forms
from vocabforge.vocab.overlap.bridge import make_bridge
from vocabforge.vocab.overlap.overlap import compare, load_overlap, prepare, save_overlap

LARGE = (10_000, 10_000)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("families")
    return Prepared({name: loaded(folder / name, make()) for name, make in FAMILIES.items()})


def check(bridge, rows, *, all_rows=True):
    """What holds for every bridge."""
    for side, count in ((bridge.target, rows[0]), (bridge.drafter, rows[1])):
        assert len(side.forms) == count
        assert side.start
        assert all(0 <= token < count for token in (*side.start, *side.eos))
        assert not [token for token in side.eos if side.forms[token] is not None]
        assert side.text_ids.tolist() == [token for token, form in enumerate(side.forms) if form]
        assert side.text_ids.dtype == np.int64
    assert bridge.pairs.dtype == np.int64
    assert bridge.pairs.shape == (len(bridge.pairs), 2)
    assert bridge.pairs.tolist() == sorted(bridge.pairs.tolist())
    for column in bridge.pairs.T:
        assert len(set(column.tolist())) == len(column)
    for a, b in bridge.pairs.tolist():
        assert bridge.target.forms[a] == bridge.drafter.forms[b]
        assert bridge.target.forms[a]
    shared = {form for form in bridge.target.forms if form} & {form for form in bridge.drafter.forms if form}
    paired = {bridge.target.forms[a] for a, _ in bridge.pairs.tolist()}
    assert paired <= shared
    if all_rows:
        assert paired == shared
    if bridge.eos is not None:
        assert bridge.eos == (bridge.target.eos[0], bridge.drafter.eos[0])
        assert bridge.ends(bridge.eos[1])
        assert not (bridge.pairs == np.array(bridge.eos)).any()  # still one to one with it


@pytest.mark.parametrize("target", sorted(FAMILIES))
@pytest.mark.parametrize("drafter", sorted(FAMILIES))
def test_every_two_families(made, target, drafter):
    rows = (made[target].vocab_size + 7, made[drafter].vocab_size)
    bridge = make_bridge(made[target], made[drafter], rows)
    check(bridge, rows)
    assert 0 <= bridge.shared <= 1
    if target == drafter:
        assert bridge.shared == 1
    assert bridge.eos is None  # these have no end tokens


def test_by_hand(tmp_path):
    target = hand_made(tmp_path / "a", ["abc", "Ġx"], eos="<end>").tokenizer
    drafter = hand_made(tmp_path / "b", ["Ġx", "abd"], eos="</s>").tokenizer
    bridge = make_bridge(target, drafter, (260, 260))
    check(bridge, (260, 260))
    # a: 256 ab, 257 abc, 258 Ġx, 259 <end>; b: 256 Ġx, 257 ab, 258 abd, 259 </s>
    assert bridge.pairs[256:].tolist() == [[256, 257], [258, 256]]
    assert bridge.eos == (259, 259)
    assert bridge.shared == 258 / 259
    assert bridge.target.mean_bytes == (98 + 2 + 3 + 2) / 101  # of the bytes, those of readable ASCII
    assert bridge.target.start == (259,)  # no BOS: its end token
    assert bridge.drafter.characters >= set("abdx ")
    assert (bridge.ends(259), bridge.ends(258)) == (True, False)


def test_rows_of_the_heads_bound_everything(tmp_path):
    target = hand_made(tmp_path / "a", ["abc", "Ġx"], eos="<end>").tokenizer
    drafter = hand_made(tmp_path / "b", ["Ġx", "abd"], eos="</s>").tokenizer
    padded = make_bridge(target, drafter, (320, 512))
    check(padded, (320, 512))
    assert padded.target.forms[260:] == (None,) * 60
    assert padded.pairs.tolist() == make_bridge(target, drafter, (260, 260)).pairs.tolist()
    fewer = make_bridge(target, drafter, (258, 259))
    check(fewer, (258, 259))
    assert fewer.pairs[256:].tolist() == [[256, 257]]
    assert fewer.eos is None
    assert (fewer.target.eos, fewer.drafter.eos) == ((), ())
    assert fewer.target.start == fewer.drafter.start == (0,)  # the end tokens have no rows
    # What has no row is not written, and the text is spelled with what is left.
    assert fewer.target.speller.spell([b"abc x"]) == [[257, ord(" "), ord("x")]]
    assert padded.target.speller.spell([b"abc x"]) == [[257, 258]]
    none = make_bridge(target, drafter, (1, 1))
    check(none, (1, 1))
    assert none.pairs.tolist() == [[0, 0]]


def test_a_saved_overlap_gives_the_same_bridge_and_others_are_refused(made, tmp_path):
    one, other = made["byte_level"], made["unigram"]
    save_overlap(compare(prepare(one), prepare(other)), tmp_path / "o")
    overlap = load_overlap(tmp_path / "o")
    direct, saved = make_bridge(one, other, LARGE), make_bridge(one, other, LARGE, overlap=overlap)
    assert saved.pairs.tolist() == direct.pairs.tolist()
    assert len(direct.pairs) > 20
    assert (saved.eos, saved.target.forms, saved.drafter.start) == (
        direct.eos,
        direct.target.forms,
        direct.drafter.start,
    )
    with pytest.raises(MismatchError, match="the target's") as failed:
        make_bridge(other, one, LARGE, overlap=overlap)
    assert "compare-vocab" in str(failed.value)
    with pytest.raises(MismatchError, match="the drafter's"):
        make_bridge(one, made["sentencepiece"], LARGE, overlap=overlap)


def word_level(folder, words, **config):
    backend = Tokenizer(
        models.WordLevel({"<unk>": 0, **{word: at for at, word in enumerate(words, 1)}}, "<unk>")
    )
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    return loaded(folder, backend, **config)


def test_empty_intersection_one_inside_the_other_and_both_ways(tmp_path):
    few, many, none = (
        word_level(tmp_path / str(at), words) for at, words in enumerate((["a", "b"], ["c", "b", "a"], ["d"]))
    )
    empty = make_bridge(few, none, (3, 2))
    check(empty, (3, 2))
    assert empty.pairs.shape == (0, 2)
    assert (empty.shared, empty.eos) == (0.0, None)
    inside, around = make_bridge(many, few, (4, 3)), make_bridge(few, many, (3, 4))
    assert inside.pairs.tolist() == [[2, 2], [3, 1]]
    assert around.pairs.tolist() == [[1, 3], [2, 2]]
    assert (inside.shared, around.shared) == (2 / 3, 1.0)


def test_what_a_tokenizer_puts_before_a_text(made, tmp_path):
    found = {name: make_bridge(made[name], made[name], LARGE).target.opening for name in FAMILIES}
    with_space = {"byte_level_bare", "sentencepiece", "sentencepiece_plain", "unigram", "word_level"}
    with_space |= {"word_piece", "word_piece_clean", "word_piece_bare"}
    assert {name for name, opening in found.items() if opening == b" "} == with_space
    assert set(found.values()) == {b" ", b""}
    # It need not know the letter a.
    few = word_level(tmp_path, ["dog", "b"])
    assert make_bridge(few, few, LARGE).target.opening == b" "


def byte_level_with(*added: AddedToken) -> Tokenizer:
    backend = FAMILIES["byte_level"]()
    backend.add_tokens(list(added))
    return backend


def test_end_tokens_that_no_file_marks_as_special_are_no_text(tmp_path):
    """``</s>`` as an added token that is not special, and as an ordinary entry that the configuration names."""
    plain = byte_level_with(AddedToken("</s>", special=False), AddedToken("<think>", special=False))
    tokenizer = loaded(tmp_path / "a", plain, eos_token="</s>")
    eos, think = (plain.token_to_id(name) for name in ("</s>", "<think>"))
    assert tokenizer.encode("x</s>")[-1] == eos  # the tokenizer itself finds it in a text
    bridge = make_bridge(tokenizer, tokenizer, LARGE)
    assert (bridge.eos, bridge.target.forms[eos]) == ((eos, eos), None)
    assert eos not in bridge.pairs
    for text in (b"</s>", b"the dog</s> the", b"x </s>"):
        (ids,) = bridge.target.speller.spell([text])
        assert eos not in ids
        assert b"".join(bridge.target.forms[token] for token in ids) == text
    assert bridge.target.speller.spell([b"<think>"]) == [[think]]  # that one is text
    pieces = [("<unk>", 0.0), ("</s>", -1.0), ("▁", -2.0), *((letter, -3.0) for letter in "</s>ab")]
    unigram = Tokenizer(models.Unigram(pieces, unk_id=0))
    unigram.pre_tokenizer = pre_tokenizers.Metaspace()
    unigram.decoder = decoders.Metaspace()
    forms = token_forms(loaded(tmp_path / "b", unigram, eos_token="</s>"))
    assert (forms.forms[1], forms.special) == (None, {0, 1})
    bridge = make_bridge(loaded(tmp_path / "c", unigram, eos_token="</s>"), tokenizer, LARGE)
    assert bridge.eos == (1, eos)
    assert bridge.target.speller.spell([b"a</s>"]) == [[7, 3, 4, 5, 6]]


def test_an_end_token_that_is_text_stays_text(tmp_path):
    """A line end may end what a model says; it pairs with the other line end, and not with an end token as well."""
    folder = tmp_path / "a"
    loaded(folder, byte_level_with(AddedToken("<end>", special=True)))
    line = FAMILIES["byte_level"]().token_to_id("Ċ")
    (folder / "generation_config.json").write_text(f'{{"eos_token_id": [{line}]}}')
    target = loaded(folder, byte_level_with(AddedToken("<end>", special=True)))
    assert target.eos_ids == (line,)
    drafter = loaded(tmp_path / "b", byte_level_with(AddedToken("</s>", special=True)), eos_token="</s>")
    bridge = make_bridge(target, drafter, LARGE)
    check(bridge, LARGE)
    assert (bridge.target.eos, bridge.eos) == ((), None)
    assert [line, line] in bridge.pairs.tolist()
    (folder / "generation_config.json").write_text(f'{{"eos_token_id": [{line}, {target.vocab_size - 1}]}}')
    target = loaded(folder, byte_level_with(AddedToken("<end>", special=True)))
    assert make_bridge(target, drafter, LARGE).eos == (target.vocab_size - 1, drafter.eos_ids[0])


@needs_data
@pytest.mark.proof
def test_large_real_vocabularies():
    qwen3, o200k = real("qwen3"), real("o200k")
    rows = (151_936, 200_064)
    bridge = make_bridge(qwen3, o200k, rows)
    check(bridge, rows)
    assert bridge.pairs.tolist() == compare(prepare(qwen3), prepare(o200k)).pairs.tolist()
    assert 0.5 < bridge.shared < 1
    text = re.sub(r"\s+", " ", "Bridges carry texts, not ids: 你好 <|im_end|> 🙂.").encode()
    for side in (bridge.target, bridge.drafter):
        (ids,) = side.speller.spell([text])
        assert b"".join(side.forms[token] for token in ids) == text
