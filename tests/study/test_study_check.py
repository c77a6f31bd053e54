"""The decoder on a sample of a study's questions, held against plain decoding and the replay."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from tests.study.drafted_support import SEED, drafted_config, with_planted
from vocabforge.core.errors import ArtifactError, DataError
from vocabforge.decode.engine import Decoder
from vocabforge.decode.request import Generation, SamplingParams
from vocabforge.decode.trees.shapes import chain
from vocabforge.evaluate.identity.rounding import OutputPosition
from vocabforge.models.lean.model import load_target
from vocabforge.study import stage_check as check
from vocabforge.study.layout import StudyLayout
from vocabforge.study.methods import methods
from vocabforge.study.replay.types import MISSED, Continuation, Replayed
from vocabforge.study.stage_answers import StudyAnswer, Which
from vocabforge.study.stage_check import (
    SampleRequest,
    compare_cycles,
    compare_outputs,
    judge,
)
from vocabforge.study.stage_replay import load_replayed

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def layout(drafted: StudyLayout, tmp_path_factory: pytest.TempPathFactory) -> StudyLayout:
    return StudyLayout(shutil.copytree(drafted.root, tmp_path_factory.mktemp("check") / "study"))


@pytest.fixture(scope="module")
def result(layout: StudyLayout) -> dict[str, Any]:
    check.run(drafted_config(layout.root), layout)
    return check.load_checked(layout)


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> None:
    """A study of two methods."""
    monkeypatch.setattr(check, "methods", lambda *given: methods(*given)[:2])


def elsewhere(layout: StudyLayout, root: Path) -> StudyLayout:
    """The same study without a check."""
    for one in layout.root.iterdir():
        if not one.name.startswith("check"):
            (root / one.name).symlink_to(one)
    return StudyLayout(root)


def test_every_method_is_lossless_and_as_replayed(layout: StudyLayout, result: dict[str, Any]) -> None:
    keys = [way.key for way in methods(drafted_config(layout.root), layout)]
    assert list(result["methods"]) == keys
    assert result["lossless"]
    assert result["as_replayed"]
    totals = result["totals"]
    assert totals["identical"] == totals["outputs"] == len(keys) * 3 * 3
    assert totals["equal_cycles"] == totals["cycles"] > 0
    assert result["questions"] == [["spec", 1], ["spec", 2], ["rare", 1]]
    for way in result["methods"].values():
        made = way["by_seed"][str(SEED)]
        for mode in ("chain", "drawn"):
            assert made[mode]["replay"]["outputs"] == 3
            assert made[mode]["replay"]["replayed_length"] == made[mode]["accepted_length"]
        assert set(made) == set(check.MODES)
        assert "replay" not in made["tree"]
    full = result["methods"][keys[0]]["by_seed"][str(SEED)]
    assert full["chain"]["accepted_length"] > 1.1  # there is something to compare
    assert result["plain"]["greedy"]["identical"] == result["plain"]["drawn"]["identical"] == 3


@pytest.mark.usefixtures("two")
def test_a_killed_check_goes_on_with_the_next_method(
    layout: StudyLayout, result: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    again, config = elsewhere(layout, tmp_path), drafted_config(tmp_path)
    decoded: list[str] = []
    measure = check._Seed.measure

    def until_killed(self: Any, way: Any) -> dict[str, Any]:
        if decoded:
            raise KeyboardInterrupt
        decoded.append(way.key)
        return measure(self, way)

    monkeypatch.setattr(check._Seed, "measure", until_killed)
    with pytest.raises(KeyboardInterrupt):
        check.run(config, again)
    assert not again.checked.exists()
    monkeypatch.setattr(
        check._Seed, "measure", lambda self, way: (decoded.append(way.key), measure(self, way))[1]
    )
    check.run(config, again)
    made = check.load_checked(again)["methods"]
    assert decoded == list(made)  # each once
    assert made == {key: result["methods"][key] for key in decoded}
    monkeypatch.setattr("vocabforge.study.stage_answers.load_target", None)
    check.run(config, again)  # nothing is loaded for what is finished
    with pytest.raises(TypeError):
        check.run(drafted_config(tmp_path, check={"tokens": 8}), again)


@pytest.mark.usefixtures("two")
def test_a_replay_that_differs_is_told(
    layout: StudyLayout,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    again, config = elsewhere(layout, tmp_path), drafted_config(tmp_path)
    key = methods(config, again)[0].key

    def planted(_: StudyLayout, seed: int, which: Which) -> dict[str, Replayed]:
        found = load_replayed(layout, seed, which)
        return with_planted(found, key, 0) if which == "greedy" else found

    monkeypatch.setattr(check, "load_replayed", planted)
    check.run(config, again)
    result = check.load_checked(again)
    assert result["lossless"]
    assert not result["as_replayed"]
    replay = result["methods"][key]["by_seed"][str(SEED)]["chain"]["replay"]
    (different,) = replay["different"]
    assert (different["set"], different["question"], different["start"]) == ("spec", 1, 0)
    assert different["decoded"] != different["replayed"]
    assert replay["equal"] == replay["cycles"] - 1
    assert "not the replay's, first spec 1 from token 1" in capsys.readouterr().err


def test_outputs_that_differ_are_faults(
    layout: StudyLayout,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """A decoder that writes another token now and then is found out, greedily and drawn."""
    again, config = elsewhere(layout, tmp_path), drafted_config(tmp_path, check={"questions": 1})
    generate = Decoder.generate_batch

    def spoilt(self: Decoder, requests: Any) -> list[Generation]:
        made = generate(self, requests)
        if self.proposer is not None:
            made[0].token_ids[4] = (made[0].token_ids[4] + 1) % 250
        return made

    monkeypatch.setattr(Decoder, "generate_batch", spoilt)
    monkeypatch.setattr(check, "methods", lambda *given: methods(*given)[:1])
    check.run(config, again)
    result = check.load_checked(again)
    assert not result["lossless"]
    assert result["totals"] | {"cycles": 0, "equal_cycles": 0} == {
        "outputs": 6,
        "identical": 3,
        "near_tied": 0,
        "faults": 3,
        "not_judged": 0,
        "cycles": 0,
        "equal_cycles": 0,
    }
    (way,) = result["methods"].values()
    made = way["by_seed"][str(SEED)]
    for mode in check.MODES:
        (one,) = made[mode]["different"]
        assert (one["set"], one["question"], one["position"], one["judgement"]) == ("spec", 1, 4, "fault")
        assert one["expected"] != one["got"]
    assert made["chain"]["replay"]["outputs"] == 1  # another text has other cycles
    assert "1 outputs are not plain decoding's, first spec 1, token 5" in capsys.readouterr().err


def test_near_ties_are_told_from_faults(layout: StudyLayout) -> None:
    model = load_target(layout.target)
    decoder, prompt = Decoder(model), (40, 41, 42)
    alone = decoder.generate(prompt, max_new_tokens=2, stop_ids=(), temperature=0).token_ids
    best = alone[1]
    model.lm_head_weight.data[best + 1] = model.lm_head_weight[best]
    place = OutputPosition(prompt, (alone[0],))
    greedy = SamplingParams()
    found = judge(model, place, (best, best + 1), greedy, ())
    assert found["judgement"] == "near-tied"
    assert found["gap"] == 0
    assert judge(model, place, (best, best + 2), greedy, ())["judgement"] == "fault"
    assert judge(model, place, (best, None), greedy, ())["judgement"] == "fault"


def test_draws_are_near_ties_only_at_the_border_of_the_number(
    layout: StudyLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request's own random number decides: the token beside its height is near where rounding reaches it."""
    model, prompt = load_target(layout.target), (40, 41, 42)
    seed = 5
    drawn = Decoder(model).generate(prompt, max_new_tokens=2, stop_ids=(), temperature=1, seed=seed).token_ids
    place, sampling = OutputPosition(prompt, (drawn[0],)), SamplingParams(1.0, seed=seed)
    assert judge(model, place, (drawn[1], drawn[1]), sampling, ())["judgement"] == "near-tied"
    other = [token for token in range(0, 270, 9) if token != drawn[1]]
    found = [judge(model, place, (drawn[1], token), sampling, ())["judgement"] for token in other]
    assert set(found) == {"fault"}
    monkeypatch.setattr("vocabforge.study.stage_check.TOLERANCE", 1e12)
    assert judge(model, place, (drawn[1], other[0]), sampling, ())["judgement"] == "near-tied"


def asked(*tokens: int) -> SampleRequest:
    return SampleRequest(StudyAnswer("s", "c", 1, Continuation((1, 2), tokens)), SamplingParams())


def test_cycles_are_compared_up_to_the_end_of_the_output() -> None:
    """Behind a stop or the limit the replay knows nothing; the engine's last cycle may go on there."""
    ranks = np.array([[0, 0], [0, 0], [3, MISSED], [0, 0], [0, MISSED]], np.uint8)
    request = asked(9, 8, 7, 6, 5, 4)
    whole = Generation([9, 8, 7, 6, 5, 4], [3, 3])
    found = compare_cycles([whole], [request], [ranks], chain(2))
    assert (found["cycles"], found["equal"], found["different"]) == (2, 2, [])
    cut = compare_cycles([Generation([9, 8, 7, 6, 5], [3, 3])], [request], [ranks], chain(2))
    assert (cut["cycles"], cut["equal"], cut["accepted_length"]) == (2, 2, 2.0)  # 3, and 1 of 3
    wrong = compare_cycles([Generation([9, 8, 7, 6], [2, 1])], [request], [ranks], chain(2))
    assert wrong["different"] == [{"set": "s", "question": 1, "start": 0, "decoded": 2, "replayed": 3}]
    other = compare_cycles([Generation([9, 8, 1], [3])], [request], [ranks], chain(2))
    assert (other["outputs"], other["cycles"], other["accepted_length"]) == (0, 0, None)
    single = compare_cycles([Generation([9], [])], [request], [ranks], chain(2))
    assert (single["outputs"], single["cycles"]) == (1, 0)


def test_an_output_that_ends_elsewhere_is_a_fault(layout: StudyLayout) -> None:
    model = load_target(layout.target)
    found = compare_outputs([[9, 8]], [[9, 8, 7]], [asked(9, 8, 7)], model, ())
    (one,) = found["different"]
    assert (one["position"], one["expected"], one["got"], one["judgement"]) == (2, 7, None, "fault")


@pytest.mark.usefixtures("two")
def test_what_cannot_be_held_together_is_refused(
    layout: StudyLayout, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    again = elsewhere(layout, tmp_path)
    config = drafted_config(tmp_path)
    with pytest.raises(ValidationError, match=r"check\.tokens 13 is more than answers\.tokens 12"):
        drafted_config(tmp_path, check={"tokens": 13})
    monkeypatch.setattr(check, "load_replayed", lambda *_: {})
    with pytest.raises(ArtifactError, match="replay is not of these answers"):
        check.run(config, again)
    short = {
        key: Replayed(one.ranks[1:], one.scored) for key, one in load_replayed(layout, SEED, "greedy").items()
    }
    monkeypatch.setattr(check, "load_replayed", lambda *_: short)
    with pytest.raises(ArtifactError, match="rows of"):
        check.run(config, again)
    with pytest.raises(DataError, match="check of the study"):
        check.load_checked(again)
    again.checked.write_text(json.dumps({"schema_version": 0}))
    with pytest.raises(DataError, match="another version"):
        check.load_checked(again)
