"""Stage ``answers``: what the target itself writes, to training prompts and to all questions."""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from ..core.artifact import open_artifact, write_artifact
from ..core.console import ProgressBar, human_rate, say
from ..core.errors import ArtifactError, DataError, UsageError
from ..core.files import sha256_file
from ..corpus.chat.conversation import Message, parse_conversation
from ..corpus.regenerate.log import AnswerLog
from ..corpus.regenerate.rows import ChatCompletion, content_digest, json_line
from ..corpus.tokenizer.tokenizer import TextTokenizer, encode_prompt, load_tokenizer
from ..decode.accelerate.graphs import capture_passes
from ..decode.engine import Decoder
from ..decode.request import Generation, Request, SamplingParams
from ..evaluate.benchmarks import Question, read_questions
from ..evaluate.benchmarks.rows import iter_rows
from ..models.device import choose_device
from ..models.lean.model import LeanModel, load_target
from ..models.target.fingerprint import target_fingerprint
from ..vocab.counts.table import FrequencyTable, save_counts
from ..vocab.subset.select import SpecialTokens
from .config import RARE, StudyConfig
from .layout import StudyLayout
from .replay.types import Continuation
from .steps import is_finished

GAP = " … "  # stands where the middle of a text was
# A template that lets its model think opens an answer without thoughts with an empty block. It belongs to the prompt:
# else the first tokens of every answer would be the same, and accepted for nothing.
TEMPLATE = {"enable_thinking": False}
_FOR_LEARNERS = ("cut", "loss_weight")  # of a message; no template reads them


@dataclass(frozen=True)
class FittedPrompt:
    """A prompt as the target reads it.

    Attributes:
        messages: the conversation, what was cut left out.
        ids: its token ids, the header of the assistant's turn included.
        shortened: something was cut.
    """

    messages: tuple[Message, ...]
    ids: tuple[int, ...]
    shortened: bool = False


class TrainingPrompt(NamedTuple):
    """Everything before one turn of the assistant, and the conversation's source."""

    messages: tuple[Message, ...]
    source: str


def _encoded(tokenizer: TextTokenizer, messages: Sequence[Message]) -> list[int]:
    return encode_prompt(tokenizer, messages, **TEMPLATE)


def fit_prompt(tokenizer: TextTokenizer, messages: Sequence[Message], limit: int) -> FittedPrompt:
    """A prompt of at most ``limit`` tokens.

    A longer one loses its earliest turns (never the system message), then the middle of its last message (of the
    longest one, where that is not enough), so that the template's own tokens, the beginning of the text and its end
    stay.

    Raises:
        UsageError: even the template's tokens with a token of text are more than ``limit``.
        DataError: there is no chat template, or it refuses the conversation.
    """
    kept = list(messages)
    ids = _encoded(tokenizer, kept)
    if len(ids) <= limit:
        return FittedPrompt(tuple(kept), tuple(ids))
    system = 1 if kept[0]["role"] == "system" else 0
    for start in range(system + 1, len(kept)):
        if kept[start]["role"] == "user":
            fewer = [*kept[:system], *kept[start:]]
            ids = _encoded(tokenizer, fewer)
            if len(ids) <= limit:
                return FittedPrompt(tuple(fewer), tuple(ids), True)
    last = next((at for at in reversed(range(len(kept))) if kept[at]["role"] == "user"), len(kept) - 1)
    shorter = [*kept[:system], *kept[max(last, system) :]]
    longest = max(range(len(shorter)), key=lambda at: len(str(shorter[at]["content"] or "")))
    for at in dict.fromkeys((len(shorter) - 1, longest)):
        if (found := _cut(tokenizer, shorter, at, limit)) is not None:
            return found
    raise UsageError(
        "a prompt cannot be made short enough",
        got=f"more than {limit:,} tokens with hardly any of its text",
        expected="room for the chat template and a text",
        source=f"prompt {str(shorter[-1]['content'])[:60]!r}",
        remedy="raise answers.prompt_tokens, or target.max_position_embeddings",
    )


def _cut(tokenizer: TextTokenizer, messages: list[Message], at: int, limit: int) -> FittedPrompt | None:
    """The conversation without the middle of one message; None where that alone is not enough."""
    text = str(messages[at]["content"] or "")
    _, offsets = tokenizer.encode_with_offsets(text)
    keep = len(offsets)
    shorter, ids = messages, _encoded(tokenizer, messages)
    while (excess := len(ids) - limit) > 0:
        keep -= excess  # the gap's own tokens, and those that form around it, take further rounds
        if keep < 1:
            return None
        head, tail = (keep + 1) // 2, keep // 2
        front = text[: offsets[head - 1][1]]
        back = text[offsets[len(offsets) - tail][0] :] if tail else ""
        shorter = [*messages[:at], {**messages[at], "content": front + GAP + back}, *messages[at + 1 :]]
        ids = _encoded(tokenizer, shorter)
    return FittedPrompt(tuple(shorter), tuple(ids), True)


def question_prompt(tokenizer: TextTokenizer, question: Question, limit: int) -> FittedPrompt:
    """The first turn of a question; see :func:`fit_prompt`."""
    messages: list[Message] = [{"role": "user", "content": question.turns[0]}]
    if question.system:
        messages.insert(0, {"role": "system", "content": question.system})
    return fit_prompt(tokenizer, messages, limit)


def training_prompts(path: Path, count: int) -> list[TrainingPrompt]:
    """Prompts of ``count`` conversations, as many of each source as belong to it, every source met.

    Of a conversation with several turns of the assistant one is taken, by turns the first, the second, ….

    Raises:
        DataError: the file is missing or holds a line that is no conversation, or no turn is the assistant's.
    """
    if not path.is_file():
        raise DataError("the training conversations are missing", expected=path, remedy="run the stage data")
    rows = list(iter_rows(path))
    found: list[TrainingPrompt] = []
    sources = [str(row.get("source", "")) for _, row in rows]
    for at in spread_by_source(sources, count):
        place, row = rows[at]
        messages = parse_conversation(dict(row))
        if messages is None:
            raise DataError("a row is no conversation", got=sorted(row), expected="messages", source=place)
        turns = [n for n, message in enumerate(messages) if n and message["role"] == "assistant"]
        if turns:
            before = messages[: turns[len(found) % len(turns)]]
            bare = ({key: m[key] for key in m if key not in _FOR_LEARNERS} for m in before)
            found.append(TrainingPrompt(tuple(bare), sources[at]))
    if not found:
        raise DataError(
            "no training conversation has a turn of the assistant",
            got=f"{len(rows):,} rows",
            source=path,
            remedy="run the stage data again with sources of conversations",
        )
    return found


def spread_by_source(sources: Sequence[str], count: int) -> list[int]:
    """Ascending places of ``count`` rows: even over the rows of each source, one at least of every source."""
    first = {source: place for place, source in reversed(list(enumerate(sources)))}
    ordered = sorted(range(len(sources)), key=lambda place: first[sources[place]])
    count = min(count, len(ordered))
    chosen = {ordered[number * len(ordered) // count] for number in range(count)}
    met = {sources[place] for place in chosen}
    return sorted(chosen | {place for source, place in first.items() if source not in met})


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


KIND = "study-answers"
COUNTS = "counts"
Which = Literal["greedy", "drawn"]


@dataclass(frozen=True)
class StudyAnswer:
    """What the target wrote behind the first turn of a question.

    Attributes:
        set: name of the set of questions.
        category: the question's.
        question: its number within the set.
        continuation: prompt and answer.
        seed: of a drawn answer: the same prompt with it gives the same tokens.
        shortened: the prompt was too long and lost a part.
    """

    set: str
    category: str
    question: int
    continuation: Continuation
    seed: int = 0
    shortened: bool = False


def run(config: StudyConfig, layout: StudyLayout) -> None:
    """Write OUTPUT/answers, an artefact of kind ``study-answers``.

    ``own.jsonl``: conversations that end with the target's own answer, an answer that was cut marked ``cut``.
    ``counts``: frequency table of those answers' tokens. ``answers-greedy.jsonl``, ``answers-drawn.jsonl``: rows
    of :class:`StudyAnswer`. Answers are logged beside it as they come, so that a killed run resumes.

    Raises:
        UsageError: a prompt has no room.
        DataError: conversations or questions are missing or damaged.
    """
    own = config.answers
    target = AnsweringTarget(layout.target, config.device, own.rows)
    sets = {name: layout.questions(name) for name in question_sets(config, layout)}
    key = {  # not the dtype: what a GPU wrote is not written again on a CPU
        **target.facts,
        "template": content_digest([target.tokenizer.chat_template, TEMPLATE]),
        "texts": sha256_file(layout.train_texts) if layout.train_texts.is_file() else None,
        "questions": {name: sha256_file(path) for name, path in sets.items() if path.is_file()},
        "train": [own.train_prompts, own.train_tokens],
        "limits": [own.tokens, own.prompt_tokens],
    }
    if is_finished(layout.answers, KIND, key):
        say("The target's answers are up to date")
        return
    room = _room(config)
    prompts = training_prompts(layout.train_texts, own.train_prompts)
    training = [fit_prompt(target.tokenizer, one.messages, room) for one in prompts]
    asked = [
        (name, question, question_prompt(target.tokenizer, question, room))
        for name, path in sets.items()
        for question in read_questions(path)
    ]
    train_jobs = _training_jobs(training, own.train_tokens)
    jobs: dict[Which, list[Job]] = {
        "greedy": [Job(prompt.ids, own.tokens) for _, _, prompt in asked],
        "drawn": [
            Job(prompt.ids, own.tokens, 1.0, question_seed(name, question.question_id))
            for name, question, prompt in asked
        ],
    }
    with AnswerLog(layout.answers.with_name("answers.partial"), {"of": KIND}) as log:
        target.answer([*train_jobs, *jobs["greedy"], *jobs["drawn"]], log)

        def logged(job: Job) -> ChatCompletion:
            answer = log.get(job.key(target.identity))
            assert answer is not None
            return answer

        trained = [logged(job) for job in train_jobs]
        cut = Counter(name for name, _, prompt in asked if prompt.shortened)
        meta: dict[str, Any] = {
            "key": key,
            "dtype": target.dtype,
            "training": {
                "answers": len(trained),
                "tokens": sum(len(one.response_ids or ()) for one in trained),
                "ended": sum(not one.truncated for one in trained),
                "empty": sum(one.empty for one in trained),
                "shortened": sum(prompt.shortened for prompt in training),
            },
            "questions": dict(Counter(name for name, _, _ in asked)),
            "shortened": {name: cut[name] for name, _, _ in asked},
        }
        with write_artifact(layout.answers, KIND, meta, overwrite=True) as folder:
            conversations = [
                {
                    "messages": [
                        *prompt.messages,
                        {**answer.message, **({"cut": True} if answer.truncated else {})},
                    ],
                    "source": one.source,
                    "generation": {"temperature": job.temperature, "seed": job.seed},
                }
                for one, prompt, job, answer in zip(prompts, training, train_jobs, trained, strict=True)
                if not answer.empty
            ]
            _write(folder / layout.own_texts.name, conversations)
            table = _table(trained, target.tokenizer, sha256_file(folder / layout.own_texts.name))
            save_counts(table, folder / COUNTS)
            for which, some in jobs.items():
                rows = [
                    {
                        "set": name,
                        "category": question.category,
                        "question": question.question_id,
                        "seed": job.seed,
                        "shortened": prompt.shortened,
                        "prompt": list(prompt.ids),
                        "tokens": list(logged(job).response_ids or ()),
                    }
                    for (name, question, prompt), job in zip(asked, some, strict=True)
                ]
                _write(folder / f"answers-{which}.jsonl", rows)
        log.remove()
    say(
        f"{len(trained):,} answers to training prompts ({meta['training']['tokens']:,} tokens, "
        f"{meta['training']['ended']:,} ended by the target, {meta['training']['shortened']:,} prompts shortened), "
        f"{len(asked):,} questions answered twice ({sum(cut.values()):,} prompts shortened)"
    )


def load_answers(layout: StudyLayout, which: Which) -> list[StudyAnswer]:
    """The answers to all questions, set after set.

    Args:
        which: ``greedy``, or ``drawn`` at temperature 1.

    Raises:
        ArtifactError: the stage has not run, or its files are damaged.
    """
    file = open_artifact(layout.answers, KIND).file(f"answers-{which}.jsonl")
    try:
        rows = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
        return [
            StudyAnswer(
                str(row["set"]),
                str(row["category"]),
                int(row["question"]),
                Continuation(tuple(row["prompt"]), tuple(row["tokens"])),
                int(row["seed"]),
                bool(row["shortened"]),
            )
            for row in rows
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise ArtifactError(
            "the target's answers cannot be read", got=error, source=file, remedy="run the stage answers"
        ) from error


def question_sets(config: StudyConfig, layout: StudyLayout) -> list[str]:
    """Names of the sets of questions: the configuration's, and ``rare`` where the stage data made it."""
    names = list(config.data.benchmarks)
    return [*names, RARE] if RARE not in names and layout.questions(RARE).is_file() else names


def question_seed(name: str, question: int) -> int:
    """A seed of its own for each question of each set."""
    return int.from_bytes(hashlib.sha256(f"{name}\0{question}".encode()).digest()[:4], "little")


def _room(config: StudyConfig) -> int:
    """Tokens that a prompt may have."""
    own, positions = config.answers, config.target.max_position_embeddings
    left = positions - max(own.tokens, own.train_tokens)
    if left < 2:
        raise UsageError(
            "the answers leave no room for prompts",
            got=f"answers of {max(own.tokens, own.train_tokens):,} tokens, {positions:,} positions",
            remedy="lower answers.tokens or answers.train_tokens",
        )
    return min(own.prompt_tokens, left)


def _training_jobs(prompts: Sequence[FittedPrompt], tokens: int) -> list[Job]:
    """By turns greedy and drawn; a prompt that was answered greedily before is drawn, too."""
    jobs, answered = [], set()
    for number, prompt in enumerate(prompts):
        greedy = number % 2 == 0 and prompt.ids not in answered
        if greedy:
            answered.add(prompt.ids)
        jobs.append(Job(prompt.ids, tokens) if greedy else Job(prompt.ids, tokens, 1.0, number))
    return jobs


def _write(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    with open(path, "wb") as file:
        file.writelines(map(json_line, rows))


def _table(answers: Sequence[ChatCompletion], tokenizer: TextTokenizer, digest: str) -> FrequencyTable:
    """Counts of the very tokens; those of padded rows of the embedding are no tokens of the tokenizer."""
    ids = np.array([token for one in answers for token in one.response_ids or ()], dtype=np.int64)
    counts = np.bincount(ids, minlength=tokenizer.vocab_size)[: tokenizer.vocab_size]
    size = sum(len(str(one.message["content"]).encode("utf-8", "replace")) for one in answers)
    return FrequencyTable(
        counts.astype(np.int64),
        len(answers),
        size,
        "assistant",
        tokenizer.fingerprint,
        {"own": digest},
        SpecialTokens.of(tokenizer),
    )
