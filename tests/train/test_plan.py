"""What ``--plan`` finds before a run would, and what it counts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tests.train.run_support import config
from tests.worlds import ROOT
from vocabforge.core.errors import ArtifactError, DataError, MismatchError
from vocabforge.corpus.tokenizer.tokenizer import load_tokenizer
from vocabforge.models.drafters.medusa import MedusaConfig, MedusaDrafter
from vocabforge.models.drafters.registry import drafter_sizes, new_drafter
from vocabforge.train.data import prepare
from vocabforge.train.plan import (
    count_target,
    flop_a_token,
    loss_workspace,
    plan,
    share_of_state,
    trained_state,
)


def planned(place: Path, **sections: dict[str, Any]) -> dict[str, Any]:
    return plan(config(place, "run", **sections))


@pytest.fixture(scope="module")
def prepared(place: Path) -> Path:
    data = config(place, "run").data
    return prepare(data, load_tokenizer(place / "target"), place / "cache").artifact.path


def over(prepared: Path, **data: Any) -> dict[str, Any]:
    return {"train": [], "prepared": str(prepared), **data}


def test_inputs_are_looked_for(place: Path) -> None:
    found = planned(place, optim={"steps": 10, "batch_size": 3})["data"]
    assert found == {"inputs": 1, "heldout_inputs": 0}
    assert planned(place, data={"train": ["hub:owner/name"]})["data"]["inputs"] == 1
    for key in ("train", "heldout"):
        with pytest.raises(DataError, match=r"(?s)the input is missing.*nowhere.jsonl"):
            planned(place, data={key: [str(place / "nowhere.jsonl")]})


def test_a_drafter_or_vocabulary_that_cannot_be_opened(place: Path, tmp_path: Path) -> None:
    for drafter in ({"init": str(tmp_path)}, {"vocab": str(tmp_path), "head": "own"}):
        with pytest.raises(ArtifactError):
            planned(place, drafter=drafter)


def test_a_drafter_of_another_target_is_refused(place: Path, tmp_path: Path) -> None:
    from tests.worlds import tiny_drafter
    from vocabforge.models.drafters.io import save_drafter
    from vocabforge.models.target.fingerprint import target_fingerprint
    from vocabforge.models.target.hf import HFTarget

    drafter = tiny_drafter(HFTarget.load(place / "target"))
    for name, print_of in (("own", target_fingerprint(place / "target")), ("other", "x" * 64)):
        save_drafter(tmp_path / name, drafter, {"target_fingerprint": print_of})
    planned(place, drafter={"init": str(tmp_path / "own")})
    with pytest.raises(MismatchError, match="trained for another target"):
        planned(place, drafter={"init": str(tmp_path / "other")})


def test_prepared_rows_and_epochs(place: Path, prepared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = planned(place, data=over(prepared, sequence_length=256), optim={"steps": 2, "batch_size": 3})
    rows = prepare(config(place, "run").data, load_tokenizer(place / "target"), place / "cache")
    figures = rows.figures["train"]
    assert found["data"] == {
        "rows": len(rows.train),
        "heldout_rows": len(rows.heldout),
        "tokens": figures["tokens"],
        "learnt_tokens": figures["counted"],
        "epochs": pytest.approx(6 / len(rows.train), abs=1e-3),
    }
    assert found["config"]["data"]["sequence_length"] == 64
    told = capsys.readouterr().err
    assert "sequence_length 64 (not 256)" in " ".join(told.split())


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


# hidden, layers' sizes and vocabulary of published configurations; P is what their heads say: all minus both ends.
SHAPES = {
    "llama3-8b-instruct": (4096, 14336, 32, 8, 128256, 8.03e9 - 2 * 128256 * 4096),
    "qwen3-0.6b": (1024, 3072, 16, 8, 151936, 0.596e9 - 151936 * 1024),
    **dict.fromkeys(
        ("qwen3-8b", "qwen3-8b-eagle3.1"), (4096, 12288, 32, 8, 151936, 8.19e9 - 2 * 151936 * 4096)
    ),
}


def shown(recipe: str, what: str) -> float:
    """A figure of a recipe's head, in GFLOP."""
    head = (ROOT / "recipes" / "models" / f"{recipe}.yaml").read_text("utf-8")
    found = re.search(rf"{re.escape(what)} = ([\d.]+)", " ".join(head.replace("#", " ").split()))
    assert found is not None, what
    return float(found[1])


@pytest.mark.parametrize("recipe", SHAPES)
def test_a_token_costs_what_the_recipe_says(recipe: str) -> None:
    hidden, wide, heads, kv, vocab, below = SHAPES[recipe]
    target = {
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": wide,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "vocab_size": vocab,
        "head_dim": 128,
        "num_hidden_layers": 36,
        "max_position_embeddings": 4096,
    }
    meta = torch.empty(vocab, hidden, device="meta")
    with torch.device("meta"):
        drafter = new_drafter("eagle3", drafter_sizes("eagle3", target), meta, meta, None)
    ranker = {"ranker": hidden // 8 * (vocab + hidden)} if recipe == "qwen3-8b" else {}
    found = flop_a_token(int(below), drafter, ranker, steps=7, passes=7)
    assert found["target"] / 1e9 == pytest.approx(shown(recipe, "target 2P"), abs=0.06)
    assert found["drafter"] / 1e9 == pytest.approx(shown(recipe, "drafter 6PK"), abs=0.06)
    assert found["vocabulary"] / 1e9 == pytest.approx(shown(recipe, "vocabulary Vd(4K + 2)"), abs=0.06)
    if ranker:
        assert found["ranker"] / 1e9 == pytest.approx(shown(recipe, "ranker 6PK"), abs=0.06)
    assert found["total"] == sum(size for name, size in found.items() if name != "total")


def test_own_heads_and_frozen_drafters() -> None:
    meta, tiny = torch.empty(100, 8, device="meta"), {"medusa_heads": 3}
    own, shared = (
        MedusaDrafter(MedusaConfig(8, 100, rows, 64, **tiny), meta, meta, ids)
        for rows, ids in ((40, torch.arange(40)), (None, None))
    )
    blocks = 3 * (8 * 8 + 8)
    assert flop_a_token(None, own, {}, steps=3, passes=1) == {
        "drafter": 6 * blocks,
        "vocabulary": 8 * (6 * 40 * 3 + 2 * 100),
        "total": 6 * blocks + 7360,
    }
    assert flop_a_token(10, shared, {"a": 216}, steps=3, passes=1, freeze=True) == {
        "target": 20,
        "drafter": 2 * blocks,
        "vocabulary": 8 * (2 * 100 * 3 + 2 * 100),
        "a": 6 * 216 * 3,
        "total": 20 + 2 * blocks + 6400 + 3888,
    }


def test_a_state_is_divided_as_the_strategy_divides_it() -> None:
    state = trained_state(100, "bf16")  # weights 200, gradients 200, moments 800, masters 400
    assert [share_of_state(state, 4, stage) for stage in (0, 1, 2, 3)] == [1600, 700, 550, 400]
    assert share_of_state(state, 1, 3) == 1600


def test_the_loss_works_in_its_chunk_or_in_less() -> None:
    assert loss_workspace("auto", 1, 10, 100) == 4 * 4 * 10 * 100
    assert loss_workspace("auto", 1, 10_000, 1000) == loss_workspace("fused", 1, 10, 100) == 1 << 20
    assert loss_workspace("naive", 1, 10_000, 1000) == 16 * 10**7


def test_a_target_is_counted_by_its_headers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert count_target(tmp_path) is None
    assert "a run would stop here" in capsys.readouterr().err
    tensors = {
        "model.embed_tokens.weight": torch.zeros(10, 4),
        "lm_head.weight": torch.zeros(10, 4),
        "model.layers.0.w": torch.zeros(4, 4),
    }
    save_file(tensors, tmp_path / "model.safetensors")
    found = count_target(tmp_path)
    assert found == (96, 80)
    save_file({**tensors, "packed": torch.zeros(4, dtype=torch.uint8)}, tmp_path / "model.safetensors")
    assert count_target(tmp_path) is None
