"""Stage ``answers``: what the target itself writes, to training prompts and to all questions."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from ...core.artifact import open_artifact, write_artifact
from ...core.console import say
from ...core.files import sha256_file
from ...core.progress import ProgressBar
from ...corpus.chat.conversation import Message
from ...corpus.regenerate.rows import content_digest, json_line
from ...corpus.tokenizer.tokenizer import TextTokenizer, encode_prompt, load_tokenizer
from ...decode.accelerate.graphs import capture_passes
from ...decode.engine import Decoder
from ...decode.request import Generation, Request, SamplingParams
from ...evaluate.benchmarks import read_questions, spread
from ...evaluate.benchmarks.rows import iter_rows
from ...models.device import choose_device
from ...models.lean.model import LeanModel, load_target
from ...models.target.fingerprint import target_fingerprint
from ...vocab.counts.table import FrequencyTable, save_counts
from ...vocab.subset.select import SpecialTokens
from ..config import RARE, StudyConfig, StudyLayout
from ..replay.types import Continuation
from ..steps import is_finished

KIND = "study-answers"
COUNTS = "counts"
Which = Literal["greedy", "drawn"]
# A template that lets its model think opens an answer without thoughts with an empty block. It belongs to the prompt:
# else the first tokens of every answer would be the same, and accepted for nothing.
TEMPLATE = {"enable_thinking": False}


def prompt_ids(tokenizer: TextTokenizer, messages: Sequence[Message]) -> tuple[int, ...]:
    """Token ids of a prompt, which end with the assistant's header."""
    return tuple(encode_prompt(tokenizer, messages, **TEMPLATE))


def training_prompts(path: Path, count: int) -> list[list[Message]]:
    """Everything before the first answer of ``count`` conversations, evenly spread over the file."""
    found: list[list[Message]] = []
    for _, row in spread(list(iter_rows(path)), count):
        messages: list[Message] = row["messages"]
        roles = [message["role"] for message in messages]
        found.append(messages[: roles.index("assistant", roles.index("user"))])
    return found


class AnsweringTarget:
    """A target that answers with plain decoding, ``rows`` side by side; ``identity`` decides its answers."""

    def __init__(self, path: Path, device: str | None, rows: int) -> None:
        self.device = choose_device(device)
        self.dtype = study_dtype(self.device)
        self.tokenizer: TextTokenizer = load_tokenizer(path)
        self._path, self._rows = path, rows
        self.facts = {
            "target": target_fingerprint(path),
            "tokenizer": self.tokenizer.fingerprint,
            "stop_ids": list(self.tokenizer.eos_ids),
        }
        self.identity = content_digest([self.facts, self.dtype])

    @cached_property
    def model(self) -> LeanModel:
        return load_target(self._path, dtype=getattr(torch, self.dtype), device=self.device)

    def request(self, prompt: Sequence[int], tokens: int, sampling: SamplingParams) -> Request:
        """For an answer of ``tokens`` at most, which ends with a stop token."""
        return Request(prompt, tokens, self.tokenizer.eos_ids, sampling)

    def answer(self, asked: Sequence[Request]) -> list[tuple[int, ...]]:
        """Token ids of the answers to all requests, the stop token included."""
        made = dict[int, tuple[int, ...]]()
        longest = max(len(one.prompt_ids) + one.max_new_tokens for one in asked)
        decoder = Decoder(
            self.model,
            context=min(self.model.config.max_positions, longest + 1),
            rows=min(self._rows, len(asked)),
            wrap=capture_passes(self.device) if self.device.type == "cuda" else None,
        )
        with ProgressBar("Answering", len(asked), "answers") as bar:
            # Apart: if one row of a batch is drawn, a captured cycle samples in all of them.
            for greedy in (True, False):
                part = [number for number, one in enumerate(asked) if one.sampling.greedy == greedy]
                # The longest first, so that no row is left with one at the end.
                part.sort(key=lambda number: -asked[number].max_new_tokens)
                requests = [asked[number] for number in part]
                results = [Generation() for _ in requests]
                for number, _ in decoder.stream_batch(requests, results):
                    one, ids = requests[number], results[number].token_ids
                    bar.update(int(ids[-1] in one.stop_ids or len(ids) == one.max_new_tokens))
                made |= {number: tuple(one.token_ids) for number, one in zip(part, results)}
        return [made[number] for number in range(len(asked))]


def study_dtype(device: torch.device) -> str:
    """Name of the dtype that a study's decoder computes in."""
    return "bfloat16" if device.type == "cuda" else "float32"


@dataclass(frozen=True)
class StudyAnswer:
    """What the target wrote behind the first turn of a question."""

    set: str  # name of the set of questions
    category: str
    question: int  # its number within the set
    continuation: Continuation
    seed: int = 0  # of a drawn answer: the same prompt with it gives the same tokens
    shortened: bool = False  # the prompt was too long and lost a part


def run(config: StudyConfig, layout: StudyLayout) -> None:
    """Write OUTPUT/answers, an artefact of kind ``study-answers``.

    ``own.jsonl``: conversations that end with the target's own answer. ``counts``: frequency table of those answers'
    tokens. ``answers-greedy.jsonl``, ``answers-drawn.jsonl``: rows of :class:`StudyAnswer`.
    """
    own = config.answers
    target = AnsweringTarget(layout.target, config.device, own.rows)
    sets = {name: layout.questions(name) for name in question_sets(config, layout)}
    key = {  # not the dtype: what a GPU wrote is not written again on a CPU
        **target.facts,
        "template": content_digest([target.tokenizer.chat_template, TEMPLATE]),
        "texts": sha256_file(layout.train_texts),
        "questions": {name: sha256_file(path) for name, path in sets.items()},
        "train": [own.train_prompts, own.train_tokens],
        "limits": [own.tokens, own.prompt_tokens],
    }
    if is_finished(layout.answers, KIND, key):
        say("The target's answers are up to date")
        return
    tokenizer, room = target.tokenizer, own.prompt_tokens
    learnt = training_prompts(layout.train_texts, own.train_prompts)
    asked = [(name, question) for name, path in sets.items() for question in read_questions(path)]
    prompts = [
        prompt_ids(tokenizer, [{"role": "user", "content": question.turns[0]}]) for _, question in asked
    ]
    training = [  # by turns greedy and drawn
        target.request(
            prompt_ids(tokenizer, one)[-room:],
            own.train_tokens,
            SamplingParams(float(number % 2), seed=number % 2 * number),
        )
        for number, one in enumerate(learnt)
    ]
    wanted: dict[Which, list[Request]] = {
        "greedy": [target.request(prompt[-room:], own.tokens, SamplingParams()) for prompt in prompts],
        "drawn": [
            target.request(
                prompt[-room:],
                own.tokens,
                SamplingParams(1.0, seed=question_seed(name, question.question_id)),
            )
            for (name, question), prompt in zip(asked, prompts, strict=True)
        ],
    }
    made = iter(target.answer([*training, *wanted["greedy"], *wanted["drawn"]]))
    trained = [next(made) for _ in training]
    meta: dict[str, Any] = {"key": key, "dtype": target.dtype}
    with write_artifact(layout.answers, KIND, meta, overwrite=True) as folder:
        texts = [tokenizer.decode(ids[:-1] if ids[-1] in tokenizer.eos_ids else ids) for ids in trained]
        rows: list[dict[str, Any]] = []
        for messages, ids, text in zip(learnt, trained, texts, strict=True):
            cut = {} if ids[-1] in tokenizer.eos_ids else {"cut": True}
            if text.strip():
                rows.append({"messages": [*messages, {"role": "assistant", "content": text, **cut}]})
        _write(folder / layout.own_texts.name, rows)
        parents = {"own": sha256_file(folder / layout.own_texts.name)}
        save_counts(_table(trained, "".join(texts), tokenizer, parents), folder / COUNTS)
        for which, some in wanted.items():
            rows = [
                {
                    "set": name,
                    "category": question.category,
                    "question": question.question_id,
                    "seed": request.sampling.seed,
                    "shortened": len(prompt) > room,
                    "prompt": list(request.prompt_ids),
                    "tokens": list(next(made)),
                }
                for (name, question), prompt, request in zip(asked, prompts, some, strict=True)
            ]
            _write(folder / f"answers-{which}.jsonl", rows)
    say(f"{len(trained):,} answers to training prompts, {len(asked):,} questions answered twice")


def load_answers(layout: StudyLayout, which: Which) -> list[StudyAnswer]:
    """The answers to all questions, set after set: greedy, or drawn at temperature 1.

    Raises:
        ArtifactError: the stage has not run, or its files are damaged.
    """
    file = open_artifact(layout.answers, KIND).file(f"answers-{which}.jsonl")
    return [
        StudyAnswer(
            row["set"],
            row["category"],
            row["question"],
            Continuation(tuple(row["prompt"]), tuple(row["tokens"])),
            row["seed"],
            row["shortened"],
        )
        for row in map(json.loads, file.read_text("utf-8").splitlines())
    ]


def question_sets(config: StudyConfig, layout: StudyLayout) -> list[str]:
    """Names of the sets of questions: the configuration's, and ``rare`` where the stage data made it."""
    names = list(config.data.benchmarks)
    return [*names, RARE] if RARE not in names and layout.questions(RARE).is_file() else names


def question_seed(name: str, question: int) -> int:
    """A seed of its own for each question of each set."""
    return int.from_bytes(hashlib.sha256(f"{name}\0{question}".encode()).digest()[:4], "little")


def _write(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    with open(path, "wb") as file:
        file.writelines(map(json_line, rows))


def _table(
    answers: Sequence[Sequence[int]], text: str, tokenizer: TextTokenizer, parents: dict[str, str]
) -> FrequencyTable:
    """Counts of the very tokens; those of padded rows of the embedding are no tokens of the tokenizer."""
    ids = np.array([token for one in answers for token in one], dtype=np.int64)
    counts = np.bincount(ids, minlength=tokenizer.vocab_size)[: tokenizer.vocab_size].astype(np.int64)
    size, special = len(text.encode("utf-8", "replace")), SpecialTokens.of(tokenizer)
    return FrequencyTable(counts, len(answers), size, "assistant", tokenizer.fingerprint, parents, special)
