"""A tokenizer in a GGUF file: byte-level BPE whose pieces llama.cpp cuts as ``tokenizer.json`` does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ....core.errors import MismatchError
from ....core.files import read_json

_CASES = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
# Pattern that cuts the text -> its name in llama.cpp (src/llama-vocab.cpp). llama-bpe also takes whole tokens first.
_PATTERNS = {_CASES + r"\p{N}{1,3}" + _REST: "llama-bpe", _CASES + r"\p{N}" + _REST: "qwen2"}
_WHOLE_FIRST = ("llama-bpe",)
_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False}


def add_tokenizer(writer: Any, folder: Path, rows: int) -> None:
    """Add tokens, merges, special tokens and the chat template of a target's folder.

    Args:
        rows: of the embedding; those without a token are padding.

    Raises:
        MismatchError: a tokenizer that llama.cpp would cut differently, or that is written in another way.
    """
    import gguf

    body = read_json(folder / "tokenizer.json", "tokenizer")
    pre = _pre_tokenizer(body, folder)
    texts = {at: text for text, at in body["model"]["vocab"].items()}
    kinds = dict.fromkeys(texts, gguf.TokenType.NORMAL)
    for one in body["added_tokens"]:
        texts[one["id"]] = one["content"]
        control = one["special"] or (one["content"].startswith("<|") and one["content"].endswith("|>"))
        kinds[one["id"]] = gguf.TokenType.CONTROL if control else gguf.TokenType.USER_DEFINED
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list([texts.get(at, f"[PAD{at}]") for at in range(rows)])
    writer.add_token_types([kinds.get(at, gguf.TokenType.UNUSED) for at in range(rows)])
    gguf.SpecialVocab(folder, load_merges=True).add_to_gguf(writer, quiet=True)


def _pre_tokenizer(body: Mapping[str, Any], folder: Path) -> str:
    """llama.cpp's name of how the text is cut."""
    model, parts = body["model"], body["pre_tokenizer"] or {}
    *cuts, last = parts.get("pretokenizers", [parts])
    pre = None
    if model["type"] == "BPE" and not body["normalizer"] and last == last | _BYTE_LEVEL:
        patterns = [step.get("pattern", {}).get("Regex") for step in cuts]
        own = last["use_regex"]
        pre = "gpt-2" if own and not cuts else None
        pre = _PATTERNS.get(patterns[0]) if len(cuts) == 1 and not own else pre
    if pre is None or bool(model.get("ignore_merges")) != (pre in _WHOLE_FIRST):
        raise MismatchError(
            "this tokenizer is not written to GGUF here",
            got=f"{model['type']} cut by {[step.get('type') for step in (*cuts, last)]}",
            expected="byte-level BPE that cuts texts as Llama 3, Qwen2 or GPT-2 do",
            source=folder / "tokenizer.json",
            remedy="export --format sglang-eagle3 and convert it with llama.cpp's convert_hf_to_gguf.py",
        )
    return pre
