"""Byte forms: joined, they are the text as the tokenizer sees it, for every family of tokenizers."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from tests.vocab.engine_tokenizers import PROVEN, wrapped
from tests.vocab.family_tokenizers import FAMILIES, SPACE, loaded
from tests.vocab.overlap_support import Prepared
from tests.worlds import DATA
from vocabforge.core.errors import DataError
from vocabforge.corpus.tokenizer.token_bytes import readable, token_forms

BYTE_LEVEL = [
    "gpt2", "gpt2_prefix", "gpt2_split", "llama3", "llama3_nfc", "qwen2", "qwen35", "o200k", "tekken",
    "deepseek", "starcoder", "falcon",
]  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Tokenizer and forms of every family, by name."""
    folder = tmp_path_factory.mktemp("families")
    tokenizers = {name: loaded(folder / name, make()) for name, make in FAMILIES.items()}
    return Prepared({name: (tokenizer, token_forms(tokenizer)) for name, tokenizer in tokenizers.items()})


def sentencepiece_text(text: str) -> str:
    """SentencePiece's view: trimmed, runs of spaces collapsed, one space in front, its mark is a space."""
    text = re.sub(" {2,}", " ", text.strip("\t\n\v\f\r \x85\xa0" + "".join(WHITE)))
    return (" " + text if text else "").replace(SPACE, " ")


WHITE = [chr(code) for code in (0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000)]


@pytest.mark.parametrize("name", sorted(set(FAMILIES) - {"byte_level_bare", "word_piece_bare", "word_level"}))
@given(data=st.data())
@settings(
    max_examples=60, suppress_health_check=[HealthCheck.filter_too_much]
)  # parts of characters are no text
def test_any_ids_decode_to_their_joined_bytes(made, name, data):
    """Not only ids that an encoder would give: what the decoder writes behind a first token."""
    tokenizer, forms = made[name]
    known = [token for token, form in enumerate(forms.forms) if form is not None]
    (first,) = tokenizer.encode("the")[:1]
    ids = data.draw(st.lists(st.sampled_from(known), max_size=12))
    if name == "suffix_bpe":  # the decoder drops the last space of the text
        ids = [*ids, first]
    parts = b"".join(forms.forms[token] or b"" for token in ids)
    try:
        text = parts.decode()
    except UnicodeDecodeError:
        assume(False)
    whole = tokenizer.decode([first, *ids], skip_special=False)
    if name == "suffix_bpe":
        assert whole + " " == "the " + text
    else:
        assert whole == tokenizer.decode([first]) + text


def bytes_of(tokenizer):
    return list(token_forms(tokenizer).forms)


def test_special_unknown_and_missing_ids_have_no_bytes(made, tmp_path):
    backend = FAMILIES["byte_level"]()
    backend.add_special_tokens([AddedToken("<|end|>")])
    backend.add_tokens([AddedToken("<think>", normalized=False)])
    forms = token_forms(loaded(tmp_path, backend))
    assert forms.forms[-2:] == (None, b"<think>")
    assert forms.special == {len(forms.forms) - 2}
    assert forms.added == {len(forms.forms) - 1}
    assert forms.family == "byte-level"
    for name in ("unigram", "word_piece", "word_level", "sentencepiece"):
        assert made[name][1].forms[0] is None
    gap = Tokenizer(models.WordLevel({"<unk>": 0, "a": 4}, unk_token="<unk>"))
    gap.pre_tokenizer = pre_tokenizers.Whitespace()
    assert bytes_of(loaded(tmp_path / "gap", gap)) == [None, None, None, None, b" a"]


def test_the_family_is_read_from_the_parts_and_not_from_the_tokens(made, tmp_path):
    """Tokens that look like byte tokens or GPT-2's characters are text where nothing turns them into bytes."""
    vocab = {"<unk>": 0, "<0x41>": 1, "Ġ": 2, "##x": 3, "▁y": 4}
    backend = Tokenizer(models.BPE(vocab, [], unk_token="<unk>"))
    backend.decoder = decoders.Fuse()
    assert bytes_of(loaded(tmp_path / "a", backend)) == [None, *(t.encode() for t in list(vocab)[1:])]
    fallback = Tokenizer(models.BPE(vocab, [], unk_token="<unk>", byte_fallback=True))
    fallback.decoder = decoders.Metaspace()
    assert bytes_of(loaded(tmp_path / "b", fallback)) == [None, b"A", "Ġ".encode(), b"##x", b" y"]


@pytest.mark.parametrize("decoder", [decoders.CTC(), None])
def test_an_unknown_decoder_is_a_clear_error(tmp_path, decoder):
    backend = Tokenizer(models.BPE({"a": 0}, []))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    if decoder is not None:
        backend.decoder = decoder
    with pytest.raises(DataError, match="not known"):
        bytes_of(loaded(tmp_path, backend))


@pytest.mark.parametrize(
    ("token", "shown"),
    [
        (b" the", "␣the"),
        (b"\n\r\t", "\\n\\r\\t"),
        (b"\xe4\xbd", "\\xe4\\xbd"),
        (b"\x80\xff", "\\x80\\xff"),
        ("é".encode() + b"\xa9", "é\\xa9"),
        (b"\x00\x1b[31m\x7f", "\\u0000\\u001b[31m\\u007f"),
        ("\u202eevil\u2066", "\\u202eevil\\u2066"),
        ("\u200b\ufeff\u3000\u00ad", "\\u200b\\ufeff\\u3000\\u00ad"),
        ("\u0301", "◌\u0301"),
        ("\\n", "\\\\n"),
        ("␣", "\\u2423"),
        ("你好🙂", "你好🙂"),
        ("\U000e0001", "\\U000e0001"),
        ("", ""),
    ],
)
def test_readable(token, shown):
    assert readable(token) == shown


@given(st.lists(st.binary(max_size=6), unique=True, max_size=20))
def test_readable_tells_tokens_apart_and_prints_on_one_line(tokens):
    shown = [readable(token) for token in tokens]
    assert len(set(shown)) == len(tokens)
    assert all(len(line.splitlines()) <= 1 and (not line or line.isprintable()) for line in shown)


@pytest.mark.parametrize("name", BYTE_LEVEL)
def test_published_splits_and_normalisers_keep_every_byte(name):
    """More tokenizers in the way of published ones, without a decoder."""
    tokenizer = wrapped(PROVEN[name]())
    forms = token_forms(tokenizer)
    assert forms.family == "byte-level"
    text = "The quick  fox e\u0301 don't.\n\n zzz 12345 \u4f60\u597d"
    normalizer = tokenizer.backend.normalizer
    expected = normalizer.normalize_str(text) if normalizer is not None else text
    expected = " " + expected if name == "gpt2_prefix" else expected
    assert b"".join(forms.forms[token] for token in tokenizer.encode(text)) == expected.encode()


def golden() -> list[dict]:
    lines = (DATA / "tokenizers" / "golden_encodings.jsonl").read_text("utf-8").splitlines()
    return [json.loads(line) for line in lines]
