"""Draft models with another vocabulary: which proposer, over which bridge, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.decode.build_support import grid_methods
from tests.worlds import EOS, merging_tokenizer, tiny_target
from vocabforge.core.errors import DataError, MismatchError, UsageError
from vocabforge.corpus.tokenizer.tokenizer import load_tokenizer
from vocabforge.decode.build.foreign import HIGH_OVERLAP, SHORT_TOKENS, choose_proposer
from vocabforge.decode.build.methods import Method
from vocabforge.vocab.overlap.overlap import compare, prepare, save_overlap
from vocabforge.vocab.subset.subset import VocabSubset, save_subset

LETTERS = "abcdefgh"
WORDS = ("ab", "cd", "ef", "abcd", "gh", "abc", "de")  # tokens of the target beside its letters
PROMPT = "abcdefgh"


def model(folder: Path, letters: str, words: Sequence[str], *, seed: int, pad: int = 0) -> Path:
    size = merging_tokenizer(folder, letters, words)
    return tiny_target(folder, vocab_size=size + pad, seed=seed, num_hidden_layers=2)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``t`` target; drafters ``letters`` (characters), ``words`` (long tokens), ``near`` (the target's but one)."""
    place = tmp_path_factory.mktemp("foreign")
    model(place / "t", LETTERS, WORDS, seed=1)
    model(place / "letters", LETTERS, (), seed=2)
    model(place / "words", LETTERS, ("bcd", "bcde", "fg", "fgh", "bcdefgh", "defgh"), seed=3, pad=3)
    model(place / "near", LETTERS[::-1], WORDS[:-1], seed=4, pad=2)  # other ids for the letters
    model(place / "strange", "xyz", ("xy", "xyz"), seed=5)
    return place


def methods_of(place: Path, *drafters: str, vocabs: Sequence[str] = (), **options: Any) -> dict[str, Method]:
    """Methods by name; drafters are folders of ``place``."""
    found = grid_methods(place / "t", [str(place / name) for name in drafters], vocabs, **options)
    return {method.name: method for method in found}


def kinds_of(found: dict[str, Method]) -> dict[str, str]:
    return {name: method.generator.proposer.kind for name, method in found.items() if name != "plain"}  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("shares", "mean_bytes", "sampled", "expected", "words"),
    [
        ((HIGH_OVERLAP, HIGH_OVERLAP), 9.0, True, "tli", "80% of the target's tokens"),
        ((0.95, 0.99), 1.0, False, "tli", "the target 99% of the drafter's"),
        ((0.95, HIGH_OVERLAP - 0.01), 5.0, True, "slem", "the target has 79% of the drafter's"),
        ((HIGH_OVERLAP - 0.01, 1.0), 5.0, True, "slem", "79% of the target's tokens only"),
        ((0.1, 1.0), SHORT_TOKENS, True, "slrs", "1.5 bytes on average"),
        ((0.1, 1.0), SHORT_TOKENS, False, "slem", "greedy"),
        ((0.1, 1.0), SHORT_TOKENS + 0.1, True, "slem", "1.6 bytes on average"),
        ((0.0, 0.0), 1.0, True, "slrs", "0% of the target's tokens"),
    ],
)
def test_the_rule_of_choice(shares, mean_bytes, sampled, expected, words):
    name, reason = choose_proposer(shares, mean_bytes, sampled)
    assert name == expected
    assert words in reason


def test_the_choice_follows_what_was_asked_for(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree = methods_of(place, "letters", sampled=True, tree="dynamic", topk=2, total_nodes=8)
    assert kinds_of(tree) == {"letters": "slem"}
    drawn = {"draft_sampling": True}
    assert kinds_of(methods_of(place, "letters", sampled=True, **drawn)) == {"letters": "slrs"}
    assert kinds_of(methods_of(place, "near", sampled=True, **drawn)) == {"near": "tli"}
    with pytest.raises(
        UsageError, match=r"(?s)drawn drafts.*slem, chosen because.*--proposer tli or --proposer slrs"
    ):
        methods_of(place, "words", sampled=True, **drawn)
    capsys.readouterr()
    several = methods_of(place, "words", "near", sampled=True, **drawn)
    assert kinds_of(several) == {"words": "slem", "near": "tli"}
    told = capsys.readouterr().err
    assert "words drafts without --draft-sampling: slem has no use for it." in told
    assert "near drafts without" not in told


def test_the_choice_is_made_and_told(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    greedy = methods_of(place, "letters", "words", "near")
    assert kinds_of(greedy) == {"letters": "slem", "words": "slem", "near": "tli"}
    told = capsys.readouterr().err
    for name, method in list(greedy.items())[1:]:
        assert f"{name}: {kinds_of(greedy)[name]}, chosen because " in told
        assert "chosen because " in method.description
    assert "decoding is greedy" in greedy["letters"].description
    assert "14 tokens common to target (15) and drafter (14)" in greedy["near"].description
    sampled = methods_of(place, "letters", "words", "near", sampled=True)
    assert kinds_of(sampled) == {"letters": "slrs", "words": "slem", "near": "tli"}


def test_the_same_tokenizer_drafts_as_before(place: Path, tmp_path: Path) -> None:
    merging_tokenizer(tmp_path / "t", LETTERS, WORDS)
    tiny_target(tmp_path / "t", vocab_size=len(LETTERS) + len(WORDS) + 2, seed=8, num_hidden_layers=2)
    drafter = str(tmp_path / "t")
    assert kinds_of(methods_of(place, drafter)) == {"t": "draft-model"}
    named = methods_of(place, drafter, proposer=["draft-model", "tli"])
    assert kinds_of(named) == {"t:draft-model": "draft-model", "t:tli": "tli"}
    # One name for two drafters: each takes what it can draft with.
    mixed = methods_of(place, drafter, "letters", proposer=["draft-model", "slem"])
    assert kinds_of(mixed) == {"t:draft-model": "draft-model", "t:slem": "slem", "letters": "slem"}


def test_what_cannot_be_is_refused_before_anything_is_decoded(place: Path) -> None:
    with pytest.raises(
        MismatchError, match=r"(?s)tokenizer is not the target's.*--proposer tli, slem or slrs"
    ):
        methods_of(place, "letters", proposer=["draft-model"])
    with pytest.raises(MismatchError, match="tokenizer is not the target's"):
        methods_of(place, "letters", proposer=["draft-model", "slem"])
    with pytest.raises(UsageError, match=r"(?s)--proposer tli without --drafter.*a language model's folder"):
        methods_of(place, proposer=["tli"])
    with pytest.raises(UsageError, match=r"(?s)no token in common.*--proposer slem"):
        methods_of(place, "strange", proposer=["tli"])
    for draft, words in (
        ({"look_ahead": 3}, r"(?s)--look-ahead.*--proposer slrs"),
        ({"single_token": True}, r"(?s)--single-token.*--proposer slrs"),
    ):
        with pytest.raises(UsageError, match=words):
            methods_of(place, "letters", proposer=["slem"], **draft)


def test_a_tokenizer_from_another_folder(place: Path, tmp_path: Path) -> None:
    (tmp_path / "tok").mkdir()
    size = merging_tokenizer(tmp_path / "tok", LETTERS, ())
    bare = str(tiny_target(tmp_path / "bare", vocab_size=size, seed=2, num_hidden_layers=2))
    with pytest.raises(MismatchError, match=r"(?s)no tokenizer\.json.*--drafter-tokenizer"):
        methods_of(place, bare)
    assert kinds_of(methods_of(place, bare, drafter_tokenizer=tmp_path / "tok")) == {"bare": "slem"}
    with pytest.raises(UsageError, match="--drafter-tokenizer has no effect here"):
        methods_of(place, "letters", drafter_tokenizer=tmp_path / "tok")
    with pytest.raises(MismatchError, match=r"(?s)does not match the draft model.*bare.*--drafter-tokenizer"):
        methods_of(place, bare, drafter_tokenizer=place / "words")
    # The target's size and no tokenizer: taken for the target's, as ever, but never for a foreign one.
    twin = str(tiny_target(tmp_path / "twin", vocab_size=17, seed=2, num_hidden_layers=2))
    assert kinds_of(methods_of(place, twin)) == {"twin": "draft-model"}
    with pytest.raises(MismatchError, match=r"(?s)must be known.*--proposer slem"):
        methods_of(place, twin, proposer=["slem"])


def test_a_saved_overlap_is_used_whichever_way_round(place: Path, tmp_path: Path) -> None:
    ours, theirs = (prepare(load_tokenizer(place / name)) for name in ("t", "near"))
    forward = compare(ours, theirs)
    # Fewer pairs than there are, so that it shows whether the artefact was read.
    save_overlap(replace(forward, pairs=forward.pairs[:5]), tmp_path / "ab")
    backward = compare(theirs, ours)
    save_overlap(replace(backward, pairs=backward.pairs[:5]), tmp_path / "ba")
    for name in ("ab", "ba"):
        found = methods_of(place, "near", proposer=["tli"], overlap=[tmp_path / name])
        assert "5 tokens common" in found["near"].description
    with pytest.raises(MismatchError, match=r"(?s)another tokenizer than the drafter's.*compare-vocab"):
        methods_of(place, "letters", overlap=[tmp_path / "ab"])
    with pytest.raises(UsageError, match="--overlap has no effect here"):
        methods_of(place, "letters", "words", overlap=[tmp_path / "ab"])
    with pytest.raises(UsageError, match="--overlap has no effect here"):
        methods_of(place, overlap=[tmp_path / "ab"])


def test_tli_drafts_within_a_draft_vocabulary(place, tmp_path, capsys):
    tokenizer = load_tokenizer(place / "t")
    letters = [tokenizer.encode(letter)[0] for letter in "abc"]
    for name, ids in (("v", [*letters, EOS]), ("none", [tokenizer.encode("de")[0]])):
        subset = VocabSubset.from_ranked(
            np.array(ids, dtype=np.int64), vocab_size=tokenizer.vocab_size, fingerprint=tokenizer.fingerprint
        )
        save_subset(subset, tmp_path / name)
    found = methods_of(place, "near", vocabs=[str(tmp_path / "v")])
    assert list(found) == ["plain", "near", "near+v"]
    assert "3 tokens common" in found["near+v"].description
    head = found["near+v"].generator.proposer.head  # type: ignore[attr-defined]
    theirs = load_tokenizer(place / "near")
    assert head.target_ids.tolist() == sorted([EOS, *(theirs.encode(letter)[0] for letter in "abc")])
    with pytest.raises(DataError, match="share no tokens"):
        methods_of(place, "near", vocabs=[str(tmp_path / "none")])
    with pytest.raises(UsageError, match=r"(?s)slem cannot draft so.*--vocab with --proposer tli"):
        methods_of(place, "words", vocabs=[str(tmp_path / "v")])
    both = methods_of(place, "near", vocabs=[str(tmp_path / "v")], proposer=["tli", "slem"])
    assert list(both) == ["plain", "near:tli", "near:tli+v", "near:slem"]
    assert "near:slem drafts without --vocab" in capsys.readouterr().err
    with pytest.raises(UsageError, match=r"(?s)tli cannot draft so.*--dynamic"):
        methods_of(place, "near", vocabs=[str(tmp_path / "v")], dynamic=("context",), proposer=["tli"])
    ids = [*letters, EOS]
    plain = VocabSubset.from_ranked(np.array(ids), vocab_size=17, fingerprint=tokenizer.fingerprint)
    save_subset(replace(plain, schedule=(4, 2)), tmp_path / "schedule")
    with pytest.raises(UsageError, match="same tokens at every step"):
        methods_of(place, "near", vocabs=[str(tmp_path / "schedule")])
