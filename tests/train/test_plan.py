"""What ``--plan`` finds before a run would, and what it counts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.train.run_support import make_place, settings
from vocabforge.core.config import parse_config
from vocabforge.core.errors import ArtifactError, DataError, MismatchError, UsageError
from vocabforge.corpus.tokenizer import load_tokenizer
from vocabforge.train.config import TrainConfig
from vocabforge.train.data import prepare
from vocabforge.train.plan import plan, trained_state


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_place(tmp_path_factory.mktemp("plan"))


def planned(place: Path, **sections: dict[str, Any]) -> dict[str, Any]:
    return plan(parse_config(TrainConfig, settings(place, "run", **sections), source="test"))


@pytest.fixture(scope="module")
def prepared(place: Path) -> Path:
    config = parse_config(TrainConfig, settings(place, "run"), source="test")
    made = prepare(config.data, load_tokenizer(place / "target"), cache=place / "cache")
    return made.prepared.artifact.path


def over(prepared: Path, **data: Any) -> dict[str, Any]:
    return {"train": [], "prepared": str(prepared), **data}


def test_inputs_are_looked_for(place: Path) -> None:
    size = (place / "texts.jsonl").stat().st_size
    found = planned(place, optim={"steps": 10, "batch_size": 3})["data"]
    assert found == {
        "inputs": 1,
        "heldout_inputs": 0,
        "input_bytes": size,
        "epochs_about": pytest.approx(10 * 3 * 64 * 4 / size, rel=0.1),
    }
    assert planned(place, data={"train": ["hub:owner/name"]})["data"]["inputs"] == 1
    assert planned(place, data={"train": ["hub:owner/name"]})["data"]["epochs_about"] is None
    for key in ("train", "heldout"):
        with pytest.raises(DataError, match=r"(?s)the input is missing.*nowhere.jsonl"):
            planned(place, data={key: [str(place / "nowhere.jsonl")]})


def test_rows_beyond_the_context_are_refused(place: Path) -> None:
    limit = json.loads((place / "target" / "config.json").read_text())["max_position_embeddings"]
    planned(place, data={"sequence_length": limit})
    with pytest.raises(UsageError, match=f"(?s)longer than the target's context.*at most {limit}"):
        planned(place, data={"sequence_length": limit + 1})


def test_a_drafter_or_vocabulary_that_cannot_be_opened(place: Path, tmp_path: Path) -> None:
    for drafter in ({"init": str(tmp_path)}, {"vocab": str(tmp_path), "head": "own"}):
        with pytest.raises(ArtifactError):
            planned(place, drafter=drafter)


def test_a_drafter_of_another_target_is_refused(place: Path, tmp_path: Path) -> None:
    from tests.support import tiny_drafter
    from vocabforge.models.drafter_io import save_drafter
    from vocabforge.models.fingerprint import target_fingerprint
    from vocabforge.models.target import HFTarget

    drafter = tiny_drafter(HFTarget.load(place / "target"))
    for name, print_of in (("own", target_fingerprint(place / "target")), ("other", "x" * 64)):
        save_drafter(tmp_path / name, drafter, {"target_fingerprint": print_of})
    planned(place, drafter={"init": str(tmp_path / "own")})
    with pytest.raises(MismatchError, match="trained for another target"):
        planned(place, drafter={"init": str(tmp_path / "other")})


def test_prepared_rows_and_epochs(place: Path, prepared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = planned(place, data=over(prepared, sequence_length=256), optim={"steps": 2, "batch_size": 3})
    rows = prepare(
        parse_config(TrainConfig, settings(place, "run"), source="t").data, load_tokenizer(place / "target")
    )
    figures = rows.figures["train"]
    assert found["data"] == {
        "rows": len(rows.train),
        "heldout_rows": len(rows.heldout),
        "tokens": figures["tokens"],
        "counted_tokens": figures["counted"],
        "epochs": pytest.approx(6 / len(rows.train), abs=1e-3),
    }
    assert found["config"]["data"]["sequence_length"] == 64
    told = capsys.readouterr().err
    assert "sequence_length 64 (not 256)" in " ".join(told.split())
    assert f"not all of the {len(rows.train)} packed rows would be seen" in " ".join(told.split())
    steps = 101 * len(rows.train)
    planned(place, data=over(prepared), optim={"steps": steps, "batch_size": 1})
    assert "Warning: each of the" in (told := " ".join(capsys.readouterr().err.split()))
    assert f"would be seen 101 times ({steps:,} steps of 1 rows)" in told
    assert f"optim.steps={100 * len(rows.train)} is 100 times" in told
    planned(place, data=over(prepared), optim={"steps": len(rows.train), "batch_size": 1})
    assert "would be seen" not in capsys.readouterr().err


def test_prepared_data_of_another_tokenizer_are_refused(place: Path, prepared: Path, tmp_path: Path) -> None:
    shutil.copytree(place / "target", tmp_path / "target")
    path = tmp_path / "target" / "tokenizer.json"
    path.write_text(path.read_text().replace("<|bos|>", "<|BOS|>"))
    with pytest.raises(MismatchError, match="different tokenizers"):
        plan(
            parse_config(
                TrainConfig,
                {**settings(place, "run", data=over(prepared)), "target": str(tmp_path / "target")},
                source="test",
            )
        )


def test_trained_state_is_sixteen_bytes_a_parameter(place: Path) -> None:
    found = planned(place, heads={"low_rank": {"rank": 4}})
    number = found["drafter"]["trained_parameters"] + found["heads"]["low_rank"]
    assert found["trained_state_bytes"] == {
        "weights": 4 * number,
        "gradients": 4 * number,
        "moments": 8 * number,
        "masters": 0,
        "total": 16 * number,
    }
    assert list(trained_state(10, "bf16").values()) == [20, 20, 80, 40, 160]
