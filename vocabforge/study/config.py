"""The vocabulary study's configuration, one file with its sizes, and the folders of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from ..core.config import Positive, Size, StrictModel, apply_overrides, parse_config, read_yaml
from ..core.errors import ConfigError, UsageError, did_you_mean
from ..core.files import read_json
from ..demo.target.config import TargetTrainingConfig
from ..train.config import Fraction, Precision

RARE = "rare"  # the set of questions that the stage data makes of the sources of that role
Name = Annotated[str, Field(pattern=r"^[^/]+$")]  # a part of a file name
Sizes = Annotated[tuple[Size, ...], Field(min_length=1)]
Shares = Annotated[tuple[Annotated[float, Field(gt=0.0, le=1.0)], ...], Field(min_length=1)]


class SourceConfig(StrictModel):
    """One source of texts: conversations in any form that ``prepare-data`` reads, or plain text.

    Sources of role ``heldout`` are never learnt from: held-out loss and coverage are of them. Those of role ``rare``
    are held out too, and their prompts are the set of questions ``rare``.
    """

    name: Name  # for reports and file names
    path: Path | None = None  # file below ``data.root``; None: the built-in sample
    language: str = "English"  # category of its rare questions
    role: Literal["train", "heldout", "rare"] = "train"
    documents: Positive | None = None  # at most so many conversations, evenly spread


class StudyDataConfig(StrictModel):
    """What is learnt from, and what is asked."""

    root: Path | None = None  # folder of the files; None: the working directory
    tokenizer: Path | None = None  # folder of tokenizer.json(.xz) below ``root``; None makes a small one
    tokenizer_size: Annotated[Size, Field(ge=300)] = 1024  # entries of a tokenizer that is made
    sources: Annotated[tuple[SourceConfig, ...], Field(min_length=1)]
    benchmarks: dict[Name, Annotated[int, Field(ge=0)]]  # how many questions of each, evenly spread; 0: all
    rare_questions: Positive = 36  # of a category of the set ``rare`` at most

    @property
    def held_out(self) -> list[SourceConfig]:
        """Sources that nothing is learnt from."""
        return [source for source in self.sources if source.role != "train"]

    def file(self, path: Path) -> Path:
        """A path of this section below ``root``."""
        return path if self.root is None else self.root / path


class StudyTargetConfig(TargetTrainingConfig):
    """The target, a Llama with tied embeddings. Qwen3's small models have 151,936 ``rows``."""

    path: Path | None = None  # a Hugging Face folder to use instead of training one; it gives the sizes
    intermediate_size: Positive = 640
    num_layers: Positive = 4
    max_position_embeddings: Positive = 4096
    rope_theta: Annotated[float, Field(gt=1.0)] = 1.0e6
    sequence_length: Annotated[int, Field(ge=8)] = 512
    init_std: Annotated[float, Field(gt=0.0)] = 0.02
    induction: bool = True  # start with attention that copies from the prompt (``study.induction``)
    candidates: Size | None = (
        None  # tokens that a step's loss is estimated on; held-out losses are over all V
    )
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
    """What the target itself writes: to training prompts (greedy and drawn by turns), and to all questions."""

    train_prompts: Positive = 1000  # what VocabTrim counts and drafters learn from
    train_tokens: Positive = 128  # new tokens of each at most
    tokens: Positive = 32  # new tokens of an answer to a question
    prompt_tokens: Positive = 512  # longer prompts lose their beginning
    rows: Positive = 32  # requests side by side


class PartConfig(StrictModel):
    """One training run of a seed: keys of ``optim``, and the share of its steps with one TTT step only."""

    steps: Positive
    batch_size: Positive = 8
    lr: Annotated[float, Field(gt=0.0)] = 1e-3
    warmup: Fraction = 0.3


class DraftersConfig(StrictModel):
    """What is trained for every seed."""

    aux_layers: Annotated[tuple[int, ...], Field(min_length=1)]  # target layers that EAGLE-3 reads
    intermediate_size: Positive | None = None
    steps: Positive = 4  # K of the training-time test
    sequence_length: Annotated[int, Field(ge=8)] = 256  # T of packed rows
    candidates: Size | None = None  # tokens that a step's vocabulary loss is estimated on; None: all
    copying: bool = True  # start with a head that copies from the prompt (``study.copying``)
    corpus_share: Fraction = (
        0.5  # of the conversations are texts of the sources, the others the target's answers
    )
    reduced_size: Size  # ids of the reduced drafter
    full: PartConfig  # the drafter over all ids, with a ranker of each rank and a low-rank head (joint)
    reduced: PartConfig
    alone: PartConfig  # rankers on the finished drafter
    router: PartConfig  # routers on the finished drafter


class MethodsConfig(StrictModel):
    """The draft vocabularies that are compared."""

    static: Sizes = (8192, 16384, 32768, 65536)  # R of FR-Spec and VocabTrim
    # PA-FR: schedules ``SCHEDULE:K_MAX:K_MIN`` over the FR-Spec ranking.
    position: tuple[Annotated[str, Field(pattern=r"^[a-z]+:\d+:\d+$")], ...] = (
        "decay:32768:4096",
        "linear:32768:8192",
    )
    # d' of rankers as parts of the hidden size: 8 is d/8. The first is the low-rank head's, too.
    ranks: Annotated[Sizes, Field(max_length=2)] = (8, 16)
    shortlists: Sizes = (128, 256, 512, 1024, 2048, 4096)  # k of the rankers
    clusters: Sizes = (256, 1024)  # M of the routers
    budgets: Shares = (0.02, 0.05, 0.1, 0.2)  # of the clusters that a router opens, at every step
    schedules: tuple[str, ...] = ("decay", "linear")  # schedules by which the larger budgets fall to half
    cores: Sizes = (512, 1024, 2048)  # of context and hybrid heads, ids of the FR-Spec ranking
    context: Size = 1024  # tokens of the text that a context head reads
    tail: Size = 512  # k of a hybrid head's ranker


class ReplayConfig(StrictModel):
    """How acceptance is counted."""

    levels: Positive = 6  # draft tokens below the root at most
    width: Positive = 10  # ranks that are told apart: the widest node of a fixed tree
    trees: tuple[Positive, ...] = (30, 60)  # nodes of the fixed trees, root included, beside the chain
    rows: Positive = 128  # hidden rows at once


class CheckConfig(StrictModel):
    """What the decoder itself is asked, to hold the replay against it; ``tree_*`` is EAGLE-2's dynamic tree."""

    questions: Positive = 6  # of every set at most
    tokens: Positive = 24  # new tokens of each
    seeds: Positive = 1  # how many of the study's seeds
    tree_topk: Positive = 8
    tree_depth: Positive = 4
    tree_nodes: Positive = 30


class RooflineConfig(StrictModel):
    """The shape of an 8B model and its device, for the byte roofline of the report."""

    hidden: Positive = 4096
    rows: Size = 151_936
    bandwidth: Annotated[float, Field(gt=0)] = 4.3e12  # bytes a second
    layer_us: Annotated[float, Field(gt=0)] = 117.0  # a drafter's layer a step
    target_us: Annotated[float, Field(gt=0)] = 3500.0  # the target a cycle


class StudyConfig(StrictModel):
    """The whole study."""

    size: str  # which of the file's sizes this is
    output: Path
    seeds: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1)] = (0, 1, 2)
    device: str = "auto"
    threads: Positive | None = None  # CPU threads; None leaves torch's choice
    mixed_precision: Precision = "auto"  # of all training; ``auto`` is bf16 passes on CUDA, else fp32
    data: StudyDataConfig
    target: StudyTargetConfig
    answers: AnswersConfig = AnswersConfig()
    drafters: DraftersConfig
    methods: MethodsConfig = MethodsConfig()
    replay: ReplayConfig = ReplayConfig()
    check: CheckConfig = CheckConfig()
    roofline: RooflineConfig = RooflineConfig()

    @model_validator(mode="after")
    def _goes_together(self) -> StudyConfig:
        names = [source.name for source in self.data.sources]
        layers, hidden, ranks = self.target.num_layers, self.target.hidden_size, self.methods.ranks
        largest = max(self.methods.static)
        ranked = [*self.methods.cores, *(int(schedule.split(":")[1]) for schedule in self.methods.position)]
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
            raise ValueError(
                f"check.tokens {self.check.tokens} is more than answers.tokens {self.answers.tokens}"
            )
        if len(set(ranks)) != len(ranks) or max(ranks) > hidden:
            raise ValueError(f"methods.ranks: different parts of the hidden size {hidden:,}")
        if max(ranked) > largest:
            raise ValueError(
                f"methods.cores and methods.position read the largest of methods.static, {largest:,} ids"
            )
        return self


class StudyLayout:
    """Paths below a study's output folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.data = root / "data"  # artefact ``study-data``: conversations, questions, what was left out
        self.train_texts = self.data / "train.jsonl"
        self.tokenizer = self.data / "tokenizer"  # absent if the target's tokenizer is made by its training
        self.target = root / "target"  # Hugging Face folder, tokenizer included
        self.answers = root / "answers"  # artefact ``study-answers``: what the target itself writes
        self.own_texts = self.answers / "own.jsonl"  # conversations that end with its answers
        self.vocab = root / "vocab"
        self.replay = root / "replay"
        self.checked = root / "check.json"
        self.report = root / "report"

    def heldout_texts(self, source: str) -> Path:
        """Conversations of one held-out source."""
        return self.data / f"heldout-{source}.jsonl"

    def questions(self, name: str) -> Path:
        """A set of questions, as Spec-Bench writes them."""
        return self.data / f"questions-{name}.jsonl"

    def subset(self, ranking: str, size: int) -> Path:
        """Draft vocabulary of the ranking ``fr`` or ``trim``."""
        return self.vocab / f"{ranking}-{size}"

    def clusters(self, count: int) -> Path:
        """Clusters of the LM head's rows."""
        return self.vocab / f"clusters-{count}"

    def seed(self, seed: int) -> Path:
        """Everything trained for one seed."""
        return self.root / f"seed-{seed}"

    def replayed(self, seed: int) -> Path:
        """Artefact ``study-replay`` of a seed: ranks of the target's tokens."""
        return self.replay / f"seed-{seed}"


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
