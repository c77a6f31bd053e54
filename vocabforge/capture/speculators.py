"""States that speculators' data generation left: one safetensors file a sample.

A file holds ``hidden_states`` (T, L, H) and ``token_ids`` (T,). The first L - 1 layers are the auxiliary ones. The last
is the output of the target's last layer: before the final norm where vLLM wrote it (its layer number is then the
number of layers), behind it in older files made with Hugging Face. Nothing in the file says which, nor which layers
the others are: both are found by running the target on a sample, and what does not match is refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..core.errors import DataError, MismatchError
from ..core.progress import ProgressBar
from ..models.target.documents import document_spans
from ..models.target.hf import HFTarget, final_norm
from .online import WHOLE, CapturedBatch, Key, RowBatch

_SAMPLE_TOKENS = 256
_SAMPLES = 2
# Engines differ by rounding of bf16 sums, a hundredth or so; neighbouring layers differ by much more.
_TOLERANCE = 0.05


class SpeculatorsCapture:
    """A capture source over a folder of per-sample files.

    A document of a packed row finds its file by its token ids; one cut to the row's length finds the longer sample.

    Args:
        folder: searched for ``*.safetensors``, subfolders included.
        target: loaded with the auxiliary layers that the drafter reads.

    Raises:
        DataError: no sample, a damaged one, or one of another form.
        MismatchError: the states are not this target's, or not those of its auxiliary layers.
    """

    def __init__(self, folder: Path, target: HFTarget, length: int) -> None:
        self.folder, self.target, self.length = folder, target, length
        self._files = self._index()
        self._post_norm = self._check_samples()

    def _index(self) -> dict[bytes, Path]:
        files = sorted(one for one in self.folder.rglob("*.safetensors") if one.is_file())
        if not files:
            raise DataError(
                "there are no samples of speculators here",
                got=f"no *.safetensors in {self.folder}",
                expected="files with hidden_states (T, L, H) and token_ids (T,)",
                remedy="check the path; older .pt files are pickles and are not read: generate the samples again",
            )
        found: dict[bytes, Path] = {}
        with ProgressBar("read sample headers", len(files), "files") as bar:
            for file in files:
                found.setdefault(_digest(self._tokens(file)), file)
                bar.update(1)
        return found

    def _tokens(self, file: Path) -> Tensor:
        """Token ids of a file, cut to the rows' length; its form is checked on the way."""
        try:
            with safe_open(str(file), framework="pt") as handle:
                names = set(handle.keys())
                if not {"hidden_states", "token_ids"} <= names:
                    raise _form(file, f"tensors {', '.join(sorted(names)) or 'none'}", self.target)
                shape = handle.get_slice("hidden_states").get_shape()
                tokens = handle.get_tensor("token_ids")
        except (SafetensorError, OSError) as error:
            raise _unreadable(file, error) from error
        layers = len(self.target.aux_layers) + 1
        if tokens.dim() != 1 or list(shape) != [len(tokens), layers, self.target.hidden_size]:
            raise _form(file, f"hidden_states {tuple(shape)}, token_ids {tuple(tokens.shape)}", self.target)
        if not len(tokens):
            raise _form(file, "no tokens", self.target)
        return tokens[: self.length]

    def read(self, file: Path) -> tuple[Tensor, Tensor]:
        """Token ids and states of a sample, T cut to the rows' length; as they were stored."""
        try:
            with safe_open(str(file), framework="pt") as handle:
                states = handle.get_slice("hidden_states")[: self.length]
                return handle.get_tensor("token_ids")[: self.length], states
        except (SafetensorError, OSError) as error:
            raise _unreadable(file, error) from error

    @torch.no_grad()
    def _check_samples(self) -> bool:
        """Run the target on the longest of a few samples; whether the last states are behind the final norm."""
        few = [(file, *self.read(file)) for file in list(self._files.values())[: 8 * _SAMPLES]]
        few.sort(key=lambda sample: len(sample[1]), reverse=True)
        verdicts = {self._check(*sample) for sample in few[:_SAMPLES]}
        if len(verdicts) > 1:
            raise MismatchError(
                "the samples are of two kinds: last states before and behind the final norm",
                source=self.folder,
                remedy="generate all samples with one version of the tool",
            )
        return verdicts.pop()

    def _check(self, file: Path, token_ids: Tensor, states: Tensor) -> bool:
        target = self.target
        states = states[:_SAMPLE_TOKENS].float()
        ids = token_ids[None, :_SAMPLE_TOKENS].long().to(target.device)
        if int(ids.max()) >= target.vocab_size or int(ids.min()) < 0:
            raise MismatchError(
                "the samples are of another tokenizer",
                got=f"token id {int(ids.max()):,}",
                expected=f"below {target.vocab_size:,}",
                source=file,
            )
        outputs, hidden = target.forward(ids, range(target.num_layers))
        ours = {index: output[0].float().cpu() for index, output in outputs.items()}
        for place, layer in enumerate(target.aux_layers):
            if not _apart(states[:, place], ours[layer]) <= _TOLERANCE:  # NaN is apart from everything
                raise self._wrong_layers(file, states, ours)
        last = states[:, -1]
        before = _apart(last, ours[target.num_layers - 1])
        behind = _apart(last, hidden[0].float().cpu())
        if not min(before, behind) <= _TOLERANCE:
            raise MismatchError(
                "the last states of the samples are not the target's final hidden states",
                got=f"{before:.0%} apart before the final norm, {behind:.0%} behind it",
                expected=f"at most {_TOLERANCE:.0%}",
                source=file,
                remedy="generate the samples with the last layer's output as last layer, by this target",
            )
        return behind < before

    def _wrong_layers(self, file: Path, states: Tensor, ours: dict[int, Tensor]) -> MismatchError:
        nearest = []
        for place in range(states.shape[1] - 1):
            apart = {index: _apart(states[:, place], output) for index, output in ours.items()}
            best = min(apart, key=lambda index: apart[index])
            nearest.append(best if apart[best] <= _TOLERANCE else None)
        known = [layer for layer in nearest if layer is not None]
        whole = len(known) == len(nearest)
        return MismatchError(
            "the samples hold other layers than the drafter reads",
            got=f"outputs of layers {known} (0-based)"
            if whole
            else "states that no layer of this target gives",
            expected=f"outputs of layers {list(self.target.aux_layers)}",
            source=file,
            remedy=f"set drafter.aux_layers={known}".replace(" ", "")
            if whole
            else "give the target that the samples were generated with",
        )

    @torch.no_grad()
    def __call__(self, rows: RowBatch, keys: Sequence[Key], tokens: slice = WHOLE) -> CapturedBatch:
        """The states of ``tokens`` of ``rows``, put together from the samples of their documents.

        Raises:
            DataError: a document without a sample, or a damaged sample.
        """
        target, device = self.target, rows.input_ids.device
        shape = rows.input_ids.shape
        features = torch.zeros(*shape, len(target.aux_layers) * target.hidden_size, dtype=target.dtype)
        hidden = torch.zeros(*shape, target.hidden_size, dtype=target.dtype)
        ids = rows.input_ids.cpu()
        for span in document_spans(rows.document):
            wanted = ids[span.row, span.start : span.stop]
            file = self._files.get(_digest(wanted))
            if file is None:
                raise self._absent(keys[span.row], len(wanted))
            _, states = self.read(file)
            last = states[:, -1]
            if not self._post_norm:
                last = final_norm(target, last.to(target.device, target.dtype)).cpu()
            features[span.row, span.start : span.stop] = states[:, :-1].flatten(1).to(target.dtype)
            hidden[span.row, span.start : span.stop] = last.to(target.dtype)
        features, hidden = (each[:, tokens].to(device) for each in (features, hidden))
        return CapturedBatch(**vars(rows.cut(tokens)), features=features, hidden=hidden)

    def _absent(self, key: Key, tokens: int) -> DataError:
        return DataError(
            "a document of the data has no sample",
            got=f"a document of {tokens:,} tokens in {key[0]} row {key[1]}, and {len(self._files):,} samples",
            expected="a file with the same token ids",
            source=self.folder,
            remedy="the samples must be made from the same conversations, with the same chat template and a length "
            "of at least data.sequence_length; or capture the states anew (without --from-speculators)",
        )


def _digest(tokens: Tensor) -> bytes:
    return hashlib.sha256(tokens.to(torch.int64).contiguous().numpy().tobytes()).digest()


def _apart(one: Tensor, other: Tensor) -> float:
    return float((one - other).norm() / other.norm().clamp(min=1e-30))


def _unreadable(file: Path, error: Exception) -> DataError:
    return DataError(
        "a sample of speculators cannot be read",
        got=error,
        source=file,
        remedy="remove the file, or generate it again",
    )


def _form(file: Path, got: str, target: HFTarget) -> DataError:
    return DataError(
        "this is not a sample of speculators for this target",
        got=got,
        expected=f"hidden_states (T, {len(target.aux_layers) + 1}, {target.hidden_size}) and token_ids (T,): "
        f"{len(target.aux_layers)} auxiliary layers and the last",
        source=file,
        remedy="set drafter.aux_layers to the layers that the samples hold",
    )
