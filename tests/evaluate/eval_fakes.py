"""A small real tokenizer and a deterministic generator, for the tests of the evaluation."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from vocabforge.core.errors import DataError
from vocabforge.corpus.tokenizer.prompt_format import resolve_format
from vocabforge.corpus.tokenizer.tokenizer import TextTokenizer, load_tokenizer
from vocabforge.decode.request import Generation, SamplingParams
from vocabforge.decode.spec import DraftVocabulary
from vocabforge.evaluate.benchmarks import Benchmark, Question
from vocabforge.evaluate.evaluation import Evaluation, Provenance, evaluate_methods
from vocabforge.evaluate.results.schema import FailureRow
from vocabforge.evaluate.results.settings import RunSettings
from vocabforge.evaluate.run.environment import describe_environment
from vocabforge.evaluate.run.journal import EvaluationJournal
from vocabforge.evaluate.run.request import Asking
from vocabforge.evaluate.run.runner import run_identity, run_methods

BOS, EOS, USER, ASSISTANT, FIRST_WORD, WORDS = 1, 2, 3, 4, 5, 40
TEMPLATE = (
    "<s>{% for message in messages %}<|{{ message.role }}|> {{ message.content }} "
    "{% if message.role == 'assistant' %}</s>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def make_tokenizer(folder: Path, *, chat: bool = True) -> TextTokenizer:
    """Words ``w0`` … ``w39``; puts BOS before a plain text."""
    names = ["<unk>", "<s>", "</s>", "<|user|>", "<|assistant|>", *(f"w{n}" for n in range(WORDS))]
    backend = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    backend.add_special_tokens(names[:5])
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    folder.mkdir(parents=True, exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    config = {"bos_token": "<s>", "eos_token": "</s>"}
    if chat:
        config["chat_template"] = TEMPLATE
    (folder / "tokenizer_config.json").write_text(json.dumps(config), "utf-8")
    return load_tokenizer(folder)


def continuation(prompt_ids: Sequence[int], count: int) -> list[int]:
    """What the pretended target says after a prompt: ``count`` words."""
    digest = hashlib.sha256(repr(list(prompt_ids)).encode()).digest()
    return [FIRST_WORD + digest[index % len(digest)] % WORDS for index in range(count)]


@dataclass
class FakeGenerator:
    """Answers with ``continuation``, committing tokens in chunks of ``pattern``.

    Attributes:
        pattern: accepted lengths, cycled; (1,) is plain decoding.
        length: words of an answer, before its EOS.
        corrupt: position at which it says another token, for answers to prompts longer than ``corrupt_from``.
        too_long: prompts longer than this are refused.
        tail: tokens added after the EOS, as a sloppy generator would.
        before: called with each prompt before it is answered; may raise.
        prompts, seeds: what it was asked, and the seeds of the random streams; these decide the words where the
            temperature is above 0.
    """

    pattern: tuple[int, ...] = (1,)
    length: int = 7
    corrupt: int | None = None
    corrupt_from: int = 0
    too_long: int | None = None
    tail: tuple[int, ...] = ()
    prompts: list[list[int]] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)
    before: Callable[[list[int]], object] | None = None

    def generate(
        self,
        prompt_ids: Sequence[int],
        *,
        max_new_tokens: int,
        stop_ids: Collection[int],
        sampling: SamplingParams,
    ) -> Generation:
        self.prompts.append(list(prompt_ids))
        self.seeds.append(sampling.seed)
        if self.before is not None:
            self.before(list(prompt_ids))
        if self.too_long is not None and len(prompt_ids) > self.too_long:
            raise DataError("the prompt does not fit the cache", got=len(prompt_ids), expected=self.too_long)
        drawn = [] if sampling.greedy else [sampling.seed]
        tokens = [*continuation([*prompt_ids, *drawn], self.length), EOS][:max_new_tokens]
        if self.corrupt is not None and len(prompt_ids) > self.corrupt_from:
            tokens[self.corrupt] = FIRST_WORD + (tokens[self.corrupt] - FIRST_WORD + 1) % WORDS
        lengths: list[int] = []
        while sum(lengths) < len(tokens):
            step = self.pattern[len(lengths) % len(self.pattern)]
            lengths.append(min(step, len(tokens) - sum(lengths)))
        deepest = max(self.pattern) - 1
        accepted = [sum(length - 1 >= depth for length in lengths) for depth in range(1, deepest + 1)]
        return Generation(
            token_ids=tokens + list(self.tail),
            accept_lengths=lengths,
            prefill_s=0.001,
            decode_s=0.002,
            target_forwards=len(lengths) + 1,
            drafted=deepest * len(lengths),
            timings={"prefill": 0.001, "verify": 0.002},
            finish="stop" if tokens[-1] == EOS else "length",
            accepted_by_depth=accepted,
            drafted_by_depth=[len(lengths)] * deepest,
        )


@dataclass
class ReservingGenerator(FakeGenerator):
    """One whose memory is made ready before it is asked."""

    reserved: list[int] = field(default_factory=list)
    room: int | None = None

    def reserve(self, positions: int) -> None:
        self.reserved.append(positions)
        if self.room is not None and positions > self.room:
            raise RuntimeError("out of memory")


@dataclass
class FakeMethod:
    name: str
    generator: FakeGenerator
    description: str = "for tests"
    head: str | None = None
    vocabulary: DraftVocabulary | None = None
    verifier: str | None = None
    lossless: bool = True


class Outcome(NamedTuple):
    """Questions left out, and how often the run was resumed."""

    failures: list[FailureRow]
    resumed: int


def make_benchmark(rows: Sequence[tuple[int, str, tuple[str, ...]]]) -> Benchmark:
    questions = tuple(Question(number, category, turns) for number, category, turns in rows)
    return Benchmark("tiny", Path("tiny.jsonl"), "0" * 64, 32, questions)


# Deliberately not in order of id.
ROWS = (
    (9, "translation", ("w1 w2 w3",)),
    (3, "writing", ("w4 w5", "w6")),
    (5, "math", ("w7 w8 w9 w10", "w11 w12")),
    (4, "qa", ("w13",)),
)


def run_fakes(
    folder: Path,
    methods: Sequence[FakeMethod],
    *,
    rows: Sequence[tuple[int, str, tuple[str, ...]]] = ROWS,
    chat: bool = True,
    identity: Mapping[str, object] | None = None,
    fresh: bool = False,
    synchronise: Callable[[], None] = lambda: None,
    **settings: object,
) -> Outcome:
    """``run_methods`` of fakes: the rows go to ``folder/work``, the journal is ``folder/out.partial``."""
    tokenizer = make_tokenizer(folder / "tokenizer", chat=chat)
    options = {"warmup": 0, "prompt_format": resolve_format(tokenizer, "auto"), **settings}
    questions, asking = (
        make_benchmark(rows).questions,
        Asking(tokenizer, RunSettings(32, **options), synchronise),
    )
    model_ids = {method.name: method.name[0] for method in methods}
    whole = {**run_identity(questions, methods, asking, model_ids), **(identity or {})}
    with EvaluationJournal(folder / "out.partial", whole, fresh=fresh) as journal:
        failures = run_methods(questions, methods, asking, folder / "work", journal, model_ids)
        return Outcome(failures, journal.resumed)


def plain_and_tree(**tree: object) -> list[FakeMethod]:
    """Plain decoding, and a method that says the same in other steps."""
    return [FakeMethod("plain", FakeGenerator()), FakeMethod("tree", FakeGenerator((3, 1, 2), **tree))]


def evaluate_fakes(folder: Path, methods: Sequence[FakeMethod], settings: RunSettings | None = None) -> None:
    """A whole evaluation of fakes; its tokenizer lies beside the folder."""
    environment = describe_environment(device="cpu", dtype="float32")
    provenance = Provenance("tiny", environment, parents={"target": "ab" * 32}, command=["vocabforge"])
    tokenizer = make_tokenizer(folder.parent / "words")
    settings = settings or RunSettings(32, warmup=1)
    evaluate_methods(folder, Evaluation(make_benchmark(ROWS), methods, tokenizer, settings, provenance))
