"""Block drafters in the layout of speculators: written, read again, refused; the library's own classes on them."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.decode.drafting import make_drafter
from tests.export.eagle3_cases import assert_same
from tests.folders import edit_folder
from tests.train.ttt_reference import capture, documents, pack
from vocabforge.core.artifact import MANIFEST
from vocabforge.core.errors import ArtifactError, DataError, MismatchError
from vocabforge.export.checked import write_checked
from vocabforge.layouts.interface import Export
from vocabforge.layouts.registry import load_drafter
from vocabforge.layouts.speculators_block import KINDS, SpeculatorsBlock
from vocabforge.models.target.head import load_target_tensors
from vocabforge.models.target.hf import HFTarget
from vocabforge.models.target.load import read_target_config

LAYERS, MASK = 5, 60


def export_of(folder: Path, kind: str, head: str = "reduced", **wishes: Any) -> Export:
    wishes = {"mask_token_id": MASK, **wishes}
    drafter = make_drafter(kind, folder, HFTarget.load(folder), head, **wishes)
    shared = load_target_tensors(folder)
    return Export(drafter, read_target_config(folder), shared, str(folder), torch.float32)


@pytest.mark.parametrize("head", ["reduced", "target"])
@pytest.mark.parametrize("kind", KINDS)
def test_written_and_read_again(kind: str, head: str, folder: Path, tmp_path: Path) -> None:
    export = export_of(folder, kind, head)
    write_checked(SpeculatorsBlock, tmp_path / "out", export, LAYERS)
    (tmp_path / "out" / MANIFEST).unlink()  # as another tool leaves it
    drafter, artifact = load_drafter(tmp_path / "out", export.shared, folder)
    assert artifact is None
    assert_same(drafter, export.drafter)
    body = json.loads((tmp_path / "out" / "config.json").read_text("utf-8"))
    assert body["mask_token_id"] == MASK
    assert body["speculators_config"]["proposal_methods"][0]["speculative_tokens"] == drafter.max_steps
    if kind != "peagle":
        assert body["sliding_window_non_causal"] is True, "false makes a server's block causal"
        assert body["sample_from_anchor"] is (kind == "dspark")


@pytest.mark.parametrize(
    ("kind", "head", "wishes", "message"),
    [
        ("dflash", "reduced", {"mask_token_id": None}, "mask row"),
        ("dspark", "own", {}, "whole vocabulary"),
        ("peagle", "reduced", {"fc_norm": True}, "fc_norm"),
        ("eagle3", "reduced", {"mask_token_id": None}, "kind eagle3"),
    ],
)
def test_what_it_cannot_express_is_refused(kind, head, wishes, message, folder, tmp_path):
    with pytest.raises(MismatchError, match="speculators-block") as raised:
        SpeculatorsBlock.write(tmp_path / "out", export_of(folder, kind, head, **wishes))
    assert message in str(raised.value.got)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("dflash", lambda body: body.update(sample_from_anchor=True)),
        ("dflash", lambda body: body.update(sliding_window_non_causal=False)),
        ("dflash", lambda body: body.pop("mask_token_id")),
        ("dflash", lambda body: body.update(aux_hidden_state_layer_ids=[3, 2, 1])),
        ("dspark", lambda body: body.update(markov_head_type="rnn")),
        ("dspark", lambda body: body.update(markov_rank="8")),
        ("peagle", lambda body: body.update(norm_output=True)),
        ("peagle", lambda body: body["speculators_config"].update(proposal_methods=[])),
        ("dflash", lambda body: body["transformer_layer_config"].update(model_type="llama")),
    ],
)
def test_what_is_not_computed_here_is_refused(kind, change, folder, tmp_path):
    export = export_of(folder, kind)
    SpeculatorsBlock.write(tmp_path / "out", export)
    edit_folder(tmp_path / "out", config=change)
    with pytest.raises(DataError):
        SpeculatorsBlock.read(tmp_path / "out", export.shared, LAYERS)


def test_a_missing_and_an_unknown_tensor_are_refused(folder: Path, tmp_path: Path) -> None:
    export = export_of(folder, "dspark")
    SpeculatorsBlock.write(tmp_path / "out", export)
    edit_folder(tmp_path / "out", lambda tensors: tensors.update(colour=torch.zeros(2)))
    with pytest.raises(ArtifactError):
        SpeculatorsBlock.read(tmp_path / "out", export.shared, LAYERS)
    edit_folder(
        tmp_path / "out", lambda tensors: [tensors.pop(one) for one in ("colour", "hidden_norm.weight")]
    )
    with pytest.raises(ArtifactError):
        SpeculatorsBlock.read(tmp_path / "out", export.shared, LAYERS)


needs_library = pytest.mark.skipif(
    importlib.util.find_spec("speculators") is None,
    reason="speculators is not installed (make test-speculators)",
)


def their_model(kind: str, path: Path) -> Any:
    from speculators.models.dflash import DFlashDraftModel, DFlashSpeculatorConfig
    from speculators.models.dspark import DSparkDraftModel, DSparkSpeculatorConfig
    from speculators.models.peagle.config import PEagleSpeculatorConfig
    from speculators.models.peagle.core import PEagleDraftModel

    classes: dict[str, Any] = {
        "dflash": (DFlashDraftModel, DFlashSpeculatorConfig),
        "dspark": (DSparkDraftModel, DSparkSpeculatorConfig),
        "peagle": (PEagleDraftModel, PEagleSpeculatorConfig),
    }
    made, config_type = classes[kind]
    config = config_type.from_pretrained(path)
    config.transformer_layer_config._attn_implementation = "eager"
    model = made.from_pretrained(path, config=config)
    stored, state = load_file(path / "model.safetensors"), model.state_dict()
    for name, tensor in stored.items():
        assert torch.equal(state[name].to(tensor.dtype), tensor), name
    model.load_verifier_weights()
    return model.float().eval()


def world(folder: Path) -> Any:
    """One document in which every token counts."""
    (document,) = documents(3, [24])
    document.mask = [0] + [1] * 23
    return capture(HFTarget.load(folder), pack([[document]], 24))


@torch.no_grad()
def their_blocks(model: Any, batch: Any, blocks: int) -> tuple[Tensor, Tensor]:
    """Logits (A, b, R) of DFlash's or DSpark's blocks, and the positions (A,) of their known tokens."""
    torch.manual_seed(0)
    ones = torch.zeros_like(batch.input_ids)
    loss_mask = batch.loss_mask.float()
    hidden, logits, _, _, places = model._backbone_forward(
        batch.features, batch.input_ids, loss_mask, batch.hidden, ones, max_anchors=blocks
    )
    size = model.block_size
    logits, places = logits.view(blocks, size, -1), places.view(blocks, size)
    if hasattr(model, "markov_head"):
        logits = logits + model.markov_head.block_bias(
            prev_token_ids=batch.input_ids[0, places], hidden_states=hidden.view(blocks, size, -1)
        )
    return logits, places[:, 0]


@needs_library
@pytest.mark.parametrize("head", ["reduced", "target"])
@pytest.mark.parametrize("kind", ["dflash", "dspark"])
@torch.no_grad()
def test_the_library_computes_the_same_blocks(kind: str, head: str, folder: Path, tmp_path: Path) -> None:
    export = export_of(folder, kind, head)
    SpeculatorsBlock.write(tmp_path / "out", export)
    model, batch, drafter = their_model(kind, tmp_path / "out"), world(folder), export.drafter
    theirs, known = their_blocks(model, batch, 6)
    anchors = (known - 1)[None]
    made = drafter.draft_blocks(  # type: ignore[attr-defined]
        drafter.fuse(batch.features), batch.input_ids, batch.position, batch.document, anchors, "eager"
    )
    ours = torch.stack([drafter.logits(draft)[0] for draft in made], 1)  # (A, K, R)
    theirs = theirs if kind == "dspark" else theirs[:, 1:]
    assert len(known.unique()) > 3
    # It rounds the target's head to bf16 where it takes it over.
    torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=2e-2 if head == "target" else 1e-4)


@needs_library
@torch.no_grad()
def test_the_library_computes_the_same_parallel_drafts(folder: Path, tmp_path: Path) -> None:
    from speculators.losses import resolve_loss_config
    from speculators.models.peagle import core

    export = export_of(folder, "peagle", norm_before_residual=True)
    SpeculatorsBlock.write(tmp_path / "out", export)
    model, batch, drafter = their_model("peagle", tmp_path / "out"), world(folder), export.drafter
    found: dict[str, Any] = {}
    drawn = core.generate_cod_sample_indices

    def watched(**words: Any) -> Any:
        found["rows"] = drawn(**words)
        return found["rows"]

    hook = model.lm_head.register_forward_hook(lambda _, __, out: found.update(logits=out[0].clone()))
    forward = getattr(type(model).forward, "_torchdynamo_orig_callable", type(model).forward)
    features, ids = batch.features[:, :-1], batch.input_ids[:, 1:]  # row t is fed x_{t+1}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(core, "generate_cod_sample_indices", watched)
        forward(
            model,
            features,
            ids,
            torch.zeros_like(ids),
            loss_mask=torch.ones_like(ids).float(),
            verifier_last_hidden_states=batch.hidden[:, :-1],
            loss_config=resolve_loss_config("kl_div", "eager"),
            num_depths=drafter.max_steps,
        )
    hook.remove()
    anchor, depth = found["rows"]
    every = torch.arange(batch.input_ids.shape[1])[None]
    made = drafter.draft_blocks(  # type: ignore[attr-defined]
        drafter.fuse(batch.features), batch.input_ids, batch.position, batch.document, every, "eager"
    )
    assert set(depth.tolist()) == set(range(drafter.max_steps or 0))
    for row, (t, k) in enumerate(zip(anchor.tolist(), depth.tolist())):
        if t < 0:  # its sampling makes one block a depth that begins before the text
            continue
        ours = drafter.logits(made[k][0, t])
        torch.testing.assert_close(ours, found["logits"][row], rtol=1e-3, atol=1e-4)


@needs_library
@torch.no_grad()
def test_a_fault_shows(folder: Path, tmp_path: Path) -> None:
    """The comparison can fail: another auxiliary layer's weights, as a wrong order would give them."""
    export = export_of(folder, "dflash")
    SpeculatorsBlock.write(tmp_path / "out", export)
    right, _ = their_blocks(their_model("dflash", tmp_path / "out"), world(folder), 6)

    def reverse(tensors: dict[str, Tensor]) -> None:
        parts = tensors["fc.weight"].split(len(tensors["fc.weight"]), 1)
        tensors["fc.weight"] = torch.cat(parts[::-1], 1)

    edit_folder(tmp_path / "out", reverse)
    wrong, _ = their_blocks(their_model("dflash", tmp_path / "out"), world(folder), 6)
    assert float((right - wrong).abs().max()) > 0.05
