"""Tokenizers of every structure that the cut rules and counting engines know, trained on a few sentences."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

from vocabforge.core.registry import resolve
from vocabforge.corpus.tokenizer.cut_parts import DEEPSEEK, GPT2, LLAMA3, O200K, QWEN2, QWEN35, TEKKEN
from vocabforge.corpus.tokenizer.cuts import CutRule, NoCut
from vocabforge.corpus.tokenizer.tokenizer import TextTokenizer, fingerprint_of, structure_of
from vocabforge.vocab.counts.engines import ENGINES, NotSuited, PlainEngine

SENTENCES = (
    "The quick brown fox jumps over the lazy dog, doesn't it? I'll say so: they're 12345 of them.\n\n",
    "def main(argv):\n    return sum(x ** 2 for x in range(10))  # the sum\r\n\tprint('done')\n",
    "Faust: Habe nun, ach! Philosophie, Juristerei und Medizin durchaus studiert. Größe über ähnliche Öfen.\n",
    "吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。\n",
    "第一回　甄士隐梦幻识通灵，贾雨村风尘怀闺秀。\n",
    "В начале сотворил Бог небо и землю. Земля же была безвидна и пуста, и тьма над бездною.\n",
    "إنّ في ذلك لعبرة لأولي الألباب. हर व्यक्ति को शिक्षा का अधिकार है। มนุษย์ทั้งหลายเกิดมามีอิสระ\n",
    "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다. 👩‍👩‍👧 🙂 e\u0301 ﬁ ½ Å\n",
    "to be or not to be   that is  the question … <html> [x] (y) {z} a/b http://e.org/?q=1&r=2 $5.00 100%\n",
)
SPECIALS = ("<|end|>", "<|user|>")


def special_tokens(*names: str, **flags: Any) -> list[AddedToken]:
    return [AddedToken(name, special=True, normalized=False, **flags) for name in names]


def _byte_level(
    pattern: str | None = None,
    *,
    normalizer: Any = None,
    prefix: bool = False,
    ignore_merges: bool = False,
    before: tuple[Any, ...] = (),
    added: tuple[AddedToken, ...] = (),
) -> Tokenizer:
    backend = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if normalizer is not None:
        backend.normalizer = normalizer
    last = pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=pattern is None)
    split = () if pattern is None else (pre_tokenizers.Split(Regex(pattern), "isolated"),)
    steps = [*before, *split, last]
    backend.pre_tokenizer = steps[0] if len(steps) == 1 else pre_tokenizers.Sequence(steps)
    backend.train_from_iterator(
        SENTENCES * 3,
        trainers.BpeTrainer(
            vocab_size=700, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
        ),
    )
    backend.add_special_tokens(special_tokens(*SPECIALS))
    backend.add_tokens(list(added))
    return backend


def _sentencepiece(
    form: str, *, fallback: bool = True, added: tuple[AddedToken, ...] = (), more: tuple[str, ...] = ()
) -> Tokenizer:
    """BPE over the whole text, as conversions from SentencePiece are: no pre-tokeniser splits; ``more`` are tokens."""
    teacher = Tokenizer(models.BPE())
    teacher.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    teacher.pre_tokenizer = pre_tokenizers.Split(Regex("▁*[^▁]+|▁+"), "isolated")
    teacher.train_from_iterator(SENTENCES * 3, trainers.BpeTrainer(vocab_size=420, show_progress=False))
    learned = json.loads(teacher.to_str())["model"]
    low = ["<unk>", "<s>", "</s>"]
    low += [f"<0x{byte:02X}>" for byte in range(256)] if fallback else []
    rare = {"猫", "Ö", "½", "Q", "\n"} - set(more)  # left out, so that bytes and <unk> occur
    tokens = [token for token in learned["vocab"] if not rare & set(token)]
    vocab = {token: at for at, token in enumerate([*low, *dict.fromkeys(["▁", "▁▁", *more, *tokens])])}
    # As conversions do: every division of a token is a merge, in the order in which the tokens were learnt.
    results = dict.fromkeys(["▁▁", *("".join(pair) for pair in learned["merges"]), *more])
    merges = [
        (token[:at], token[at:])
        for token in results
        for at in range(1, len(token))
        if token in vocab and token[:at] in vocab and token[at:] in vocab
    ]
    backend = Tokenizer(
        models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=fallback)  # type: ignore[arg-type]
    )
    space = normalizers.Replace(" ", "▁")
    if form == "stripped":
        backend.normalizer = normalizers.Sequence(
            [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " "), normalizers.Prepend("▁"), space]
        )
    elif form == "prepend":
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), space])
    elif form == "gemma":
        backend.normalizer = space
        backend.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    else:
        backend.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme=form, split=False)
    backend.add_special_tokens(special_tokens(*low[:3]))
    backend.add_tokens(list(added))
    return backend


def _unigram(pre_tokenizer: Any) -> Tokenizer:
    backend = Tokenizer(models.Unigram())
    backend.pre_tokenizer = pre_tokenizer
    specials = special_tokens("<unk>", "</s>")
    trainer = trainers.UnigramTrainer(
        vocab_size=400, unk_token="<unk>", special_tokens=specials, show_progress=False
    )
    backend.train_from_iterator(SENTENCES * 3, trainer)
    return backend


def _wordpiece() -> Tokenizer:
    backend = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=400, special_tokens=special_tokens("[UNK]", "[CLS]", "[MASK]"), show_progress=False
    )
    backend.train_from_iterator(SENTENCES * 3, trainer)
    return backend


def _awkward(**flags: Any) -> tuple[AddedToken, ...]:
    return (AddedToken("<mask>", **{"normalized": False, **flags}),)


def _isolated(pattern: str) -> Any:
    return pre_tokenizers.Split(Regex(pattern), "isolated")


# name -> builder. Lane P: a pre-tokeniser splits the text; lane V: the model sees all of it.
PROVEN: dict[str, Callable[[], Tokenizer]] = {
    "gpt2": _byte_level,
    "gpt2_prefix": lambda: _byte_level(prefix=True),
    "gpt2_split": lambda: _byte_level(GPT2),
    "llama3": lambda: _byte_level(LLAMA3, ignore_merges=True),
    "llama3_nfc": lambda: _byte_level(LLAMA3, normalizer=normalizers.NFC()),
    "qwen2": lambda: _byte_level(QWEN2, normalizer=normalizers.NFC()),
    "o200k": lambda: _byte_level(O200K),
    "qwen35": lambda: _byte_level(QWEN35),
    "tekken": lambda: _byte_level(TEKKEN),
    "deepseek": lambda: _byte_level(
        DEEPSEEK, before=(_isolated(r"\p{N}{1,3}"), _isolated("[一-龥\u3040-ゟ゠-ヿ]+"))
    ),
    "starcoder": lambda: _byte_level(before=(pre_tokenizers.Digits(individual_digits=True),)),
    "falcon": lambda: _byte_level(before=(pre_tokenizers.Punctuation("contiguous"),)),
    "gpt2_stripped": lambda: _byte_level(normalizer=normalizers.Strip(left=False, right=True)),
    "gpt2_marked": lambda: _byte_level(normalizer=normalizers.Prepend("Q")),
    "added_plain": lambda: _byte_level(added=(AddedToken("fox", normalized=True), AddedToken(" so"))),
    "added_nfc": lambda: _byte_level(
        QWEN2, normalizer=normalizers.NFC(), added=(AddedToken("é", normalized=True),)
    ),
    "added_lstrip": lambda: _byte_level(added=_awkward(lstrip=True)),
    "added_rstrip": lambda: _byte_level(added=_awkward(rstrip=True)),
    "added_both": lambda: _byte_level(LLAMA3, added=_awkward(lstrip=True, rstrip=True)),
    "added_word": lambda: _byte_level(QWEN2, added=(AddedToken("the", single_word=True, normalized=False),)),
    "added_letter_lstrip": lambda: _byte_level(
        QWEN2, added=(AddedToken("zzz", lstrip=True, normalized=False),)
    ),
    "added_spaces": lambda: _byte_level(added=tuple(AddedToken(" " * n, normalized=True) for n in (2, 3, 4))),
    "added_newline": lambda: _byte_level(QWEN2, added=(AddedToken("\n\n", normalized=False),)),
    "sp_stripped": lambda: _sentencepiece("stripped"),
    "sp_stripped_unk": lambda: _sentencepiece("stripped", fallback=False),
    "sp_prepend": lambda: _sentencepiece("prepend"),
    "sp_prepend_rstrip": lambda: _sentencepiece("prepend", added=_awkward(rstrip=True)),
    "sp_first": lambda: _sentencepiece("first"),
    "sp_always": lambda: _sentencepiece("always"),
    "sp_gemma": lambda: _sentencepiece("gemma"),
}


def _dropout() -> Tokenizer:
    backend = _byte_level()
    backend.model.dropout = 0.1
    return backend


def _tiny(vocab: str, *merges: tuple[str, str], unk: str | None = None) -> Tokenizer:
    """SentencePiece-like, over a few tokens written one behind the other with bars between."""
    ids = {token: at for at, token in enumerate(vocab.split("|"))}
    backend = Tokenizer(models.BPE(ids, list(merges), unk_token=unk, fuse_unk=unk is not None))
    backend.normalizer = normalizers.Replace(" ", "▁")
    return backend


# name -> (builder, a word of the reason why nothing may be cut)
REFUSED: dict[str, tuple[Callable[[], Tokenizer], str]] = {
    "dropout": (_dropout, "dropout"),
    "unknown_split": (lambda: _byte_level(r"\s+|\S+\s\S+"), "Split"),
    "unknown_pre_tokenizer": (
        lambda: _byte_level(before=(pre_tokenizers.CharDelimiterSplit("x"),)),
        "CharDelimiterSplit",
    ),
    "unknown_normalizer": (lambda: _byte_level(normalizer=normalizers.ByteLevel()), "ByteLevel"),
    "unknown_replace": (lambda: _byte_level(normalizer=normalizers.Replace(Regex("e."), "i")), "Replace"),
    "sp_vanishing": (lambda: _tiny("▁|a|▁▁", ("▁", "▁")), "drops"),
    "unigram": (lambda: _unigram(pre_tokenizers.Metaspace(split=False)), "Unigram"),
    "t5": (lambda: _unigram(pre_tokenizers.WhitespaceSplit()), "WhitespaceSplit"),
    "bert": (_wordpiece, "BertNormalizer"),
    "sp_prepend_lstrip": (lambda: _sentencepiece("prepend", added=_awkward(lstrip=True)), "<mask>"),
    "sp_prepend_normalized": (lambda: _sentencepiece("prepend", added=_awkward(normalized=True)), "<mask>"),
}
CROSSING: dict[str, Callable[[], Tokenizer]] = {
    "crossing": lambda: _tiny("▁|a|b|a▁|\n|b\n", ("a", "▁"), ("b", "\n"), unk="a"),
    # Gemma's runs of newlines and spaces and its HTML are added tokens; one is the beginning of another.
    "sp_gemma_runs": lambda: _sentencepiece(
        "gemma",
        more=("\n", "\n\n", "\n\n\n", "▁▁▁", "s▁a"),
        added=tuple(
            AddedToken(token, normalized=False) for token in ("\n\n", "\n\n\n", "▁▁", "▁▁▁", "<b>", "<b>c")
        ),
    ),
    "no_space": lambda: _tiny("<unk>|a|\n", unk="<unk>"),  # <unk> may be fused over the unknown space
}


@cache
def built(name: str) -> TextTokenizer:
    """A tokenizer of the tables above, as the package sees it."""
    builder = PROVEN.get(name) or CROSSING.get(name) or REFUSED[name][0]
    return wrapped(builder())


def engines_of(tokenizer: TextTokenizer, rule: CutRule | NoCut) -> list[PlainEngine]:
    """Every engine that counts with this tokenizer."""
    made = []
    for name in ENGINES:
        try:
            made.append(resolve(ENGINES, name, "counting engine")(tokenizer, rule))
        except NotSuited:
            continue
    return made


def wrapped(backend: Tokenizer) -> TextTokenizer:
    """A ``TextTokenizer`` around a backend that has no file."""
    whole = json.loads(backend.to_str())
    return TextTokenizer(
        backend=backend,
        structure=structure_of(whole),
        source=Path("built-in-a-test/tokenizer.json"),
        vocab_size=max(backend.get_vocab(with_added_tokens=True).values()) + 1,
        fingerprint=fingerprint_of(whole),
        bos_id=None,
        eos_ids=(),
        control_ids=(),
        tool_ids=(),
        chat_template=None,
        prefix_ids=(),
        special_text={},
    )
