"""Checks of a target: weights, tokenizer, chat template, and logits against the Hugging Face model."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..core.errors import DataError
from ..corpus.chat.render import render_with_mask
from ..corpus.tokenizer.files import named_eos_ids, read_side_files
from ..corpus.tokenizer.tokenizer import TextTokenizer, load_tokenizer
from ..models.backends import lean_problem, load_decoding_target
from ..models.checkpoint import EMBEDDING, LM_HEAD, checkpoint_files, read_headers
from ..models.target.hf import HFTarget, check_tokenizer_fits
from ..models.target.interface import Target, whole_pass
from ..models.target.load import read_target_config
from ..models.target.text_config import text_config
from .checks import Finding, Report
from .machine import free_memory

GROUP = "target"
_TEXT = "The doctor asked: how do you feel today? 1 + 1 = 2, said the patient."
_TOLERANCE = 1e-4
_FP32 = 4


@dataclass(frozen=True)
class TargetFacts:
    """Loaded target for the checks of drafters and vocabularies.

    Attributes:
        tokenizer: None if it could not be loaded or does not fit.
        trained: the target as loaded for training; None if there was not enough memory.
    """

    path: Path
    model: Target
    tokenizer: TextTokenizer | None
    trained: HFTarget | None = None


def check_target(report: Report, path: Path, tokenizer_path: Path | None = None) -> TargetFacts | None:
    """Add the target's rows; return the loaded target, or None if it cannot be loaded."""
    config = report.run(GROUP, "configuration", check_config, path)
    needed = report.run(GROUP, "weight files", check_weights, path)
    model = report.run(GROUP, "loads", check_loads, path, config, needed)
    tokenizer = report.run(GROUP, "tokenizer", check_tokenizer, path, tokenizer_path or path, config)
    trained = report.run(GROUP, "logits", check_logits, path, model, tokenizer or ())
    report.run(GROUP, "end tokens", check_eos, path, tokenizer)
    report.run(GROUP, "chat template", check_chat_template, tokenizer)
    return None if model is None else TargetFacts(path, model, tokenizer, trained)


def check_config(path: Path) -> Finding[Any]:
    """Check the configuration; the value is the text model's configuration with Transformers' size names."""
    problem = lean_problem(path)
    config = text_config(read_target_config(path), path)
    names = ", ".join(getattr(config, "architectures", None) or [str(config.model_type)])
    return Finding(
        f"{names}, {config.num_hidden_layers} layers, hidden size {config.hidden_size:,}, "
        f"{config.vocab_size:,} rows; computed by "
        + ("the lean decoder" if problem is None else f"Transformers' own code ({problem.message})"),
        value=config,
    )


def check_weights(path: Path) -> Finding[int]:
    """Read the headers of the weight files; the value is the number of bytes that decoding needs on a CPU."""
    files = checkpoint_files(path)
    stored = read_headers(files)
    count = sum(math.prod(item.shape) for item in stored.values())
    kinds = ", ".join(sorted({item.dtype for item in stored.values()}))
    narrow = kinds == "BF16" and not any("expert" in name for name in stored)
    ends = sum(math.prod(item.shape) for name, item in stored.items() if name in (EMBEDDING, LM_HEAD))
    needed = count * _FP32 if not narrow else count * _FP32 // 2 + ends * _FP32  # the head is there twice
    return Finding(f"{count:,} parameters as {kinds} in {len(files)} file(s)", value=needed)


def check_loads(path: Path, config: Any, needed: int, role: str = "target") -> Finding[Target]:
    """Check that the model fits into memory and loads with finite values; the value is the fp32 model."""
    free = free_memory()
    if free is not None and needed > free:
        return Finding(
            f"needs {needed / 2**30:.1f} GiB, {free / 2**30:.1f} GiB are free",
            "skipped",
            "run the doctor on a machine with enough memory",
        )
    model = load_decoding_target(path, role=role)
    if broken := [name for name, weight in model.named_parameters() if not torch.isfinite(weight).all()]:
        return Finding(
            f"weights that are not finite: {', '.join(broken[:3])}",
            "failed",
            "download or create the weights again",
        )
    tied = "shared with" if model.lm_head_weight is model.embedding else "apart from"
    return Finding(
        f"all tensors of {model.config.architecture}, {model.config.max_positions:,} positions, LM head {tied} "
        "the embedding",
        value=model,
    )


def check_tokenizer(path: Path, tokenizer_path: Path, config: Any) -> Finding[TextTokenizer]:
    """Check that the tokenizer loads and that every id has a row in the target's head."""
    rows = config.vocab_size
    tokenizer = load_tokenizer(tokenizer_path, rows=rows)
    check_tokenizer_fits(tokenizer.vocab_size, rows, tokenizer=tokenizer.source, target=path)
    padded = rows - tokenizer.vocab_size
    return Finding(
        f"{tokenizer.vocab_size:,} ids for {rows:,} rows"
        + (f", {padded:,} unused padding rows" if padded else "")
        + (f"; {', '.join(tokenizer.beyond)} beyond the rows, refused in texts" if tokenizer.beyond else ""),
        value=tokenizer,
    )


def probe_ids(model: Target, tokenizer: TextTokenizer | None) -> list[int]:
    """Return a short prompt: a sentence, or ids spread over the vocabulary without a tokenizer."""
    most = min(24, model.config.max_positions // 2)
    if tokenizer is not None and (ids := tokenizer.encode(_TEXT, add_special=True)):
        return ids[:most]
    return [int(i) for i in torch.linspace(0, model.config.vocab_size - 1, most)]


@torch.inference_mode()
def check_logits(path: Path, model: Target, tokenizer: TextTokenizer | tuple[()]) -> Finding[HFTarget]:
    """Compare the decoder with the Hugging Face model on one prompt in fp32.

    The value is the Hugging Face model as loaded for training.
    """
    needed, free = sum(p.numel() for _, p in model.named_parameters()) * _FP32, free_memory()
    if free is not None and needed > free:
        return Finding("not enough memory for a second copy of the target", "skipped")
    ids = torch.tensor([probe_ids(model, tokenizer or None)])
    ours = model.logits(whole_pass(model, ids).hidden)[0]  # (T, V)
    trained = HFTarget.load(path)
    theirs = trained.model(input_ids=ids, use_cache=False).logits[0].float()
    difference, size = float((ours - theirs).abs().max()), float(theirs.abs().max())
    summary = (
        f"within {difference:.1e} of Hugging Face's over {ids.shape[1]} tokens (logits up to {size:.3g})"
    )
    if not difference <= _TOLERANCE * max(1.0, size):
        return Finding(
            summary, "failed", "decoding would differ from this model: report the config.json of this target"
        )
    return Finding(summary, value=trained)


def check_eos(path: Path, tokenizer: TextTokenizer) -> Finding[None]:
    """Check that end tokens are configured, exist in the tokenizer and match the target's."""
    named = named_eos_ids(read_side_files(path))
    ids = tokenizer.eos_ids
    if not ids:
        return Finding(
            "no end token is configured: generation stops only at its limit",
            "warning",
            "set eos_token_id in generation_config.json",
        )
    summary = ", ".join(f"{token} {tokenizer.backend.id_to_token(token)!r}" for token in ids)
    unknown = [token for token in ids if tokenizer.backend.id_to_token(token) is None]
    if unknown:
        return Finding(
            f"{summary}: the tokenizer has no {unknown}",
            "failed",
            "correct eos_token_id in generation_config.json",
        )
    missing = sorted(set(named) - set(ids))
    if missing:
        return Finding(
            f"{summary}; the target's files also name {missing}, but this tokenizer's folder does not",
            "warning",
            "copy the target's generation_config.json into the tokenizer's folder",
        )
    return Finding(summary)


def check_chat_template(tokenizer: TextTokenizer) -> Finding[None]:
    """Check that the template renders one and several answers, and that earlier turns stay a prefix."""
    if tokenizer.chat_template is None:
        return Finding("none: prompts are read as plain text", "skipped")
    first = [{"role": "user", "content": "Hello."}, {"role": "assistant", "content": "Good day."}]
    second = [{"role": "user", "content": "And?"}, {"role": "assistant", "content": "Nothing else."}]
    render_with_mask(tokenizer, first)
    try:
        ids, mask = render_with_mask(tokenizer, [*first, *second])
    except DataError as error:
        return Finding(
            f"works for one answer; with two: {error.message}",
            "warning",
            "conversations of several turns cannot be counted or trained on by their assistant's tokens",
        )
    forms = tokenizer.forms()
    reads = [f"{', '.join(sorted(forms.parts))} as lists of parts"] if forms.parts else []
    reads += [f"thinking as {forms.thinking}"] if forms.thinking else []
    reads += [f"nothing of {', '.join(sorted(forms.silent))}"] if forms.silent else []
    return Finding(
        f"present and prefix-stable ({sum(mask)} of {len(ids)} tokens are the assistant's)"
        + (f"; it reads {'; '.join(reads)}" if reads else "")
    )
