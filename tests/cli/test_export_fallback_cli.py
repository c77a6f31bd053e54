"""``vocabforge export --head``: a static draft vocabulary for servers, the dynamic head beside it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.cli.cli_support import assert_user_error, invoke
from tests.decode.drafting import make_drafter
from tests.train.run_support import make_place
from tests.worlds import tiny_drafter
from vocabforge.cli.ship import export_fallback
from vocabforge.core.artifact import open_artifact
from vocabforge.corpus.tokenizer.tokenizer import load_tokenizer
from vocabforge.decode.proposers.registry import tree_proposer
from vocabforge.decode.tree import TreeSettings
from vocabforge.evaluate.acceptance.fallback import split_prompts
from vocabforge.evaluate.acceptance.meter import AcceptanceMeter
from vocabforge.evaluate.acceptance.prompts import read_prompts
from vocabforge.export.registry import load_drafter
from vocabforge.models.drafters.io import TargetTensors, save_drafter
from vocabforge.models.heads.io import HeadOwner, check_owner, drafter_digest, load_head, save_head
from vocabforge.models.heads.registry import exact_head
from vocabforge.models.heads.scorer import LowRankScorer
from vocabforge.models.lean.model import load_target
from vocabforge.models.target.fingerprint import target_fingerprint
from vocabforge.models.target.hf import HFTarget
from vocabforge.train.config import LiveConfig
from vocabforge.vocab.subset.subset import VocabSubset, load_subset, save_subset

VOCAB, SIZE, NEW, END = 261, 24, 8, 257


@pytest.fixture(scope="module", autouse=True)
def on_the_cpu() -> Iterator[None]:
    """Figures are compared exactly, and with what is computed here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: False)
        yield


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Target, drafter ``d``, its ranker ``h``, another's ranker ``o``, a vocabulary ``v``, prompts ``p.jsonl``."""
    place = make_place(tmp_path_factory.mktemp("export-fallback"))
    target, tokenizer = place / "target", load_tokenizer(place / "target")
    prints = {
        "target_fingerprint": target_fingerprint(target),
        "tokenizer_fingerprint": tokenizer.fingerprint,
    }
    save_drafter(place / "d", tiny_drafter(HFTarget.load(target)), prints, config={"target": str(target)})
    torch.manual_seed(7)
    facts = {"shortlist": 12, "weight": 0.1}
    for name, digest in (("h", drafter_digest(place / "d")), ("o", "0" * 64)):
        owner = HeadOwner(digest, prints["target_fingerprint"], tokenizer.fingerprint)
        save_head(place / name, "ranker", LowRankScorer(32, VOCAB, 4), owner, facts)
    subset = VocabSubset.from_ranked(
        torch.arange(40, 100).numpy(), vocab_size=VOCAB, fingerprint=tokenizer.fingerprint
    )
    save_subset(subset, place / "v")
    texts = ["the cat", "a mat and", "one dog ran", "to the red", "house while", "rain fell"]
    rows = [{"question_id": n, "category": "x", "turns": [text]} for n, text in enumerate(texts)]
    (place / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return place


def split(place: Path, line: str) -> list[str]:
    return [word.replace("@", f"{place}/") for word in line.split()]


def run(place: Path, line: str) -> Any:
    return invoke("export", "--drafter", place / "d", *split(place, line))


@pytest.fixture(scope="module")
def made(place: Path) -> dict[str, Any]:
    """What the command says of ``out``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export_fallback, "NEW_TOKENS", NEW)
        done = run(
            place,
            "--format sglang-eagle3 --head @h --fallback-size 24 --prompts @p.jsonl --vocab @v "
            "--output @out --json",
        )
    assert done.exit_code == 0, done.output
    facts: dict[str, Any] = json.loads(done.stdout)
    return facts


def test_the_folder_holds_the_static_map_and_says_what_it_costs(place: Path, made: dict[str, Any]) -> None:
    fallback = made["fallback"]
    assert made["draft_vocab_size"] == fallback["size"] == SIZE
    artifact = open_artifact(place / "out", "export-sglang-eagle3")
    assert artifact.meta["fallback"] == fallback
    assert {"drafter", "head"} <= artifact.manifest["parents"].keys()
    assert [one for one in artifact.manifest["parents"] if one.startswith("vocab ")]
    subset = load_subset(place / "out" / "dynamic" / "vocab")
    tensors = load_file(place / "out" / "model.safetensors")
    assert (torch.arange(SIZE) + tensors["d2t"]).tolist() == subset.ids.tolist()
    assert tensors["t2d"].nonzero().flatten().tolist() == subset.ids.tolist()
    own = load_file(place / "target" / "model.safetensors")["lm_head.weight"]
    assert torch.equal(tensors["lm_head.weight"], own[torch.from_numpy(subset.ids)])
    assert END in subset.ids, "the end of a turn is always inside"
    card = (place / "out" / "README.md").read_text("utf-8")
    assert "Draft vocabulary in place of a dynamic head" in card
    assert f"{fallback['of_dynamic']['value']:.2f} (" in card


def test_the_figures_are_those_of_what_was_written(place: Path, made: dict[str, Any]) -> None:
    model, tokenizer = load_target(place / "target"), load_tokenizer(place / "target")
    config = LiveConfig(prompts=48, max_new_tokens=NEW, total=60)
    prompts = read_prompts(place / "p.jsonl", tokenizer, config, model.config.max_positions)
    meter = AcceptanceMeter(model, split_prompts(prompts)[1], NEW)
    drafter, _ = load_drafter(
        place / "out", TargetTensors(model.embedding, model.lm_head_weight), place / "target"
    )
    tree = TreeSettings(**made["fallback"]["tree"])
    found = meter.measure(tree_proposer(model, drafter, exact_head(drafter), tree))
    assert found.length.value == made["fallback"]["accepted_length"]["static"]


def test_the_dynamic_head_beside_it_is_bound_to_its_drafter(place: Path, made: dict[str, Any]) -> None:
    folder = place / "out" / "dynamic"
    head = load_head(folder / "head")
    tokenizer = load_tokenizer(place / "target")
    owner = HeadOwner(
        drafter_digest(folder / "drafter"), target_fingerprint(place / "target"), tokenizer.fingerprint
    )
    check_owner(head.artifact, owner, drafter=folder / "drafter")
    first = load_head(place / "h")
    assert head.artifact.meta["shortlist"] == 12
    assert head.artifact.meta["weight"] == 0.1
    for name, tensor in first.module.state_dict().items():
        assert torch.equal(tensor, head.module.state_dict()[name])
    line = [
        "generate",
        *("--target", place / "target", "--prompt", "the cat", "--max-new-tokens", 8, "--json"),
        *("--device", "cpu"),
    ]
    plain = json.loads(invoke(*line).stdout)
    done = invoke(*line, "--drafter", folder / "drafter", "--head", folder / "head")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["token_ids"] == plain["token_ids"]


def other(place: Path, name: str, drafter: Any, kind: str = "ranker") -> None:
    """Another drafter, with a head of its own."""
    target, tokenizer = place / "target", load_tokenizer(place / "target")
    prints = {
        "target_fingerprint": target_fingerprint(target),
        "tokenizer_fingerprint": tokenizer.fingerprint,
    }
    save_drafter(place / name, drafter, prints, config={"target": str(target)})
    owner = HeadOwner(
        drafter_digest(place / name), prints["target_fingerprint"], prints["tokenizer_fingerprint"]
    )
    save_head(place / f"{name}-head", kind, LowRankScorer(32, VOCAB, 2), owner)


def test_fr_spec_gets_the_list_in_rank_order(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export_fallback, "NEW_TOKENS", 3)
    target = HFTarget.load(place / "target")
    other(place, "e1", make_drafter("eagle1", place / "target", target, "target"), "low-rank")
    line = "--format fr-spec --fallback-size 24 --prompts @p.jsonl"
    done = invoke(
        "export",
        *("--drafter", place / "e1", "--head", place / "e1-head", "--output", place / "fr"),
        *split(place, line),
    )
    assert done.exit_code == 0, done.output
    ranked = torch.load(place / "fr" / "freq_24.pt", weights_only=True)
    assert ranked == load_subset(place / "fr" / "dynamic" / "vocab").ranked.tolist()
    assert ranked != sorted(ranked)


REFUSED = ("belongs to another drafter", "another kind", "nothing.jsonl")  # inputs, not the command line


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--format sglang-eagle3 --head @h --output @x", "--prompts FILE"),
        ("--format native --head @h --prompts @p.jsonl --output @x", "holds no static draft vocabulary"),
        ("--format sglang-eagle3 --fallback-size 24 --output @x", "no draft head"),
        ("--format sglang-eagle3 --prompts @p.jsonl --output @x", "no draft head"),
        ("--format sglang-eagle3 --head @o --prompts @p.jsonl --output @x", "belongs to another drafter"),
        ("--format sglang-eagle3 --head @v --prompts @p.jsonl --output @x", "another kind"),
        (
            "--format sglang-eagle3 --head @h --fallback-size 261 --prompts @p.jsonl --output @x",
            "no size for a static fallback",
        ),
        ("--format sglang-eagle3 --head @h --prompts @nothing.jsonl --output @x", "nothing.jsonl"),
    ],
)
def test_mistakes_are_told_and_write_nothing(place: Path, line: str, words: str) -> None:
    done = run(place, line)
    assert_user_error(done, 1 if words in REFUSED else 2, words)
    assert not (place / "x").exists()
