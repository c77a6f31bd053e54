"""Any number of auxiliary layers: training, the artefact and the decode engine read the same ones."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.decode.drafting import PROMPT, head_of, make_drafter, watch_rows
from vocabforge.decode.engine import Decoder
from vocabforge.decode.proposers.registry import tree_proposer
from vocabforge.decode.tree import TreeSettings
from vocabforge.layouts.registry import load_drafter
from vocabforge.models.drafters.io import TargetTensors, save_drafter
from vocabforge.models.lean.model import load_target
from vocabforge.models.target.hf import HFTarget


@pytest.mark.parametrize("layers", [(0,), (4,), (0, 2), (3, 1), (1, 2, 3), (0, 1, 2, 3, 4)])
@torch.inference_mode()
def test_the_engine_feeds_the_layers_of_the_artefact(
    layers: tuple[int, ...], tiny_folder: Path, tmp_path: Path
) -> None:
    target, lean = HFTarget.load(tiny_folder, aux_layers=layers), load_target(tiny_folder)
    drafter = make_drafter("eagle3", tiny_folder, target, aux_layers=layers)
    assert drafter.fc.weight.shape == (32, 32 * len(layers))
    save_drafter(tmp_path / "d", drafter, {})
    loaded, _ = load_drafter(tmp_path / "d", TargetTensors(lean.embedding, lean.lm_head_weight), tiny_folder)
    assert loaded.config.aux_layers == layers
    proposer = tree_proposer(lean, loaded, head_of(loaded), TreeSettings(2, 2, 7))
    rows, _ = watch_rows(proposer)
    result = Decoder(lean, proposer).generate(PROMPT, max_new_tokens=12, stop_ids=())
    found = torch.cat(rows)
    text = torch.tensor([(PROMPT + result.token_ids)[: len(found)]])
    states = target.capture(text, torch.arange(text.shape[1])[None], torch.ones_like(text))
    torch.testing.assert_close(found[: text.shape[1]], states.features[0], rtol=0, atol=5e-4)
    torch.testing.assert_close(
        loaded.fuse(found[: text.shape[1]]), drafter.fuse(states.features[0]), rtol=1e-3, atol=2e-3
    )
