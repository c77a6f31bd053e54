"""The stage ``answers``: what the target itself writes, to training prompts and to all questions.

Its answers to training prompts are what VocabTrim counts and what drafters learn from; its answers to the questions,
greedy and drawn, are what every draft vocabulary is replayed on.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from ..core.artifact import open_artifact, write_artifact
from ..core.console import say
from ..core.errors import ArtifactError, UsageError
from ..core.files import sha256_file
from ..corpus.regenerate_log import AnswerLog
from ..corpus.regenerate_rows import ChatCompletion as LoggedAnswer
from ..corpus.regenerate_rows import content_digest, json_line
from ..corpus.tokenizer import TextTokenizer
from ..evaluate.benchmarks import Question, read_questions
from ..evaluate.replay_types import Continuation
from ..vocab.select import SpecialTokens
from ..vocab.table import FrequencyTable, save_counts
from .answer_prompts import TEMPLATE, FittedPrompt, fit_prompt, question_prompt, training_prompts
from .answering import AnsweringTarget, Job
from .config import StudyConfig
from .layout import Layout

KIND = "study-answers"
COUNTS = "counts"
RARE = "rare"
Which = Literal["greedy", "drawn"]


@dataclass(frozen=True)
class Answer:
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


def run(config: StudyConfig, layout: Layout) -> None:
    """Write OUTPUT/answers, an artefact of kind ``study-answers``.

    ``own.jsonl``: conversations that end with the target's own answer, an answer that was cut marked ``cut``.
    ``counts``: frequency table of those answers' tokens. ``answers-greedy.jsonl``, ``answers-drawn.jsonl``: rows
    of :class:`ChatCompletion`. Every answer is kept beside it as it comes, so that a killed run goes on.

    Raises:
        UsageError: a prompt has no room.
        DataError: conversations or questions are missing or damaged.
    """
    own = config.answers
    target = AnsweringTarget(layout.target, config.device, own.rows)
    sets = {name: layout.questions(name) for name in question_sets(config, layout)}
    key = _key(config, layout, target, sets)
    if _done(layout, key):
        say("The target's answers are there already")
        return
    prompts = training_prompts(layout.train_texts, own.train_prompts)
    room = _room(config)
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
        found = {which: _logged(log, target, some) for which, some in jobs.items()}
        trained = _logged(log, target, train_jobs)
        sources = [one.source for one in prompts]
        meta = _meta(key, target, training, trained, asked)
        with write_artifact(layout.answers, KIND, meta, overwrite=True) as folder:
            _write(folder / layout.own_texts.name, _own_rows(sources, training, train_jobs, trained))
            table = _table(trained, target.tokenizer, sha256_file(folder / layout.own_texts.name))
            save_counts(table, folder / COUNTS)
            for which, answers in found.items():
                _write(folder / _file(which), _answer_rows(asked, jobs[which], answers))
        log.remove()
    say(_summary(meta))


def load_answers(layout: Layout, which: Which) -> list[Answer]:
    """The answers to all questions, set after set.

    Args:
        which: ``greedy``, or ``drawn`` at temperature 1.

    Raises:
        UsageError: another name.
        ArtifactError: the stage has not run, or its files are damaged.
    """
    if which not in get_args(Which):
        raise UsageError("there are no such answers", got=which, expected=" or ".join(get_args(Which)))
    file = open_artifact(layout.answers, KIND).file(_file(which))
    try:
        rows = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
        return [
            Answer(
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


def question_sets(config: StudyConfig, layout: Layout) -> list[str]:
    """Names of the sets of questions: the configuration's, and ``rare`` where the stage data made it."""
    names = list(config.data.benchmarks)
    return [*names, RARE] if RARE not in names and layout.questions(RARE).is_file() else names


def question_seed(name: str, question: int) -> int:
    """A seed of its own for each question of each set."""
    return int.from_bytes(hashlib.sha256(f"{name}\0{question}".encode()).digest()[:4], "little")


def _file(which: str) -> str:
    return f"answers-{which}.jsonl"


def _key(
    config: StudyConfig, layout: Layout, target: AnsweringTarget, sets: dict[str, Path]
) -> dict[str, Any]:
    """What decides the answers. Not the dtype: what a GPU wrote is not written again on a CPU."""
    own = config.answers
    return {
        **target.facts,
        "template": content_digest([target.tokenizer.chat_template, TEMPLATE]),
        "texts": sha256_file(layout.train_texts) if layout.train_texts.is_file() else None,
        "questions": {name: sha256_file(path) for name, path in sets.items() if path.is_file()},
        "train": [own.train_prompts, own.train_tokens],
        "limits": [own.tokens, own.prompt_tokens],
    }


def _done(layout: Layout, key: dict[str, Any]) -> bool:
    try:
        return bool(open_artifact(layout.answers, KIND).meta.get("key") == key)
    except ArtifactError:
        return False


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


def _logged(log: AnswerLog, target: AnsweringTarget, jobs: Sequence[Job]) -> list[LoggedAnswer]:
    found = []
    for job in jobs:
        answer = log.get(job.key(target.identity))
        assert answer is not None
        found.append(answer)
    return found


def _own_rows(
    sources: Sequence[str],
    prompts: Sequence[FittedPrompt],
    jobs: Sequence[Job],
    answers: Sequence[LoggedAnswer],
) -> Iterable[dict[str, Any]]:
    """Conversations for drafters; answers without any text are left out."""
    for source, prompt, job, answer in zip(sources, prompts, jobs, answers, strict=True):
        if not answer.empty:
            cut = {"cut": True} if answer.truncated else {}
            yield {
                "messages": [*prompt.messages, {**answer.message, **cut}],
                "source": source,
                "generation": {"temperature": job.temperature, "seed": job.seed},
            }


def _answer_rows(
    asked: Sequence[tuple[str, Question, FittedPrompt]], jobs: Sequence[Job], answers: Sequence[LoggedAnswer]
) -> Iterable[dict[str, Any]]:
    for (name, question, prompt), job, answer in zip(asked, jobs, answers, strict=True):
        yield {
            "set": name,
            "category": question.category,
            "question": question.question_id,
            "seed": job.seed,
            "shortened": prompt.shortened,
            "prompt": list(prompt.ids),
            "tokens": list(answer.response_ids or ()),
        }


def _write(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    with open(path, "wb") as file:
        file.writelines(map(json_line, rows))


def _table(answers: Sequence[LoggedAnswer], tokenizer: TextTokenizer, digest: str) -> FrequencyTable:
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


def _meta(
    key: dict[str, Any],
    target: AnsweringTarget,
    training: Sequence[FittedPrompt],
    trained: Sequence[LoggedAnswer],
    asked: Sequence[tuple[str, Question, FittedPrompt]],
) -> dict[str, Any]:
    cut = Counter(name for name, _, prompt in asked if prompt.shortened)
    return {
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


def _summary(meta: dict[str, Any]) -> str:
    own, questions, cut = meta["training"], meta["questions"], meta["shortened"]
    return (
        f"{own['answers']:,} answers to training prompts ({own['tokens']:,} tokens, {own['ended']:,} ended by the "
        f"target, {own['shortened']:,} prompts shortened), {sum(questions.values()):,} questions answered twice "
        f"({sum(cut.values()):,} prompts shortened)"
    )
