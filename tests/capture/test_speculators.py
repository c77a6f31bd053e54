"""States from speculators' per-sample files: matched by token ids, checked against the target."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.capture.capture_support import make_cache, make_job, splits
from tests.worlds import tiny_target
from vocabforge.capture.cache import SPLITS, CachedCapture
from vocabforge.capture.online import OnlineCapture, to_tensors
from vocabforge.capture.speculators import SpeculatorsCapture
from vocabforge.core.errors import DataError, MismatchError
from vocabforge.models.target.documents import document_spans
from vocabforge.models.target.hf import HFTarget

CPU = torch.device("cpu")
LENGTH = 32


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> HFTarget:
    return HFTarget.load(tiny_target(tmp_path_factory.mktemp("target")))


@torch.no_grad()
def write_samples(
    folder: Path,
    target: HFTarget,
    *,
    layers: Sequence[int] | None = None,
    normed: bool = False,
    longer: int = 0,
    dtype: torch.dtype = torch.float32,
) -> Path:
    """One file a document of ``splits()``, as the other tool writes them: bare layer outputs, the last one too."""
    folder.mkdir()
    number = 0
    for split in SPLITS:
        rows = splits()[split]
        batch = to_tensors(rows, list(range(len(rows.input_ids))), CPU)
        for span in document_spans(batch.document):
            ids = batch.input_ids[span.row, span.start : span.stop]
            if len(ids) == LENGTH:  # a document that was cut: the sample is as long as it was
                ids = torch.cat([ids, torch.arange(3, 3 + longer)])
            states = target.model(ids[None], output_hidden_states=True).hidden_states
            kept: dict[int, torch.Tensor] = {}
            last = target.num_layers - 1
            handle = target._layers[last].register_forward_hook(lambda _m, _i, o, k=kept: k.update(o=o))
            target.model(ids[None])
            handle.remove()
            final = states[-1] if normed else kept["o"]
            aux = [states[layer + 1] for layer in layers or target.aux_layers]
            tensors = {
                "hidden_states": torch.stack([*(one[0] for one in aux), final[0]], 1).to(dtype).contiguous(),
                "token_ids": ids.clone(),
            }
            save_file(tensors, folder / f"hs_{number}.safetensors")
            number += 1
    return folder


@pytest.mark.parametrize("normed", [False, True], ids=["before-norm", "behind-norm"])
def test_samples_give_what_the_target_gives(target: HFTarget, tmp_path: Path, normed: bool) -> None:
    samples = write_samples(tmp_path / "s", target, normed=normed, longer=4)
    source = SpeculatorsCapture(samples, target, LENGTH)
    online = OnlineCapture(target, 0)
    for split in SPLITS:
        rows = list(range(len(splits()[split].input_ids)))
        batch, keys = to_tensors(splits()[split], rows, CPU), [(split, row) for row in rows]
        ours, other = online(batch, keys), source(batch, keys)
        scale = float(ours.features.abs().max())
        torch.testing.assert_close(other.features, ours.features, rtol=0, atol=1e-5 * scale)
        torch.testing.assert_close(other.hidden, ours.hidden, rtol=0, atol=1e-4)


def test_samples_become_a_cache(target: HFTarget, tmp_path: Path) -> None:
    source = SpeculatorsCapture(write_samples(tmp_path / "s", target), target, LENGTH)
    make_cache(make_job(tmp_path / "c", target, splits()), target, source)
    batch = to_tensors(splits()["train"], [1, 0], CPU)
    keys = [("train", 1), ("train", 0)]
    assert torch.equal(CachedCapture(tmp_path / "c")(batch, keys).hidden, source(batch, keys).hidden)


def test_layers_numbered_otherwise_are_refused_with_their_numbers(target: HFTarget, tmp_path: Path) -> None:
    samples = write_samples(tmp_path / "s", target, layers=(0, 1, 2))
    with pytest.raises(MismatchError, match="other layers than the drafter reads") as error:
        SpeculatorsCapture(samples, target, LENGTH)
    assert "outputs of layers [0, 1, 2]" in str(error.value)
    assert "drafter.aux_layers=[0,1,2]" in str(error.value)


def test_states_of_another_target_are_refused(target: HFTarget, tmp_path: Path) -> None:
    other = HFTarget.load(tiny_target(tmp_path / "other", seed=9))
    samples = write_samples(tmp_path / "s", other)
    with pytest.raises(MismatchError, match="no layer of this target"):
        SpeculatorsCapture(samples, target, LENGTH)


def test_a_sample_without_tokens_is_named(target: HFTarget, tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    states = torch.zeros(0, len(target.aux_layers) + 1, target.hidden_size)
    empty = {"hidden_states": states, "token_ids": torch.zeros(0, dtype=torch.int64)}
    save_file(empty, tmp_path / "s" / "hs_0.safetensors")
    with pytest.raises(DataError, match="not a sample of speculators") as error:
        SpeculatorsCapture(tmp_path / "s", target, LENGTH)
    assert "no tokens" in str(error.value)


def test_a_last_state_that_is_not_final_is_refused(target: HFTarget, tmp_path: Path) -> None:
    """As where the last layer's number is one too small: its input was written."""
    samples = write_samples(tmp_path / "s", target)
    for file in samples.glob("*.safetensors"):
        tensors = load_file(file)
        tensors["hidden_states"][:, -1] = tensors["hidden_states"][:, -2]
        save_file(tensors, file)
    with pytest.raises(MismatchError, match="not the target's final hidden states"):
        SpeculatorsCapture(samples, target, LENGTH)


def test_a_document_without_a_sample_is_named(target: HFTarget, tmp_path: Path) -> None:
    samples = write_samples(tmp_path / "s", target)
    batch = to_tensors(splits()["train"], [2], CPU)
    span = document_spans(batch.document)[0]
    wanted = batch.input_ids[0, span.start : span.stop]
    for file in samples.glob("*.safetensors"):
        if torch.equal(load_file(file)["token_ids"], wanted):
            file.unlink()
    source = SpeculatorsCapture(samples, target, LENGTH)
    with pytest.raises(DataError, match="has no sample") as error:
        source(batch, [("train", 2)])
    assert f"{len(wanted)} tokens in train row 2" in str(error.value)


def test_folders_and_files_of_another_form(target: HFTarget, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no samples of speculators"):
        SpeculatorsCapture(tmp_path / "nothing", target, LENGTH)
    samples = write_samples(tmp_path / "s", target)
    victim = samples / "hs_0.safetensors"
    whole = victim.read_bytes()
    save_file({"hidden_states": torch.zeros(3, 4, 32)}, victim)
    with pytest.raises(DataError, match="not a sample of speculators"):
        SpeculatorsCapture(samples, target, LENGTH)
    save_file({"hidden_states": torch.zeros(3, 5, 32), "token_ids": torch.arange(3)}, victim)
    with pytest.raises(DataError, match="not a sample") as error:
        SpeculatorsCapture(samples, target, LENGTH)
    assert "hidden_states (T, 4, 32)" in str(error.value)
    victim.write_bytes(whole[:-10])
    with pytest.raises(DataError, match="cannot be read"):
        SpeculatorsCapture(samples, target, LENGTH)
