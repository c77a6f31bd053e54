"""Small byte-level tokenizers with words of the test's own choice."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

BOS, EOS = 0, 1
SPECIALS = ("<s>", "</s>")


def merging_tokenizer(folder: Path, letters: str, words: Sequence[str]) -> int:
    """Write a byte-level BPE tokenizer of these letters and words; returns the number of its ids.

    The ids: beginning, end, letters, words. Each word is merged from the longest earlier token that begins it and
    the letter or token behind that.
    """
    tokens = [*SPECIALS, *letters, *words]
    vocab = {token: at for at, token in enumerate(tokens)}
    merges = []
    for word in words:
        splits = [at for at in range(1, len(word)) if word[:at] in vocab and word[at:] in vocab]
        merges += [(word[:at], word[at:]) for at in splits]
    backend = Tokenizer(models.BPE(vocab, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(name, normalized=False) for name in SPECIALS])
    folder.mkdir(parents=True, exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    side = {"bos_token": SPECIALS[0], "eos_token": SPECIALS[1]}
    (folder / "tokenizer_config.json").write_text(json.dumps(side), "utf-8")
    return len(tokens)
