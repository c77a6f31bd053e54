"""Configuration of the vocabulary study: one file, three sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from ..core.config import Positive, StrictModel, apply_overrides, parse_config, read_yaml
from ..core.errors import ConfigError, UsageError, did_you_mean
from ..demo.target.config import TargetTrainingConfig
from ..train.config import Fraction, Precision

SourceKind = Literal["chats", "alpaca", "sums", "code", "stories", "text", "verses", "archive", "sample"]


RARE = "rare"  # the set of questions that the stage data makes of the sources of that role
Name = Annotated[str, Field(pattern=r"^[^/]+$")]  # a part of a file name


class SourceConfig(StrictModel):
    """One source of texts.

    Attributes:
        name: for reports and file names.
        path: file below ``data.root``; None for the built-in sample.
        kind: how it is read and turned into conversations (``study/sources/registry.py``).
        language: English name of its language, for the prompt of plain texts.
        role: ``train``; ``heldout``: never learnt from, for held-out loss and coverage; ``rare``: held out too, its
            beginnings are prompts of the set of questions ``rare``.
        documents: at most so many conversations; None: all.
        members: of an archive, the files that are read (names without ending), and their languages; empty: all.
        task: what is asked about a passage of plain text (kinds ``text``, ``verses``, ``archive``): to ``continue`` it,
            or to ``quote`` from it, with shorter passages.
    """

    name: Name
    path: Path | None = None
    kind: SourceKind
    language: str = "English"
    role: Literal["train", "heldout", "rare"] = "train"
    documents: Positive | None = None
    members: dict[str, str] = Field(default_factory=dict)
    task: Literal["continue", "quote"] = "continue"


class StudyDataConfig(StrictModel):
    """What is learnt from, and what is asked.

    Attributes:
        root: folder of the files; None where only the built-in sample is used.
        tokenizer: folder of tokenizer.json(.xz) and tokenizer_config.json below ``root``; None makes a small one.
        tokenizer_size: entries of a tokenizer that is made.
        sources: see above; held-out text is held out by source.
        limits: conversations of a source at most, by its name: what another size of the study asks of it.
        benchmarks: sets of questions: a named benchmark (``evaluate.benchmarks``) and how many of its questions, evenly
            spread (0: all of them).
        rare_questions: of a category (a language, or code) of the set ``rare`` at most.
        overlap: a training conversation that shares this many words in a row with a question or a held-out text is
            left out.
        answer_characters: plain text is cut into answers of about this length.
    """

    root: Path | None = None
    tokenizer: Path | None = None
    tokenizer_size: Annotated[int, Field(ge=300)] = 1024
    sources: Annotated[tuple[SourceConfig, ...], Field(min_length=1)]
    limits: dict[str, Positive] = Field(default_factory=dict)
    benchmarks: dict[Name, Annotated[int, Field(ge=0)]]
    rare_questions: Positive = 36
    overlap: Positive = 24
    answer_characters: Positive = 900

    @property
    def held_out(self) -> list[SourceConfig]:
        """Sources that nothing is learnt from."""
        return [source for source in self.sources if source.role != "train"]


Sizes = Annotated[tuple[Positive, ...], Field(min_length=1)]


class StudyTargetConfig(TargetTrainingConfig):
    """The target, a Llama with tied embeddings. Qwen3's small models have 151,936 ``rows``.

    Attributes:
        induction: start with attention that copies from the prompt, and freeze it (``study.induction``).
        candidates: tokens that the loss of a step is estimated on (``study.candidates``), beside those of its batch;
            None: all V. Held-out losses are always over all V.
        mixed_precision: ``auto`` is bf16 if the device is fast at it: CUDA, and CPUs with AMX.
    """

    intermediate_size: Positive = 640
    num_layers: Positive = 4
    max_position_embeddings: Positive = 4096
    rope_theta: Annotated[float, Field(gt=1.0)] = 1.0e6
    sequence_length: Annotated[int, Field(ge=8)] = 512
    init_std: Annotated[float, Field(gt=0.0)] = 0.02
    induction: bool = True
    candidates: Positive | None = None
    loss_on: Literal["assistant", "all"] = "all"
    mixed_precision: Precision = "auto"
    checkpoint_every: Positive = 200


class AnswersConfig(StrictModel):
    """What the target itself writes.

    Attributes:
        train_prompts: prompts of training conversations that it answers, greedily and drawn by turns: what VocabTrim
            counts and drafters learn from.
        train_tokens: new tokens of each at most.
        tokens: new tokens of an answer to a question.
        prompt_tokens: longer prompts lose their beginning, and are counted.
        rows: requests side by side.
    """

    train_prompts: Positive = 1000
    train_tokens: Positive = 128
    tokens: Positive = 32
    prompt_tokens: Positive = 512
    rows: Positive = 32


class PartConfig(StrictModel):
    """One training run of a seed.

    Attributes:
        steps, batch_size, lr: see ``OptimConfig``.
        warmup: share of its steps with one TTT step only.
        fused: see ``OptimConfig``.
    """

    steps: Positive
    batch_size: Positive = 8
    lr: Annotated[float, Field(gt=0.0)] = 1e-3
    warmup: Fraction = 0.3
    fused: bool = True


class DraftersConfig(StrictModel):
    """What is trained for every seed.

    Attributes:
        aux_layers: target layers that EAGLE-3 reads.
        steps: K of the training-time test.
        sequence_length: T of packed rows.
        candidates: tokens that the vocabulary loss of a step is estimated on; None: all of them.
        copying: drafters start with a head that copies from the prompt (``study.copying``).
        corpus_share: share of the rows that are texts of the sources; the others are the target's own answers.
        full: the drafter over all ids, its head its own, with a ranker of each rank and a low-rank head (joint).
        reduced: the same drafter trained over ``reduced_size`` ids.
        alone: rankers alone on the finished drafter.
        router: routers on the finished drafter.
        mixed_precision: ``auto`` is bf16 where the device is fast at it: CUDA, and CPUs with AMX.
    """

    aux_layers: Annotated[tuple[int, ...], Field(min_length=1)]
    intermediate_size: Positive | None = None
    steps: Positive = 4
    sequence_length: Annotated[int, Field(ge=8)] = 256
    candidates: Positive | None = None
    copying: bool = True
    corpus_share: Fraction = 0.5
    reduced_size: Positive
    full: PartConfig
    reduced: PartConfig
    alone: PartConfig
    router: PartConfig
    mixed_precision: Precision = "auto"


class MethodsConfig(StrictModel):
    """The draft vocabularies that are compared.

    Attributes:
        static: R of FR-Spec and VocabTrim.
        position: PA-FR: schedules ``LAW:K_MAX:K_MIN`` over the FR-Spec ranking.
        ranks: d' of rankers as parts of the hidden size: 8 is d/8. The first is the low-rank head's, too.
        shortlists: k of the rankers.
        clusters: M of the routers.
        budgets: shares of the clusters that a router opens, at every step.
        schedules: laws by which the larger budgets fall to half.
        cores: of context and hybrid heads, ids of the FR-Spec ranking.
        context: tokens of the text that a context head reads.
        tail: k of a hybrid head's ranker.
    """

    static: Sizes = (8192, 16384, 32768, 65536)
    position: tuple[Annotated[str, Field(pattern=r"^[a-z]+:\d+:\d+$")], ...] = (
        "decay:32768:4096",
        "linear:32768:8192",
    )
    ranks: Annotated[Sizes, Field(max_length=2)] = (8, 16)
    shortlists: Sizes = (128, 256, 512, 1024, 2048, 4096)
    clusters: Sizes = (256, 1024)
    budgets: Annotated[tuple[Annotated[float, Field(gt=0.0, le=1.0)], ...], Field(min_length=1)] = (
        0.02,
        0.05,
        0.1,
        0.2,
    )
    schedules: tuple[str, ...] = ("decay", "linear")
    cores: Sizes = (512, 1024, 2048)
    context: Positive = 1024
    tail: Positive = 512


class ReplayConfig(StrictModel):
    """How acceptance is counted.

    Attributes:
        levels: draft tokens below the root at most.
        width: ranks that are told apart: the widest node of a fixed tree.
        trees: nodes of the fixed trees, root included, beside the chain.
        rows: hidden rows at once.
    """

    levels: Positive = 6
    width: Positive = 10
    trees: tuple[Positive, ...] = (30, 60)
    rows: Positive = 128


class CheckConfig(StrictModel):
    """What the decoder itself is asked, to hold the replay against it.

    Attributes:
        questions: of every set at most.
        tokens: new tokens of each.
        seeds: how many of the study's seeds.
        tree_topk, tree_depth, tree_nodes: EAGLE-2's dynamic tree, for methods beside the chain.
    """

    questions: Positive = 6
    tokens: Positive = 24
    seeds: Positive = 1
    tree_topk: Positive = 8
    tree_depth: Positive = 4
    tree_nodes: Positive = 30


class TimesConfig(StrictModel):
    """What is measured of time, and the larger shape of the roofline.

    Attributes:
        budget_s: seconds for this model's latency table.
        shape_hidden, shape_rows: H and V of the larger shape (8B models: 4,096 and 151,936).
        bandwidth: bytes a second of the roofline.
        layer_us, target_us: of the larger shape: a drafter's layer a step, the target a cycle.
    """

    budget_s: Annotated[float, Field(gt=0)] = 60.0
    shape_hidden: Positive = 4096
    shape_rows: Positive = 151_936
    bandwidth: Annotated[float, Field(gt=0)] = 4.3e12
    layer_us: Annotated[float, Field(gt=0)] = 117.0
    target_us: Annotated[float, Field(gt=0)] = 3500.0


class StudyConfig(StrictModel):
    """The whole study.

    Attributes:
        size: which of the file's sizes this is.
        output: folder of everything.
        seeds: one family of drafters each.
        threads: CPU threads; None leaves torch's choice.
    """

    size: str
    output: Path
    seeds: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1)] = (0, 1, 2)
    device: str = "auto"
    threads: Positive | None = None
    data: StudyDataConfig
    target: StudyTargetConfig
    answers: AnswersConfig = AnswersConfig()
    drafters: DraftersConfig
    methods: MethodsConfig = MethodsConfig()
    replay: ReplayConfig = ReplayConfig()
    check: CheckConfig = CheckConfig()
    times: TimesConfig = TimesConfig()

    @model_validator(mode="after")
    def _goes_together(self) -> StudyConfig:
        if len(set(self.seeds)) != len(self.seeds):
            raise ValueError(f"every seed once, not {list(self.seeds)}")
        layers, aux = self.target.num_layers, self.drafters.aux_layers
        if max(aux) >= layers:
            raise ValueError(f"drafters.aux_layers {list(aux)}: the target has {layers} layers, from 0")
        if self.check.tokens > self.answers.tokens:
            raise ValueError(
                f"check.tokens {self.check.tokens} is more than answers.tokens {self.answers.tokens}"
            )
        names = [source.name for source in self.data.sources]
        if len(set(names)) != len(names):
            raise ValueError("two sources have one name")
        if RARE in self.data.benchmarks:
            raise ValueError(f"data.benchmarks: {RARE} is the name of the questions of rare sources")
        ranks = self.methods.ranks
        if len(set(ranks)) != len(ranks) or max(ranks) > self.target.hidden_size:
            raise ValueError(
                f"methods.ranks {list(ranks)}: different parts of the hidden size {self.target.hidden_size:,}"
            )
        unknown = sorted(set(self.data.limits) - set(names))
        if unknown:
            raise ValueError(f"data.limits names no source: {', '.join(unknown)}")
        if not any(source.role == "train" for source in self.data.sources):
            raise ValueError("no source has the role train")
        return self


def load_study(path: Path, size: str, overrides: Sequence[str] = ()) -> StudyConfig:
    """Read a study file: ``base``, with the section of ``sizes`` laid over it, with the overrides laid over both.

    Lists and plain values of a size replace those of the base, mappings are joined key by key.

    Raises:
        ConfigError: the file or an override cannot be read, or a key is unknown or wrong.
        UsageError: no such size.
    """
    values = read_yaml(path)
    sizes = values.get("sizes") or {}
    if not isinstance(sizes, dict) or not all(
        isinstance(part or {}, dict) for part in (values.get("base"), *sizes.values())
    ):
        raise ConfigError(
            "base and every entry of sizes are sections", expected="key: value lines", source=path
        )
    if size not in sizes:
        known = [str(name) for name in sizes]
        raise UsageError(
            "the study has no such size",
            got=size,
            expected=", ".join(known) or "sizes: in the file",
            source=path,
            remedy=did_you_mean(size, known),
        )
    merged = _laid_over(values.get("base") or {}, sizes[size] or {})
    merged = {"size": size, "output": Path("runs") / f"study-{size}", **merged}
    return parse_config(StudyConfig, apply_overrides(merged, overrides), source=path)


def _laid_over(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Mappings joined key by key; everything else is replaced."""
    found = dict(base)
    for key, value in over.items():
        before = found.get(key)
        if isinstance(before, dict) and isinstance(value, dict):
            found[key] = _laid_over(before, value)
        else:
            found[key] = value
    return found
