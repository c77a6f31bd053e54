"""Router training: labels, loss and gradients against a count row by row, whole runs, refusals."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.train.run_support import add_clusters, curve, log_rows, make_place
from tests.train.run_support import config as config_of
from tests.worlds import byte_tokenizer, tiny_target
from vocabforge.core.artifact import open_artifact
from vocabforge.core.errors import MismatchError, UsageError
from vocabforge.models.drafters.io import load_native, save_drafter
from vocabforge.models.drafters.parallel import is_parallel
from vocabforge.models.heads.io import drafter_digest, load_head, owner_of
from vocabforge.models.target.head import TargetTensors, load_target_tensors
from vocabforge.train.config import TrainConfig
from vocabforge.train.heads.states import (
    average_precision,
    best_columns,
    drafting_rows,
    labels_of,
    router_losses,
)
from vocabforge.train.loop import train
from vocabforge.train.loss.rows import draw_anchors
from vocabforge.train.plan import plan
from vocabforge.train.setup import build_trainer, identity_of
from vocabforge.train.trainer import Trainer
from vocabforge.train.ttt import rows_by_step, shift_left, unroll

TOP, DECAY, STEPS = 3, 0.7, 3
BLOCKS = "dflash", "dspark", "peagle"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = make_place(tmp_path_factory.mktemp("joint"))
    add_clusters(place)
    return place


def config(place: Path, output: str, router: dict[str, Any] | None = None, **sections: Any) -> TrainConfig:
    asked = {"clusters": str(place / "clusters"), "top_n": TOP, **(router or {})}
    sections = {"heads": {"router": asked}, "ttt": {"steps": STEPS, "decay": DECAY}, **sections}
    sections["run"] = {"trackers": [], "live": {"prompts": 0}, **sections.get("run", {})}
    return config_of(place, output, **sections)


def reference(
    trainer: Trainer,
    batch: Any,
    counts: Tensor,
    *,
    detach: bool = True,
    anchors: Tensor | None = None,
    alone: bool = False,
) -> Tensor:
    """The router's loss, one row after the other; all rows of a block are fed what its first one is."""
    drafter, router = trainer.drafter, trainer.step_module.heads["router"]
    block = is_parallel(drafter)
    first, total = drafter.fuse(batch.states(drafter.reads)), torch.zeros(())
    previous = first
    for k, step in enumerate(unroll(drafter, batch, STEPS, anchors=anchors)):
        for b, place in step.counted.nonzero().tolist():
            t = place if step.anchor is None else int(step.anchor[b, place])
            fed = first[b, t] if block else previous[b, place]
            embedded = drafter.embedding[batch.input_ids[b, t + 1 + (0 if block else k)]]
            scores = router(embedded[None], fed.detach()[None] if detach else fed[None])[0]
            row = drafter.read(step.g[b, place])[: drafter.config.hidden_size]
            logits = F.linear(row, drafter.head_weight).tolist()
            best = sorted(range(len(logits)), key=lambda v: (-logits[v], v))[:TOP]
            labels = torch.zeros(router.clusters)
            labels[router.assignment[drafter.target_ids[best]]] = 1.0
            loss = F.binary_cross_entropy_with_logits(scores, labels)
            total = total + (1 / counts.sum() if alone else DECAY**k / counts[k]) * loss
        previous = step.g
    return total


def gradients(trainer: Trainer) -> dict[str, Tensor]:
    named = trainer.step_module.named_parameters()
    found = {name: p.grad.clone() for name, p in named if p.grad is not None}
    trainer.step_module.zero_grad()
    return found


@pytest.mark.parametrize("detach", [True, False])
@pytest.mark.parametrize(
    "drafter", [{"head": "target"}, {"head": "own"}, *({"kind": kind, "block_size": 4} for kind in BLOCKS)]
)
def test_loss_and_gradients_are_those_of_a_count_row_by_row(place, detach, drafter):
    asked = {"detach": detach, "weight": 0.5}
    joint = build_trainer(config(place, "loss", asked, drafter=drafter))
    plain = build_trainer(config(place, "loss", drafter=drafter, heads={}))
    batch, anchors, everywhere = joint.capture("train", [0, 1]), None, False
    if is_parallel(joint.drafter):
        anchors = draw_anchors(batch.loss_mask, batch.document, [0, 1], 7, 0, 0)
        everywhere = joint.drafter.first_everywhere
    counts = rows_by_step(batch.loss_mask, batch.document, STEPS, anchors, first_everywhere=everywhere)
    loss, _, scored = joint.step_module(batch, STEPS, counts, anchors=anchors)
    loss.backward()
    ours = gradients(joint)
    alone = plain.step_module(batch, STEPS, counts, anchors=anchors)[0]
    alone.backward()
    expected = reference(joint, batch, counts, detach=detach, anchors=anchors)
    (0.5 * expected).backward()
    more, drafters = gradients(joint), gradients(plain)
    torch.testing.assert_close(scored["router"].total, expected)
    torch.testing.assert_close(loss, alone + 0.5 * expected)
    assert ours.keys() == drafters.keys() | {name for name in ours if name.startswith("heads.router.")}
    for name, gradient in ours.items():
        zero = torch.zeros_like(gradient)
        torch.testing.assert_close(
            gradient, drafters.get(name, zero) + more.get(name, zero), rtol=1e-4, atol=1e-6, msg=name
        )
    reached = {name for name in more if name.startswith("drafter.")}
    assert ("drafter.fc.weight" in reached) != detach
    assert bool(reached) != detach


def test_correct_rows_are_those_whose_best_cluster_is_positive(place: Path) -> None:
    run = build_trainer(config(place, "correct", {"top_n": 1}))
    batch = run.capture("train", [0])
    counts = rows_by_step(batch.loss_mask, batch.document, STEPS)
    found = run.step_module(batch, STEPS, counts)[2]["router"]
    drafter, router = run.drafter, run.step_module.heads["router"]
    expected, previous = [], drafter.fuse(batch.states(drafter.reads))
    for k, step in enumerate(unroll(drafter, batch, STEPS)):
        for b, t in step.counted.nonzero().tolist():
            embedded = drafter.embedding[batch.input_ids[b, t + 1 + k]]
            best = router(embedded[None], previous[b, t][None])[0].argmax()
            expected.append(bool(best == router.assignment[drafter.logits(step.g[b, t]).argmax()]))
        previous = step.g
    assert found.correct.tolist() == expected
    assert len(found.losses) == len(expected) == int(counts.sum())


def test_labels_are_the_clusters_of_the_top_tokens() -> None:
    torch.manual_seed(0)
    logits = torch.randint(0, 5, (40, 30)).float()  # full of ties
    cluster = torch.randint(0, 7, (26,))  # four padded columns
    labels = labels_of(best_columns(logits[:, :26], 4), cluster, 7)
    for row, found in zip(logits.tolist(), labels.tolist()):
        best = sorted(range(26), key=lambda i: (-row[i], i))[:4]
        positive = {int(cluster[i]) for i in best}
        assert found == [m in positive for m in range(7)]
    assert labels_of(best_columns(logits[:, :26], 99), cluster, 7).sum() == 40 * len(cluster.unique())


@pytest.mark.parametrize("ties", [True, False])
def test_best_columns_are_the_lowest_of_equals(ties: bool) -> None:
    torch.manual_seed(3)
    logits = torch.randint(-2, 3, (60, 40)).float() if ties else torch.randn(60, 40)
    logits[:2] = 0.0
    logits[1, ::2] = -0.0
    for n in (1, 5, 40):
        expected = torch.argsort(logits, dim=-1, descending=True, stable=True)[:, :n].sort(-1).values
        assert torch.equal(best_columns(logits, n).sort(-1).values, expected)


def test_loss_is_the_mean_over_clusters_summed_over_rows() -> None:
    torch.manual_seed(1)
    scores, labels = torch.randn(5, 6, requires_grad=True), torch.rand(5, 6) > 0.6
    chance = scores.sigmoid()
    expected = -(labels * chance.log() + ~labels * (1 - chance).log()).mean(-1).sum()
    torch.testing.assert_close(router_losses(scores, labels).sum(), expected)
    router_losses(scores, labels).sum().backward()
    torch.testing.assert_close(scores.grad, (chance.detach() - labels.float()) / 6)


def test_average_precision_by_its_definition() -> None:
    """Of each positive: the share of positives among the clusters down to it."""
    scores = torch.rand(40, 12, generator=torch.Generator().manual_seed(0))
    labels = torch.rand(40, 12, generator=torch.Generator().manual_seed(1)) < 0.3
    labels[0] = False
    for values, wanted, found in zip(scores, labels, average_precision(scores, labels).tolist()):
        shares = [float(wanted[values >= value].float().mean()) for value in values[wanted]]
        assert found == pytest.approx(sum(shares) / max(len(shares), 1))


@torch.no_grad()
@pytest.mark.parametrize("drafter", [{}, {"kind": "dflash", "block_size": 4}])
def test_the_report_reads_the_states_that_the_unroll_feeds(place: Path, drafter: dict[str, Any]) -> None:
    run = build_trainer(config(place, "states", drafter=drafter))
    batch = run.capture("train", [0, 1])
    steps = list(unroll(run.drafter, batch, STEPS))
    first = run.drafter.fuse(batch.states(run.drafter.reads))
    fed = [first, *(step.g for step in steps)]
    for k, (part, step) in enumerate(zip(drafting_rows(run.drafter, batch, STEPS), steps, strict=True)):
        rows, columns = step.counted.nonzero(as_tuple=True)
        assert len(rows) > 20
        assert part.state.step == k
        if is_parallel(run.drafter):
            assert torch.equal(part.state.tokens, batch.input_ids[rows, columns + 1])
            assert torch.equal(part.state.previous, first[rows, columns])
            read = run.drafter.read_rows(step.g[..., : first.shape[-1]])
        else:
            assert torch.equal(part.state.tokens, shift_left(batch.input_ids, k + 1)[rows, columns])
            assert torch.equal(part.state.previous, fed[k][rows, columns])
            read = run.drafter.read(step.g)
        torch.testing.assert_close(part.hidden, read[rows, columns])


@pytest.fixture(scope="module")
def trained(place: Path) -> Path:
    train(build_trainer(config(place, "run", optim={"steps": 40, "lr": 1e-2})))
    return place / "run"


def test_it_learns_and_is_saved_and_reported(place: Path, trained: Path) -> None:
    losses = [heads["router"]["loss"] for heads in curve(trained, "heads")]
    assert sum(losses[-5:]) < 0.7 * sum(losses[:5])
    loaded = load_head(trained / "heads" / "router")
    assert loaded.kind == "router"
    assert owner_of(loaded.artifact).drafter == drafter_digest(trained / "drafter")
    assert set(loaded.artifact.manifest["parents"]) == {"clusters", "drafter"}
    meta = loaded.artifact.meta
    assert (meta["top_n"], meta["detach"], meta["weight"]) == (TOP, True, 1.0)
    assert meta["budgets"] == [4, 4, 2, 1, 1], "16 clusters: a quarter, falling to a sixteenth"
    (final,) = (row["heads"]["heads"] for row in log_rows(trained, "heads"))
    assert final["router"]["overall"]["average_precision"] > 0.5
    shortlists = [step["shortlist"] for step in final["router"]["steps"]]
    assert shortlists[0] > shortlists[2], "the budget falls with the draft step"


def test_a_block_drafter_opens_as_many_clusters_at_every_draft(place: Path) -> None:
    drafter = {"kind": "dflash", "block_size": 4, "num_layers": 1}
    train(build_trainer(config(place, "block", drafter=drafter)))
    assert load_head(place / "block" / "heads" / "router").artifact.meta["budgets"] == [4]


@pytest.mark.long
def test_the_drafter_beside_a_detached_router_is_the_drafter_without_one(place: Path) -> None:
    free = {"optim": {"clip": 1e9}}  # clipping is by the norm of all gradients together
    train(build_trainer(config(place, "beside", **free)))
    train(build_trainer(config(place, "without", heads={}, **free)))
    assert drafter_digest(place / "beside" / "drafter") == drafter_digest(place / "without" / "drafter")


def test_it_trains_alone_on_a_frozen_drafter(place: Path, trained: Path) -> None:
    frozen = {"init": str(trained / "drafter"), "freeze": True}
    planned = plan(config(place, "frozen", drafter=frozen))
    assert planned["drafter"]["trained_parameters"] == 0
    assert planned["heads"].keys() == {"router"}
    run = build_trainer(config(place, "frozen", drafter=frozen))
    batch = run.capture("train", [0, 1])
    counts = rows_by_step(batch.loss_mask, batch.document, STEPS)
    loss, _, scored = run.step_module(batch, STEPS, counts)
    torch.testing.assert_close(loss, reference(run, batch, counts, alone=True))
    assert loss == scored["router"].total
    train(run)
    assert drafter_digest(place / "frozen" / "drafter") == drafter_digest(trained / "drafter")
    assert load_head(place / "frozen" / "heads" / "router").kind == "router"


def test_it_fits_a_frozen_drafter_that_is_stored_in_bf16(place: Path, trained: Path) -> None:
    shared = load_target_tensors(place / "target")
    drafter, artifact = load_native(trained / "drafter", TargetTensors(shared.embedding, shared.head))
    save_drafter(place / "half", drafter, artifact.meta, dtype=torch.bfloat16)
    train(build_trainer(config(place, "on-half", drafter={"init": str(place / "half"), "freeze": True})))
    own = drafter_digest(place / "half")
    assert drafter_digest(place / "on-half" / "drafter") == own
    assert owner_of(load_head(place / "on-half" / "heads" / "router").artifact).drafter == own


def test_the_decoder_drafts_with_it(place: Path) -> None:
    live = {"prompts": 1, "max_new_tokens": 4, "topk": 3, "depth": 2, "total": 8}
    run = build_trainer(config(place, "live", run={"live": live}))
    assert run.live is not None
    figures = run.live(run.drafter, run.step_module.heads)
    assert figures["heads"]["router"]["identical"] == 1


def test_the_plan_counts_it(place: Path) -> None:
    found = plan(config(place, "planned"))
    assert found["heads"] == {"router": 64 * 8 + 8 + 8 * 16 + 16}
    assert str(place / "planned" / "heads" / "router") in found["writes"]


def test_the_clusters_content_counts_not_their_place(place: Path, tmp_path: Path) -> None:
    moved = tmp_path / "clusters"
    shutil.copytree(place / "clusters", moved)
    here, there = (
        identity_of(config(place, "identity", asked), "data", "target")["heads.router"]
        for asked in (None, {"clusters": str(moved)})
    )
    assert here == there
    assert here["clusters"] == open_artifact(moved).content_hash


def test_what_has_no_states_or_other_clusters_is_refused(place: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is fed nothing"):
        plan(config(place, "refused", drafter={"kind": "medusa"}))
    tiny_target(tmp_path / "target", vocab_size=261, initializer_range=0.2, seed=5)
    byte_tokenizer(tmp_path / "target")
    with pytest.raises(MismatchError, match="another LM head"):
        build_trainer(config(place, "refused").model_copy(update={"target": tmp_path / "target"}))
