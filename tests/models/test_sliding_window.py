"""EAGLE-3 drafters with a sliding window: training, every way of decoding, layouts."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.decode.drafting import chain_logits, commit_rows, make_drafter
from tests.decode.recording import same_as_eager
from tests.export.readers_support import eagle3, make_tiny, write
from tests.models.test_eagle3_variants import STEPS, Served, variant
from tests.train.ttt_reference import capture, documents, pack
from vocabforge.core.errors import ConfigError, DataError, MismatchError
from vocabforge.decode.engine import Decoder
from vocabforge.decode.positions import CapturedPositions, Positions
from vocabforge.decode.proposers.registry import ProposerParts, make_proposer
from vocabforge.decode.request import Request
from vocabforge.decode.spec import MethodSpec
from vocabforge.layouts.registry import layout_of
from vocabforge.models.drafters.eagle3 import Eagle3Config
from vocabforge.models.drafters.registry import new_drafter
from vocabforge.models.kv_cache import TreeMask
from vocabforge.models.lean.model import load_target
from vocabforge.models.target.hf import HFTarget
from vocabforge.ops.tree_attention import visible_slots
from vocabforge.ops.trees import bits_of
from vocabforge.train.ttt import unroll

WINDOW, LENGTH = 64, 90
OFF = dict.fromkeys(("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output", "qk_norm"), False)


class Windowed(Served):
    """A server's drafter that forgets committed keys ``WINDOW`` or more positions before the query."""

    def attend(self, q: Tensor) -> Tensor:
        first = max(len(self.keys) - WINDOW, 0)  # row s has position s, draft steps follow
        keys, values = self.keys, self.values
        self.keys, self.values = keys[first:], values[first:]
        out = super().attend(q)
        self.keys, self.values = keys, values
        return out


def windowed(drafter: Any, window: int | None = WINDOW) -> Any:
    sizes = dataclasses.replace(drafter.config, sliding_window=window)
    copied: Any = new_drafter("eagle3", sizes, drafter.embedding, drafter.target_head, drafter.target_ids)
    copied.load_state_dict(drafter.state_dict())
    return copied.eval()


@torch.inference_mode()
def test_training_and_decoding_compute_what_a_server_computes(folder: Path, target: HFTarget) -> None:
    drafter = windowed(variant(folder, target, {}))
    (document,) = documents(4, [LENGTH])
    batch = capture(target, pack([[document]], LENGTH))
    steps, ids, features = list(unroll(drafter, batch, STEPS)), torch.tensor(document.ids), batch.features[0]
    for row in (10, WINDOW - 2, WINDOW, LENGTH - STEPS - 1):
        server, wanted = Windowed(drafter, OFF), []
        for t in range(row + 1):
            logits, g = server.step(document.ids[t + 1], server.combine(features[t]), t)
        wanted.append(logits)
        for k in range(1, STEPS):
            logits, g = server.step(document.ids[row + 1 + k], g, row + k)
            wanted.append(logits)
        decoded = chain_logits(
            drafter,
            lambda p, r=row: commit_rows(p, features[: r + 1], ids[1 : r + 2]),
            document.ids[row + 2 :],
            STEPS,
            ids[row + 1 : row + 2],
        )
        for k, expected in enumerate(wanted):
            torch.testing.assert_close(drafter.logits(steps[k].g)[0, row], expected, rtol=1e-4, atol=1e-3)
            torch.testing.assert_close(decoded[k], expected, rtol=1e-4, atol=1e-3)


def drafted(target: Any, drafter: Any, spec: MethodSpec, asked: list[Request], rows: int) -> Decoder:
    proposer = make_proposer("eagle3", ProposerParts(target, drafter, options=spec))
    decoder = Decoder(target, proposer, rows=rows)
    decoder.generate_batch(asked)
    return decoder


@pytest.mark.parametrize("tree", ["chain", "dynamic"])
def test_every_way_of_decoding_drafts_alike(tree: str, folder: Path, target: HFTarget) -> None:
    """One row, several rows and captured passes; and a window of the command line is one of the drafter."""
    lean = load_target(folder)
    plain = make_drafter("eagle3", folder, target)
    asked = [Request([(7 * i + seed) % 61 for i in range(LENGTH)], 9, ()) for seed in (1, 5)]
    spec = MethodSpec(tree=tree, depth=2, topk=3 if tree == "dynamic" else None)
    same_as_eager(
        lambda: (lean, make_proposer("eagle3", ProposerParts(lean, windowed(plain), options=spec))),
        asked,
        rows=2,
    )
    option = spec.model_copy(update={"draft_window": WINDOW})
    states = {
        "drafter's": drafted(lean, windowed(plain), spec, asked, 2),
        "option": drafted(lean, plain, option, asked, 2),
        "none": drafted(lean, plain, spec, asked, 2),
    }
    g = {name: decoder.proposer.backend._g for name, decoder in states.items()}
    torch.testing.assert_close(g["drafter's"], g["option"])
    assert float((g["option"] - g["none"]).abs().max()) > 1e-3, "the window changes nothing here"
    for index, request in enumerate(asked):
        alone = drafted(lean, plain, option, [request], 1)
        torch.testing.assert_close(alone.proposer.backend._g[0], g["option"][index], rtol=1e-4, atol=1e-4)


def test_masks_of_trees() -> None:
    """A node sees the committed positions in its window, and its ancestors however the tree lies."""
    committed, depth, nodes = [90, 30], 2, 5
    g = torch.Generator().manual_seed(0)
    above = torch.rand(2, nodes, nodes, generator=g) < 0.5
    for kind in (Positions, CapturedPositions):
        positions = kind(2, 128, torch.device("cpu"), WINDOW)
        for row, count in enumerate(committed):
            positions.extend(row, count)
        place = positions.ahead(depth, 1).expand(-1, nodes)
        view = positions.view(nodes)
        mask = positions.tree_mask(above, bits_of(above), depth, place, view)
        if isinstance(mask, TreeMask):
            mask = visible_slots(mask.lengths, mask.words, len(view), mask.positions, mask.window or 0)
        for row, count in enumerate(committed):
            for node in range(nodes):
                near = [slot for slot in range(count) if count + depth - slot < WINDOW]
                own = [count + other for other in range(nodes) if above[row, node, other]]
                assert mask[row, node].nonzero().flatten().tolist() == near + own


def test_layouts_keep_the_window(tmp_path: Path) -> None:
    tiny = make_tiny(tmp_path / "target")
    drafter = windowed(eagle3(tiny), 512)
    assert Eagle3Config.from_dict(drafter.config.to_dict()).sliding_window == 512
    for name in ("sglang-eagle3", "speculators-eagle3"):
        path = write(tiny, drafter, name, tmp_path / name)
        assert layout_of(name).read(path, tiny.shared, 8).config.sliding_window == 512
    with pytest.raises(MismatchError, match="a sliding window"):
        write(tiny, drafter, "gguf", tmp_path / "gguf")


def test_refusals(tmp_path: Path, folder: Path, target: HFTarget) -> None:
    with pytest.raises(ConfigError, match="sliding_window 8 is below 64"):
        windowed(make_drafter("eagle3", folder, target), 8)
    with pytest.raises(ConfigError, match="not for P-EAGLE"):
        make_drafter("peagle", folder, target, sliding_window=512)
    tiny = make_tiny(tmp_path / "target")
    path = write(tiny, windowed(eagle3(tiny), 512), "sglang-eagle3", tmp_path / "served")
    config = path / "config.json"
    config.write_text(config.read_text().replace('"sliding_attention"', '"chunked_attention"'))
    with pytest.raises(DataError, match="chunked_attention"):
        layout_of("sglang-eagle3").read(path, tiny.shared, 8)
