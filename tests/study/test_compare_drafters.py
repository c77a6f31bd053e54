"""``recipes/study/drafters.py``: variants of one recipe trained, decoded and compared on a tiny target."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from drafters import cells, read_variants, summarise

from tests.train.run_support import make_place, write_config
from tests.worlds import ROOT
from vocabforge.core.errors import ConfigError


def test_the_recipes_hold_variants_that_train_drafter_takes() -> None:
    for name in ("drafters", "losses"):
        configs, drafts = read_variants(
            ROOT / "recipes" / "tiny" / f"{name}.yaml", ["target=.", "optim.lr=0.5"]
        )
        assert drafts == 4
        assert all(config.optim.lr == 0.5 for config in configs.values())
        different = {json.dumps(config.model_dump(mode="json")) for config in configs.values()}
        assert len(different) == len(configs) >= 6


def test_a_variant_with_an_unknown_key_is_named(tmp_path: Path) -> None:
    path = tmp_path / "variants.yaml"
    (tmp_path / "base.yaml").write_text("target: .\noutput: x\ndata: {train: [a]}\noptim: {steps: 1}\n")
    path.write_text("recipe: base.yaml\nvariants: {plain: {}, odd: {ttt.loos: kl}}\n")
    with pytest.raises(ConfigError) as caught:
        read_variants(path, ["target=."])
    text = caught.value.render()
    assert "variant odd" in text
    assert "ttt.loos" in text


def test_shares_are_of_the_same_seed() -> None:
    def one(length: float) -> dict[str, Any]:
        made = dict.fromkeys(("sampled_accepted_length", "simulated", "simulated_sampled"), length + 1)
        return made | {"accepted_length": length, "drafts": 4, "identical": 2, "prompts": 2}

    first, other = summarise(
        {0: {"a": one(2.0), "b": one(1.0)}, 3: {"a": one(4.0), "b": one(3.0)}}
    )  # 1/2 and 3/4; at temperature 1 2/3 and 4/5
    assert first["accepted_length_share"] == {"mean": 1.0, "deviation": 0.0}
    assert cells(other)[:6] == (
        "b",
        "4",
        "2.000 ± 1.414",
        "62.5% ± 17.7%",
        "3.000 ± 1.414",
        "73.3% ± 9.4%",
    )


@pytest.mark.long
def test_variants_are_trained_compared_and_taken_over(tmp_path: Path) -> None:
    place = make_place(tmp_path)
    write_config(
        place, "base", optim={"steps": 4}, run={"eval_every": 4, "checkpoint_every": 4, "eval_rows": 3}
    )
    (place / "variants.yaml").write_text(
        "recipe: base.yaml\nkeys: {run.live.prompts: 0}\ndrafts: 3\nvariants:\n"
        "  kl: {}\n  dspark: {drafter.kind: dspark, drafter.block_size: 2, ttt.loss: tv}\n"
    )
    words = [sys.executable, ROOT / "recipes/study/drafters.py", "--config", place / "variants.yaml"]
    words += ["--seeds", "0,1", "--prompts", "3", "--max-new-tokens", "12", "--output", place / "out"]

    def compare() -> dict[str, Any]:
        made = subprocess.run(words, capture_output=True, text=True, check=True)
        assert "dspark" in made.stdout
        return dict(json.loads((place / "out" / "results.json").read_text("utf-8")))

    result = compare()
    assert [(row["variant"], row["drafts"]) for row in result["table"]] == [("kl", 3), ("dspark", 2)]
    for row in result["table"]:
        assert row["identical"] == row["outputs"] == 2 * 3
        for figure in ("accepted_length", "sampled_accepted_length", "simulated", "simulated_sampled"):
            assert 1.0 <= row[figure]["mean"] <= row["drafts"] + 1
    seeds = result["seeds"]
    assert seeds["0"]["kl"] != seeds["1"]["kl"]
    weights = place / "out" / "seed-1" / "kl" / "drafter" / "drafter.safetensors"
    before = weights.stat().st_mtime_ns
    assert compare() == result
    assert weights.stat().st_mtime_ns == before
