"""Router training: labels, loss, states of every step, and whole runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.cli.cli_support import facts_of, invoke, succeeds
from tests.decode.drafting import make_drafter
from tests.docs.doc_formats import keys_by_kind, written
from tests.shares import by_default
from tests.train.run_support import add_clusters, curve, make_place
from tests.worlds import tiny_drafter, tiny_target
from vocabforge.core.config import parse_config
from vocabforge.core.distributed import Group
from vocabforge.core.errors import ConfigError, MismatchError, UsageError
from vocabforge.core.journal import read_jsonl_log
from vocabforge.corpus.tokenizer.tokenizer import load_tokenizer
from vocabforge.models.drafters.io import save_drafter
from vocabforge.models.heads.io import drafter_digest, load_head, owner_of
from vocabforge.models.target.fingerprint import target_fingerprint
from vocabforge.models.target.hf import HFTarget
from vocabforge.train.config import RouterTrainConfig
from vocabforge.train.heads.router_setup import build_router_trainer, plan
from vocabforge.train.heads.states import (
    average_precision,
    best_columns,
    drafting_rows,
    labels_of,
    router_losses,
)
from vocabforge.train.ttt import shift_left, unroll

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``target`` with texts, ``drafter`` (random, but it draws on the text), ``clusters`` of its head."""
    place = make_place(tmp_path_factory.mktemp("router"))
    tokenizer = load_tokenizer(place / "target")
    target = HFTarget.load(place / "target")
    meta = {
        "target_fingerprint": target_fingerprint(place / "target"),
        "tokenizer_fingerprint": tokenizer.fingerprint,
    }
    save_drafter(place / "drafter", tiny_drafter(target), meta)
    add_clusters(place)
    return place


def settings(place: Path, output: str, **sections: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "target": str(place / "target"),
        "drafter": str(place / "drafter"),
        "clusters": str(place / "clusters"),
        "output": str(place / output),
        "data": {"train": [str(place / "texts.jsonl")], "heldout_documents": 6, "sequence_length": 64},
        "router": {"top_n": 3, "steps": 3},
        "optim": {"steps": 30, "batch_size": 3, "lr": 1e-2, "clip": 1.0},
        "run": {"device": "cpu", "log_every": 1, "eval_every": 15, "checkpoint_every": 5},
    }
    for section, changes in sections.items():
        values[section] = {**values.get(section, {}), **changes}
    return values


def config(place: Path, output: str, **sections: Any) -> RouterTrainConfig:
    return parse_config(RouterTrainConfig, settings(place, output, **sections), source="test")


def trainer(place: Path, output: str, **sections: Any):
    return build_router_trainer(config(place, output, **sections))


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
def test_states_are_what_the_unroll_feeds_at_every_step(place: Path) -> None:
    run = trainer(place, "states")
    batch = run.capture("train", [0, 1])
    steps = list(unroll(run.drafter, batch, 3))
    fed = [run.drafter.fuse(batch.states(run.drafter.reads)), *(step.g for step in steps)]
    made = list(drafting_rows(run.drafter, batch, 3))
    assert [part.state.step for part in made] == [0, 1, 2]
    for k, (part, step) in enumerate(zip(made, steps)):
        rows, columns = step.counted.nonzero(as_tuple=True)
        assert len(rows) > 20
        assert torch.equal(part.state.tokens, shift_left(batch.input_ids, k + 1)[rows, columns])
        assert torch.equal(part.state.previous, fed[k][rows, columns])
        torch.testing.assert_close(part.hidden, run.drafter.read(step.g)[rows, columns])
    assert not torch.equal(made[0].state.previous[:5], made[1].state.previous[:5])


@pytest.fixture(
    scope="module", params=by_default(["dflash", "dspark", "peagle"], lambda kind: kind == "dflash")
)
def block(place: Path, request: pytest.FixtureRequest) -> Path:
    """A random block drafter: four drafts at most."""
    drafter, target = place / request.param, HFTarget.load(place / "target")
    made = make_drafter(request.param, place / "target", target, block_size=4)
    meta = {
        "target_fingerprint": target_fingerprint(place / "target"),
        "tokenizer_fingerprint": load_tokenizer(place / "target").fingerprint,
    }
    save_drafter(drafter, made, meta)
    return drafter


@torch.no_grad()
def test_a_block_is_fed_the_same_at_all_its_drafts(place: Path, block: Path) -> None:
    run = build_router_trainer(config(place, "block-states").model_copy(update={"drafter": block}))
    batch = run.capture("train", [0, 1])
    first = run.drafter.fuse(batch.states(run.drafter.reads))
    for part, step in zip(drafting_rows(run.drafter, batch, 3), unroll(run.drafter, batch, 3), strict=True):
        rows, columns = step.counted.nonzero(as_tuple=True)
        assert len(rows) > 20
        assert torch.equal(part.state.tokens, batch.input_ids[rows, columns + 1])
        assert torch.equal(part.state.previous, first[rows, columns])
        torch.testing.assert_close(
            part.hidden, run.drafter.read_rows(step.g[..., : first.shape[-1]])[rows, columns]
        )


def test_a_router_learns_from_a_block_drafter(place: Path, block: Path) -> None:
    asked = config(place, f"learns-{block.name}", optim={"steps": 60}, router={"steps": 6})
    run = build_router_trainer(asked.model_copy(update={"drafter": block}))
    assert run.config.router.steps == (3 if block.name == "dflash" else 4)
    before = run.report()["heads"]["router"]["overall"]
    artifact = load_head(run.run()).artifact
    assert artifact.meta["heldout"]["average_precision"] > before["average_precision"] + 0.1
    assert artifact.meta["budgets"] == [4], "a quarter of 16, at every draft"


def test_training_makes_recall_rise_and_reports(place: Path) -> None:
    run = trainer(place, "learns", optim={"steps": 120})
    before = run.report()["heads"]["router"]["overall"]
    path = run.run()
    report = json.loads((place / "learns" / "report.json").read_text())
    after = report["heads"]["router"]["overall"]
    assert after["average_precision"] > before["average_precision"] + 0.2
    assert after["argmax_recall"] > before["argmax_recall"] + 0.1
    assert after["shortlist_share"] < 0.6
    losses = curve(place / "learns", "loss")
    assert sum(losses[-10:]) < 0.8 * sum(losses[:10])
    assert written(read_jsonl_log(place / "learns" / "metrics.jsonl")) == keys_by_kind("Rows of train-router")
    assert list(report["heads"]) == ["full", "router"]
    loaded = load_head(path)
    owner = owner_of(loaded.artifact)
    assert owner.drafter == drafter_digest(place / "drafter")
    assert owner.target == target_fingerprint(place / "target")
    assert set(loaded.artifact.manifest["parents"]) == {"clusters", "drafter"}
    assert loaded.artifact.meta["heldout"]["rows"] == after["rows"] > 0
    assert loaded.artifact.meta["budgets"] == [4, 4, 2, 1, 1], "a quarter of 16, falling to a sixteenth"
    for ours, theirs in zip(loaded.module.parameters(), run.router.parameters()):
        assert torch.equal(ours, theirs)


class Killed(BaseException):
    """The process is gone: nothing is written any more."""


SHORT = {"optim": {"steps": 14}, "run": {"eval_every": 1000, "checkpoint_every": 3, "log_every": 1}}


@pytest.fixture(scope="module")
def whole(place: Path) -> list[torch.Tensor]:
    """Weights of a run that nothing interrupted."""
    run = trainer(place, "whole", **SHORT)
    run.run()
    return list(run.router.parameters())


@pytest.mark.parametrize(
    "moments", [(2, 5), *(pytest.param(one, marks=pytest.mark.proof) for one in ((0,), (4, 9, 13)))]
)
def test_a_killed_run_goes_on_with_the_same_bits(place: Path, whole, moments: tuple[int, ...]) -> None:
    name = "killed-" + "-".join(map(str, moments))
    for moment in moments:
        run = trainer(place, name, **SHORT)
        step = run.take_step

        def dying(number: int, at: int = moment, step: Any = step) -> Any:
            if number == at:
                raise Killed
            return step(number)

        run.take_step = dying
        with pytest.raises(Killed):
            run.run()
    last = trainer(place, name, **SHORT)
    last.run()
    assert curve(place / name, "step") == list(range(1, 15)), "each step once"
    assert all(torch.equal(a, b) for a, b in zip(last.router.parameters(), whole))


def test_another_configuration_is_not_continued(place: Path) -> None:
    trainer(place, "changed", optim={"steps": 5}).run()
    with pytest.raises(UsageError, match="other settings") as caught:
        trainer(place, "changed", optim={"steps": 5}, router={"top_n": 4}).run()
    assert "router.top_n" in str(caught.value)
    trainer(place, "changed", optim={"steps": 5}, run={"eval_rows": 2}).run()  # changes no weight


def test_clusters_of_another_head_or_tokenizer_are_refused(place: Path, tmp_path: Path) -> None:
    tiny_target(tmp_path / "t2", vocab_size=261, initializer_range=0.2, seed=5)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        source = place / "target" / name
        if source.exists():
            (tmp_path / "t2" / name).write_bytes(source.read_bytes())
    values = {**settings(place, "no"), "target": str(tmp_path / "t2")}
    with pytest.raises(MismatchError, match="another LM head"):
        build_router_trainer(parse_config(RouterTrainConfig, values, source="test"))


def test_what_cannot_be_shared_is_refused(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="cannot be shared evenly"):
        plan(config(place, "several"))
    asked = config(place, "several", optim={"batch_size": 4, "micro_batch_size": 1})
    found = plan(asked)
    assert (found["processes"], found["strategy"]) == (2, "ddp")
    assert found["rows_per_process"] == {"a step": 2, "a forward pass": 1}
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    for refused in (lambda: plan(asked), lambda: build_router_trainer(asked, Group(0, 2))):
        with pytest.raises(UsageError, match="does not run under DeepSpeed"):
            refused()


def test_the_command(place: Path) -> None:
    words = [
        "train-router",
        *("--target", str(place / "target"), "--drafter", str(place / "drafter")),
        *("--clusters", str(place / "clusters"), "--input", str(place / "texts.jsonl")),
        *("--output", str(place / "command")),
        *("optim.steps=4", "data.heldout_documents=6", "data.sequence_length=64", "router.steps=2"),
        *("optim.batch_size=2", "run.device=cpu"),
    ]
    beyond = invoke(*words, "--plan", "data.sequence_length=100000")
    assert "longer than the target's context" in beyond.output
    missing = invoke(*words, "--plan", "data.heldout=[nowhere.txt]")
    assert "the input is missing" in missing.output
    table = invoke(*words, "--plan")
    assert ["clusters", "16"] in [line.split() for line in table.stdout.splitlines()]
    facts = facts_of(invoke(*words, "--plan", "--json"))
    assert (facts["clusters"], facts["trained_parameters"]) == (16, 64 * 8 + 8 + 8 * 16 + 16)
    assert not (place / "command").exists()
    done = succeeds(*words)
    for word in ("router", "argmax"):
        assert word in done.stdout
    again = invoke(*words, "--fresh", "--json")
    assert json.loads(again.stdout)["router"].endswith("router")
    log = (place / "command" / "metrics.jsonl").read_bytes()
    impossible = invoke(*words, "--fresh", "data.sequence_length=100000")
    assert impossible.exit_code == 2, impossible.output
    assert (place / "command" / "router" / "manifest.json").is_file(), (
        "the run that stands is kept until then"
    )
    assert (place / "command" / "metrics.jsonl").read_bytes() == log
    wrong = invoke(*words, "router.widht=3")
    assert wrong.exit_code == 2
    assert "did you mean 'width'" in wrong.output
