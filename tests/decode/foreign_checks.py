"""Small checks of drafting over a bridge, each a second or less, that mistakes are tried on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import torch

from tests.decode.foreign_laws import check_drafting
from tests.decode.foreign_support import (
    SITUATIONS,
    Situation,
    case_of,
    check_law,
    foreign_proposer,
    target_of,
)
from tests.decode.markov import MarkovTarget
from tests.decode.proof_support import GREEDY, TRANSFORMS
from tests.vocab.overlap_support import hand_made
from vocabforge.decode.build.spec import MethodSpec
from vocabforge.decode.cross_vocab.text import DraftText
from vocabforge.decode.engine import Decoder
from vocabforge.decode.proposers.registry import ProposerParts, make_proposer
from vocabforge.decode.request import Request
from vocabforge.decode.tree import DraftTree
from vocabforge.vocab.overlap.bridge import make_bridge

PLAIN = [TRANSFORMS["plain"]]


def drawn_tokens_are_lossless() -> None:
    check_law("drafter inside target", "tli, drawn chain", PLAIN, 2, kinds=("zeros", "plain"))


def drawn_tokens_have_their_law() -> None:
    for name in ("drafter inside target", "several spellings"):
        check_drafting(name, "tli, drawn chain", TRANSFORMS["temperature"], "plain")


def best_drafts_are_lossless() -> None:
    """Rows of other lengths side by side."""
    check_law("a token beyond the target", "slem, chain", PLAIN, 4, kinds=("plain", "plain"))


def spelled_drafts_are_lossless() -> None:
    check_law("several spellings", "slem, chain", PLAIN, 2)


def half_characters_are_lossless() -> None:
    """The target writes bytes of a character one by one; the drafter's text lacks the first until the second."""
    check_law("incomplete characters", "slem, static", PLAIN)


def strings_are_lossless() -> None:
    check_law("an end of the drafter", "slrs, one draw", PLAIN, 2, kinds=("plain", "plain"))


def strings_have_their_law() -> None:
    check_drafting("ends of both", "slrs", TRANSFORMS["temperature"], "zeros")
    for name in ("a token two bytes longer", "target inside drafter"):
        check_drafting(name, "slrs, further ahead", TRANSFORMS["temperature"], "plain")


def special_tokens_are_never_drafted() -> None:
    """The drafter would say its special tokens, too; only end tokens that are a pair go over."""
    for name in ("special tokens", "ends of both"):
        situation = SITUATIONS[name]
        bridge = situation.bridge()
        allowed = {token for token, form in enumerate(situation.target) if form}
        allowed |= {bridge.eos[0]} if bridge.eos else set()
        for way in ("tli, chain", "slem, chain"):
            proposer = foreign_proposer(name, way, ("plain", "plain"), bridge)
            drafted = set[int]()
            real = proposer.propose

            def watched(
                *args: Any, real: Callable[..., DraftTree] = real, drafted: set[int] = drafted
            ) -> DraftTree:
                tree = real(*args)
                drafted.update(tree.tokens[:, 1:].flatten().tolist())
                return tree

            with patch.object(proposer, "propose", watched):
                decoder = Decoder(target_of(name, "plain"), proposer)
                decoder.generate_batch([case_of(name, PLAIN[0], 8).request(seed) for seed in range(3)])
            assert drafted
            assert drafted <= allowed, (name, way)


def special_tokens_are_no_pairs() -> None:
    """Two tokenizers that call a special token the same: only as end tokens do they stand for each other."""
    with TemporaryDirectory() as folder:
        ours, theirs = (
            hand_made(Path(folder, name), words, eos="<s>").tokenizer
            for name, words in (("target", ["abc", "Ġa"]), ("drafter", ["ab"]))
        )
        bridge = make_bridge(ours, theirs, (ours.vocab_size, theirs.vocab_size))
    assert bridge.eos == (ours.eos_ids[0], theirs.eos_ids[0])
    assert list(bridge.eos) not in bridge.pairs.tolist()


def texts_are_read_as_they_are() -> None:
    """The drafter's tokens are its start, once, and then the text's bytes."""
    for name in ("several spellings", "leading spaces", "incomplete characters"):
        situation = SITUATIONS[name]
        bridge = situation.bridge()
        text = DraftText(bridge)
        text.begin(situation.prompt)
        said = list(situation.prompt)
        for tokens, drafted in (((0, 2), True), ((0,), False), ((1,), False), ((2, 0, 1), True)):
            new = b"".join(situation.target[token] or b"" for token in tokens)
            paths = bridge.drafter.speller.spell([text.held + new] if drafted else [])
            before = list(text.ids)
            kept = text.add(tokens, [path for path in paths if path])
            assert text.ids[:kept] == before[:kept]
            said += tokens
            start = len(situation.start)
            assert tuple(text.ids[:start]) == situation.start
            written = b"".join(situation.drafter[token] or b"?" for token in text.ids[start:]) + text.held
            whole = b"".join(situation.target[token] or b"" for token in said)
            assert written.removeprefix(situation.opening) == whole.removeprefix(situation.opening), name


def a_drafter_like_the_target_is_right() -> None:
    """The same model behind the same tokens: whatever it drafts is accepted, so its text and keys are the target's."""
    forms = (None, b"a", b"b")
    bridge = Situation(forms, forms, (), start=(0,)).bridge()
    target = MarkovTarget("plain", 3, 1, layers=1)
    # Markov models that never say the special token.
    with torch.no_grad():
        target.lm_head_weight[0] = -1e9
        target.table[:, 0] = -1e9
    for way in ("tli", "slem"):
        for tree in ("chain", "static"):
            options = MethodSpec(tree=tree, depth=1, topk=None if tree == "chain" else 2)
            if tree == "static":
                options = options.model_copy(update={"total_nodes": 5})
            decoder = Decoder(
                target, make_proposer(way, ProposerParts(target, target, None, options, bridge))
            )
            for prompt in ((0, 1, 2, 2), (0, 2, 1), (0, 2, 2)):
                result = decoder.generate_batch([Request(prompt, 10, (), GREEDY["greedy"])])[0]
                assert set(result.accept_lengths) == {3}, (way, tree)
