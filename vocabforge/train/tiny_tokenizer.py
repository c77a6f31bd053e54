"""A byte-level BPE with a ChatML-like chat template, learnt from given texts."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ..core.errors import DataError
from ..core.files import atomic_write, atomic_write_json
from ..corpus.tokenizer import TextTokenizer, load_tokenizer

PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
# Letters with one character before them, single digits (arithmetic!), punctuation, line ends, spaces.
_PIECES = "|".join(
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)",
        r"[^\r\n\p{L}\p{N}]?\p{L}+",
        r"\p{N}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)


def make_tokenizer(texts: Iterable[str], vocab_size: int, folder: Path) -> TextTokenizer:
    """Train a byte-level BPE and write ``tokenizer.json`` and ``tokenizer_config.json`` into ``folder``.

    Args:
        texts: what to learn the merges from.
        vocab_size: entries wanted, the three special tokens and the 256 bytes included.
        folder: must exist.

    Raises:
        DataError: the texts do not hold enough different material for ``vocab_size`` entries.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[PAD, START, END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    if backend.get_vocab_size() != vocab_size:
        raise DataError(
            "the texts are too few for a tokenizer of this size",
            got=f"{backend.get_vocab_size():,} entries",
            expected=f"{vocab_size:,} entries",
            remedy="give more text or lower vocab_size",
        )
    atomic_write(folder / "tokenizer.json", backend.to_str(pretty=True))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        "pad_token": PAD,
        "additional_special_tokens": [START, END],
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    atomic_write_json(folder / "tokenizer_config.json", settings)
    return load_tokenizer(folder)
