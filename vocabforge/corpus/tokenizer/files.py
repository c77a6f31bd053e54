"""Read tokenizer.json and its companion files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from ...core.errors import DataError
from ...core.files import read_json

# End tokens if no file names one, as with a bare tokenizer.json; always forced into draft vocabularies.
_USUAL_EOS = (
    "</s>",
    "<|endoftext|>",
    "<|im_end|>",
    "<|end_of_text|>",
    "<|eot_id|>",
    "<end_of_turn>",
    "<eos>",
    "<|end|>",
)
_SIDE_FILES = ("tokenizer_config.json", "special_tokens_map.json", "generation_config.json", "config.json")
_MOST_IDS = 1 << 24
_CONVERT = (
    "convert it once: transformers.AutoTokenizer.from_pretrained(FOLDER).save_pretrained(NEW_FOLDER), "
    "and use NEW_FOLDER"
)


def find_tokenizer_json(path: Path) -> Path:
    """Return the tokenizer.json at a path (file or folder).

    Errors list other tokenizer files and how to convert them.
    """
    if path.is_dir():
        if (path / "tokenizer.json").is_file():
            return path / "tokenizer.json"
        others = sorted(
            file.name
            for file in path.iterdir()
            if file.suffix == ".model" or "vocab" in file.name or file.name == "tekken.json"
        )
        raise DataError(
            "the folder holds no tokenizer.json",
            got=", ".join(others) or "no tokenizer file",
            expected=path / "tokenizer.json",
            remedy=_CONVERT if others else "check the path; it should be the target's folder",
        )
    if not path.is_file():
        raise DataError("the tokenizer is missing", expected=path, remedy="check the path")
    if path.suffix != ".json":
        raise DataError(
            "this is not a tokenizer.json",
            got=path,
            expected="a tokenizer.json or the folder of one",
            remedy=_CONVERT,
        )
    return path


def load_backend(file: Path) -> Tokenizer:
    """Load a tokenizer.json as a tokenizers object, without truncation and padding."""
    content = read_json(file, "tokenizer", finite=False)
    if not isinstance(content, dict) or "model" not in content:
        raise DataError(
            "this JSON file is not a tokenizer",
            got="no 'model' in it",
            expected="the format of the tokenizers library",
            source=file,
            remedy=_CONVERT,
        )
    _check_ids(content, file)
    try:
        backend = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare Exception
        raise DataError(
            "the tokenizers library refuses this tokenizer.json",
            got=error,
            source=file,
            remedy="it may be damaged, or too new for the installed tokenizers library: upgrade the library",
        ) from error
    backend.no_truncation()
    backend.no_padding()
    return backend


def _check_ids(content: Mapping[str, Any], file: Path) -> None:
    """Reject huge ids: the library allocates memory up to the highest id and aborts if that fails."""
    model = content["model"]
    vocab = model.get("vocab") if isinstance(model, dict) else None
    added = content.get("added_tokens")
    ids = list(vocab.values()) if isinstance(vocab, dict) else []
    ids += [token.get("id") for token in added if isinstance(token, dict)] if isinstance(added, list) else []
    highest = max((number for number in ids if isinstance(number, int)), default=0)
    if highest >= _MOST_IDS:
        raise DataError(
            "the tokenizer has an id beyond any vocabulary",
            got=highest,
            expected=f"below {_MOST_IDS:,}",
            source=file,
        )


def _read_side_file(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    value = read_json(path, path.name, finite=False)
    if not isinstance(value, dict):
        raise DataError(
            f"{path.name} is not a JSON object", got=type(value).__name__, source=path, expected="an object"
        )
    return value


def special_texts(beside: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return the special tokens that Transformers passes to a chat template.

    These are every ``*_token`` of special_tokens_map.json and tokenizer_config.json, in this order, and all of
    ``extra_special_tokens``.
    """
    config, older = beside["tokenizer_config.json"], beside["special_tokens_map.json"]
    extra = config.get("extra_special_tokens")
    texts: dict[str, str] = {}
    extra = extra if isinstance(extra, dict) else {}
    for file in (older, config, extra):
        for name, value in file.items():
            text = value.get("content") if isinstance(value, dict) else value
            if (str(name).endswith("_token") or file is extra) and isinstance(text, str):
                texts.setdefault(str(name), text)
    return texts


def read_chat_templates(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Return the chat templates by name, ``default`` for an unnamed template.

    ``chat_template.jinja`` and ``additional_chat_templates/NAME.jinja`` override tokenizer_config.json;
    ``chat_template.json`` (of processors) is the fallback.
    """
    templates: dict[str, str] = {}
    named = config.get("chat_template")
    if isinstance(named, list):
        templates = {
            str(item.get("name")): item["template"]
            for item in named
            if isinstance(item, dict) and isinstance(item.get("template"), str) and item["template"]
        }
    elif isinstance(named, dict):
        templates = {str(name): text for name, text in named.items() if isinstance(text, str) and text}
    elif isinstance(named, str) and named:
        templates = {"default": named}
    if (folder / "chat_template.jinja").is_file():
        templates = {"default": _read_template(folder / "chat_template.jinja")}
    elif not templates and (folder / "chat_template.json").is_file():
        whole = _read_side_file(folder / "chat_template.json").get("chat_template")
        templates = {"default": whole} if isinstance(whole, str) and whole else {}
    if (folder / "additional_chat_templates").is_dir():
        for file in sorted((folder / "additional_chat_templates").glob("*.jinja")):
            templates[file.stem] = _read_template(file)
    return templates


def _read_template(file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            "the chat template cannot be read",
            got=error,
            source=file,
            remedy="fetch it again; it must be UTF-8 text",
        ) from error


def prefix_ids_of(backend: Tokenizer) -> tuple[int, ...]:
    """Return the ids that the post-processor adds before a text.

    ``add_bos_token`` of tokenizer_config.json is ignored, as in Transformers 5: tokenizer.json decides.
    """
    plain = backend.encode("a", add_special_tokens=False).ids
    full = backend.encode("a", add_special_tokens=True).ids
    starts = (at for at in range(len(full) - len(plain) + 1) if full[at : at + len(plain)] == plain)
    return tuple(full[: next(starts, 0)])


def model_rows(config: Mapping[str, Any]) -> int | None:
    """Return ``vocab_size`` of a model's config.json or its ``text_config``, or None if missing."""
    nested = config.get("text_config")
    rows = config.get("vocab_size", nested.get("vocab_size") if isinstance(nested, Mapping) else None)
    return rows if isinstance(rows, int) and not isinstance(rows, bool) and rows > 0 else None


def named_eos_ids(beside: Mapping[str, Mapping[str, Any]]) -> tuple[int, ...]:
    """Return ``eos_token_id`` (a number or a list) of generation_config.json, or else of config.json."""
    for name in ("generation_config.json", "config.json"):
        value = beside[name].get("eos_token_id")
        tokens = value if isinstance(value, list) else [value]
        if ids := tuple(token for token in tokens if type(token) is int and token >= 0):
            return ids
    return ()


def eos_ids_of(
    backend: Tokenizer, beside: Mapping[str, Mapping[str, Any]], vocab: Mapping[str, int]
) -> tuple[int, ...]:
    """Return the distinct end tokens named in the files, or the usual end tokens if no file names any."""
    ids: list[int] = []
    token = special_texts(beside).get("eos_token")
    if token is not None and token in vocab:
        ids.append(vocab[token])
    ids += named_eos_ids(beside)
    return tuple(dict.fromkeys(ids)) or usual_eos_ids(backend)


def usual_eos_ids(backend: Tokenizer) -> tuple[int, ...]:
    """Return the added tokens with a usual end-token name, whether or not a file names them."""
    return tuple(token_id for token_id, added in added_tokens(backend) if added.content in _USUAL_EOS)


def added_tokens(backend: Tokenizer) -> list[tuple[int, Any]]:
    """Return (id, AddedToken) for every added token, sorted by id."""
    return sorted(backend.get_added_tokens_decoder().items())


def read_side_files(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the companion JSON files of a tokenizer by name, ``{}`` for a missing file."""
    return {name: _read_side_file(folder / name) for name in _SIDE_FILES}
