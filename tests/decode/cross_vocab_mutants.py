"""Mistakes of drafting over a bridge, and the small check that notices each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from tests.decode.cross_vocab import (
    SITUATIONS,
    Situation,
    case_of,
    check_distribution,
    check_drafting,
    foreign_proposer,
    target_of,
)
from tests.decode.markov import MarkovTarget
from tests.decode.mutants import Mutant, mistake, mutants_of
from tests.decode.proofs import GREEDY, TRANSFORMS
from tests.vocab.overlap_support import hand_made
from vocabforge.decode.cross_vocab.text import DraftText
from vocabforge.decode.engine import Decoder
from vocabforge.decode.proposers.registry import ProposerParts, make_proposer
from vocabforge.decode.request import Request
from vocabforge.decode.sampling import target_weights
from vocabforge.decode.spec import MethodSpec
from vocabforge.decode.tree import DraftTree, RowTree
from vocabforge.decode.verify import match as verify_match
from vocabforge.vocab.overlap.bridge import Bridge, make_bridge

PLAIN = [TRANSFORMS["plain"]]


def drawn_tokens_are_lossless() -> None:
    check_distribution("drafter inside target", "tli, drawn chain", PLAIN, 2, kinds=("zeros", "plain"))


def drawn_tokens_have_their_distribution() -> None:
    for name in ("drafter inside target", "several spellings"):
        check_drafting(name, "tli, drawn chain", TRANSFORMS["temperature"], "plain")


def best_drafts_are_lossless() -> None:
    """Rows of other lengths side by side."""
    check_distribution("a token beyond the target", "slem, chain", PLAIN, 4, kinds=("plain", "plain"))


def spelled_drafts_are_lossless() -> None:
    check_distribution("several spellings", "slem, chain", PLAIN, 2)


def strings_are_lossless() -> None:
    check_distribution("an end of the drafter", "slrs, one draw", PLAIN, 2, kinds=("plain", "plain"))


def strings_have_their_distribution() -> None:
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
                assert set(result.verified_lengths) == {3}, (way, tree)


@contextmanager
def special_pair() -> Iterator[None]:
    """The first special token of both taken for one: their texts look alike."""
    real = Situation.bridge

    def bridge(self: Situation) -> Bridge:
        made = real(self)
        special = [[forms.index(None) for forms in (self.target, self.drafter) if None in forms]]
        if len(special[0]) < 2:
            return made
        return replace(made, pairs=np.concatenate([np.array(special), made.pairs]))

    with patch.object(Situation, "bridge", bridge):
        yield


@contextmanager
def accepted_by_prefix() -> Iterator[None]:
    """A child is accepted if its bytes only begin like those of the token that the target drew."""
    forms = SITUATIONS["several spellings"].target

    def choose(row: RowTree, node: int, path_tokens: list[int]) -> tuple[int | None, int]:
        weights = target_weights(row.logits[node], row.sampling, row.history, path_tokens)
        token = row.chance.draw(weights)
        for child in row.children[node]:
            if (forms[token] or b"").startswith(forms[row.tokens[child]] or b"?"):
                return child, row.tokens[child]
        return None, token

    with patch.object(verify_match, "_choose", choose):
        yield


# Module below vocabforge.decode, and the check that notices the change: name -> right and wrong snippet.
MISTAKES: dict[tuple[str, Callable[[], None]], dict[str, tuple[str, str]]] = {
    ("cross_vocab.proposer", drawn_tokens_have_their_distribution): {
        "rows gathered in one order, reported in another": (
            "lm_head_weight.detach()[chosen]",
            "lm_head_weight.detach()[chosen.flip(0)]",
        ),
        "tokens drafted that only the drafter has": (
            "np.unique(pairs[:, 1])",
            "np.arange(drafter.config.vocab_size)",
        ),
    },
    ("cross_vocab.trees", drawn_tokens_are_lossless): {
        "a distribution in the drafter's order": ("distribution.weights[order])", "distribution.weights)"),
        "ids in the drafter's order": (
            "DraftDistribution(ids[order], distribution",
            "DraftDistribution(ids, distribution",
        ),
        "q of the full vocabulary": (
            "return DraftDistribution(ids[order], distribution.weights[order])",
            "return DraftDistribution(np.append(ids[order], 3), "
            "np.append(distribution.weights[order], distribution.weights.sum()))",
        ),
    },
    ("cross_vocab.trees", drawn_tokens_have_their_distribution): {
        "pairs of the wrong side": (
            "self._host[pairs[:, 1]] = pairs[:, 0]",
            "self._host[pairs[:, 0]] = pairs[:, 1]",
        )
    },
    ("cross_vocab.text", a_drafter_like_the_target_is_right): {
        "the start token again inside of the text": (
            "        self._append(pairs, text)\n",
            "        self._append([(self._bridge.drafter.start[0], 0), *pairs], text)\n",
        )
    },
    ("cross_vocab.text", texts_are_read_as_they_are): {
        "the start token before every new piece": (
            "        self._append(path, pending[:taken])\n",
            "        self._append([(self._bridge.drafter.start[0], 0), *path], pending[:taken])\n",
        ),
        "held bytes lost": ("self.held = pending[taken + len(complete) :]", "self.held = b''"),
    },
    ("proposers.draft_model", best_drafts_are_lossless): {
        "accepted draft tokens not in the drafter's text": (
            "known = min(start, self.passes.lengths[row] + 1)",
            "known = start",
        )
    },
    ("cross_vocab.slrs.psi", strings_have_their_distribution): {
        "psi with what longer tokens take": ("whole = max(whole - sum(longer), 0 * whole)", "whole = whole"),
        "psi of one spelling": (
            "weight * share\n        return spellings",
            "weight * share\n        return dict(list(spellings.items())[:1])",
        ),
        "psi of longer texts than were drawn": (
            "if len(path) + 1 >= self._length:",
            "if len(path) + 1 > self._length:",
        ),
        "psi of the first token alone": (
            "waiting = [continuation[size:] for continuation in chain.forbidden if continuation.startswith(form)]",
            "waiting = list[bytes]()",
        ),
        "psi not given what came before": ("return share / before if", "return share if"),
        "an end without a probability": (
            "share = distributions.streams.ends(self._chain.written)",
            "share = 0",
        ),
    },
    ("cross_vocab.slrs.psi", strings_are_lossless): {
        "psi of sum 1 over what can be drawn": (
            "        return self._known[token]",
            "        ends = {*self._distributions.trie.forms, self._distributions.eos} - {None}\n"
            "        all_of = [self._evaluate(one) for one in ends]\n"
            "        return self._known[token] / (sum(all_of) or 1)",
        )
    },
    ("verify.residual", strings_are_lossless): {
        "nothing drawn, and no residual": (
            "return choose_lazy(row, node, weights, distribution)",
            "return (choose_lazy if row.children[node] else lambda *_: (None, row.chance.draw(weights)))"
            "(row, node, weights, distribution)",
        )
    },
    ("verify.lazy", strings_are_lossless): {
        "a residual that accepts as p does": (
            "heights[place] = _rest(height, distribution, tokens[place])",
            "heights[place] = height",
        ),
        "a child accepted with p": ("happens(min(p[token], psi), psi)", "happens(p[token], p.sum())"),
    },
    ("cross_vocab.slrs.trie", strings_have_their_distribution): {
        "a range that ends one token early": (
            "bisect_left(self._forms, start), last",
            "bisect_left(self._forms, start), last - 1",
        ),
        "a range that begins one token late": (
            "bisect_left(self._forms, start), last",
            "bisect_left(self._forms, start) + 1, last",
        ),
    },
    ("cross_vocab.slrs.contexts", strings_have_their_distribution): {
        "rows of the head in the order of their ids": (
            "torch.tensor([*words.ids, *words.eos], device",
            "torch.tensor(sorted([*words.ids, *words.eos]), device",
        )
    },
    ("cross_vocab.slrs", strings_are_lossless): {
        "drawn from another distribution than psi is of": (
            "else draw.chance.draw(weights)",
            "else draw.chance.draw(weights * weights)",
        )
    },
}
MUTANTS = {
    **mutants_of(MISTAKES, "vocabforge.decode."),
    "a pair of special tokens": Mutant(special_pair, special_tokens_are_never_drafted),
    "special tokens matched by their text": Mutant(
        lambda: mistake(
            "vocabforge.corpus.tokenizer.token_bytes",
            "    for token_id in special:\n        forms[token_id] = None\n",
            "",
        ),
        special_tokens_are_no_pairs,
    ),
    "a child accepted whose bytes only begin like the token": Mutant(
        accepted_by_prefix, spelled_drafts_are_lossless
    ),
}
