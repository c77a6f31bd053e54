"""Writer of prepared data: streams documents into packed rows on disk and collects statistics."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from ...core.cluster import Cluster
from ...core.console import say
from ...core.errors import ConfigError, DataError
from ...core.files import atomic_write
from ...core.progress import ProgressBar
from ..chat.conversation import is_empty, system_text
from ..sources.bytes import Problems
from ..sources.document import Document
from ..sources.inputs import expand_paths, is_hub
from ..tokenizer.tokenizer import TextTokenizer
from .dataset import cluster_sequences, iter_sequences
from .options import HeldoutOptions, PrepareOptions
from .packing import OverlongTally, StreamPacker, TrainingSequence

# The header is written last into reserved space; safetensors allows trailing spaces in a header.
_HEADER_BYTES = 256
_NAMES: dict[np.dtype[Any], str] = {
    np.dtype(np.int32): "I32",
    np.dtype(np.int16): "I16",
    np.dtype(np.bool_): "BOOL",
}
_TYPES: dict[str, np.dtype[Any]] = {name: kind for kind, name in _NAMES.items()}


class TensorStream:
    """Writer of a tensor (N, *row) of int32, int16 or bool whose N is known only at the end."""

    def __init__(self, file: IO[bytes], name: str, dtype: npt.DTypeLike, row: tuple[int, ...]) -> None:
        self._file, self._name, self._dtype, self._row = file, name, np.dtype(dtype), row
        self._rows = 0
        self._file.write(b" " * _HEADER_BYTES)

    def write(self, row: npt.NDArray[Any]) -> None:
        """Append one row."""
        self._file.write(np.ascontiguousarray(row, dtype=self._dtype).tobytes())
        self._rows += 1

    def finish(self) -> None:
        """Write the header."""
        shape = [self._rows, *self._row]
        size = math.prod(shape) * self._dtype.itemsize
        entry = {"dtype": _NAMES[self._dtype], "shape": shape, "data_offsets": [0, size]}
        text = json.dumps({self._name: entry}, separators=(",", ":")).encode()
        self._file.seek(0)
        self._file.write((_HEADER_BYTES - 8).to_bytes(8, "little") + text.ljust(_HEADER_BYTES - 8))


def map_tensor(path: Path, name: str) -> npt.NDArray[Any]:
    """Memory-map the only tensor of a safetensors file.

    Raises:
        KeyError, TypeError, ValueError: the file does not have the format of :class:`TensorStream`.
    """
    with open(path, "rb") as handle:
        size = int.from_bytes(handle.read(8), "little")
        header = json.loads(handle.read(min(size, 1 << 16)))
    entry = header[name]
    dtype: np.dtype[Any] = _TYPES[entry["dtype"]]
    shape = tuple(int(number) for number in entry["shape"])
    stored = path.stat().st_size - 8 - size
    if min(shape) < 0 or math.prod(shape) * dtype.itemsize != stored:
        raise ValueError(f"{path.name}: {stored} bytes of values for {shape} of {dtype}")
    return np.memmap(path, dtype=dtype, mode="r", offset=8 + size, shape=shape)


SPLITS = ("train", "heldout")
ARRAYS = ("input_ids", "loss_mask", "document", "position")
PROMPTS = "heldout_prompts.jsonl"
_SPLIT = ", or cut the texts into more documents (--text-unit, --separator; data.text_unit, data.separator)"
_SMALL = 1 << 15  # document numbers and positions of rows below this length fit in int16
Paths = Sequence[Path | str]


@dataclass
class SplitFigures:
    """Counts of one split.

    Attributes:
        sequences: sequences made from the documents (with ``answers: each``, one for each question).
        counted: tokens with loss mask 1.
        rows_counted: places whose next two tokens are both learnt, which count at the first draft step.
        rows_without: packed rows without such a place.
    """

    documents: int = 0
    sequences: int = 0
    rows: int = 0
    tokens: int = 0
    counted: int = 0
    rows_counted: int = 0
    rows_without: int = 0
    overlong: OverlongTally = field(default_factory=OverlongTally)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> SplitFigures:
        """Create the figures from a manifest."""
        # Earlier manifests have "lengths".
        known = {name: value for name, value in values.items() if name != "lengths"}
        return cls(**{**known, "overlong": OverlongTally(**values["overlong"])})


class _SplitWriter:
    def __init__(
        self, folder: Path, split: str, options: PrepareOptions, stack: contextlib.ExitStack
    ) -> None:
        self.figures = SplitFigures()
        self._length, self._overlong = options.length, options.overlong
        small: Any = np.int16 if options.length < _SMALL else np.int32
        kinds = dict(zip(ARRAYS, (np.int32, np.bool_, small, small)))
        self._streams = []
        for name, kind in kinds.items():
            path = folder / f"{split}.{name}.safetensors"
            file = stack.enter_context(open(path, "wb"))  # noqa: SIM115 (closed by the stack)
            self._streams.append(TensorStream(file, name, kind, (options.length,)))
        self._packer = StreamPacker(options.length, self._write)

    def _write(self, *row: npt.NDArray[Any]) -> None:
        for stream, array in zip(self._streams, row):
            stream.write(array)
        _, mask, document, _ = row
        counted = mask[1:-1] & mask[2:] & (document[2:] == document[:-2]) & (document[2:] != 0)
        self.figures.rows_without += not counted.any()

    def add(self, sequences: Sequence[TrainingSequence]) -> None:
        self.figures.documents += 1
        for sequence in sequences:
            self.figures.sequences += 1
            tally = self.figures.overlong
            for ids, mask in tally.fit(sequence.ids, sequence.loss_mask, self._length, self._overlong):
                if len(ids):
                    self._packer.add(ids, mask)
                    self.figures.rows_counted += sum(a and b for a, b in itertools.pairwise(mask[1:]))

    @property
    def counted(self) -> int:
        return self._packer.counted

    def finish(self) -> SplitFigures:
        self._packer.finish()
        for stream in self._streams:
            stream.finish()
        figures, packer = self.figures, self._packer
        figures.rows, figures.tokens, figures.counted = packer.rows, packer.tokens, packer.counted
        return figures


def write_splits(
    folder: Path,
    tokenizer: TextTokenizer,
    sources: tuple[Paths, Paths],
    options: PrepareOptions,
    ray: str | None = None,
) -> dict[str, Any]:
    """Write the arrays and held-out prompts of both splits to ``folder``.

    Without held-out files, the last documents of the training files (``options.heldout``) are held back while
    streaming. With the address of a Ray cluster, ``ray``, its workers make the sequences.

    Returns:
        :class:`SplitFigures` of both splits, ``facts``, and ``skipped`` documents and lines by reason.

    Raises:
        DataError: nothing to learn from, or an unreadable source.
        ConfigError: too few documents to hold some out.
    """
    train, heldout = sources
    facts: Counter[str] = Counter()
    skipped: Counter[str] = Counter()
    prompts = _Prompts(tokenizer, options.heldout)
    with contextlib.ExitStack() as stack:
        writers = [_SplitWriter(folder, split, options, stack) for split in SPLITS]
        cluster = None if ray is None else stack.enter_context(Cluster(ray, queue=2))
        held: deque[list[TrainingSequence]] = deque()
        most = options.heldout.documents or options.heldout.MOST
        for sequences in _documents(tokenizer, train, options, facts, skipped, cluster):
            if not heldout:
                held.append(sequences)
                if len(held) <= most:
                    continue
                sequences = held.popleft()
            writers[0].add(sequences)
        if options.heldout.documents is None:
            most = max(1, (writers[0].figures.documents + len(held)) // 10)
        while len(held) > most:
            writers[0].add(held.popleft())
        _check_train(writers[0], held, train, options)
        read = _documents(tokenizer, heldout, options, facts, skipped, cluster) if heldout else held
        for sequences in read:
            writers[1].add(sequences)
            prompts.add(sequences[0].document)
        _check_learnt(writers[1], "held-out", heldout or train)
        figures = {split: asdict(writer.finish()) for split, writer in zip(SPLITS, writers)}
    atomic_write(folder / PROMPTS, "".join(line + "\n" for line in prompts.lines))
    return {**figures, "facts": dict(facts), "skipped": dict(skipped)}


def _documents(
    tokenizer: TextTokenizer,
    paths: Paths,
    options: PrepareOptions,
    facts: Counter[str],
    skipped: Counter[str],
    cluster: Cluster | None,
) -> Iterator[list[TrainingSequence]]:
    files = expand_paths(paths)
    problems = Problems(strict=options.sequences.sources.strict)
    size = sum(path.stat().st_size for path in files if not is_hub(path))
    with ProgressBar("read and tokenize", size or None, "B") as bar:
        make = iter_sequences if cluster is None else partial(cluster_sequences, cluster)
        sequences = make(
            tokenizer, files, options.sequences, problems=problems, on_bytes=bar.update, facts=facts
        )
        for _, group in itertools.groupby(sequences, key=lambda sequence: id(sequence.document)):
            yield list(group)
    skipped.update(problems.kinds)
    if summary := problems.summary():
        say(summary)


def _check_train(
    writer: _SplitWriter, held: Sequence[list[TrainingSequence]], train: Paths, options: PrepareOptions
) -> None:
    if not writer.figures.documents and held:
        origins = [sequences[0].document for sequences in held]
        one_text = all(origin is None or origin.messages is None for origin in origins)
        raise ConfigError(
            "there are too few documents to hold some out",
            got=f"{len(held)} documents in {', '.join(map(str, train))}",
            expected=f"more than {options.heldout.documents or 1} "
            "(--heldout-documents, in a recipe data.heldout_documents)",
            remedy=f"hold out fewer, or name held-out files (--heldout, data.heldout){_SPLIT if one_text else ''}",
        )
    _check_learnt(writer, "training", train)


def _check_learnt(writer: _SplitWriter, what: str, paths: Paths) -> None:
    figures = writer.figures
    if not writer.counted:
        raise DataError(
            f"the {what} data has no token to learn from",
            got=f"{figures.documents:,} documents",
            expected="text, or conversations in which the assistant answers",
            source=", ".join(map(str, paths)),
            remedy="check what was skipped or cut, and why; longer rows or overlong: split keep more",
        )
    if not figures.rows_counted:
        raise DataError(
            f"no row of the {what} data counts: its answers are empty, or a single token long",
            got=f"{figures.documents:,} documents, {writer.counted:,} learnt tokens, no two in succession",
            expected="answers of two or more tokens, including the end-of-turn token",
            source=", ".join(map(str, paths)),
            remedy="check the answers with --show; a drafter learns to predict the token after the next",
        )


class _Prompts:
    """Held-out documents as questions in Spec-Bench format, as lines of JSON.

    A plain text becomes a prompt of ``prompt_tokens`` tokens with the rest as reference; a conversation
    becomes its user turns, with its system message. Conversations with tools or template variables of their
    own are skipped.
    """

    def __init__(self, tokenizer: TextTokenizer, options: HeldoutOptions) -> None:
        self._tokenizer, self._options = tokenizer, options
        self.lines: list[str] = []

    def add(self, document: Document | None) -> None:
        if document is None or len(self.lines) == self._options.prompts:
            return
        system = None
        if document.messages is not None:
            called = any(m["role"] == "tool" or m.get("tool_calls") for m in document.messages)
            if called or not is_empty(document.tools) or document.variables:
                return  # a question cannot express them
            system = system_text(document.messages)
            turns = [m["content"] for m in document.messages if m["role"] == "user"]
            references = [m["content"] for m in document.messages if m["role"] == "assistant"]
        else:
            turns, references = self._cut(document.text or "")
        if not turns or not all(turns):
            return
        number = 81 + len(self.lines)
        row = {"question_id": number, "category": "heldout", "turns": turns, "reference": references}
        if system is not None:
            row["system"] = system
        self.lines.append(json.dumps(row, ensure_ascii=False))

    def _cut(self, text: str) -> tuple[list[str], list[str]]:
        """Cut a text after ``prompt_tokens`` tokens, at the character where the next token starts."""
        tokens = self._options.prompt_tokens
        ids, offsets = self._tokenizer.encode_with_offsets(text)
        if len(ids) <= 2 * tokens:
            return [], []
        end = offsets[tokens][0]
        return [text[:end]], [text[end:]]
