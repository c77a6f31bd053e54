"""Replayed ranks against the engine itself; cycles against a plain walk."""

from __future__ import annotations

import math
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import replay as replaying
import torch
from replay import MISSED, Continuation, Replayed, accepted, cycle_offsets, replay, walk

from tests.decode.test_shapes import paths_of
from tests.study.replay_support import HIDDEN, NEW, SUBSET, VOCAB, world
from vocabforge.core.errors import UsageError
from vocabforge.decode.trees.shapes import TreeShape, chain, default_shape, from_paths
from vocabforge.models.heads.registry import HEADS, DraftHead, HeadOptions, base_of, build_head, exact_head

KINDS = sorted(HEADS)
REDUCED = "reduced"
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


def replayed_by(
    drafter: Any, head: DraftHead, texts: Any, *, levels: int = LEVELS, width: int = WIDTH
) -> Replayed:
    return replay(world().lean, {"one": (drafter, head)}, texts, levels=levels, width=width)["one"]


@cache
def replayed(mode: str) -> dict[str, Replayed]:
    """All heads over the whole drafter, and the head of the reduced one, in blocks that cut through answers."""
    w = world()
    methods = {name: asked(name) for name in (*KINDS, REDUCED)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replaying, "SCORED_ROWS", 7)
        return replay(w.lean, methods, answers(mode), levels=LEVELS, width=WIDTH)


def asked(name: str) -> tuple[Any, Any]:
    if name == REDUCED:
        return world().reduced, exact_head(world().reduced)
    return world().drafter, heads()[name]


@pytest.mark.parametrize(
    ("mode", "shape", "names"),
    [
        ("greedy", "tree", [*KINDS, REDUCED]),
        ("drawn", "chain", [*KINDS, REDUCED]),
        ("greedy", "chain", ["router", "context", REDUCED]),
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


def check_against_the_engine(drafter: Any, head: DraftHead, shape: TreeShape, found: Replayed) -> None:
    """Of the greedy answers."""
    made = world().decode(drafter, head, shape)
    expected = tuple(tuple(one.accept_lengths) for one in made)
    assert walk(found.ranks, cycle_offsets(answers("greedy")), shape).lengths == expected


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "full"])
def test_heads_over_a_reduced_drafter_are_those_of_its_rows(kind: str) -> None:
    """Ids that the drafter's head lacks are never proposed."""
    w, texts = world(), answers("greedy")
    head = w.head(kind, w.reduced)
    found = replayed_by(w.reduced, head, texts)
    check_against_the_engine(w.reduced, head, SHAPES["tree"], found)
    lacking = np.concatenate([~np.isin(one.tokens[1:], SUBSET) for one in texts])
    assert lacking.any()
    assert (found.ranks[lacking, 0] == MISSED).all()


@pytest.mark.parametrize("kind", ["ranker", "router", "context"])
def test_shortlists_smaller_than_a_node_s_children_are_widened(kind: str) -> None:
    """One candidate, one cluster, one token of core: the engine asks for as many as the node has children."""
    w = world()
    small = {
        "ranker": {"shortlist": 1},
        "router": {"budgets": (1,)},
        "context": {"ranked": w.ranked[:1], "context": 1},
    }
    head = w.head(kind, **small[kind])
    wide = 12  # more than any cluster has
    found = replayed_by(w.drafter, head, answers("greedy"), levels=1, width=wide)
    check_against_the_engine(w.drafter, head, from_paths([[rank] for rank in range(wide)]), found)
    assert found.scored[0] >= wide


def test_exact_logits_are_counted_by_step() -> None:
    found = {name: one.scored for name, one in replayed("drawn").items()}
    assert found["full"] == (VOCAB,) * LEVELS
    assert found["static"] == (VOCAB,) * LEVELS
    assert found[REDUCED][0] == len(SUBSET)
    assert found["scheduled"] == (45, 30, 20, 20)
    assert found["ranker"] == (9,) * LEVELS
    assert found["low-rank"][0] == 0  # its scores are its own


def test_answers_without_a_cycle_have_no_rows() -> None:
    full = heads()["full"]
    texts = [
        Continuation((1, 2), (3,)),
        Continuation((4,), ()),
        *answers("greedy")[:1],
        Continuation((5,), (6, 7)),
    ]
    found = replayed_by(world().drafter, full, texts)
    assert cycle_offsets(texts) == [0, 0, 0, NEW - 1, NEW]
    assert np.array_equal(found.ranks[:-1], replayed("greedy")["full"].ranks[: NEW - 1])
    lengths = walk(found.ranks, cycle_offsets(texts), SHAPES["chain"]).lengths
    assert (lengths[0], lengths[1], lengths[3]) == ((), (), (1,))
    nothing = replayed_by(world().drafter, full, texts[:2])
    assert nothing.ranks.shape == (0, LEVELS)
    assert all(map(math.isnan, nothing.scored))


@pytest.mark.parametrize("kind", ["router", "ranker", None])
def test_what_cannot_be_replayed_is_refused(kind: str | None) -> None:
    """Rows that share a shortlist, and more ranks than are distinguished."""
    head = world().head(kind, rows="shared") if kind else heads()["full"]
    with pytest.raises(UsageError, match="share a shortlist" if kind else "too many ranks"):
        replayed_by(world().drafter, head, answers("greedy"), width=WIDTH if kind else MISSED)


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
    methods = {name: (drafter, head) for name, head in heads_.items()}
    found = replay(w.lean, methods, text, levels=1, width=30)
    first = {name: found[name].ranks[:, 0].tolist() for name in heads_}
    assert first["full"] == [20, 4, 3, MISSED, 9, 5, MISSED, 6, 1]
    # Widened to 30, so all five of its ids.
    assert first["scheduled"] == [2, MISSED, 0, 3, 1, MISSED, MISSED, MISSED, MISSED]
    assert first["ranker"] == [20, 4, 3, MISSED, 9, 5, MISSED, 6, 1]  # widened, too: the 30 lowest ids


def _zero(module: torch.nn.Module) -> torch.nn.Module:
    for parameter in module.parameters():
        torch.nn.init.zeros_(parameter)
    return module


def plain_walk(ranks: np.ndarray, offsets: list[int], shape: TreeShape) -> tuple[tuple[int, ...], ...]:
    """One answer after the other, one cycle after the other."""
    found = []
    for begin, end in pairwise(offsets):
        lengths, at = [], begin
        while at < end:
            row = tuple(ranks[at].tolist())
            depth = max(len(path) for path in paths_of(shape) if row[: len(path)] == path)
            lengths.append(min(depth + 1, end - at))
            at += lengths[-1]
        found.append(tuple(lengths))
    return tuple(found)


def random_ranks(sizes: list[int], levels: int, seed: int) -> tuple[np.ndarray, list[int]]:
    generator = np.random.default_rng(seed)
    blocks = []
    for size in sizes:
        drawn = generator.choice([0, 0, 0, 1, 2, 3, MISSED], size=(size, levels)).astype(np.uint8)
        drawn[np.logical_or.accumulate(drawn == MISSED, axis=1)] = MISSED
        for row in range(size):
            drawn[row, size - row :] = MISSED
        blocks.append(drawn)
    return np.concatenate(blocks), [0, *np.cumsum(sizes).tolist()]


@pytest.mark.parametrize(
    "shape",
    [
        chain(1),
        chain(5),
        default_shape(4, 4, 20),
        from_paths([[1], [3], [1, 0], [1, 2], [1, 0, 0]]),
        chain(9),
    ],
    ids=["one", "chain", "tree", "gaps", "too deep"],
)
def test_cycles_are_those_of_a_plain_walk(shape: TreeShape) -> None:
    ranks, offsets = random_ranks([12, 0, 1, 40, 7, 0], 5, seed=1)
    expected = plain_walk(ranks, offsets, shape)
    found = walk(ranks, offsets, shape)
    assert found.lengths == expected
    assert found.committed.tolist() == [sum(one) for one in expected] == [12, 0, 1, 40, 7, 0]
    assert found.cycles.tolist() == [len(one) for one in expected]
    assert max(map(max, filter(None, expected))) > 1


def test_a_walk_by_hand() -> None:
    ranks = np.array(
        [
            [0, 1, MISSED],
            [0, 0, 0],
            [1, 0, MISSED],
            [0, 0, MISSED],
            [MISSED, MISSED, MISSED],
            [0, MISSED, MISSED],
        ],
        np.uint8,
    )
    tree = from_paths([[0], [1], [0, 1], [0, 1, 0]])
    assert accepted(ranks, tree).tolist() == [2, 1, 1, 1, 0, 1]
    assert accepted(ranks, chain(2)).tolist() == [1, 2, 0, 2, 0, 1]
    # Root 0 accepts two and goes on at 3, which accepts one and goes on at 5, which accepts the last token.
    found = walk(ranks, [0, 6], tree)
    assert found.lengths == ((3, 2, 1),)
    # Both ends of the same rows: the answers do not run into each other.
    assert walk(ranks, [0, 2, 6], chain(3)).lengths == ((2,), (1, 3))
