"""GGUF models, converted once into a cached Hugging Face folder.

Transformers maps the configuration and the tensors. Settings that it ignores (RoPE scaling, the
pre-tokenizer, end-of-turn tokens) are added here; unsupported ones raise an error that names them.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .artifact import MANIFEST, open_artifact, write_artifact
from .console import say
from .errors import DataError, VocabForgeError
from .files import atomic_write_json, read_json, sha256_file
from .lock import lock_file, only_writer
from .progress import ProgressBar

CACHE_VARIABLE = "VOCABFORGE_CACHE"
SUFFIX = ".gguf"
_KIND = "target"
_CACHE = "gguf-2"  # increment the number when the conversion changes
_SPLIT = re.compile(r"-\d{5}-of-\d{5}\.gguf$")
# Values of tokenizer.ggml.pre that use GPT-2's pattern unchanged.
_AS_GPT2 = {None, "default", "gpt-2", "gpt2"}
# Values of tokenizer.ggml.pre that split digits before GPT-2's pattern (llama.cpp, src/llama-vocab.cpp).
_SINGLE_DIGITS = {"smollm", "starcoder", "refact", "command-r", "codeshell"}
# Names of end-of-turn tokens, from llama.cpp.
_TURN_ENDS = (
    "<end_of_turn>",
    "<|im_end|>",
    "<|eot_id|>",
    "<|end|>",
    "<|eom_id|>",
    "<|return|>",
    "<|endoftext|>",
    "<turn|>",
    "<|end_of_text|>",
    "<end_of_utterance>",
)
# general.type or general.architecture of files that are not language models.
_OTHER_FILES = {
    "mmproj": "the vision part of a model",
    "clip": "the vision part of a model",
    "adapter": "an adapter",
    "eagle3": "an EAGLE-3 drafter",
}


def package() -> Any:
    """Return the ``gguf`` package, which is published by llama.cpp.

    Raises:
        VocabForgeError: the package is not installed.
    """
    try:
        import gguf
    except ImportError as error:
        raise VocabForgeError(
            "GGUF files need the package gguf", got=error, remedy="pip install gguf"
        ) from error
    return gguf


def open_gguf(file: Path) -> Any:
    """Open a GGUF file with the package's reader.

    Raises:
        ValueError: something is longer than the file. The package's reader would loop over a length of 2^63.
    """
    reader: Any = package().GGUFReader

    class Bounded(reader):
        def _get(self, offset: int, dtype: Any, count: int = 1, *args: Any, **named: Any) -> Any:
            values = super()._get(offset, dtype, count, *args, **named)
            if len(values) < count:
                raise ValueError(f"the file ends before byte {offset}, or within {count} items from there")
            return values

    return Bounded(file)


def cache_root() -> Path:
    """Return VocabForge's cache folder, shared by all projects of a user."""
    shared = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(os.environ.get(CACHE_VARIABLE) or Path(shared) / "vocabforge")


def find_gguf(path: Path) -> Path | None:
    """Return the GGUF file of ``path``: the file itself, or the only model in a folder without safetensors.

    Raises:
        DataError: the folder has several GGUF files, or the file is one part of a split model.
    """
    if path.is_dir():
        if any(path.glob("*.safetensors")):
            return None
        kinds = {file: _peek_architecture(file) for file in sorted(path.glob(f"*{SUFFIX}")) if file.is_file()}
        files = [file for file, kind in kinds.items() if kind not in ("clip", "mmproj")]
        if not files or any(kinds[file] in _OTHER_FILES for file in files):  # a drafter's folder
            return None
        if len(files) > 1 and not _SPLIT.search(files[0].name):
            raise DataError(
                "the folder has several GGUF files",
                got=", ".join(file.name for file in files[:5]),
                expected="one file",
                source=path,
                remedy=f"pass one of them: {files[0]}",
            )
        path = files[0]
    elif path.suffix.lower() != SUFFIX or not path.is_file():
        return None
    if _SPLIT.search(path.name):
        raise DataError(
            "the GGUF file is one part of a split model",
            got=path.name,
            expected="a single file",
            source=path,
            remedy="merge the parts with llama.cpp: llama-gguf-split --merge FIRST_PART MERGED.gguf",
        )
    return path


def _peek_architecture(file: Path) -> str | None:
    """Return general.architecture, which is usually the first key; None if it is not."""
    try:
        with open(file, "rb") as handle:
            head = handle.read(256)
    except OSError:  # reported when the file is read
        return None
    key = b"general.architecture"
    start = head.find(key) + len(key) + 4  # skip the value type
    if key not in head or len(head) < start + 8:
        return None
    length = int.from_bytes(head[start : start + 8], "little")
    return head[start + 8 : start + 8 + length].decode("utf-8", "replace")


def gguf_folder(file: Path, *, weights: bool = True) -> Path:
    """Return the cached Hugging Face folder of a GGUF file, converted on first use.

    Weights are dequantised to fp32; files whose matrices are all bf16 or all fp16 keep that type. Processes
    that need the same file wait for the one that converts it.

    Args:
        weights: False converts only the tokenizer.

    Raises:
        DataError: the file is truncated, or its architecture, quantisation or RoPE scaling is not supported.
        VocabForgeError: the package gguf is missing, or the disk is full.
    """
    digest = _digest(file)
    root = cache_root() / _CACHE
    if (known := find_converted(file.name, digest, weights=weights)) is not None:
        if lock_file(known).exists():  # its process was killed after the last rename
            with contextlib.suppress(VocabForgeError), only_writer(known):
                pass
        return known
    folder = root / f"{file.stem}-{digest[:12]}{'' if weights else '-tokenizer'}"
    with only_writer(folder, wait=True):
        if not (folder / MANIFEST).is_file():
            with _explained(file):
                _convert(file, digest, folder, weights)
    return folder


def gguf_source(folder: Path) -> tuple[str, str] | None:
    """Return the name and SHA-256 of the source file of a cached folder; None for other folders."""
    if folder.parent.name != _CACHE or not (folder / MANIFEST).is_file():
        return None
    meta = open_artifact(folder, verify=False).meta
    return (str(meta["gguf"]), str(meta["sha256"])) if "gguf" in meta else None


def find_converted(name: str, digest: str, *, weights: bool = True) -> Path | None:
    """Return the cached folder of a GGUF file by name and SHA-256 (or a prefix of it), or None."""
    cached = cache_root() / _CACHE / f"{Path(name).stem}-{digest[:12]}"
    folders = [cached] if weights else [cached, cached.with_name(f"{cached.name}-tokenizer")]
    return next((folder for folder in folders if (folder / MANIFEST).is_file()), None)


def _digest(file: Path) -> str:
    """Return the SHA-256 of a file, cached by path, size and modification time."""
    stat = file.stat()
    facts: dict[str, Any] = {
        "path": str(file.resolve()),
        "bytes": stat.st_size,
        "changed_ns": stat.st_mtime_ns,
    }
    name = hashlib.sha256(facts["path"].encode()).hexdigest()[:16]
    note = cache_root() / _CACHE / "hashes" / f"{name}.json"
    with contextlib.suppress(DataError, OSError):
        known = read_json(note)
        if {key: known.get(key) for key in facts} == facts:
            return str(known["sha256"])
    with ProgressBar(f"hash {file.name}"):
        digest = sha256_file(file)
    # With a read-only cache the file is hashed every time.
    with contextlib.suppress(OSError, VocabForgeError):
        note.parent.mkdir(parents=True, exist_ok=True)
        atomic_write_json(note, {**facts, "sha256": digest})
    return digest


@contextlib.contextmanager
def _explained(file: Path) -> Iterator[None]:
    """Convert errors raised by gguf and transformers for unreadable files into one clear error."""
    try:
        yield
    except (VocabForgeError, KeyboardInterrupt):
        raise
    except MemoryError as error:
        raise VocabForgeError(
            "there is not enough memory to convert the GGUF file",
            source=file,
            remedy="convert it on a machine with more memory, or pass the original checkpoint (safetensors)",
        ) from error
    except Exception as error:  # any type: the file is untrusted input
        raise DataError(
            "the GGUF file cannot be converted",
            got=f"{type(error).__name__}: {' '.join(str(error).split())[:300]}",
            expected="a complete language model that Transformers reads from GGUF",
            source=file,
            remedy="the file may be truncated: download it again; or upgrade transformers",
        ) from error


def _convert(file: Path, digest: str, folder: Path, weights: bool) -> None:
    with ProgressBar(f"read {file.name}"):
        reader = open_gguf(file)
    fields = dict(reader.fields)
    architecture = str(_value(fields, "general.architecture"))
    kind = str(_value(fields, "general.type") or "model")
    other = _OTHER_FILES.get(kind) or _OTHER_FILES.get(architecture)
    if other is not None:
        raise DataError(
            "the GGUF file is not a language model",
            got=f"{other} (general.type {kind}, architecture {architecture})",
            expected="a language model",
            source=file,
            remedy="pass the file of the model itself",
        )
    types = Counter(tensor.tensor_type.name for tensor in reader.tensors)
    meta = {
        "gguf": file.name,
        "sha256": digest,
        "architecture": architecture,
        "name": _value(fields, "general.name"),
        "licence": _value(fields, "general.license"),
        "types": dict(sorted(types.items())),
        "weights": weights,
    }
    if weights:
        elements = sum(int(tensor.n_elements) for tensor in reader.tensors)
        size = 2 if _half(types) else 4
        say(
            f"Converting {file.name} ({elements / 1e6:,.0f}M parameters, {', '.join(types)}) to {folder}: "
            f"{elements * size / 1e9:.1f} GB, once"
        )
        _check_disk(folder, elements * size)
    with (
        _quiet_transformers(),
        write_artifact(folder, _KIND, meta) as temporary,
        ProgressBar(f"convert {file.name}") as bar,
    ):
        bar.update(0, "tokenizer")
        _write_tokenizer(file, fields, temporary)
        card = f"---\nlicense: {meta['licence'] or 'unknown'}\n---\nConverted from {file.name}, SHA-256 {digest}.\n"
        (temporary / "README.md").write_text(card, "utf-8")
        if weights:
            bar.update(0, "weights")
            _write_model(file, fields, reader, architecture, _half(types), temporary)


def _half(types: Mapping[str, int]) -> str | None:
    """Return bfloat16 or float16 if all matrices have that type; otherwise None (fp32)."""
    matrices = [name for name in types if name != "F32"]
    return {"BF16": "bfloat16", "F16": "float16"}.get(matrices[0]) if len(matrices) == 1 else None


def _check_disk(folder: Path, needed: int) -> None:
    at = folder
    while not at.exists():
        at = at.parent
    free = shutil.disk_usage(at).free
    if free < needed * 1.05:
        raise VocabForgeError(
            "there is no room for the converted model",
            got=f"{free / 1e9:.1f} GB free at {at}",
            expected=f"{needed / 1e9:.1f} GB",
            remedy=f"free disk space, or set {CACHE_VARIABLE} to a folder on another disk",
        )


def _unsupported(file: Path, message: str, got: object, expected: object, remedy: str = "") -> DataError:
    remedy = f"pass the original checkpoint (safetensors){remedy}"
    return DataError(message, got=got, expected=expected, source=file, remedy=remedy)


def _value(fields: Mapping[str, Any], name: str) -> Any:
    field = fields.get(name)
    return None if field is None else field.contents()


@contextlib.contextmanager
def _quiet_transformers() -> Iterator[None]:
    """Silence the progress bars and log messages of transformers: the conversion has its own bar."""
    from transformers import modeling_gguf_pytorch_utils as loading
    from transformers.utils import logging as hf_logging

    level, bar = hf_logging.get_verbosity(), loading.tqdm
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()
    loading.tqdm = lambda items, **_: items
    try:
        yield
    finally:
        hf_logging.set_verbosity(level)
        loading.tqdm = bar


def _write_tokenizer(file: Path, fields: Mapping[str, Any], folder: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name, trust_remote_code=False)
    pre = _value(fields, "tokenizer.ggml.pre")
    if _value(fields, "tokenizer.ggml.model") == "gpt2" and pre not in _known_splits():
        message = "the pre-tokenizer of this GGUF file is not supported"
        known_splits = ", ".join(sorted(map(str, _known_splits() - {None})))
        raise _unsupported(
            file, message, f"tokenizer.ggml.pre {pre}", known_splits, ", or upgrade transformers"
        )
    if pre in _SINGLE_DIGITS:
        from tokenizers import pre_tokenizers

        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    template = _value(fields, "tokenizer.chat_template")
    if template and not tokenizer.chat_template:
        tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    ends = [_value(fields, f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    known = tokenizer.get_vocab()
    ends += [known[token] for token in _TURN_ENDS if token in known and token in str(template or "")]
    ids = {
        "bos_token_id": _value(fields, "tokenizer.ggml.bos_token_id"),
        "eos_token_id": list(dict.fromkeys(int(token) for token in ends if token is not None)),
        "pad_token_id": _value(fields, "tokenizer.ggml.padding_token_id"),
    }
    named = {name: value for name, value in ids.items() if value not in (None, [])}
    (folder / "generation_config.json").write_text(json.dumps(named, indent=2), "utf-8")


def _known_splits() -> set[str | None]:
    """Return the values of tokenizer.ggml.pre that Transformers or this module supports."""
    known = _AS_GPT2 | _SINGLE_DIGITS
    with contextlib.suppress(ImportError):
        from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

        known = known | set(GGUF_PRE_TOKENIZER_SPLITS)
    return known


def _write_model(
    file: Path, fields: Mapping[str, Any], reader: Any, architecture: str, half: str | None, folder: Path
) -> None:
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM

    dtype = getattr(torch, half or "float32")
    model, info = AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=dtype, output_loading_info=True, trust_remote_code=False
    )
    state = model.state_dict()
    biases = [tensor.name for tensor in reader.tensors if tensor.name.endswith(".bias")]
    if biases and not any(name.endswith(".bias") for name in state):
        message = "Transformers ignores weights of this GGUF file"
        expected = f"only weights that {architecture} has in Transformers"
        raise _unsupported(file, message, f"{len(biases)} biases, first: {biases[0]}", expected)
    if packed := [name for name, tensor in state.items() if tensor.dtype == torch.uint8]:
        message, got = (
            "Transformers keeps weights of this GGUF file quantised",
            f"{len(packed)} tensors, first: {packed[0]}",
        )
        raise _unsupported(file, message, got, None, ", or uninstall the package kernels")
    missing = [name for name in info["missing_keys"] if "rotary" not in name and name != "lm_head.weight"]
    if missing:
        got = f"{len(missing)} missing, first: {', '.join(sorted(missing)[:3])}"
        expected = f"a complete model of architecture {architecture}"
        message = "the GGUF file lacks weights that the architecture has"
        raise _unsupported(file, message, got, expected, ", or upgrade transformers")
    config = model.config.to_dict()
    for key in ("quantization_config", "_name_or_path", "_model_name_or_path"):
        config.pop(key, None)
    config["architectures"] = [type(model).__name__]
    config["dtype"] = half or "float32"
    # GGUF stores fp32: 1e-05 is read as 9.999999747378752e-06.
    config = {key: shortest(value) for key, value in config.items()}
    _add_rope(config, fields, reader, architecture, file)
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True, default=str), "utf-8")
    beside = folder / "generation_config.json"
    body = json.loads(beside.read_text("utf-8"))
    ends = config.get("eos_token_id")
    more = ends if isinstance(ends, list) else [ends]
    body["eos_token_id"] = list(
        dict.fromkeys([*body.get("eos_token_id", []), *(end for end in more if end is not None)])
    )
    beside.write_text(json.dumps(body, indent=2), "utf-8")
    if config.get("tie_word_embeddings"):
        state = {name: tensor for name, tensor in state.items() if name != "lm_head.weight"}
    del model
    save_file(
        {name: tensor.detach().to(dtype).contiguous() for name, tensor in state.items()},
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )


def shortest(value: Any) -> Any:
    """Undo single-precision rounding: 9.999999974752427e-07 becomes 1e-6."""
    return float(f"{value:.7g}") if isinstance(value, float) else value


def _add_rope(
    config: dict[str, Any], fields: Mapping[str, Any], reader: Any, architecture: str, file: Path
) -> None:
    """Add the file's RoPE scaling, which Transformers ignores; raise DataError for unsupported kinds."""
    rope = config.get("rope_parameters")
    other = [tensor.name for tensor in reader.tensors if tensor.name.startswith("rope_factors")]
    turned, size = _value(fields, f"{architecture}.rope.dimension_count"), config.get("head_dim")
    partial = turned and size and turned != size and not config.get("partial_rotary_factor")
    if other or partial:
        got = ", ".join(other) or f"{turned} of {size} dimensions are rotated"
        expected = "RoPE over whole heads, with at most Llama 3's scaling"
        raise _unsupported(file, "the RoPE of this GGUF file is not supported", got, expected)
    if not isinstance(rope, dict):
        return
    scaling = _value(fields, f"{architecture}.rope.scaling.type")
    factors = next((tensor for tensor in reader.tensors if tensor.name == "rope_freqs.weight"), None)
    layers = [rope.get("full_attention", rope)] if "full_attention" in rope else [rope]
    kept = [layer.get("rope_type", "default") != "default" for layer in layers]
    if any(kept) or (scaling in (None, "none", "") and factors is None):
        return
    if scaling == "linear":
        factor = _value(fields, f"{architecture}.rope.scaling.factor")
        for layer in layers:
            layer.update(rope_type="linear", factor=float(factor))
        return
    parameters = None if factors is None else _llama3(factors.data.reshape(-1), rope)
    if parameters is None:
        message = "the RoPE scaling of this GGUF file is not supported"
        got = f"rope.scaling.type {scaling}" if factors is None else "an unknown rope_freqs.weight"
        raise _unsupported(file, message, got, "none, linear, or Llama 3's frequencies")
    rope.update(parameters)


def _llama3(factors: Any, rope: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the Llama 3 RoPE settings that match the frequency factors, or None.

    Published models use factors 8 and 32.
    """
    import numpy as np

    theta, count = float(rope.get("rope_theta", 10_000.0)), len(factors)
    waves = 2 * np.pi * theta ** (np.arange(count) / count)
    for factor in (8.0, 32.0, 4.0, 16.0, 64.0):
        low, high, original = 1.0, 4.0, 8192
        smooth = (original / waves - low) / (high - low)
        blended = 1 / ((1 - smooth) / factor + smooth)
        wanted = np.where(waves < original / high, 1.0, np.where(waves > original / low, factor, blended))
        if np.allclose(wanted, factors, rtol=1e-3):
            return {
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": low,
                "high_freq_factor": high,
                "original_max_position_embeddings": original,
            }
    return None
