"""What another draft vocabulary changes: coverage, end tokens, accepted length, and what is said of it."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from tests.contracts.drafter_support import make_drafter
from tests.support import tiny_drafter, tiny_target
from vocabforge.core.errors import UsageError
from vocabforge.evaluate.acceptance import AcceptanceMeter, Accepted, length_ratio
from vocabforge.evaluate.live_prompts import LivePrompts
from vocabforge.evaluate.results import Figure
from vocabforge.evaluate.revocab_report import (
    AFTER,
    BEFORE,
    RevocabMeter,
    RevocabRecord,
    TextCoverage,
    end_tokens,
    helps,
    revocab_table,
    text_coverage,
)
from vocabforge.evaluate.state_pairs import state_pairs
from vocabforge.export.revocab import revocab_head
from vocabforge.models.lean import LeanModel, load_target
from vocabforge.models.target import HFTarget

PROMPTS = [[5, 9, 11, 3], [7, 7, 21], [40, 2, 18, 19, 33]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_target(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def target(folder: Path) -> HFTarget:
    return HFTarget.load(folder)


@pytest.fixture(scope="module")
def model(folder: Path) -> LeanModel:
    return load_target(folder, dtype=torch.float32, device=torch.device("cpu"))


def accepted(committed: list[int], cycles: list[int]) -> Accepted:
    return Accepted(Figure(value=1.0), tuple(committed), tuple(cycles), 0, ())


def test_coverage_counts_tokens_not_ids() -> None:
    counts = np.array([0, 6, 0, 3, 1], dtype=np.int64)
    found = text_coverage(np.array([1, 2]), np.array([2, 3, 4, 9]), counts)
    assert found == TextCoverage(10, 0.6, 0.4), "padded rows were never counted"
    assert text_coverage(np.array([1]), np.array([3]), np.zeros(5, dtype=np.int64)).before == 0.0


def test_end_tokens_by_what_becomes_of_them() -> None:
    before, after = torch.tensor([1, 2, 7]), torch.tensor([2, 5])
    assert end_tokens(before, after, (1, 2, 5, 9)) == {
        "kept": [2],
        "lost": [1],
        "gained": [5],
        "outside": [9],
    }


def test_a_correction_helps_only_where_the_whole_interval_says_so() -> None:
    plain = accepted([30, 28, 35, 31], [10, 10, 10, 10])
    assert helps(accepted([33, 31, 38, 34], [10, 10, 10, 10]), plain), "better on every prompt"
    assert not helps(accepted([39, 25, 38, 25], [10, 10, 10, 10]), plain), "better on average, by chance"
    assert not helps(plain, plain)
    assert not helps(accepted([60], [10]), accepted([30], [10])), "one prompt shows nothing"
    assert length_ratio(plain, accepted([60, 56, 70, 62], [10] * 4)).value == pytest.approx(0.5)


def test_versions_are_measured_on_one_tree_and_paired(model: LeanModel, target: HFTarget) -> None:
    drafter = tiny_drafter(target)
    small = revocab_head(drafter, torch.tensor([0, 2, 5, 7]))
    meter = RevocabMeter(AcceptanceMeter(model, LivePrompts(PROMPTS, ()), 16), 4, drafter.max_steps)
    assert meter.tree.topk == 4, "no wider than the smallest head"
    first = meter.measure(BEFORE, drafter)
    second = meter.measure(AFTER, small)
    again = meter.measure("again", drafter)
    assert first.of_before is None
    assert (first.rows, second.rows) == (61, 4)
    assert second.accepted.identical == 3, "greedy outputs never change"
    assert again.of_before is not None
    assert again.of_before.value == 1.0
    body = meter.to_json()
    assert list(body["versions"]) == [BEFORE, AFTER, "again"]
    assert body["versions"][AFTER]["of_before"]["value"] == pytest.approx(
        second.accepted.length.value / first.accepted.length.value
    )
    assert int(meter.output_counts(61).sum()) == 48, "plain decoding's own tokens"


@pytest.mark.parametrize("kind", ["eagle3", "eagle1", "medusa"])
def test_state_pairs_stand_at_the_same_token(
    model: LeanModel, target: HFTarget, folder: Path, kind: str
) -> None:
    drafter: Any = make_drafter(kind, folder, target)
    read, hidden = state_pairs(drafter, model, PROMPTS[:1], 8)
    length = 4 + 8
    assert read.shape == hidden.shape == ((length - 1) + (length - 2) + (length - 3), 32)
    made = AcceptanceMeter(model, LivePrompts(PROMPTS[:1], ()), 8).plain()[0].token_ids
    choices = model.logits(hidden[2 : length - 1]).argmax(-1).tolist()  # of positions 3 to 11
    assert choices[: len(made)] == made, "the target's state that predicts each token of the answer"
    ids = torch.tensor([[*PROMPTS[0], *made]])
    states = target.capture(ids, torch.arange(length)[None], torch.ones_like(ids))
    assert torch.allclose(states.hidden[0, 1:], hidden[: length - 1], atol=1e-4)
    if kind == "medusa":
        blocks = drafter.heads(states.hidden[0], 2)
        assert torch.allclose(blocks[0][: length - 1], read[: length - 1], atol=1e-4)
        assert torch.allclose(blocks[1][: length - 2], read[length - 1 : 2 * length - 3], atol=1e-4)
    with pytest.raises(UsageError, match="no prompt"):
        state_pairs(drafter, model, [], 8)


def record(**changes: Any) -> RevocabRecord:
    head = {
        "before": 61,
        "after": 6,
        "own_before": True,
        "own_after": True,
        "kept": 6,
        "added": 0,
        "dropped": 55,
    }
    made = RevocabRecord(
        head=head,
        drift=None,
        missing={"wanted": "target", "used": "none", "fit": None},
        eos={"kept": [], "lost": [], "gained": [], "outside": []},
        coverage={"stories": TextCoverage(10, 1.0, 0.5)},
    )
    return replace(made, **changes)


def said(made: RevocabRecord) -> str:
    return " ".join(made.lines())


def test_a_lost_end_token_is_a_warning() -> None:
    assert "Warning" not in said(record())
    lost = said(record(eos={"kept": [], "lost": [2], "gained": [], "outside": []}))
    assert "Warning: the end tokens 2" in lost
    assert "select-vocab --target" in lost
    assert "as before: 9" in said(record(eos={"kept": [], "lost": [], "gained": [], "outside": [9]}))


def test_what_became_of_a_correction_is_said() -> None:
    fit = {"form": "states", "ridge": 0.01, "left": 0.25, "rows": 90}
    versions = {"versions": {name: figures() for name in (BEFORE, AFTER, "fitted")}}
    kept = record(missing={"wanted": "states", "used": "states", "fit": fit}, accepted=versions)
    assert "leaves 25% of the variance of states held out, and more is accepted with it" in said(kept)
    left = record(missing={"wanted": "states", "used": "target", "fit": fit}, accepted=versions)
    assert "does not raise the accepted length for sure" in said(left)
    rows = {**fit, "form": "linear"}
    assert "taken unmeasured" in said(record(missing={"wanted": "rows", "used": "rows", "fit": rows}))
    none = {"wanted": "rows", "used": "target", "fit": {**fit, "form": "none"}}
    assert "none is made" in said(record(missing=none))


def figures(length: float = 2.0, identical: int = 3) -> dict[str, Any]:
    against = {"value": 0.9, "sd": None, "low": 0.8, "high": 0.95}
    body = {"accepted_length": length, "low": 1.8, "high": 2.2, "identical": identical, "prompts": 3}
    return {**body, "of_before": against}


def test_healing_that_harms_and_outputs_that_differ_are_warned_about() -> None:
    healing = {"steps": 5, "run": "there", "config": {}}
    versions = {BEFORE: figures(), AFTER: figures(), "healed": figures(1.5)}
    harmed = said(record(healing=healing, accepted={"versions": versions}))
    assert "healing lowered the accepted length" in harmed
    assert "there/start" in harmed
    better = {**versions, "healed": figures(2.5)}
    assert "lowered" not in said(record(healing=healing, accepted={"versions": better}))
    different = {BEFORE: figures(identical=2), AFTER: figures()}
    assert "Warning: before: 1 of 3 outputs" in said(record(accepted={"versions": different}))


def test_the_table_names_versions_whole_in_eighty_columns() -> None:
    versions = {BEFORE: figures(), AFTER: figures(), "fitted": figures(), "healed": figures()}
    made = record(
        accepted={"versions": versions},
        coverage={"stories": TextCoverage(10, 1.0, 0.5), "answers": TextCoverage(9, 0.9, 0.4)},
    )
    out = io.StringIO()
    Console(width=80, file=out).print(revocab_table(made, "title"))
    text = out.getvalue()
    for word in (BEFORE, AFTER, "fitted", "healed", "stories", "100.00%", "40.00%", "0.800–0.950", "3 of 3"):
        assert word in text, text
    assert "…" not in text
