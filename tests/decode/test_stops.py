"""Stop strings against brute force: decode the whole text after every token and look."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models

from tests.vocab.family_tokenizers import FAMILIES
from tests.worlds import DATA, byte_tokenizer, needs_data
from vocabforge.core.errors import UsageError
from vocabforge.corpus.tokenizer.tokenizer import load_tokenizer
from vocabforge.decode.stops import StopStrings

Decode = Callable[[Sequence[int]], str]
TEXT = "One day, a cat sat. ▁ Zürich 日本語 — 😀👩‍👧!\n\nUser: stop </s> now; the end. “Ja”, said he.\n"


class Plain:
    """A tokenizer of which only the decoder is there; counts what it is asked to decode."""

    def __init__(self, backend: Tokenizer) -> None:
        self.backend, self.asked = backend, 0

    def decode(self, ids: Sequence[int]) -> str:
        self.asked += len(ids)
        return str(self.backend.decode(list(ids), skip_special_tokens=True))

    def pieces(self) -> int:
        return self.backend.get_vocab_size(with_added_tokens=True)


def sentencepiece(prefix: str = "strip") -> Tokenizer:
    """All bytes, characters and longer pieces of the text; the decoder of Llama's or of a Metaspace."""
    text = TEXT.replace(" ", "▁")
    pieces = dict.fromkeys([f"<0x{byte:02X}>" for byte in range(256)])
    pieces |= dict.fromkeys(character for character in text if ord(character) < 0x250 or character == "▁")
    pieces |= dict.fromkeys(
        text[at : at + size] for size in (2, 3, 5) for at in range(0, len(text) - size, 2)
    )
    vocab = {piece: at for at, piece in enumerate(pieces)}
    backend = Tokenizer(models.BPE(vocab, [], byte_fallback=True))
    if prefix == "strip":
        backend.decoder = decoders.Sequence(
            [
                decoders.Replace("▁", " "),
                decoders.ByteFallback(),
                decoders.Fuse(),
                decoders.Strip(content=" ", left=1, right=0),
            ]
        )
    else:
        backend.decoder = decoders.Metaspace()
    backend.add_special_tokens([AddedToken("<special>")])
    return backend


def tokenizer_of(name: str, folder: Path) -> Plain:
    if name == "byte level":
        return Plain(load_tokenizer(byte_tokenizer(folder)).backend)
    if name in ("strip", "metaspace"):
        return Plain(sentencepiece(name))
    return Plain(FAMILIES[name]() if name in FAMILIES else load_tokenizer(DATA / name).backend)


NAMES = [
    "byte level",
    "strip",
    "metaspace",
    *FAMILIES,
    pytest.param("models/tok512", marks=needs_data),
    pytest.param("models/babyllama-tok105", marks=needs_data),
]


def brute_force(decode: Decode, ids: Sequence[int], strings: Sequence[str]) -> tuple[int, str] | None:
    """The shortest beginning whose text holds a string, and that text before the string that ends first."""
    for count in range(1, len(ids) + 1):
        text = decode(ids[:count])
        ends = [(text.find(string) + len(string), text.find(string)) for string in strings if string in text]
        if ends:
            return count, text[: min(ends)[1]]
    return None


def run(rule: StopStrings, ids: Sequence[int], steps: Sequence[int]) -> int | None:
    """Tokens arrive in groups, as cycles commit them."""
    done = 0
    for step in steps:
        fresh = min(step, len(ids) - done)
        done += fresh
        if fresh and (kept := rule.kept(ids[:done], fresh)) is not None:
            return kept
    return None


def streams(tokenizer: Plain, draw: random.Random) -> list[list[int]]:
    """Real text in the tokenizer's own tokens, and random tokens."""
    text = tokenizer.backend.encode(TEXT, add_special_tokens=False).ids
    return [text, [draw.randrange(tokenizer.pieces()) for _ in range(60)]]


@pytest.mark.parametrize("name", NAMES)
def test_the_request_ends_where_brute_force_says(name: str, tmp_path: Path) -> None:
    tokenizer = tokenizer_of(name, tmp_path)
    stopped = inside = 0
    for seed in range(80):
        draw = random.Random(seed)
        for ids in streams(tokenizer, draw):
            whole = tokenizer.decode(ids).replace("\N{REPLACEMENT CHARACTER}", "\n")
            starts = [draw.randrange(max(1, len(whole) - 9)) for _ in range(draw.randint(1, 3))]
            strings = [whole[at : at + draw.randint(1, 9)] for at in starts] + ["never there"]
            strings = [string for string in strings if string]
            expected = brute_force(tokenizer.decode, ids, strings)
            rule = StopStrings(tokenizer, strings)
            kept = run(rule, ids, [draw.randint(1, 6) for _ in ids])
            assert kept == (expected[0] if expected else None), (strings, ids)
            assert rule.text == (expected[1] if expected else tokenizer.decode(ids))
            if expected is not None and kept is not None:
                stopped += 1
                inside += not tokenizer.decode(ids[:kept]).endswith(tuple(strings))
    assert stopped > 40
    if name in ("strip", "metaspace", "models/tok512"):
        assert inside > 0, "no string ended inside of a token: the test is too tame"


def test_a_string_before_half_a_character_is_found_at_once(tmp_path: Path) -> None:
    """A token may complete the string and begin a character: the end is there, not a token later."""
    vocab = {"ab": 0, "abÃ": 1, "¼": 2}  # the byte-level letters of C3 and BC
    backend = Tokenizer(models.BPE(vocab, []))
    backend.decoder = decoders.ByteLevel()
    tokenizer = Plain(backend)
    assert tokenizer.decode([1, 2]) == "abü"
    rule = StopStrings(tokenizer, ["ab"])
    assert rule.kept([1], 1) == 1
    assert rule.text == ""
    late = StopStrings(tokenizer, ["abü"])
    assert late.kept([1], 1) is None
    assert late.settled == ""
    assert late.kept([1, 2], 1) == 2


def test_shown_text_is_never_taken_back() -> None:
    """What is settled only grows, and is what remains in the end."""
    tokenizer = Plain(sentencepiece())
    for seed in range(30):
        draw = random.Random(seed)
        ids = [draw.randrange(256, tokenizer.pieces()) for _ in range(40)]  # no single bytes
        whole = tokenizer.decode(ids)
        at = draw.randrange(len(whole) // 2, len(whole) - 6)
        rule = StopStrings(tokenizer, [whole[at : at + 5]])
        shown = ""
        for count in range(1, len(ids) + 1):
            kept = rule.kept(ids[:count], 1)
            assert rule.settled.startswith(shown)
            shown = rule.settled
            if kept is not None:
                break
        assert kept is not None
        assert shown == rule.text


@pytest.mark.parametrize("strings", [[], [""], ["a", ""], ["a\N{REPLACEMENT CHARACTER}"], "abc"])
def test_what_is_no_stop_string_is_refused(strings: Sequence[str]) -> None:
    with pytest.raises(UsageError, match="a stop string is text"):
        StopStrings(Plain(sentencepiece()), strings)
