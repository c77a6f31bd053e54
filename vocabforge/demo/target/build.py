"""Train a small Llama target on conversations, with its own or a given tokenizer, without downloads.

The result depends only on the configuration and the files: fixed steps and seeds, no wall clock.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from ...core.artifact import Artifact, check_output, open_artifact, write_artifact
from ...core.console import say
from ...core.errors import DataError
from ...core.files import atomic_write, atomic_write_json, sha256_file
from ...core.lock import only_writer
from ...corpus.sources.sources import SourceOptions, iter_documents
from ...corpus.tokenizer.files import find_tokenizer_json, usual_eos_ids
from ...corpus.tokenizer.tokenizer import TextTokenizer, load_tokenizer
from ...models.device import choose_device
from ...models.target.hf import check_tokenizer_fits
from ...train.machine import keep_freed_memory
from .config import TinyTargetConfig
from .layerskip import layerskip_step
from .train import (
    METRICS,
    MakeStep,
    Step,
    TextRows,
    WorkFolder,
    heldout_loss,
    plain_step,
    prepared_rows,
    train_model,
)

KIND = "target"
PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
# Letters with an optional preceding character, single digits (for arithmetic), punctuation, line ends,
# spaces.
_PIECES = "|".join(
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)",
        r"[^\r\n\p{L}\p{N}]?\p{L}+",
        r"\p{N}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)


def make_tokenizer(texts: Iterable[str], vocab_size: int, folder: Path) -> TextTokenizer:
    """Train a byte-level BPE and write ``tokenizer.json`` and ``tokenizer_config.json`` into ``folder``.

    Args:
        vocab_size: number of entries, including the three special tokens and 256 bytes.

    Raises:
        DataError: the texts are not diverse enough for ``vocab_size`` entries.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[PAD, START, END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    if backend.get_vocab_size() != vocab_size:
        raise DataError(
            "the texts are too few for a tokenizer of this size",
            got=f"{backend.get_vocab_size():,} entries",
            expected=f"{vocab_size:,} entries",
            remedy="give more text or lower vocab_size",
        )
    atomic_write(folder / "tokenizer.json", backend.to_str(pretty=True))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        "pad_token": PAD,
        "additional_special_tokens": [START, END],
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    atomic_write_json(folder / "tokenizer_config.json", settings)
    return load_tokenizer(folder)


# Files that AutoTokenizer may read from a folder; existing ones are copied.
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
)


def copy_tokenizer(source: Path, folder: Path) -> TextTokenizer:
    """Copy a tokenizer's files into ``folder`` and load it from there.

    Raises:
        DataError: the folder has no usable tokenizer, or the tokenizer has no end token.
    """
    for path in tokenizer_files(source):
        shutil.copyfile(path, folder / path.name)
    tokenizer = load_tokenizer(folder)
    if not _end_ids(tokenizer, given=True):
        raise DataError(
            "the tokenizer has no end token, so that the target could not end its answers",
            expected="eos_token in tokenizer_config.json",
            source=source,
            remedy="write eos_token into tokenizer_config.json",
        )
    return tokenizer


def tokenizer_files(source: Path) -> list[Path]:
    """Return the tokenizer files in a tokenizer's folder.

    Raises:
        DataError: the folder has no tokenizer.json.
    """
    folder = find_tokenizer_json(source).parent
    return [folder / name for name in TOKENIZER_FILES if (folder / name).is_file()]


def build_model(config: TinyTargetConfig, tokenizer: TextTokenizer) -> Any:
    """Build an untrained fp32 Llama on the CPU.

    Raises:
        MismatchError: the tokenizer has more entries than ``config.rows``.
    """
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.utils import logging as hf_logging

    hf_logging.disable_progress_bar()  # avoid a bar for one small file inside our own
    torch.manual_seed(config.seed)
    rows = tokenizer.vocab_size if config.rows is None else config.rows
    check_tokenizer_fits(tokenizer.vocab_size, rows, tokenizer=tokenizer.source, target="this target")
    ends = _end_ids(tokenizer, given=config.tokenizer is not None)
    pad = tokenizer.backend.token_to_id(tokenizer.special_text.get("pad_token", ""))
    settings = LlamaConfig(
        vocab_size=rows,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.num_layers,
        num_attention_heads=config.num_heads,
        num_key_value_heads=config.num_kv_heads,
        max_position_embeddings=config.max_position_embeddings,
        rope_theta=config.rope_theta,
        initializer_range=config.init_std,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=ends[0],
        pad_token_id=ends[0] if pad is None else pad,
        attn_implementation="sdpa",
    )
    model = LlamaForCausalLM(settings)
    model.generation_config.eos_token_id = ends[0] if len(ends) == 1 else ends
    _start_copying(model)
    return model


def _end_ids(tokenizer: TextTokenizer, *, given: bool) -> list[int]:
    """Return the end tokens, the end of a turn first.

    A given tokenizer may end plain texts with another token, as Qwen3's does; that token also ends answers.
    """
    return list(dict.fromkeys([*tokenizer.eos_ids, *(usual_eos_ids(tokenizer.backend) if given else ())]))


@torch.no_grad()
def _start_copying(model: Any) -> None:
    """Initialise attention to copy and the MLPs to zero.

    The output matrix of each head is initialised to the transpose of its value matrix, so that a token that
    is attended to raises its own logit (mimetic initialisation, Trockman and Kolter 2023, with the sign for
    copying). Answers repeat much of their prompts, and a tiny target sees few tokens from which it could
    learn to copy.
    """
    config = model.config
    groups = config.num_attention_heads // config.num_key_value_heads
    for layer in model.model.layers:
        values = layer.self_attn.v_proj.weight  # (nkv * D, H)
        heads = values.view(config.num_key_value_heads, -1, config.hidden_size).repeat_interleave(groups, 0)
        layer.self_attn.o_proj.weight.copy_(heads.flatten(0, 1).T)  # (H, nq * D)
        layer.mlp.down_proj.weight.zero_()


def _texts(path: Path) -> Iterator[str]:
    for document in iter_documents([path], SourceOptions(strict=True)):
        yield from (str(message["content"]) for message in document.messages or ())


def target_inputs(config: TinyTargetConfig) -> dict[str, str]:
    """Return hashes of a target's input files, as its manifest records them under ``parents``.

    Raises:
        DataError: a file cannot be read.
    """
    files = {"train": config.train} | {f"heldout/{path.name}": path for path in config.heldout_files}
    if config.tokenizer is not None:
        files |= {f"tokenizer/{path.name}": path for path in tokenizer_files(config.tokenizer)}
    try:
        return {name: sha256_file(path) for name, path in files.items()}
    except OSError as error:
        raise DataError(
            "the conversations cannot be read",
            got=error.strerror or error,
            source=error.filename,
            remedy="check the path and its permissions",
        ) from error


def asked_step(
    model: Any, optimizer: torch.optim.Optimizer, rows: TextRows, config: TinyTargetConfig
) -> Step:
    """Return the optimiser step that a configuration selects."""
    make = layerskip_step if config.skips_layers else plain_step
    return make(model, optimizer, rows, config)


def train_tiny_target(
    config: TinyTargetConfig,
    folder: Path,
    *,
    overwrite: bool = False,
    make_step: MakeStep = asked_step,
) -> Artifact:
    """Train a target and write it, with its tokenizer, to ``folder`` as a standard Hugging Face checkpoint.

    A ``manifest.json`` (kind ``target``) records the number of parameters, the first and last training losses
    and the held-out loss (nats per counted token). A stopped run is resumed by the next call; on a CPU, the
    weights are the same as without the interruption.

    Args:
        make_step: builds the optimiser step.

    Raises:
        DataError: the conversations or the tokenizer are unusable, or there is too little text for a
            tokenizer.
        MismatchError: the tokenizer has more entries than the model rows, or an unfinished run has other
            settings.
        UsageError: ``folder`` exists and must not be replaced, or the device does not exist.
        KeyboardInterrupt: the run was stopped, and can be resumed.
    """
    check_output(folder, overwrite=overwrite)
    device = choose_device(config.device)
    if device.type == "cpu":
        if config.threads is not None:
            torch.set_num_threads(config.threads)
        keep_freed_memory()
    parents = target_inputs(config)
    learnt = {name: value for name, value in parents.items() if not name.startswith("heldout")}
    identity = {**config.decides(), **learnt, "device": device.type}
    work, facts = WorkFolder(folder), {"seed": config.seed}
    with only_writer(work.path):
        settings = config.model_dump(mode="json")
        with write_artifact(
            folder, KIND, facts, parents=parents, config=settings, overwrite=overwrite
        ) as temporary:
            if config.tokenizer is None:
                tokenizer = make_tokenizer(_texts(config.train), config.vocab_size, temporary)
            else:
                tokenizer = copy_tokenizer(config.tokenizer, temporary)
            model = build_model(config, tokenizer)
            facts.update(_fit(model.to(device), tokenizer, config, work, identity, make_step))
            if config.weights == "bf16":
                model.to(torch.bfloat16)
            model.save_pretrained(temporary)
            shutil.copyfile(work.metrics, temporary / METRICS)
        work.remove()
    return open_artifact(folder, KIND)


def _fit(
    model: Any,
    tokenizer: TextTokenizer,
    config: TinyTargetConfig,
    work: WorkFolder,
    identity: dict[str, Any],
    make_step: MakeStep,
) -> dict[str, Any]:
    data = prepared_rows(work.rows, tokenizer, config)
    rows, heldout = (TextRows(packed, config.loss_on) for packed in (data.train, data.heldout))
    config = config.model_copy(update={"optim": config.optim.over(len(rows))})
    parameters = sum(p.numel() for p in model.parameters())
    tokens = int((rows.packed.document > 0).sum())
    seen = config.optim.steps * config.optim.batch_size / len(rows)
    say(
        f"Training {parameters:,} parameters on {tokens:,} tokens in {len(rows):,} rows, {seen:.1f} epochs, "
        f"on {model.device.type}"
    )
    first, last = train_model(model.train(), rows, config, work, identity, make_step)
    most = min(len(heldout), config.heldout_rows or len(heldout))
    chosen = torch.arange(most) * len(heldout) // max(most, 1)
    total, count = heldout_loss(model.eval(), heldout, chosen) if config.heldout_files else (0.0, 0)
    return {
        "vocab_size": model.config.vocab_size,
        "parameters": parameters,
        "train_rows": len(rows),
        "train_tokens": tokens,
        "first_loss": round(first, 4),
        "last_loss": round(last, 4),
        "heldout_loss": round(total / max(count, 1), 4) if config.heldout_files else None,
        "heldout_tokens": count,
    }
