"""Published tokenizers from the development data, as ``tokenizers`` objects."""

from __future__ import annotations

import base64
import json
import lzma
from collections.abc import Callable
from functools import cache

from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from tests.vocab.engine_tokenizers import engines_of, special_tokens, wrapped
from tests.worlds import DATA
from vocabforge.corpus.tokenizer.cut_parts import O200K
from vocabforge.corpus.tokenizer.cuts import CutRule, NoCut, cut_rule
from vocabforge.corpus.tokenizer.tokenizer import TextTokenizer
from vocabforge.vocab.counts.engines import PlainEngine


def byte_alphabet() -> list[str]:
    """The printable character that byte-level BPE writes for each of the 256 bytes (GPT-2's table)."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = iter(range(256))
    return [chr(byte) if byte in shown else chr(0x100 + next(hidden)) for byte in range(256)]


def from_ranks(ranks: dict[bytes, int], pattern: str) -> Tokenizer:
    """Byte-level BPE equal to a tiktoken rank table: a token's merge is its last pair by lower ranks."""
    letters = byte_alphabet()
    merges = []
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        if len(token) > 1:
            left, right = _last_pair(token, ranks, rank)
            merges.append(("".join(letters[b] for b in left), "".join(letters[b] for b in right)))
    vocab = {"".join(letters[b] for b in token): rank for token, rank in ranks.items()}
    # A token that is a pretoken itself is taken at once by tiktoken: ignore_merges.
    backend = Tokenizer(models.BPE(vocab, merges, ignore_merges=True))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return backend


def _last_pair(token: bytes, ranks: dict[bytes, int], below: int) -> tuple[bytes, bytes]:
    splits = [(token[:at], token[at:]) for at in range(1, len(token))]
    splits = [pair for pair in splits if max(ranks.get(part, below) for part in pair) < below]
    if len(splits) == 1:
        return splits[0]
    parts = [token[at : at + 1] for at in range(len(token))]
    while len(parts) > 2:
        best = min(range(len(parts) - 1), key=lambda at: ranks.get(parts[at] + parts[at + 1], 1 << 60))
        if ranks.get(parts[best] + parts[best + 1], 1 << 60) >= below:
            raise ValueError(f"no merges lead to {token!r}")
        parts[best : best + 2] = [parts[best] + parts[best + 1]]
    return parts[0], parts[1]


def _gpt2_real() -> Tokenizer:
    folder = DATA / "tokenizers" / "gpt2"
    vocab = json.loads(lzma.decompress((folder / "encoder.json.xz").read_bytes()))
    lines = lzma.decompress((folder / "vocab.bpe.xz").read_bytes()).decode().split("\n")[1:]
    backend = Tokenizer(models.BPE(vocab, [tuple(line.split(" ")) for line in lines if line]))  # type: ignore[misc]
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.add_special_tokens(special_tokens("<|endoftext|>"))
    return backend


def _o200k_real() -> Tokenizer:
    packed = lzma.decompress((DATA / "tokenizers" / "o200k" / "o200k_base.tiktoken.xz").read_bytes())
    rows = (line.split() for line in packed.splitlines() if line)
    return from_ranks({base64.b64decode(token): int(rank) for token, rank in rows}, O200K)


def _qwen3_real() -> Tokenizer:
    packed = (DATA / "tokenizers" / "qwen3" / "tokenizer.json.xz").read_bytes()
    return Tokenizer.from_str(lzma.decompress(packed).decode())


def _from_models(name: str) -> Tokenizer:
    backend = Tokenizer.from_file(str(DATA / "models" / name / "tokenizer.json"))
    backend.no_truncation()
    backend.no_padding()
    return backend


REAL: dict[str, Callable[[], Tokenizer]] = {
    "qwen3": _qwen3_real,
    "gpt2": _gpt2_real,
    "o200k": _o200k_real,
    "tok512": lambda: _from_models("tok512"),
    "tok105": lambda: _from_models("babyllama-tok105"),
}


@cache
def real(name: str) -> TextTokenizer:
    """A published tokenizer from the development data."""
    return wrapped(REAL[name]())


@cache
def real_engines(name: str) -> tuple[CutRule | NoCut, list[PlainEngine]]:
    """Its rule of cuts and every engine that counts with it."""
    rule = cut_rule(real(name))
    return rule, engines_of(real(name), rule)
