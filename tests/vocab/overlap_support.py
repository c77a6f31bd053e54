"""Vocabularies to compare: by hand, and of every family."""

from __future__ import annotations

from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from tests.vocab.family_tokenizers import FAMILIES, loaded
from vocabforge.corpus.tokenizer.token_bytes import byte_level_characters
from vocabforge.vocab.overlap.overlap import prepare


class Prepared(dict):
    """Vocabularies by name; a failing property need not print them."""

    def __repr__(self) -> str:
        return "made"


def prepared_families(folder: Path) -> Prepared:
    """Every family's small tokenizer, ready to be compared."""
    return Prepared({name: prepare(loaded(folder / name, make())) for name, make in FAMILIES.items()})


def hand_made(folder: Path, words: list[str], *, eos: str | None = None):
    """A byte-level vocabulary of the 256 bytes and some words (spelled with Ġ), merged left to right."""
    vocab = {character: at for at, character in enumerate(byte_level_characters())}
    merges = []
    for word in words:
        for end in range(2, len(word) + 1):
            if word[:end] not in vocab:
                vocab[word[:end]] = len(vocab)
                merges.append((word[: end - 1], word[end - 1]))
    backend = Tokenizer(models.BPE(vocab, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    if eos is not None:
        backend.add_special_tokens([AddedToken(eos)])
    return prepare(loaded(folder, backend, **({"eos_token": eos} if eos else {})))
