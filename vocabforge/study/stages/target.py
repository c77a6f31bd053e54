"""Stage ``target``: the given model, or a Llama with the study's tokenizer, trained by the demo's trainer.

With V = 151,936 everything V wide costs more than the model. A step with candidates gathers the rows of its candidates
once, (C, H), and reads the input embedding and the output weights from them; the batch's tokens are all candidates.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ...core.console import say
from ...core.errors import UsageError
from ...demo.target.build import finished_target, train_tiny_target
from ...demo.target.config import TinyTargetConfig
from ...demo.target.train import Step, TextBatch, TextRows, WorkFolder, batch_loss, counted_states
from ...train.config import Precision
from ...train.data import corpus_counts
from ...train.loss.candidates import Candidates
from ..candidates import CandidateSampler
from ..config import StudyConfig, StudyLayout
from ..induction import build_induction

HELDOUT_ROWS = 192  # at V = 151,936 more would take as long as much of the training


class StudyTinyTargetConfig(TinyTargetConfig):
    """A study's target: see :class:`~.config.StudyTargetConfig`."""

    induction: bool = False
    candidates: int | None = None
    mixed_precision: Precision = "no"


def run(config: StudyConfig, layout: StudyLayout) -> None:
    """Write ``layout.target``, a standard Hugging Face checkpoint, or link the given one there.

    A finished target of the same texts, tokenizer and settings is kept; a stopped run resumes.
    """
    given, place = config.target.path, layout.target
    if place.is_symlink():
        place.unlink()
    if given is not None:
        if place.exists():
            raise UsageError(
                "this study has trained its own target",
                source=place,
                remedy="choose another --output for target.path",
            )
        place.symlink_to(given.resolve(), target_is_directory=True)
        say(f"target: {given}")
        return
    wanted = target_config(config, layout)
    found = finished_target(wanted, place)
    if found is None:
        start = (lambda model: build_induction(model, wanted.sequence_length)) if wanted.induction else None
        found = train_tiny_target(wanted, place, overwrite=True, start=start, make_step=make_target_step)
    else:
        WorkFolder(place).remove()  # the run may have been killed after it wrote its output
        say(f"target: {place} is up to date")
    meta = found.meta
    heldout = "no source is held out" if meta["heldout_loss"] is None else f"{meta['heldout_loss']:.2f}"
    say(
        f"target: {meta['parameters']:,} parameters, {meta['train_tokens']:,} tokens of text, last losses "
        f"{meta['last_loss']:.2f}; held-out loss in nats a token: {heldout}"
    )


def target_config(config: StudyConfig, layout: StudyLayout) -> StudyTinyTargetConfig:
    """The target of a study; every family of drafters has the same."""
    own = config.target
    if config.data.tokenizer is not None:
        tokenizer: dict[str, Any] = {"tokenizer": layout.tokenizer}
    else:
        tokenizer = {"vocab_size": config.data.tokenizer_size}
    return StudyTinyTargetConfig(
        train=layout.train_texts,
        heldout=tuple(layout.heldout_texts(source.name) for source in config.data.held_out),
        **tokenizer,
        **{name: getattr(own, name) for name in type(own).model_fields if name != "path"},
        heldout_rows=HELDOUT_ROWS,
        device=config.device,
        threads=config.threads,
        mixed_precision=config.mixed_precision,
    )


def make_target_step(
    model: Any, optimizer: torch.optim.Optimizer, rows: TextRows, config: TinyTargetConfig
) -> Step:
    """The step that ``config`` (a :class:`StudyTinyTargetConfig`) asks for.

    Ids that never occur are drawn too seldom to be unlearnt one by one, and a hundred thousand of them together hold
    much of the mass. Their gradients hardly differ, so all of them take the mean.

    Raises:
        UsageError: more candidates than rows of the embedding.
    """
    assert isinstance(config, StudyTinyTargetConfig)
    device, table = model.device, model.get_input_embeddings().weight  # (V, H), the LM head, too
    wanted = config.mixed_precision
    bf16 = wanted == "bf16" or (wanted == "auto" and device.type == "cuda")
    sampler = None
    if config.candidates is not None:
        counts = corpus_counts(rows.packed, len(table))
        sampler = CandidateSampler(counts, config.candidates, len(table), config.seed)
        never = torch.from_numpy(counts == 0).to(device).nonzero()[:, 0]

    def step(number: int, batch: TextBatch) -> tuple[Tensor, Tensor]:
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            if sampler is None:
                loss, _ = batch_loss(model, batch)
            else:
                loss = candidate_loss(model, batch, sampler.draw(number, batch.input_ids, device))
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), config.optim.clip)
        if sampler is not None and len(never):
            table.grad[never] = table.grad[never].mean(0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach(), norm

    return step


def candidate_loss(model: Any, batch: TextBatch, candidates: Candidates) -> Tensor:
    """The mean cross-entropy of a batch, estimated on candidates, among which are all ids of the batch."""
    rows = F.embedding(candidates.ids, model.get_input_embeddings().weight)  # (C, H)
    places = torch.searchsorted(candidates.ids, batch.input_ids)  # (B, T)
    hidden = counted_states(model, batch, F.embedding(places, rows))  # (n, H)
    logits = F.linear(hidden, rows).float() + candidates.offset  # (n, C)
    labels = places[:, 1:][batch.keep]
    return F.cross_entropy(logits, labels, reduction="sum") / max(len(labels), 1)
