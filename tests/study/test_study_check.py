"""The decoder on a sample of a study's questions, held against plain decoding and the replay."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.study.drafted_support import SEED, drafted_config, with_planted
from vocabforge.decode.engine import Decoder
from vocabforge.decode.request import Generation, SamplingParams
from vocabforge.decode.trees.shapes import chain
from vocabforge.evaluate.identity.rounding import OutputPosition
from vocabforge.models.lean.model import load_target
from vocabforge.study.config import StudyLayout
from vocabforge.study.methods import methods
from vocabforge.study.replay.stage import load_replayed
from vocabforge.study.replay.types import MISSED, Continuation, Replayed
from vocabforge.study.report.results import Checked
from vocabforge.study.stages import check
from vocabforge.study.stages.answers import StudyAnswer, Which
from vocabforge.study.stages.check import TREE, compare_cycles, compare_outputs, judge

pytestmark = pytest.mark.long
CHAIN = "chain, greedy"


@pytest.fixture(scope="module")
def layout(drafted: StudyLayout, tmp_path_factory: pytest.TempPathFactory) -> StudyLayout:
    return StudyLayout(shutil.copytree(drafted.root, tmp_path_factory.mktemp("check") / "study"))


@pytest.fixture(scope="module")
def result(layout: StudyLayout) -> Checked:
    check.run(drafted_config(layout.root), layout)
    return read_checked(layout)


def read_checked(layout: StudyLayout) -> Checked:
    return Checked.model_validate_json(layout.checked.read_text("utf-8"))


def details(layout: StudyLayout, key: str) -> dict[str, Any]:
    """What a method did, by mode."""
    return dict(json.loads((layout.root / "check" / f"seed-{SEED}" / f"{key}.json").read_text())["result"])


@pytest.fixture
def again(layout: StudyLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StudyLayout:
    """The same study without a check, of two methods."""
    for one in layout.root.iterdir():
        if not one.name.startswith("check"):
            (tmp_path / one.name).symlink_to(one)
    monkeypatch.setattr(check, "methods", lambda *given: methods(*given)[:2])
    return StudyLayout(tmp_path)


def test_every_method_is_lossless_and_as_replayed(layout: StudyLayout, result: Checked) -> None:
    keys = [way.key for way in methods(drafted_config(layout.root), layout)]
    assert list(result.lengths) == keys
    assert result.questions == 3
    for one in result.modes:
        assert one.identical == one.outputs == len(keys) * 3
        assert one.equal_cycles == one.cycles
        assert (one.cycles > 0) == (one.mode != TREE)
    made = details(layout, keys[0])[CHAIN]
    assert made["accepted_length"] == result.lengths[keys[0]][CHAIN] > 1.1  # there is something to compare
    assert made["replay"]["outputs"] == 3


def test_a_replay_that_differs_is_found(
    layout: StudyLayout, again: StudyLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = drafted_config(again.root)
    key = methods(config, again)[0].key

    def planted(_: StudyLayout, seed: int, which: Which) -> dict[str, Replayed]:
        found = load_replayed(layout, seed, which)
        return with_planted(found, key, 0) if which == "greedy" else found

    monkeypatch.setattr(check, "load_replayed", planted)
    check.run(config, again)
    result = read_checked(again)
    assert all(one.identical == one.outputs for one in result.modes)
    assert any(one.equal_cycles < one.cycles for one in result.modes)
    (different,) = details(again, key)[CHAIN]["replay"]["different"]
    assert (different["set"], different["question"], different["start"]) == ("spec", 1, 0)
    assert different["decoded"] != different["replayed"]


def test_outputs_that_differ_are_faults(again: StudyLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    """A decoder that writes another token now and then is found out, greedily and drawn."""
    generate = Decoder.generate_batch

    def spoilt(self: Decoder, requests: Any) -> list[Generation]:
        made = generate(self, requests)
        made[0].token_ids[4] = (made[0].token_ids[4] + 1) % 250
        return made

    monkeypatch.setattr(Decoder, "generate_batch", spoilt)
    check.run(drafted_config(again.root, check={"questions": 1}), again)
    result = read_checked(again)
    for one in result.modes:
        assert (one.outputs, one.identical, one.faults) == (4, 2, 2)
        for key in result.lengths:
            (different,) = details(again, key)[one.mode]["different"]
            assert (different["set"], different["question"], different["position"]) == ("spec", 1, 4)
            assert different["expected"] != different["got"]
            assert one.mode == TREE or details(again, key)[one.mode]["replay"]["outputs"] == 1


def test_near_ties_are_told_from_faults(layout: StudyLayout) -> None:
    model = load_target(layout.target)
    decoder, prompt = Decoder(model), (40, 41, 42)
    alone = decoder.generate(prompt, max_new_tokens=2, stop_ids=(), temperature=0).token_ids
    best = alone[1]
    model.lm_head_weight.data[best + 1] = model.lm_head_weight[best]
    place = OutputPosition(prompt, (alone[0],))
    for other, judgement in ((best + 1, "near-tied"), (best + 2, "fault"), (None, "fault")):
        assert judge(model, place, (best, other), SamplingParams()) == judgement


def test_draws_are_near_ties_only_at_the_border_of_the_number(
    layout: StudyLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request's own random number decides: the token beside its height is near where rounding reaches it."""
    model, prompt = load_target(layout.target), (40, 41, 42)
    drawn = Decoder(model).generate(prompt, max_new_tokens=2, stop_ids=(), temperature=1, seed=5).token_ids
    place, sampling = OutputPosition(prompt, (drawn[0],)), SamplingParams(1.0, seed=5)
    assert judge(model, place, (drawn[1], drawn[1]), sampling) == "near-tied"
    other = [token for token in range(0, 270, 9) if token != drawn[1]]
    assert {judge(model, place, (drawn[1], token), sampling) for token in other} == {"fault"}
    monkeypatch.setattr("vocabforge.study.stages.check.TOLERANCE", 1e12)
    assert judge(model, place, (drawn[1], other[0]), sampling) == "near-tied"


def asked(*tokens: int) -> StudyAnswer:
    return StudyAnswer("s", "c", 1, Continuation((1, 2), tokens))


def test_cycles_are_compared_up_to_the_end_of_the_output() -> None:
    """Behind a stop or the limit the replay knows nothing; the engine's last cycle may go on there."""
    ranks = np.array([[0, 0], [0, 0], [3, MISSED], [0, 0], [0, MISSED]], np.uint8)

    def compared(tokens: list[int], lengths: list[int]) -> dict[str, Any]:
        return compare_cycles([Generation(tokens, lengths)], [asked(9, 8, 7, 6, 5, 4)], [ranks], chain(2))

    for tokens in ([9, 8, 7, 6, 5, 4], [9, 8, 7, 6, 5]):  # the second is cut within its last cycle
        found = compared(tokens, [3, 3])
        assert (found["cycles"], found["equal"], found["different"]) == (2, 2, [])
    wrong = compared([9, 8, 7, 6], [2, 1])
    assert wrong["different"] == [{"set": "s", "question": 1, "start": 0, "decoded": 2, "replayed": 3}]
    assert [compared([9, 8, 1], [3])[name] for name in ("outputs", "cycles")] == [0, 0]  # another text
    assert [compared([9], [])[name] for name in ("outputs", "cycles")] == [1, 0]


def test_an_output_that_ends_elsewhere_is_a_fault() -> None:
    found = compare_outputs([Generation([9, 8], [])], [asked(9, 8, 7)], 3, None, "greedy")  # type: ignore[arg-type]
    (one,) = found["different"]
    assert (one["position"], one["expected"], one["got"], one["judgement"]) == (2, 7, None, "fault")
