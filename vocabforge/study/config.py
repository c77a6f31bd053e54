"""Configuration of the vocabulary study: one file, three sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from ..core.config import Positive, StrictModel, apply_overrides, parse_config, read_yaml
from ..core.errors import ConfigError, UsageError, did_you_mean
from ..core.files import read_json
from ..demo.target.config import TargetTrainingConfig
from ..train.config import Fraction, Precision

RARE = "rare"  # the set of questions that the stage data makes of the sources of that role
Name = Annotated[str, Field(pattern=r"^[^/]+$")]  # a part of a file name
Sizes = Annotated[tuple[Positive, ...], Field(min_length=1)]

_PRECISION = "set mixed_precision of the study"
# section -> key of earlier versions -> what to do instead.
_FORMER = {
    "data": {
        "limits": "give the source documents: N",
        "overlap": "it is always 24 words",
        "answer_characters": "plain text is always cut into passages of about 1,200 bytes",
    },
    "target": {"mixed_precision": _PRECISION},
    "drafters": {"mixed_precision": _PRECISION},
}
_FORMER_SOURCE = {
    "kind": "the file says itself whether it holds conversations or plain text; no path is the built-in sample",
    "members": "unpack the archive and name a text file",
    "task": "passages are always continued",
}


def _refuse_former(values: Any, former: Mapping[str, str], where: str) -> None:
    for key in former.keys() & (values if isinstance(values, Mapping) else {}):
        raise ValueError(f"{where}{key} was removed: {former[key]}")


class SourceConfig(StrictModel):
    """One source of texts: conversations in any form that ``prepare-data`` reads, or plain text.

    Attributes:
        name: for reports and file names.
        path: file below ``data.root``; None for the built-in sample.
        language: category of its rare questions.
        role: ``train``; ``heldout``: never learnt from, for held-out loss and coverage; ``rare``: held out too, its
            prompts are the set of questions ``rare``.
        documents: at most so many conversations, evenly spread; None: all.
    """

    name: Name
    path: Path | None = None
    language: str = "English"
    role: Literal["train", "heldout", "rare"] = "train"
    documents: Positive | None = None

    @model_validator(mode="before")
    @classmethod
    def _removed(cls, values: Any) -> Any:
        _refuse_former(values, _FORMER_SOURCE, "data.sources: ")
        return values


class StudyDataConfig(StrictModel):
    """What is learnt from, and what is asked.

    Attributes:
        root: folder of the files; None: the working directory.
        tokenizer: folder of tokenizer.json(.xz) and tokenizer_config.json below ``root``; None makes a small one.
        tokenizer_size: entries of a tokenizer that is made.
        sources: see above; held-out text is held out by source.
        benchmarks: sets of questions: a named benchmark (``evaluate.benchmarks``) and how many of its questions, evenly
            spread (0: all of them).
        rare_questions: of a category of the set ``rare`` at most.
    """

    root: Path | None = None
    tokenizer: Path | None = None
    tokenizer_size: Annotated[int, Field(ge=300)] = 1024
    sources: Annotated[tuple[SourceConfig, ...], Field(min_length=1)]
    benchmarks: dict[Name, Annotated[int, Field(ge=0)]]
    rare_questions: Positive = 36

    @property
    def held_out(self) -> list[SourceConfig]:
        """Sources that nothing is learnt from."""
        return [source for source in self.sources if source.role != "train"]

    def file(self, path: Path) -> Path:
        """A path of this section below ``root``."""
        return path if self.root is None else self.root / path


class StudyTargetConfig(TargetTrainingConfig):
    """The target, a Llama with tied embeddings. Qwen3's small models have 151,936 ``rows``.

    Attributes:
        path: a Hugging Face folder to use instead of training one; its config.json gives the sizes.
        induction: start with attention that copies from the prompt, and freeze it (``study.induction``).
        candidates: tokens that the loss of a step is estimated on (``study.candidates``), beside those of its batch;
            None: all V. Held-out losses are always over all V.
    """

    path: Path | None = None
    intermediate_size: Positive = 640
    num_layers: Positive = 4
    max_position_embeddings: Positive = 4096
    rope_theta: Annotated[float, Field(gt=1.0)] = 1.0e6
    sequence_length: Annotated[int, Field(ge=8)] = 512
    init_std: Annotated[float, Field(gt=0.0)] = 0.02
    induction: bool = True
    candidates: Positive | None = None
    loss_on: Literal["assistant", "all"] = "all"
    checkpoint_every: Positive = 200

    @model_validator(mode="before")
    @classmethod
    def _sizes_of_path(cls, values: Any) -> Any:
        if not isinstance(values, Mapping) or values.get("path") is None:
            return values
        found = read_json(Path(values["path"]) / "config.json", "configuration of the target")
        names = {"rows": "vocab_size", "num_layers": "num_hidden_layers"}
        names |= {name: name for name in ("hidden_size", "max_position_embeddings")}
        return {**values, **{name: found[key] for name, key in names.items() if key in found}}


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
    """One training run of a seed: keys of ``optim``, and the share of its steps with one TTT step only."""

    steps: Positive
    batch_size: Positive = 8
    lr: Annotated[float, Field(gt=0.0)] = 1e-3
    warmup: Fraction = 0.3


class DraftersConfig(StrictModel):
    """What is trained for every seed.

    Attributes:
        aux_layers: target layers that EAGLE-3 reads.
        steps: K of the training-time test.
        sequence_length: T of packed rows.
        candidates: tokens that the vocabulary loss of a step is estimated on; None: all of them.
        copying: drafters start with a head that copies from the prompt (``study.copying``).
        corpus_share: share of the conversations that are texts of the sources; the others are the target's answers.
        full: the drafter over all ids, its head its own, with a ranker of each rank and a low-rank head (joint).
        reduced: the same drafter trained over ``reduced_size`` ids.
        alone: rankers alone on the finished drafter.
        router: routers on the finished drafter.
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
        mixed_precision: of all training; ``auto`` is bf16 passes on CUDA, else fp32.
    """

    size: str
    output: Path
    seeds: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1)] = (0, 1, 2)
    device: str = "auto"
    threads: Positive | None = None
    mixed_precision: Precision = "auto"
    data: StudyDataConfig
    target: StudyTargetConfig
    answers: AnswersConfig = AnswersConfig()
    drafters: DraftersConfig
    methods: MethodsConfig = MethodsConfig()
    replay: ReplayConfig = ReplayConfig()
    check: CheckConfig = CheckConfig()
    times: TimesConfig = TimesConfig()

    @model_validator(mode="before")
    @classmethod
    def _removed(cls, values: Any) -> Any:
        for section, former in _FORMER.items():
            _refuse_former(
                values.get(section) if isinstance(values, Mapping) else None, former, f"{section}."
            )
        return values

    @model_validator(mode="after")
    def _goes_together(self) -> StudyConfig:
        names = [source.name for source in self.data.sources]
        layers, hidden, ranks = self.target.num_layers, self.target.hidden_size, self.methods.ranks
        largest = max(self.methods.static)
        ranked = [*self.methods.cores, *(int(law.split(":")[1]) for law in self.methods.position)]
        if len(set(names)) != len(names):
            raise ValueError("two sources have one name")
        if all(source.role != "train" for source in self.data.sources):
            raise ValueError("no source has the role train")
        if max(self.drafters.aux_layers) >= layers:
            raise ValueError(f"drafters.aux_layers: the target has {layers} layers, from 0")
        longest = self.answers.prompt_tokens + max(self.answers.tokens, self.answers.train_tokens)
        if longest > self.target.max_position_embeddings:
            raise ValueError(
                "answers: prompt and answer do not fit into the target's max_position_embeddings"
            )
        if self.check.tokens > self.answers.tokens:
            raise ValueError("check.tokens is more than answers.tokens")
        if len(set(ranks)) != len(ranks) or max(ranks) > hidden:
            raise ValueError(f"methods.ranks: different parts of the hidden size {hidden:,}")
        if max(ranked) > largest:
            raise ValueError(
                f"methods.cores and methods.position read the largest of methods.static, {largest:,} ids"
            )
        return self


def load_study(path: Path, size: str, overrides: Sequence[str] = ()) -> StudyConfig:
    """Read a study file: ``base``, with the section of ``sizes`` laid over it, with the overrides laid over both.

    Raises:
        ConfigError: the file or an override cannot be read, or a key is unknown or wrong.
        UsageError: no such size.
    """
    values = read_yaml(path)
    base, sizes = values.get("base") or {}, values.get("sizes") or {}
    parts = [base, sizes, *(sizes.values() if isinstance(sizes, dict) else ())]
    if not all(isinstance(part or {}, dict) for part in parts):
        raise ConfigError(
            "base, sizes and every entry of it are sections", expected="key: value lines", source=path
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
    merged = {"size": size, "output": Path("runs") / f"study-{size}", **_laid_over(base, sizes[size] or {})}
    return parse_config(StudyConfig, apply_overrides(merged, overrides), source=path)


def _laid_over(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Mappings joined key by key; everything else is replaced."""
    both = [name for name in over if isinstance(base.get(name), dict) and isinstance(over[name], dict)]
    return {**base, **over, **{name: _laid_over(base[name], over[name]) for name in both}}
