"""The built-in sample as a source, for machines without data."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from ..corpus.sample_families import FAMILIES
from ..corpus.sample_writer import HELDOUT, TRAIN, SampleSizes, sample_questions, write_sample
from ..corpus.sources import SourceOptions, iter_documents
from .source_chats import CODE
from .source_types import Reading, Talk

_RARE = {"coding": CODE, "translation": "translation"}
_RARE_SEED = 1  # the questions of seed 0 are the benchmark ``sample``


def sample(reading: Reading) -> Iterator[Talk]:
    """Conversations that ``corpus.sample_writer`` makes, by the source's role.

    ``train`` and ``heldout`` are its two splits; ``rare`` are conversations on code and translations of another seed.
    """
    wanted = reading.source.documents
    if reading.source.role == "rare":
        yield from _rare(wanted or 24)
        return
    split, sizes = HELDOUT, SampleSizes()
    if reading.source.role == "train":
        split, sizes = TRAIN, SampleSizes(train=wanted or sizes.train)
    elif wanted is not None:
        sizes = SampleSizes(train=1, heldout=wanted)
    with tempfile.TemporaryDirectory() as folder:
        path = write_sample(Path(folder), 0, sizes)[split]
        for document in iter_documents([path], SourceOptions(strict=True)):
            yield Talk(list(document.messages or []), reading.source.language)


def _rare(count: int) -> Iterator[Talk]:
    """Conversations of the rare families by turns."""
    each = -(-count // len(_RARE))
    made = sample_questions(_RARE_SEED, each)
    assert len(made) == each * len(FAMILIES)
    kinds = [[one for one in made if one.category == name] for name in _RARE]
    for conversation in [one for row in zip(*kinds, strict=True) for one in row][:count]:
        yield Talk(conversation.messages(), _RARE[conversation.category])
