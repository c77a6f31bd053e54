"""Small trained tokenizers of every family whose byte forms are known."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

from vocabforge.corpus.tokenizer.tokenizer import TextTokenizer, load_tokenizer

TEXTS = [
    "the quick brown fox jumps over the lazy dog, and then the dog sleeps. is it late?",
    "she sells sea shells by the sea shore; the shells she sells are sea shells!",
    "don't the children do not play? naïve café, Straße, größer. 你好 世界 12 123 2024",
] * 4
ALPHABET = sorted(set("".join(TEXTS)))
SPACE = "▁"


def _byte_level(**options: bool) -> Tokenizer:
    backend = Tokenizer(models.BPE())
    backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(**{"add_prefix_space": False, **options})
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    backend.train_from_iterator(TEXTS, trainer)
    return backend


def byte_level() -> Tokenizer:
    """GPT-2's way, with NFC."""
    return _byte_level()


def byte_level_bare() -> Tokenizer:
    """The same with a space before each text, and no decoder in the file."""
    backend = _byte_level(add_prefix_space=True)
    content = json.loads(backend.to_str())
    return Tokenizer.from_str(json.dumps({**content, "decoder": None}))


def sentencepiece(*, fallback: bool = True) -> Tokenizer:
    """SentencePiece BPE as converted for Llama: the normaliser writes the marks, no pre-tokeniser."""
    trained = Tokenizer(models.BPE(unk_token="<unk>"))
    trained.pre_tokenizer = pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="first")
    names = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256) if fallback)]
    trainer = trainers.BpeTrainer(vocab_size=len(names) + 100, special_tokens=names, show_progress=False)
    trained.train_from_iterator(TEXTS, trainer)
    model = json.loads(trained.to_str())["model"]
    merges = [tuple(pair) for pair in model["merges"]]
    backend = Tokenizer(
        models.BPE(model["vocab"], merges, unk_token="<unk>", fuse_unk=True, byte_fallback=fallback)
    )
    backend.normalizer = normalizers.Sequence(
        [
            normalizers.Strip(),
            normalizers.Replace(Regex(" {2,}"), " "),
            normalizers.Prepend(SPACE),
            normalizers.Replace(" ", SPACE),
        ]
    )
    middle = [decoders.ByteFallback()] if fallback else []
    backend.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), *middle, decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens([AddedToken("<unk>", normalized=False)])
    return backend


def sentencepiece_plain() -> Tokenizer:
    """:func:`sentencepiece` without byte fallback."""
    return sentencepiece(fallback=False)


def unigram() -> Tokenizer:
    """Unigram with Metaspace."""
    backend = Tokenizer(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="always")
    backend.decoder = decoders.Metaspace(replacement=SPACE, prepend_scheme="always")
    trainer = trainers.UnigramTrainer(
        vocab_size=120, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False
    )
    backend.train_from_iterator(TEXTS, trainer)
    return backend


def word_piece(*, cleanup: bool = False) -> Tokenizer:
    """BERT's way, lower-casing."""
    backend = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(cleanup=cleanup)
    trainer = trainers.WordPieceTrainer(
        vocab_size=150, special_tokens=["[UNK]", "[PAD]"], show_progress=False
    )
    backend.train_from_iterator(TEXTS, trainer)
    return backend


def word_piece_clean() -> Tokenizer:
    """:func:`word_piece`, decoded with clean-up."""
    return word_piece(cleanup=True)


def word_piece_bare() -> Tokenizer:
    """:func:`word_piece` without a decoder in the file."""
    content = json.loads(word_piece().to_str())
    return Tokenizer.from_str(json.dumps({**content, "decoder": None}))


def word_level() -> Tokenizer:
    """Whole words."""
    backend = Tokenizer(models.WordLevel(unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.WordLevelTrainer(special_tokens=["<unk>"], show_progress=False)
    backend.train_from_iterator(TEXTS, trainer)
    return backend


def suffix_bpe() -> Tokenizer:
    """BPE that marks the ends of words."""
    backend = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.decoder = decoders.BPEDecoder(suffix="</w>")
    trainer = trainers.BpeTrainer(
        vocab_size=150, special_tokens=["<unk>"], end_of_word_suffix="</w>", show_progress=False
    )
    backend.train_from_iterator(TEXTS, trainer)
    return backend


FAMILIES: dict[str, Callable[[], Tokenizer]] = {
    function.__name__: function
    for function in (
        byte_level,
        byte_level_bare,
        sentencepiece,
        sentencepiece_plain,
        unigram,
        word_piece,
        word_piece_clean,
        word_piece_bare,
        word_level,
        suffix_bpe,
    )
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
