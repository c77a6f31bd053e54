"""Small trained tokenizers of every family whose byte forms are known."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from vocabforge.corpus.tokenizer.tokenizer import TextTokenizer, load_tokenizer

TEXTS = [
    "the quick brown fox jumps over the lazy dog, and then the dog sleeps. is it late?",
    "she sells sea shells by the sea shore; the shells she sells are sea shells!",
    "don't the children do not play? naïve café, Straße, größer. 你好 世界 12 123 2024",
] * 4
ALPHABET = sorted(set("".join(TEXTS)))
SPACE = "▁"


def trained(
    model: Any, trainer: Any, *, before: Any, decoder: Any = None, normalizer: Any = None
) -> Tokenizer:
    """A tokenizer of these parts, trained on :data:`TEXTS`."""
    backend = Tokenizer(model)
    backend.pre_tokenizer = before
    if normalizer is not None:
        backend.normalizer = normalizer
    if decoder is not None:
        backend.decoder = decoder
    backend.train_from_iterator(TEXTS, trainer)
    return backend


def byte_level(*, bare: bool = False) -> Tokenizer:
    """GPT-2's way, with NFC; ``bare`` has a space before each text, and no decoder in the file."""
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    return trained(
        models.BPE(),
        trainers.BpeTrainer(vocab_size=330, initial_alphabet=alphabet, show_progress=False),
        before=pre_tokenizers.ByteLevel(add_prefix_space=bare),
        decoder=None if bare else decoders.ByteLevel(),
        normalizer=normalizers.NFC(),
    )


def sentencepiece(*, fallback: bool = True) -> Tokenizer:
    """SentencePiece BPE as converted for Llama: the normaliser writes the marks, no pre-tokeniser."""
    names = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256) if fallback)]
    teacher = trained(
        models.BPE(unk_token="<unk>"),
        trainers.BpeTrainer(vocab_size=len(names) + 100, special_tokens=names, show_progress=False),
        before=pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="first"),
    )
    model = json.loads(teacher.to_str())["model"]
    merges = [tuple(pair) for pair in model["merges"]]
    backend = Tokenizer(
        models.BPE(model["vocab"], merges, unk_token="<unk>", fuse_unk=True, byte_fallback=fallback)
    )
    steps = (
        normalizers.Replace(Regex(" {2,}"), " "),
        normalizers.Prepend(SPACE),
        normalizers.Replace(" ", SPACE),
    )
    backend.normalizer = normalizers.Sequence([normalizers.Strip(), *steps])
    middle = [decoders.ByteFallback()] if fallback else []
    backend.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), *middle, decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens([AddedToken("<unk>", normalized=False)])
    return backend


def unigram() -> Tokenizer:
    """Unigram with Metaspace."""
    options = {"unk_token": "<unk>", "special_tokens": ["<unk>"], "show_progress": False}
    return trained(
        models.Unigram(),
        trainers.UnigramTrainer(vocab_size=120, **options),
        before=pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="always"),
        decoder=decoders.Metaspace(replacement=SPACE, prepend_scheme="always"),
    )


def word_piece(*, cleanup: bool = False, bare: bool = False) -> Tokenizer:
    """BERT's way, lower-casing."""
    return trained(
        models.WordPiece(unk_token="[UNK]"),
        trainers.WordPieceTrainer(vocab_size=150, special_tokens=["[UNK]", "[PAD]"], show_progress=False),
        before=pre_tokenizers.BertPreTokenizer(),
        decoder=None if bare else decoders.WordPiece(cleanup=cleanup),
        normalizer=normalizers.BertNormalizer(lowercase=True),
    )


def word_level() -> Tokenizer:
    """Whole words."""
    trainer = trainers.WordLevelTrainer(special_tokens=["<unk>"], show_progress=False)
    return trained(models.WordLevel(unk_token="<unk>"), trainer, before=pre_tokenizers.Whitespace())


def suffix_bpe() -> Tokenizer:
    """BPE that marks the ends of words."""
    suffix = "</w>"
    return trained(
        models.BPE(unk_token="<unk>", end_of_word_suffix=suffix),
        trainers.BpeTrainer(
            vocab_size=150, special_tokens=["<unk>"], end_of_word_suffix=suffix, show_progress=False
        ),
        before=pre_tokenizers.WhitespaceSplit(),
        decoder=decoders.BPEDecoder(suffix=suffix),
    )


# "bare": without a decoder in the file.
FAMILIES: dict[str, Callable[[], Tokenizer]] = {
    "byte_level": byte_level,
    "byte_level_bare": lambda: byte_level(bare=True),
    "sentencepiece": sentencepiece,
    "sentencepiece_plain": lambda: sentencepiece(fallback=False),
    "unigram": unigram,
    "word_piece": word_piece,
    "word_piece_clean": lambda: word_piece(cleanup=True),
    "word_piece_bare": lambda: word_piece(bare=True),
    "word_level": word_level,
    "suffix_bpe": suffix_bpe,
}


def write_tokenizer(folder: Path, backend: Tokenizer, **config: str) -> Path:
    """A tokenizer folder."""
    folder.mkdir(parents=True, exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    if config:
        (folder / "tokenizer_config.json").write_text(json.dumps(config), "utf-8")
    return folder


def loaded(folder: Path, backend: Tokenizer, **config: str) -> TextTokenizer:
    """The same, read back as VocabForge reads it."""
    return load_tokenizer(write_tokenizer(folder, backend, **config))
