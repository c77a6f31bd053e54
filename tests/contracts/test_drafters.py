"""What every drafter of the table must keep to; a new row is covered without a line here."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.decode.drafting import (
    CASE_HEADS,
    CASES,
    KINDS,
    OWN_HEADS,
    TokenPath,
    advance,
    chain_logits,
    commit_rows,
    drawing,
    head_of,
    levels_of,
    make_drafter,
    propose,
    shape_for,
    sizes_for,
    tree_paths,
)
from tests.shares import by_default
from tests.train.ttt_reference import Document, capture, documents, pack
from vocabforge.core.errors import ConfigError, MismatchError
from vocabforge.decode.proposers.registry import FITTING, PROPOSERS
from vocabforge.decode.tree import TreeSettings
from vocabforge.models.drafters.io import load_native, load_trainable, save_drafter
from vocabforge.models.drafters.registry import drafter_class, new_drafter
from vocabforge.models.target.head import TargetTensors
from vocabforge.models.target.hf import HFTarget
from vocabforge.train.capture.online import CapturedBatch
from vocabforge.train.config import MemoryConfig, TTTConfig
from vocabforge.train.step import TrainStep
from vocabforge.train.ttt import TTTStep, rows_by_step, unroll

STEPS = 5
# Every kind over every LM head; of the forms of a kind the one that has most to it.
SOME_HEADS = [(case, head) for case, head in CASE_HEADS if case in KINDS or head == "reduced"]
# Every case over one shape of tree; the other shapes over a kind of each way of drafting.
TREES = [(case, 3, 4, 20) for case in CASES]
TREES += [
    (case, *shape) for case in ("eagle3", "medusa", "dspark") for shape in ((2, 5, 12), (4, 3, 21), (5, 1, 6))
]


def steps_of(drafter: Any, batch: CapturedBatch) -> list[TTTStep]:
    return list(unroll(drafter, batch, levels_of(drafter, STEPS)))


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_of_the_table_is_whole(kind: str, folder: Path, target: HFTarget) -> None:
    drafter = make_drafter(kind, folder, target)
    assert drafter_class(kind).kind == drafter.kind == drafter.config.kind == kind
    assert set(FITTING[kind]) <= set(PROPOSERS)
    assert drafter.label
    assert drafter.reads in ("aux", "hidden")
    assert bool(drafter.config.aux_layers) == (drafter.reads == "aux")
    sizes = type(drafter.config).from_dict(json.loads(json.dumps(drafter.config.to_dict())))
    assert sizes == drafter.config
    with pytest.raises(ConfigError, match="unknown keys"):
        type(drafter.config).from_dict(drafter.config.to_dict() | {"colour": "red"})


@pytest.mark.parametrize(
    ("case", "head"),
    by_default(
        [one for one in CASE_HEADS if one[1] != "own"],
        lambda one: one[1] == "reduced" or one[0] in ("eagle3", "medusa"),
    ),
)
@torch.inference_mode()
def test_step_by_step_drafting_equals_the_unroll_with_padding_and_packing(case, head, folder, target):
    drafter = make_drafter(case, folder, target, head)
    first, second, third = documents(3, [17, 7, 12])
    batch = capture(target, pack([[first, second], [third]], 27, lead=1))
    assert bool((batch.document == 2).any()), "the test needs packing"
    assert bool((batch.document == 0).any()), "the test needs padding"
    steps = steps_of(drafter, batch)
    compared = 0
    for document, row, start in ((first, 0, 1), (second, 0, 18), (third, 1, 1)):
        alone = capture(target, pack([[document]], len(document.ids)))
        states, ids = alone.states(drafter.reads)[0], torch.tensor(document.ids)
        for root in range(1, len(ids) - 1):
            horizon = min(len(steps), len(ids) - root - 1)
            decoded = chain_logits(
                drafter,
                lambda p, s=states, i=ids, r=root: commit_rows(p, s[: r + 1], i[1 : r + 2]),
                document.ids[root + 2 :],
                horizon,
                ids[root + 1 : root + 2],
            )
            for step, found in zip(steps, decoded):
                expected = drafter.logits(step.g, step.index)[row, start + root]
                torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-3)
                compared += 1
    assert compared > 60


@pytest.mark.parametrize(("case", "head"), SOME_HEADS)
def test_gradients_reach_every_parameter_and_nothing_of_the_target(case, head, folder, target):
    drafter = make_drafter(case, folder, target, head).train().requires_grad_(True)
    batch = capture(target, pack([documents(5, [20])], 20))
    steps = steps_of(drafter, batch)
    loss = sum(drafter.logits(step.g[step.counted], step.index).log_softmax(-1)[:, 0].sum() for step in steps)
    guesses = [drafter.confidence(drafter.read(step.g[step.counted])) for step in steps]
    loss = loss + sum(guess.sum() for guess in guesses if guess is not None)
    loss.backward()
    for name, parameter in drafter.named_parameters():
        assert parameter.grad is not None, name
        assert float(parameter.grad.abs().max()) > 0, name
    assert all(p.grad is None for p in target.model.parameters())
    assert not any(t.requires_grad for t in (drafter.embedding, drafter.target_head, batch.hidden))
    shared = {target.embedding.data_ptr(), target.head_weight.data_ptr()}
    assert {drafter.embedding.data_ptr(), drafter.target_head.data_ptr()} == shared, "shared, not copied"
    assert not shared & {p.data_ptr() for p in drafter.parameters()}
    own = [name for name, _ in drafter.named_parameters() if name.startswith("lm_head")]
    assert bool(own) == (head != "target")


@pytest.mark.parametrize(("case", "head"), SOME_HEADS)
def test_saved_and_loaded_it_is_the_same(case, head, folder, target, tmp_path):
    drafter = make_drafter(case, folder, target, head)
    save_drafter(tmp_path / "d", drafter, {"steps": 3})
    shared = TargetTensors(target.embedding, target.head_weight)
    loaded, artifact = load_native(tmp_path / "d", shared)
    trainable, _ = load_trainable(tmp_path / "d", shared)
    assert artifact.meta["steps"] == 3
    stored = load_file(tmp_path / "d" / "drafter.safetensors")
    wanted = drafter.state_dict()
    assert set(stored) - {"target_ids"} == set(wanted), "the target's tensors are not ours"
    for other, trains in ((loaded, False), (trainable, True)):
        assert (other.kind, other.config) == (drafter.kind, drafter.config)
        assert torch.equal(other.target_ids, drafter.target_ids)
        for name, tensor in other.state_dict().items():
            assert torch.equal(tensor, wanted[name])
        assert all(parameter.requires_grad == trains for parameter in other.parameters())
        assert other.training == trains
    half = TargetTensors(target.embedding.bfloat16(), target.head_weight.bfloat16())
    assert {p.dtype for p in load_native(tmp_path / "d", half)[0].parameters()} == {torch.bfloat16}
    assert {p.dtype for p in load_trainable(tmp_path / "d", half)[0].parameters()} == {torch.float32}
    other = TargetTensors(target.embedding[:60], target.head_weight[:60])
    with pytest.raises(MismatchError, match="does not fit the drafter"):
        load_native(tmp_path / "d", other)


class Grown:
    """EAGLE-2's growth from chains alone: every path's distribution is drafted by itself."""

    def __init__(self, drafter: Any, commit: Any, shape: TreeSettings) -> None:
        self.drafter, self.commit, self.shape = drafter, commit, shape
        self.margin = float("inf")
        self.frontiers: list[dict[TokenPath, Tensor]] = []
        scores: dict[TokenPath, float] = {}
        frontier: list[TokenPath] = [()]
        for _ in range(shape.levels):
            fresh: dict[TokenPath, float] = {}
            self.frontiers.append({path: self.after(path) for path in frontier})
            for path, row in self.frontiers[-1].items():
                values, tokens = row.topk(shape.topk)
                for value, token in zip(values.tolist(), tokens.tolist()):
                    fresh[(*path, token)] = scores.get(path, 0.0) + value
            scores |= fresh
            frontier = self.best(fresh, shape.topk)
        self.paths = set(self.best(scores, shape.total_nodes - 1))

    def after(self, path: TokenPath) -> Tensor:
        """Log-probabilities (V,) of the token after a path, the path drafted as a chain."""
        logits = chain_logits(self.drafter, self.commit, list(path), len(path) + 1)
        return logits[-1].log_softmax(-1)

    def best(self, scores: dict[TokenPath, float], count: int) -> list[TokenPath]:
        ordered = sorted(scores, key=lambda path: -scores[path])
        for a, b in itertools.pairwise(ordered[: count + 1]):
            self.margin = min(self.margin, scores[a] - scores[b])
        return ordered[:count]

    def crosses(self) -> bool:
        """Whether some round expands nodes whose parents are in another order than the round before."""
        pairs = itertools.pairwise([list(frontier) for frontier in self.frontiers[1:]])
        return any([above.index(p[:-1]) for p in below] != list(range(len(above))) for above, below in pairs)

    def rows(self, asked: int) -> Tensor:
        """What the head is asked about: a row a node, or, where a level has one distribution, a row a level."""
        every = [list(frontier.values()) for frontier in self.frontiers]
        if asked == len(every):
            assert all(torch.allclose(row, level[0], atol=1e-4) for level in every for row in level)
            return torch.stack([level[0] for level in every])
        return torch.stack([row for level in every for row in level])


class Watched:
    """A head that keeps the log-probabilities of every row it is asked about."""

    context_size, by_step = 0, False

    def __init__(self, drafter: Any) -> None:
        self._inner, self._weight = head_of(drafter), drafter.head_weight
        self.size, self.rows = self._inner.size, []

    def topk(self, hidden: Tensor, k: int, state: Any = None) -> tuple[Tensor, Tensor]:
        return self.told(hidden @ self._weight.T, k, self._inner.topk(hidden, k, state))

    def scores(self, hidden: Tensor, k: int, state: Any = None) -> tuple[Tensor, Tensor]:
        return self._inner.scores(hidden, k, state)

    def told(self, logits: Tensor, k: int, answer: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        self.rows += list(logits.log_softmax(-1))
        return answer


@pytest.mark.parametrize(("case", "topk", "levels", "total"), TREES)
@torch.inference_mode()
def test_tree_drafting_equals_path_drafting(case, topk, levels, total, folder, target):
    drafter = make_drafter(case, folder, target)
    shape, crossed = shape_for(drafter, topk, levels, total), False
    for seed in range(7, 10):
        (document,) = documents(seed, [10])
        states = capture(target, pack([[document]], 10)).states(drafter.reads)[0]

        def commit(proposer: Any, states: Tensor = states, ids: Any = document.ids) -> None:
            commit_rows(proposer, states[:9], torch.tensor(ids[1:]))

        expected = Grown(drafter, commit, shape)
        if expected.margin < 1e-5:  # rounding may decide otherwise
            continue
        crossed |= expected.crosses()
        head = Watched(drafter)
        proposer = drawing(drafter, head, shape)
        commit(proposer)
        for _ in range(2):  # the second tree must not see the first one's states
            head.rows.clear()
            tree = propose(proposer, 1)
            assert set(tree_paths(tree)[1:]) == expected.paths
            assert int(tree.tokens[0, 0]) == 1
            rows = expected.rows(len(head.rows))
            torch.testing.assert_close(torch.stack(head.rows), rows, rtol=0, atol=1e-3)
    assert crossed or shape.levels < 4, "too tame trees"


@pytest.mark.parametrize("case", CASES)
@torch.inference_mode()
def test_padding_packing_and_neighbours_change_no_row(case: str, folder: Path, target: HFTarget) -> None:
    drafter = make_drafter(case, folder, target)
    document, other, third = (Document(d.ids, [1] * len(d.ids)) for d in documents(11, [12, 7, 9]))
    alone = steps_of(drafter, capture(target, pack([[document]], 12)))
    assert sum(int(step.counted.sum()) for step in alone) > 15, "the test needs counted rows"
    arrangements = {
        "padded behind": (pack([[document]], 30), 0, 0),
        "padded before": (pack([[document]], 30, lead=9), 9, 0),
        "behind another": (pack([[other, document]], 30), 7, 0),
        "between two, second row": (pack([[third], [other, document, third]], 30), 7, 1),
    }
    for name, (rows, at, row) in arrangements.items():
        for found, expected in zip(steps_of(drafter, capture(target, rows)), alone):
            counted = expected.counted[0]
            part = slice(at, at + 12)
            assert torch.equal(found.counted[row, part], counted), name
            torch.testing.assert_close(
                drafter.logits(found.g)[row, part][counted],
                drafter.logits(expected.g)[0][counted],
                rtol=1e-4,
                atol=2e-3,
                msg=lambda m, name=name: f"{name}: {m}",
            )


@pytest.mark.parametrize("case", CASES)
@torch.inference_mode()
def test_padding_rows_of_a_commit_leave_no_trace(case: str, folder: Path, target: HFTarget) -> None:
    drafter = make_drafter(case, folder, target)
    states = torch.randn(6, len(drafter.config.aux_layers or (0,)) * 32)
    trees = []
    for junk in (0.0, 50.0):
        proposer = drawing(drafter, head_of(drafter), shape_for(drafter, 3, 3, 12))
        rows = states.clone()
        rows[4:] = junk
        advance(proposer, torch.tensor([5, 6, 7, 8, 9, 9]), rows, 4)
        trees.append(propose(proposer, 1))
    assert torch.equal(trees[0].tokens, trees[1].tokens)
    assert torch.equal(trees[0].parents, trees[1].parents)


@pytest.mark.parametrize(("case", "head"), SOME_HEADS)
@torch.no_grad()
def test_it_starts_finite_at_the_targets_scale(case: str, head: str, folder: Path, target: HFTarget) -> None:
    """From captured rows: an own head begins with the target's rows, and logits are of the target's size."""
    vocab = target.vocab_size
    ids = torch.arange(0, vocab, 3) if head == "reduced" else None
    rows = {"target": None, "own": vocab, "reduced": len(range(0, vocab, 3))}[head]
    torch.manual_seed(0)
    sizes = sizes_for(case, folder, draft_vocab_size=rows)
    drafter: Any = new_drafter(sizes.kind, sizes, target.embedding, target.head_weight, ids)
    batch = capture(target, pack([documents(5, [30])], 30))
    drafter.init_from_target(batch.states(drafter.reads)[0], batch.hidden[0])
    if head != "target":
        for level in range(drafter.max_steps or 1):
            assert torch.equal(drafter.head_rows(level), target.head_weight[drafter.target_ids])
    step = steps_of(drafter, batch)[0]
    ours, theirs = drafter.logits(step.g).std(), target.logits(batch.hidden).std()
    assert 0.1 < float(ours / theirs) < 10


@pytest.mark.parametrize("case", CASES)
def test_steps_computed_again_give_the_same_bits(case: str, folder: Path, target: HFTarget) -> None:
    """Activation checkpointing, whatever a drafter appends to its state."""
    drafter = make_drafter(case, folder, target).train().requires_grad_(True)
    batch = capture(target, pack([documents(5, [9, 11])], 20))
    found = []
    for checkpointing in (False, True):
        steps = unroll(drafter, batch, levels_of(drafter, STEPS), checkpointing=checkpointing)
        logits = torch.cat([drafter.logits(step.g[step.counted], step.index) for step in steps])
        loss, every = logits.log_softmax(-1)[:, 0].sum(), list(drafter.parameters())
        grads = torch.autograd.grad(loss, every, allow_unused=True)  # DSpark's confidence is no part of it
        found.append([logits, *(grad for grad in grads if grad is not None)])
    assert len(found[0]) == len(found[1]) > 1
    assert all(torch.equal(one, other) for one, other in zip(*found))


@pytest.mark.parametrize("loss", ["naive", "fused"])
def test_each_heads_rows_are_taught_through_its_own_lm_head(loss, folder, target):
    """The loss of Medusa heads with own LM heads is its formula, a head at a time, and so is its gradient."""
    drafter = make_drafter(OWN_HEADS, folder, target, "reduced", medusa_heads=3).train().requires_grad_(True)
    batch = capture(target, pack([documents(5, [9, 11])], 20))
    rows = rows_by_step(batch.loss_mask, batch.document, 3)
    settings = {"ttt": TTTConfig(decay=0.5), "memory": MemoryConfig(loss=loss)}
    step = TrainStep(drafter, torch.nn.ModuleDict(), target.head_weight, **settings)
    total, figures, _ = step(batch, 3, rows)
    expected = torch.zeros(())
    for k, g in enumerate(drafter.heads(batch.hidden, 3)):
        for b, t in figures[k].counted.nonzero().tolist():
            z = target.logits(batch.hidden[b, t + 1 + k])
            if int(z.argmax()) in drafter.target_ids.tolist():
                p = z[drafter.target_ids].softmax(-1)
                q = (drafter.lm_heads[k].weight @ g[b, t]).log_softmax(-1)
                expected = expected - 0.5**k / rows[k] * (p * q).sum()
    torch.testing.assert_close(total, expected, rtol=1e-4, atol=1e-5)
    parameters = list(drafter.parameters())
    for ours, theirs in zip(
        torch.autograd.grad(total, parameters), torch.autograd.grad(expected, parameters)
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)
