"""The table of stages: what must be finished before, and with which settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.study.training_support import study_config
from vocabforge.core.artifact import write_artifact
from vocabforge.core.errors import DataError, UsageError
from vocabforge.core.files import read_json
from vocabforge.study.config import StudyConfig, StudyLayout
from vocabforge.study.stages import run as stages
from vocabforge.study.stages.run import STAGES, perform, seed_digest


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Stages that do nothing but say that they ran."""
    found: list[str] = []

    def attribute(path: str) -> Any:
        name = next(name for name, stage in STAGES.items() if stage.run == path)
        return lambda config, layout, seed=None: found.append(name if seed is None else f"{name} {seed}")

    monkeypatch.setattr(stages, "load_attribute", attribute)
    return found


@pytest.fixture
def config(tmp_path: Path) -> StudyConfig:
    return study_config(tmp_path / "study", seeds=(0, 1, 2))


def changed(config: StudyConfig, section: str, **values: Any) -> StudyConfig:
    return config.model_copy(update={section: getattr(config, section).model_copy(update=values)})


def test_all_run_in_order(config: StudyConfig, ran: list[str]) -> None:
    perform(config, ["all"])
    seeds = [f"{name} {seed}" for name in ("drafters", "replay") for seed in (0, 1, 2)]
    assert ran == ["data", "target", "answers", "vocab", *seeds, "check", "report"]
    record = read_json(config.output / "stages.json", "record")
    assert all(row["finished"] for row in record.values())


def test_more_seeds_need_the_stages_of_seeds_again(config: StudyConfig, ran: list[str]) -> None:
    perform(config.model_copy(update={"seeds": (0,)}), ["all"])
    with pytest.raises(DataError, match="other settings: drafters"):
        perform(config, ["replay"])
    perform(config, ["drafters", "replay", "check"])
    assert ran[-1] == "check"


@pytest.mark.parametrize(
    ("section", "values", "stage"),
    [
        ("drafters", {"steps": 7}, "drafters"),
        ("replay", {"levels": 5}, "replay"),
        ("target", {"num_layers": 6}, "target"),
    ],
)
def test_results_of_other_settings_are_not_taken_over(
    config: StudyConfig, ran: list[str], section: str, values: dict[str, Any], stage: str
) -> None:
    perform(config, ["all"])
    other = changed(config, section, **values)
    with pytest.raises(DataError, match="other settings: check"):
        perform(other, ["report"])
    before = read_json(config.output / "config.json", "configuration")
    assert before == config.model_dump(mode="json"), (
        "a refused command must leave the record of the study alone"
    )
    later = [name for name in STAGES if name not in ("data", "report")]
    perform(other, [name for name in later if later.index(name) >= later.index(stage)])
    perform(other, ["report"])


def test_seeds_that_were_replayed_need_no_drafters(config: StudyConfig, ran: list[str]) -> None:
    """One seed after the other, its folder gone when the next one begins; the last is checked with its drafters."""
    layout = StudyLayout(config.output)

    def replayed(seed: int, of: StudyConfig) -> None:
        with write_artifact(layout.replayed(seed), "study-replay", {"settings": seed_digest(of, seed)}):
            pass

    def by_seed(seeds: tuple[int, ...], *names: str) -> list[str]:
        ran.clear()
        perform(config.model_copy(update={"seeds": seeds}), [*names])
        return [one for one in ran if one[-1].isdigit()]

    perform(config, ["data", "target", "answers", "vocab"])
    assert by_seed((2,), "drafters", "replay") == ["drafters 2", "replay 2"]
    replayed(2, config)
    assert by_seed((1, 2), "drafters", "replay") == ["drafters 1", "replay 1"]
    replayed(1, changed(config, "replay", levels=5))  # with other settings: it counts for nothing
    assert by_seed((0, 1, 2), "drafters", "replay") == [
        f"{s} {n}" for s in ("drafters", "replay") for n in (0, 1)
    ]
    replayed(0, config)  # not checked: its drafters are needed once more
    assert by_seed((0, 2), "drafters", "replay", "check") == ["drafters 0", "replay 0"]
    assert by_seed((0, 2), "drafters", "replay") == []
    layout.seed(2).mkdir()  # they are there: nothing is assumed
    assert by_seed((0, 2), "drafters") == ["drafters 2"]


def test_an_interrupted_stage_is_not_finished(
    config: StudyConfig, ran: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    perform(config, ["data"])

    def stopped(config: StudyConfig, layout: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(stages, "load_attribute", lambda path: stopped)
        with pytest.raises(KeyboardInterrupt):
            perform(config, ["target"])
    with pytest.raises(DataError, match="not finished: target"):
        perform(config, ["answers"])


@pytest.mark.parametrize(
    ("names", "said"),
    [([], "no stage is named"), (["dada"], "no such stage")],
)
def test_what_cannot_be_run(config: StudyConfig, ran: list[str], names: list[str], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        perform(config, names)
    assert said in caught.value.render()
    assert ran == []
