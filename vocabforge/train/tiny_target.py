"""A small tokenizer and a small Llama target made from conversations, so that nothing has to be fetched.

Everything follows from the configuration and the files: fixed steps, fixed seeds, no wall clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from ..core.artifact import Artifact, check_output, open_artifact, write_artifact
from ..core.config import StrictModel
from ..core.errors import DataError
from ..core.files import sha256_file
from ..core.progress import ProgressBar
from ..corpus.dataset import PackedRows, SequenceOptions, iter_sequences, pack
from ..corpus.sources import SourceOptions, iter_documents
from ..corpus.tokenizer import TextTokenizer
from ..models.target import document_mask
from .config import OptimConfig, Positive
from .optim import learning_rate, make_optimizer, set_learning_rate
from .tiny_tokenizer import END, PAD, make_tokenizer

KIND = "target"
_STRICT = SourceOptions(strict=True)


class TinyTargetConfig(StrictModel):
    """Configuration of a tiny target.

    Attributes:
        train: conversations to learn from (JSONL), also the tokenizer's text.
        heldout: conversations for the held-out loss.
        vocab_size: V, tokenizer entries, special tokens and 256 bytes included; the model has exactly V rows.
        intermediate_size: width of the SwiGLU MLP.
        max_position_embeddings: longest context that the configuration admits.
        sequence_length: T, tokens of a packed training row.
        init_std: standard deviation of the initial weights; narrow models learn sooner with more than the
            usual 0.02.
        loss_on: which predictions count: those of assistant tokens, or of all tokens.
        threads: CPU threads; None leaves torch's choice.
    """

    train: Path
    heldout: Path
    vocab_size: Annotated[int, Field(ge=300)] = 4096
    hidden_size: Positive = 256
    intermediate_size: Positive = 384
    num_layers: Positive = 3
    num_heads: Positive = 4
    num_kv_heads: Positive = 2
    max_position_embeddings: Positive = 2048
    init_std: Annotated[float, Field(gt=0.0)] = 0.05
    sequence_length: Annotated[int, Field(ge=8)] = 256
    loss_on: Literal["assistant", "all"] = "assistant"
    optim: OptimConfig
    seed: int = 0
    threads: Positive | None = None


def _texts(path: Path) -> Iterator[str]:
    """All that is said in a file's conversations."""
    for document in iter_documents([path], _STRICT):
        yield from (str(message["content"]) for message in document.messages or ())


def _token(tokenizer: TextTokenizer, token: str) -> int:
    found = tokenizer.backend.token_to_id(token)
    assert found is not None  # make_tokenizer put it there
    return int(found)


def _packed(tokenizer: TextTokenizer, path: Path, length: int) -> PackedRows:
    sequences = iter_sequences(tokenizer, [path], SequenceOptions(sources=_STRICT))
    return pack(sequences, length, pad_id=_token(tokenizer, PAD))


@dataclass(frozen=True)
class _Rows:
    """Packed rows as tensors, all (N, T)."""

    input_ids: Tensor
    counted: Tensor
    document: Tensor
    position: Tensor

    @classmethod
    def make(cls, packed: PackedRows, loss_on: str) -> _Rows:
        document = torch.as_tensor(packed.document)
        counted = torch.as_tensor(packed.loss_mask).bool() if loss_on == "assistant" else document > 0
        return cls(torch.as_tensor(packed.input_ids), counted, document, torch.as_tensor(packed.position))

    def __len__(self) -> int:
        return len(self.input_ids)


def _loss(model: Any, rows: _Rows, chosen: Tensor) -> tuple[Tensor, int]:
    """Mean cross-entropy over the counted predictions of the chosen rows, and their number.

    Only the counted positions go through the LM head: it is a third of a tiny model's work.
    """
    ids, document = rows.input_ids[chosen], rows.document[chosen]  # (B, T)
    hidden = model.model(
        input_ids=ids,
        attention_mask=document_mask(document),
        position_ids=rows.position[chosen],
        use_cache=False,
    ).last_hidden_state
    follows = document[:, 1:] == document[:, :-1]
    keep = rows.counted[chosen][:, 1:] & follows & (document[:, 1:] > 0)  # (B, T - 1)
    logits = model.lm_head(hidden[:, :-1][keep])  # (n, V)
    count = int(keep.sum())
    # A batch of rows cut before their answer has nothing to count: its loss is 0, not NaN.
    return F.cross_entropy(logits, ids[:, 1:][keep], reduction="sum") / max(count, 1), count


@torch.no_grad()
def heldout_loss(model: Any, rows: _Rows, batch_size: int = 8) -> float:
    """Mean cross-entropy (nats a token) over all counted predictions."""
    total, count = 0.0, 0
    for chosen in torch.arange(len(rows)).split(batch_size):
        loss, number = _loss(model, rows, chosen)
        total, count = total + float(loss) * number, count + number
    return total / max(count, 1)


def _batches(count: int, config: OptimConfig, seed: int) -> Iterator[Tensor]:
    """Row numbers of each step's batch: epoch after epoch, each shuffled."""
    generator = torch.Generator().manual_seed(seed)
    waiting = torch.empty(0, dtype=torch.int64)
    for _ in range(config.steps):
        while len(waiting) < config.batch_size:
            waiting = torch.cat([waiting, torch.randperm(count, generator=generator)])
        yield waiting[: config.batch_size]
        waiting = waiting[config.batch_size :]


def _build(config: TinyTargetConfig, tokenizer: TextTokenizer) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.utils import logging as hf_logging

    hf_logging.disable_progress_bar()  # a bar for one small file, in the middle of ours
    torch.manual_seed(config.seed)
    end = _token(tokenizer, END)
    settings = LlamaConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.num_layers,
        num_attention_heads=config.num_heads,
        num_key_value_heads=config.num_kv_heads,
        max_position_embeddings=config.max_position_embeddings,
        initializer_range=config.init_std,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=end,
        pad_token_id=tokenizer.backend.token_to_id(PAD),
        attn_implementation="sdpa",
    )
    model = LlamaForCausalLM(settings)
    model.generation_config.eos_token_id = end
    _start_copying(model)
    return model


@torch.no_grad()
def _start_copying(model: Any) -> None:
    """Let attention start as copying and the MLPs as nothing.

    The output matrix of each head starts as the transpose of its value matrix, so that a token that is
    attended to raises its own logit (mimetic initialisation, Trockman and Kolter 2023, with the sign for
    copying). Answers repeat much of their prompts, and a tiny target sees few tokens to learn that from.
    """
    config = model.config
    groups = config.num_attention_heads // config.num_key_value_heads
    for layer in model.model.layers:
        values = layer.self_attn.v_proj.weight  # (nkv * D, H)
        heads = values.view(config.num_key_value_heads, -1, config.hidden_size).repeat_interleave(groups, 0)
        layer.self_attn.o_proj.weight.copy_(heads.flatten(0, 1).T)  # (H, nq * D)
        layer.mlp.down_proj.weight.zero_()


def _train(model: Any, rows: _Rows, config: OptimConfig, seed: int) -> list[float]:
    """Run all steps; returns the loss of each."""
    optimizer = make_optimizer(model.parameters(), config)
    losses = []
    with ProgressBar(
        "Training the target", config.steps * config.batch_size * rows.input_ids.shape[1], "tokens"
    ) as bar:
        for step, chosen in enumerate(_batches(len(rows), config, seed)):
            set_learning_rate(optimizer, learning_rate(step, config))
            loss, _ = _loss(model, rows, chosen)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            losses.append(float(loss.detach()))
            recent = losses[-20:]
            bar.update(chosen.numel() * rows.input_ids.shape[1], note=f"loss {sum(recent) / len(recent):.3f}")
    return losses


def target_inputs(config: TinyTargetConfig) -> dict[str, str]:
    """Hashes of the files a target is made from, as its manifest records them under ``parents``.

    Raises:
        DataError: a file cannot be read.
    """
    try:
        return {"train": sha256_file(config.train), "heldout": sha256_file(config.heldout)}
    except OSError as error:
        raise DataError(
            "the conversations cannot be read", got=error.strerror or error, source=error.filename
        ) from error


def train_tiny_target(config: TinyTargetConfig, folder: Path, *, overwrite: bool = False) -> Artifact:
    """Make tokenizer and target and write them to ``folder`` as an ordinary Hugging Face folder.

    A ``manifest.json`` (kind ``target``) stands beside the weights; its ``meta`` holds the number of
    parameters, the first and last training losses and the held-out loss (nats a counted token).

    Raises:
        DataError: unusable conversations, or too little text for the tokenizer.
        UsageError: ``folder`` exists and may not be replaced.
    """
    check_output(folder, overwrite=overwrite)
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    facts: dict[str, Any] = {"vocab_size": config.vocab_size, "seed": config.seed}
    with write_artifact(
        folder,
        KIND,
        facts,
        parents=target_inputs(config),
        config=config.model_dump(mode="json"),
        overwrite=overwrite,
    ) as temporary:
        tokenizer = make_tokenizer(_texts(config.train), config.vocab_size, temporary)
        model = _build(config, tokenizer)
        facts.update(_fit(model, tokenizer, config))
        model.save_pretrained(temporary)
    return open_artifact(folder, KIND)


def _fit(model: Any, tokenizer: TextTokenizer, config: TinyTargetConfig) -> dict[str, Any]:
    """Train the model and measure it; returns figures for the manifest."""
    rows = _Rows.make(_packed(tokenizer, config.train, config.sequence_length), config.loss_on)
    checked = _Rows.make(_packed(tokenizer, config.heldout, config.sequence_length), config.loss_on)
    losses = _train(model.train(), rows, config.optim, config.seed)
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "train_rows": len(rows),
        "train_tokens": int((rows.document > 0).sum()),
        "first_loss": round(losses[0], 4),
        "last_loss": round(sum(losses[-20:]) / len(losses[-20:]), 4),
        "heldout_loss": round(heldout_loss(model.eval(), checked), 4),
    }
