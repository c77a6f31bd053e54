"""What a tokenizer's normaliser, pre-tokeniser and added tokens allow at a place where a text is cut.

Every component is on a list with the reason why it may stand there; one that is not raises ``NotProven``.
A place is written ``x|c``: ``x`` ends the left text, ``c`` begins the right one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*" + _SPACES
LLAMA3 = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _TAIL
QWEN2 = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _TAIL
QWEN35 = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*" + _SPACES
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_WORD = r"[^\r\n\p{L}\p{N}]?"
_SLASH = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _SPACES
O200K = (
    f"{_WORD}{_UPPER}*{_LOWER}+{_CONTRACTION}?|{_WORD}{_UPPER}+{_LOWER}*{_CONTRACTION}?"
    r"|\p{N}{1,3}" + _SLASH
)
TEKKEN = f"{_WORD}{_UPPER}*{_LOWER}+|{_WORD}{_UPPER}+{_LOWER}*" r"|\p{N}" + _SLASH
_ASCII_WORD = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+".replace('\\"', '"')
# The published file holds carriage return and line feed themselves, not their escapes.
DEEPSEEK = (
    _ASCII_WORD
    + "|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"
)

# In these a run of punctuation takes the newlines behind it.
TAIL_PATTERNS = frozenset(
    {LLAMA3, QWEN2, QWEN35, O200K, TEKKEN, DEEPSEEK, DEEPSEEK.replace("\r", r"\r").replace("\n", r"\n")}
)
# What the DeepSeek tokenizers split by first.
DEEPSEEK_SPLITS = (r"\p{N}{1,3}", "[一-龥\u3040-ゟ゠-ヿ]+")
# These match digits or East Asian letters only: never a space, a newline or a full stop.
LOCAL_PATTERNS = frozenset({r"\p{N}", r"\d", "[0-9]", "[0-9][0-9][0-9]", *DEEPSEEK_SPLITS})

# Inside a regular expression's class. East Asian letters: kana, ideographs, Hangul syllables.
EAST_ASIAN = "\u3041-\u3094\u30a1-\u30fa\u3400-\u4db5\u4e00-\u9fa5\uac00-\ud7a3"
# Letters and digits, long assigned, alone in their grapheme. Each keeps a letter or digit at its end under
# NFC and NFKC and is never removed or turned into space by a known normaliser.
# Left out are letters such as DEVANAGARI QA, whose NFC ends in a mark, and L WITH MIDDLE DOT.
PLAIN = (
    "0-9A-Za-zÀ-ÖØ-öø-\u013e\u0141-ſΑ-ΡΣ-Ωά-ώЀ-џԱ-Ֆա-ֆא-ת"
    "\u0621-\u063a\u0641-\u064a\u0904-\u0939\u0e01-\u0e30\u10d0-\u10f0" + EAST_ASIAN
)
# Never white space, for any library's idea of it; controls and format characters are left out as well.
NOT_VISIBLE = (
    r"\x00-\x20\x7f-\xa0\xad\u1680\u180e\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000\ufeff\ufff0-\uffff"
)


Part = Mapping[str, Any]

# Kinds of places. SPACE: before a space. NEWLINE: before a newline. LINE: behind a newline, before a letter.
SPACE, NEWLINE, LINE = "space", "newline", "line"
ALL_KINDS = frozenset({SPACE, NEWLINE, LINE})


class NotProven(Exception):
    """A component whose behaviour at a cut is not proven; the text names it."""


@dataclass(frozen=True)
class Normal:
    """What the normaliser does at a cut.

    Attributes:
        strict: the characters beside a cut must be plain letters or digits.
        restarts: the start of a text is treated apart (a prefix is added, space is stripped).
        strips: white space at the end of a text goes.
        pads: puts spaces around East Asian letters.
        images: what a space at a cut becomes.
    """

    strict: bool
    restarts: bool
    strips: bool
    pads: bool
    images: frozenset[str]
    steps: tuple[Part, ...]


@dataclass(frozen=True)
class Splits:
    """Places at which the pre-tokeniser always splits.

    Attributes:
        kinds: of these kinds; empty if the model sees the text unsplit.
        letter: before a newline the left character must be a letter or digit.
        runs: a LINE place may stand behind several newlines.
        unsplit: what the unsplit text's component replaces: space -> character.
    """

    kinds: frozenset[str]
    letter: bool = False
    runs: bool = False
    unsplit: Mapping[str, str] | None = None


def flat(part: Part | None, key: str) -> tuple[Part, ...]:
    """The components of a normaliser or pre-tokeniser, Sequences opened."""
    if part is None:
        return ()
    if part["type"] == "Sequence":
        return tuple(step for inner in part[key] for step in flat(inner, key))
    return (part,)


def read_normalizer(part: Part | None) -> Normal:
    """Why each known normaliser acts on both sides of a cut as on the two texts apart.

    NFC: a space or a newline is a starter that composes with nothing. Other normal forms, Lowercase, StripAccents,
    Nmt and BertNormalizer act character by character beyond that, but may remove a character, end it with a mark or
    put a space before it: only plain letters and digits may stand beside the cut (``strict``). Strip and Prepend
    touch only the ends of a text. Replace: a pattern that is one space, a run of spaces from its start on, or text
    without letters, digits and white space is never matched across ``x|c``.

    Raises:
        NotProven: another normaliser (Precompiled joins graphemes, ByteLevel rewrites all).
    """
    steps = flat(part, "normalizers")
    strict = restarts = strips = pads = False
    images = frozenset({" "})
    for step in steps:
        kind = step["type"]
        if kind in ("NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt", "BertNormalizer"):
            strict = True
            pads = pads or kind == "BertNormalizer"
        elif kind == "Strip":
            restarts = restarts or bool(step["strip_left"])
            strips = strips or bool(step["strip_right"])
        elif kind == "Prepend":
            restarts = True
        elif kind == "Replace":
            images, harder = _replaced(step, images)
            strict = strict or harder
        elif kind != "NFC":
            raise NotProven(f"the normalizer {kind}")
    return Normal(strict, restarts, strips, pads, images, steps)


def _replaced(step: Part, images: frozenset[str]) -> tuple[frozenset[str], bool]:
    """(images of a space, whether only plain characters may stand beside a cut) after a Replace."""
    pattern, content = step["pattern"], step["content"]
    if pattern == {"String": " "} and len(content) == 1:
        return frozenset(content if image == " " else image for image in images), False
    if pattern == {"Regex": " {2,}"} and content in (" ", "▁"):
        return (images | {content} if " " in images else images), False
    text = pattern.get("String", "")
    plain = not any(letter.isalnum() or letter.isspace() or letter == "▁" for letter in text + content)
    if text and content and plain:
        return images, True
    raise NotProven(f"the normalizer Replace {dict(pattern)} by {content!r}")


def read_pre_tokenizer(part: Part | None, normal: Normal) -> Splits:
    """Where a pre-tokeniser splits, whatever stands around.

    A step before the one that splits at the cut must leave the rest as it is when the text is cut there; a step
    behind it sees both sides as pieces of their own.

    Raises:
        NotProven: a step that is not on the list.
    """
    steps = flat(part, "pretokenizers")
    if (unsplit := _unsplit(steps, normal)) is not None:
        return Splits(frozenset(), unsplit=unsplit)
    kinds, found = ALL_KINDS, None
    for step in steps:
        kind = step["type"]
        if found is not None:
            kinds &= _behind(step, found[1])
        elif (found := _splitting(step, normal)) is not None:
            kinds &= found[0].kinds
        elif kind not in ("Digits", "Punctuation") and _pattern(step) not in LOCAL_PATTERNS:
            raise NotProven(_named(step))  # the others never match a space or newline
    if found is None or not kinds:
        raise NotProven("the pre-tokenizer, which splits at no place that is known")
    return Splits(kinds, found[0].letter, found[0].runs)


def _unsplit(steps: tuple[Part, ...], normal: Normal) -> Mapping[str, str] | None:
    """For text that reaches the model whole: what becomes of a space and a newline; else None."""
    if not steps:
        return {}
    step = steps[0]
    if len(steps) > 1:
        return None
    if step["type"] == "Metaspace" and not step["split"]:
        return {" ": step["replacement"]}
    if step["type"] == "ByteLevel" and not step["use_regex"] and not step["add_prefix_space"]:
        return {" ": "Ġ", "\n": "Ċ"}
    if step["type"] == "Split" and step["pattern"] == {"String": " "} and " " not in normal.images:
        return {}  # as in Gemma: the normaliser has left no space to split at
    return None


def _pattern(step: Part) -> str | None:
    if step["type"] != "Split" or (step["behavior"], step["invert"]) not in (
        ("Isolated", False),
        ("Removed", True),
    ):
        return None
    pattern: str | None = step["pattern"].get("Regex")
    return pattern


def _splitting(step: Part, normal: Normal) -> tuple[Splits, bool] | None:
    """(places where this step splits, whether it drops white space), None for a step that need not split.

    WhitespaceSplit, Whitespace, BertPreTokenizer: white space ends a piece on its left and is dropped.
    Metaspace: every replaced space begins a piece.
    GPT-2's pattern (ByteLevel has it built in): no alternative holds a space or newline behind another
    visible character, so a match begins there; behind ONE newline, too, for ``\\s+`` takes it in both cases.
    The patterns with a tail: ``[^\\s\\p{L}\\p{N}]+[\\r\\n]*`` holds a newline behind punctuation, so before a
    newline only letters and digits; ``\\s*[\\r\\n]+`` ends at the last newline of a run.
    """
    kind = step["type"]
    if kind in ("WhitespaceSplit", "Whitespace", "BertPreTokenizer"):
        return _plain_space(normal, Splits(ALL_KINDS)), True
    if normal.pads:
        return None
    if kind == "Metaspace" and step["split"]:
        if not normal.images <= {" ", step["replacement"]}:
            raise NotProven(f"the normalizer, which turns a space into {sorted(normal.images)}")
        return Splits(frozenset({SPACE})), False
    pattern = _pattern(step)
    if pattern == GPT2 or (kind == "ByteLevel" and step["use_regex"]):
        # A prefix is added to whatever does not begin with a space.
        prefix = kind == "ByteLevel" and step["add_prefix_space"]
        return _plain_space(normal, Splits(frozenset({SPACE}) if prefix else ALL_KINDS)), False
    if pattern in TAIL_PATTERNS:
        return _plain_space(normal, Splits(ALL_KINDS, letter=True, runs=True)), False
    return None


def _plain_space(normal: Normal, splits: Splits) -> Splits:
    if normal.images != {" "}:
        raise NotProven(f"the normalizer, which turns a space into {sorted(normal.images)}")
    return splits


def _behind(step: Part, dropped: bool) -> frozenset[str]:
    kind = step["type"]
    if kind == "Metaspace" and step["prepend_scheme"] == "first":
        # It marks the piece at the start of a text: no piece is there when white space was dropped.
        if not dropped:
            raise NotProven("the pre-tokenizer Metaspace with prepend_scheme first behind another")
        return frozenset({SPACE, NEWLINE})
    known = ("ByteLevel", "Metaspace", "Digits", "Punctuation", "Split", "Whitespace", "WhitespaceSplit")
    if kind in (*known, "BertPreTokenizer"):
        return ALL_KINDS
    raise NotProven(_named(step))


def _named(step: Part) -> str:
    return f"the pre-tokenizer {step['type']}" + (f" {step['pattern']}" if step["type"] == "Split" else "")
