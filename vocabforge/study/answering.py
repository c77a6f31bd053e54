"""The target answers many prompts side by side; every answer is kept at once."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from ..core.console import ProgressBar, human_rate
from ..corpus.regenerate_log import AnswerLog
from ..corpus.regenerate_rows import ChatCompletion, content_digest
from ..corpus.tokenizer import TextTokenizer, load_tokenizer
from ..decode.engine import Decoder
from ..decode.graphs import capture_passes
from ..decode.request import Generation, Request, SamplingParams
from ..models.device import choose_device
from ..models.fingerprint import target_fingerprint
from ..models.lean import LeanModel, load_target


@dataclass(frozen=True)
class Job:
    """One answer.

    Attributes:
        prompt: token ids.
        tokens: new tokens at most.
        temperature: 0 is greedy.
        seed: of its draws; of no meaning at temperature 0.
    """

    prompt: tuple[int, ...]
    tokens: int
    temperature: float = 0.0
    seed: int = 0

    def key(self, target: str) -> str:
        """Hex hash of everything that decides the answer; ``target`` stands for the target's part of it."""
        facts = [target, self.prompt, self.tokens, self.temperature, self.seed if self.temperature else 0]
        return content_digest(facts)


class AnsweringTarget:
    """A target with its tokenizer that answers jobs with plain decoding.

    Args:
        path: Hugging Face folder, tokenizer included.
        device: see :func:`~vocabforge.models.device.choose_device`.
        rows: requests side by side.

    Attributes:
        dtype: fp32 on a CPU, bf16 on CUDA.
        facts: what decides the answers beside the dtype, by content.
        identity: hex hash of both.
    """

    def __init__(self, path: Path, device: str | None, rows: int) -> None:
        self.device = choose_device(device)
        self.dtype = study_dtype(self.device)
        self.tokenizer: TextTokenizer = load_tokenizer(path)
        self._path, self._rows = path, rows
        self._model: LeanModel | None = None
        self.facts = {
            "target": target_fingerprint(path),
            "tokenizer": self.tokenizer.fingerprint,
            "stop_ids": list(self.tokenizer.eos_ids),
        }
        self.identity = content_digest([self.facts, self.dtype])

    @property
    def model(self) -> LeanModel:
        """The lean target, loaded when first asked for."""
        if self._model is None:
            self._model = load_target(self._path, dtype=getattr(torch, self.dtype), device=self.device)
        return self._model

    def answer(self, jobs: Sequence[Job], log: AnswerLog) -> None:
        """Answer every job that the log has no answer to, greedy ones first; one line of the log each.

        Raises:
            UsageError: a prompt fills the target's positions.
        """
        keyed = {job.key(self.identity): job for job in jobs}
        missing = {key: job for key, job in keyed.items() if log.get(key) is None}
        if not missing:
            return
        longest = max(len(job.prompt) + job.tokens for job in missing.values())
        decoder = Decoder(
            self.model,
            context=min(self.model.config.max_positions, longest + 1),
            rows=min(self._rows, len(missing)),
            wrap=capture_passes(self.device) if self.device.type == "cuda" else None,
        )
        with ProgressBar("Answering", len(keyed), "answers", initial=len(keyed) - len(missing)) as bar:
            # Apart: where one row of a batch is drawn, a captured cycle samples in all of them.
            for drawn in (False, True):
                part = {key: job for key, job in missing.items() if bool(job.temperature) == drawn}
                self._answer(decoder, part, log, bar)

    def _answer(self, decoder: Decoder, jobs: dict[str, Job], log: AnswerLog, bar: ProgressBar) -> None:
        # Long ones first, so that no row is left with one at the end.
        ordered = sorted(jobs.items(), key=lambda item: -item[1].tokens)
        stops = self.tokenizer.eos_ids
        requests = [
            Request(job.prompt, job.tokens, stops, SamplingParams(job.temperature, seed=job.seed))
            for _, job in ordered
        ]
        results = [Generation() for _ in requests]
        written, begun = 0, time.monotonic()
        for number, fresh in decoder.stream_batch(requests, results):
            written += len(fresh)
            ids = results[number].token_ids
            if ids[-1] in stops or len(ids) == requests[number].max_new_tokens:
                key, job = ordered[number]
                log.add(key, self._logged(job, ids))
                bar.update(1, human_rate(written / max(time.monotonic() - begun, 1e-9), "tokens"))

    def _logged(self, job: Job, ids: Sequence[int]) -> ChatCompletion:
        stopped = ids[-1] in self.tokenizer.eos_ids
        text = self.tokenizer.decode(ids[:-1] if stopped else ids)
        return ChatCompletion(
            {"role": "assistant", "content": text},
            "stop" if stopped else "length",
            job.seed,
            len(job.prompt),
            len(ids),
            tuple(ids),
        )


def study_dtype(device: torch.device) -> str:
    """Name of the dtype that a study's decoder computes in."""
    return "bfloat16" if device.type == "cuda" else "float32"
