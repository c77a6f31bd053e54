"""Replayed ranks against the engine itself, against training's unroll, and against the heads' own answers."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from replay.replay import Drafting, cycle_offsets, replay
from replay.supports import SUPPORTS
from replay.types import MISSED, Continuation, Replayed
from replay.walk import walk

from tests.study.replay_support import HIDDEN, NEW, SUBSET, VOCAB, World, world
from vocabforge.core.errors import MismatchError, UsageError
from vocabforge.decode.trees.shapes import chain, default_shape, from_paths
from vocabforge.models.heads.low_rank import LowRankHead
from vocabforge.models.heads.registry import (
    HEADS,
    DraftHead,
    DraftState,
    HeadOptions,
    base_of,
    build_head,
    exact_head,
)
from vocabforge.train.heads.states import drafting_rows

KINDS = sorted(HEADS)
REDUCED = "reduced"
SHARING = ("router", "ranker", "hybrid")
LEVELS, WIDTH = 4, 4
# The second tree has gaps in its ranks, and its deepest path is not that of best children.
SHAPES = {
    "chain": chain(LEVELS),
    "tree": default_shape(LEVELS, WIDTH, 14),
    "gaps": from_paths([[0], [2], [3], [0, 1], [2, 0], [2, 0, 0], [2, 0, 0, 1]]),
}
SEEDS = {"greedy": None, "drawn": 3}


@cache
def answers(mode: str) -> tuple[Continuation, ...]:
    return tuple(world().answers(SEEDS[mode]))


@cache
def heads() -> dict[str, DraftHead]:
    """All kinds."""
    return {kind: world().head(kind) for kind in KINDS}


@cache
def replayed(mode: str) -> dict[str, Replayed]:
    """All heads over the whole drafter, and the head of the reduced one, in blocks that cut through answers."""
    w = world()
    draftings = [Drafting(w.drafter, heads()), Drafting(w.reduced, {REDUCED: exact_head(w.reduced)})]
    return replay(w.lean, draftings, answers(mode), levels=LEVELS, width=WIDTH, rows=7)


def asked(name: str) -> tuple[Any, Any]:
    if name == REDUCED:
        return world().reduced, exact_head(world().reduced)
    return world().drafter, heads()[name]


@pytest.mark.parametrize(
    ("mode", "shape", "names"),
    [
        ("greedy", "tree", [*KINDS, REDUCED]),
        ("drawn", "chain", [*KINDS, REDUCED]),
        ("greedy", "chain", ["router", "hybrid", "context", REDUCED]),
        ("drawn", "gaps", ["ranker", "router", "context", "scheduled"]),
    ],
)
def test_a_replay_accepts_what_the_engine_accepts(mode: str, shape: str, names: list[str]) -> None:
    """Cycle by cycle the engine's lengths, with the last cycle cut at the answer's end."""
    texts = answers(mode)
    for name in names:
        made = world().decode(*asked(name), SHAPES[shape], SEEDS[mode])
        assert [tuple(one.token_ids) for one in made] == [one.tokens for one in texts], name
        expected = tuple(tuple(one.accept_lengths) for one in made)
        found = replayed(mode)[name].ranks
        assert walk(found, cycle_offsets(texts), SHAPES[shape]).lengths == expected, name


@pytest.mark.parametrize("name", [*KINDS, REDUCED])
def test_these_comparisons_have_power(name: str) -> None:
    """Drafts are accepted, also at deeper steps and lower ranks, and some are not drafted; an answer ends early."""
    ranks = np.concatenate([replayed(mode)[name].ranks for mode in SEEDS])
    assert {0, MISSED} <= set(ranks[:, 0].tolist())
    assert len({1, 2, 3} & set(ranks.flatten().tolist())) > 1
    assert (ranks[:, 1] < WIDTH).sum() > 3
    greedy = walk(replayed("greedy")[name].ranks, cycle_offsets(answers("greedy")), SHAPES["tree"])
    assert greedy.committed.sum() > 1.3 * greedy.cycles.sum() > 0
    assert len({len(one.tokens) for one in answers("drawn")}) > 1


def told_context(text: tuple[int, ...], size: int) -> torch.Tensor:
    """The last ``size`` distinct tokens of a text, by their last places, padded."""
    last = {token: place for place, token in enumerate(text)}
    found = sorted(last, key=lambda token: -last[token])[:size]
    return torch.tensor(found + [-1] * (size - len(found)))


@pytest.mark.parametrize("name", [*KINDS, REDUCED])
def test_ranks_and_counts_are_those_of_the_head_on_the_states_of_training(name: str) -> None:
    """Every rank is the token's place in ``topk`` on the unroll of ``train``, every count that of ``scores``."""
    w: World = world()
    drafter, head = asked(name)
    texts = answers("drawn")
    expected = np.full_like(replayed("drawn")[name].ranks, MISSED)
    scored: list[list[int]] = [[] for _ in range(LEVELS)]
    for one, begin in zip(texts, cycle_offsets(texts)):
        text, prompt = one.prompt + one.tokens, len(one.prompt)
        alive = [True] * (len(one.tokens) - 1)
        for part in drafting_rows(drafter, w.captured(text), LEVELS):
            step = part.state.step
            place = {int(column): at for at, column in enumerate(part.where[1])}
            for i in range(len(one.tokens) - 1 - step):
                if not alive[i]:
                    continue
                at = place[prompt - 1 + i]
                row = slice(at, at + 1)
                context = told_context(text[: prompt + i + 1], head.context_size or 1)[None]
                state = DraftState(step, part.state.tokens[row], part.state.previous[row], 1, context)
                ids = head.topk(part.hidden[row], WIDTH, state)[1][0].tolist()
                scored[step].append(int(head.scores(part.hidden[row], WIDTH, state)[0].isfinite().sum()))
                wanted = one.tokens[i + 1 + step]
                alive[i] = wanted in ids
                if alive[i]:
                    expected[begin + i, step] = ids.index(wanted)
    found = replayed("drawn")[name]
    assert np.array_equal(found.ranks, expected)
    if isinstance(head, LowRankHead):  # it has scores of its own
        scored = [[0] * len(counts) for counts in scored]
    assert len(scored[1]) > 3
    for value, counts in zip(found.scored, scored, strict=True):
        assert value == pytest.approx(np.mean(counts)) if counts else math.isnan(value)


def test_blocks_and_levels_change_nothing() -> None:
    w, texts = world(), answers("greedy")
    for rows, levels in ((1, 2), (500, 6)):
        found = replay(w.lean, [Drafting(w.drafter, heads())], texts, levels=levels, width=WIDTH, rows=rows)
        for name in heads():
            before, same = replayed("greedy")[name].ranks, min(levels, LEVELS)
            assert np.array_equal(found[name].ranks[:, :same], before[:, :same])


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "full"])
def test_heads_over_a_reduced_drafter_are_those_of_its_rows(kind: str) -> None:
    """Against the engine; ids that the drafter's head lacks are never proposed."""
    w, texts = world(), answers("greedy")
    head = w.head(kind, w.reduced)
    found = replay(w.lean, [Drafting(w.reduced, {kind: head})], texts, levels=LEVELS, width=WIDTH, rows=16)
    made = w.decode(w.reduced, head, SHAPES["tree"])
    expected = tuple(tuple(one.accept_lengths) for one in made)
    assert walk(found[kind].ranks, cycle_offsets(texts), SHAPES["tree"]).lengths == expected
    lacking = np.concatenate([~np.isin(one.tokens[1:], SUBSET) for one in texts])
    assert lacking.any()
    assert (found[kind].ranks[lacking, 0] == MISSED).all()


@pytest.mark.parametrize("kind", ["ranker", "router", "context", "hybrid"])
def test_shortlists_smaller_than_a_node_s_children_are_widened(kind: str) -> None:
    """One candidate, one cluster, one token of core: the engine asks for as many as the node has children."""
    w, texts = world(), answers("greedy")
    small = {
        "ranker": {"shortlist": 1},
        "router": {"budgets": (1,)},
        "context": {"ranked": w.ranked[:1], "context": 1},
        "hybrid": {"ranked": w.ranked[:1], "shortlist": 1},
    }
    head = w.head(kind, **small[kind])
    wide = 12  # more than any cluster has
    shape = from_paths([[rank] for rank in range(wide)])
    found = replay(w.lean, [Drafting(w.drafter, {kind: head})], texts, levels=1, width=wide, rows=16)[kind]
    made = w.decode(w.drafter, head, shape)
    expected = tuple(tuple(one.accept_lengths) for one in made)
    assert walk(found.ranks, cycle_offsets(texts), shape).lengths == expected
    assert found.scored[0] >= wide


def test_answers_without_a_cycle_have_no_rows() -> None:
    w = world()
    texts = [
        Continuation((1, 2), (3,)),
        Continuation((4,), ()),
        *answers("greedy")[:1],
        Continuation((5,), (6, 7)),
    ]
    heads_ = {"full": heads()["full"]}
    found = replay(w.lean, [Drafting(w.drafter, heads_)], texts, levels=LEVELS, width=WIDTH, rows=8)["full"]
    assert cycle_offsets(texts) == [0, 0, 0, NEW - 1, NEW]
    assert np.array_equal(found.ranks[:-1], replayed("greedy")["full"].ranks[: NEW - 1])
    lengths = walk(found.ranks, cycle_offsets(texts), SHAPES["chain"]).lengths
    assert (lengths[0], lengths[1], lengths[3]) == ((), (), (1,))
    nothing = replay(w.lean, [Drafting(w.drafter, heads_)], texts[:2], levels=LEVELS, width=WIDTH, rows=8)[
        "full"
    ]
    assert nothing.ranks.shape == (0, LEVELS)
    assert all(map(math.isnan, nothing.scored))


def test_every_kind_of_head_can_be_replayed() -> None:
    assert set(SUPPORTS) == set(HEADS)


def test_what_cannot_be_replayed_is_refused() -> None:
    w = world()

    class Newcomer:
        KIND, context_size = "newcomer", 0

    def refused(
        head: object, error: type[Exception], drafter: object = w.drafter, width: int = WIDTH
    ) -> None:
        one = Drafting(drafter, {"one": head})
        with pytest.raises(error):
            replay(w.lean, [one], answers("greedy"), levels=LEVELS, width=width, rows=8)

    refused(Newcomer(), UsageError)
    for kind in SHARING:
        refused(w.head(kind, rows="shared"), UsageError)
    refused(heads()["full"], MismatchError, drafter=w.reduced)
    refused(heads()["full"], UsageError, width=MISSED)


def test_equal_logits_are_ranked_by_id() -> None:
    """All tokens have one logit, and all scores are equal: a token's rank is its place among the ids scored."""
    w = world()
    drafter = type(w.drafter)(w.drafter.config, w.drafter.embedding, torch.zeros(VOCAB, HIDDEN))
    ranked = (50, 3, 20, 9, 70)
    heads_ = {
        "full": build_head("full", base_of(drafter)),
        "scheduled": build_head(
            "scheduled", base_of(drafter), None, HeadOptions(ranked=ranked, schedule=(3,))
        ),
        "ranker": build_head("ranker", base_of(drafter), _zero(w.module("ranker")), HeadOptions(shortlist=6)),
    }
    text = [Continuation((1, 2), (9, 20, 4, 3, 50, 9, 5, 90, 6, 1))]
    found = replay(w.lean, [Drafting(drafter, heads_)], text, levels=1, width=30, rows=8)
    first = {name: found[name].ranks[:, 0].tolist() for name in heads_}
    assert first["full"] == [20, 4, 3, MISSED, 9, 5, MISSED, 6, 1]
    # Widened to 30, so all five of its ids.
    assert first["scheduled"] == [2, MISSED, 0, 3, 1, MISSED, MISSED, MISSED, MISSED]
    assert first["ranker"] == [20, 4, 3, MISSED, 9, 5, MISSED, 6, 1]  # widened, too: the 30 lowest ids


def _zero(module: torch.nn.Module) -> torch.nn.Module:
    for parameter in module.parameters():
        torch.nn.init.zeros_(parameter)
    return module
