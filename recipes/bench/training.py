"""Compare drafter training speed and memory with the plain formulas and speculators in the same run.

A step includes the target's pass, the unroll, the vocabulary loss, backward pass, clipping and optimiser. The
variants alternate by round; figures are medians.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from command import run
from rival import INSTALL, installed, speculators_loss, speculators_model
from tensor_memory import TensorMemory
from torch import Tensor, nn

from vocabforge.core.config import Positive, StrictModel, apply_overrides, parse_config
from vocabforge.core.console import DataTable
from vocabforge.core.progress import ProgressBar
from vocabforge.core.registry import check_known
from vocabforge.models.device import choose_device, synchroniser
from vocabforge.models.drafters.registry import drafter_sizes, new_drafter
from vocabforge.models.target.hf import HFTarget
from vocabforge.models.target.logits import IDENTITY, LogitFacts
from vocabforge.train.capture.online import CapturedBatch, RowBatch
from vocabforge.train.checkpoint import trained
from vocabforge.train.config import OptimConfig
from vocabforge.train.loss.fused import LossInputs
from vocabforge.train.loss.vocab import LossOptions, vocab_loss
from vocabforge.train.optim import make_optimizer
from vocabforge.train.step import StepSettings, TrainStep
from vocabforge.train.ttt import rows_by_step


@dataclass(frozen=True)
class TrainingShape:
    """A target's sizes, and batch sizes that fit one device.

    Attributes:
        model_type: Hugging Face's name of the architecture.
        sizes: fields of its configuration.
        batch, length: packed rows per step, and tokens per row.
        steps: K of the training-time test.
        loss_rows: rows for the vocabulary loss alone.
        draft_vocab: R. If set, the step (forward pass, loss, backward pass) is compared with that of
            speculators from captured states, without the target's pass.
    """

    model_type: str
    sizes: Mapping[str, Any]
    batch: int
    length: int
    steps: int = 7
    loss_rows: int = 8192
    draft_vocab: int | None = None


def _sizes(
    hidden: int, inner: int, layers: int, heads: int, kv: int, vocab: int, **more: Any
) -> dict[str, Any]:
    return {
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "vocab_size": vocab,
        "tie_word_embeddings": False,
        **more,
    }


_LONG = {"head_dim": 128, "max_position_embeddings": 40_960}

SHAPES: dict[str, TrainingShape] = {
    # Similar to bitllama-3M: many rows of a tiny vocabulary.
    "tiny": TrainingShape(
        "llama", _sizes(256, 256, 8, 8, 4, 512), batch=4, length=256, steps=4, loss_rows=4096
    ),
    "tiny-long": TrainingShape(
        "llama", _sizes(256, 256, 8, 8, 4, 512), batch=1, length=512, steps=4, loss_rows=4096
    ),
    "small": TrainingShape(
        "llama", _sizes(256, 512, 4, 8, 4, 16_384), batch=1, length=512, steps=4, loss_rows=1024
    ),
    "qwen3-0.6b": TrainingShape(
        "qwen3",
        _sizes(1024, 3072, 28, 16, 8, 151_936, **{**_LONG, "tie_word_embeddings": True}),
        batch=8,
        length=2048,
    ),
    "qwen3-8b": TrainingShape(
        "qwen3", _sizes(4096, 12_288, 36, 32, 8, 151_936, **_LONG), batch=4, length=2048
    ),
    "llama3-8b": TrainingShape(
        "llama", _sizes(4096, 14_336, 32, 32, 8, 128_256, **_LONG), batch=4, length=2048
    ),
    "rival-16k": TrainingShape(
        "llama", _sizes(256, 768, 4, 4, 2, 16_384), batch=1, length=256, steps=3, draft_vocab=8192
    ),
    "rival-152k": TrainingShape(
        "llama", _sizes(512, 1536, 4, 8, 4, 151_936), batch=1, length=512, steps=3, draft_vocab=32_000
    ),
    "rival-8b": TrainingShape(
        "llama",
        _sizes(4096, 12_288, 36, 32, 8, 151_936, **_LONG),
        batch=1,
        length=8192,
        steps=3,
        draft_vocab=32_000,
    ),
}
CPU_SHAPES = ("tiny", "tiny-long", "small", "rival-16k", "rival-152k")
CUDA_SHAPES = ("qwen3-0.6b", "qwen3-8b", "llama3-8b", "rival-8b")


def random_target(shape: TrainingShape, device: torch.device, dtype: torch.dtype) -> HFTarget:
    """Create a target with random weights on the device."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(shape.model_type, **shape.sizes)
    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, trust_remote_code=False)
    return HFTarget(model, source=f"random weights of the shape {shape.model_type}")


def random_rows(shape: TrainingShape, device: torch.device, seed: int) -> RowBatch:
    """Create rows of one document each, all assistant text, so nearly every row counts in the loss."""
    size = (shape.batch, shape.length)
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, int(shape.sizes["vocab_size"]), size, generator=generator)
    position = torch.arange(shape.length).repeat(shape.batch, 1)
    ones = torch.ones(size, dtype=torch.int64)
    return RowBatch(*(one.to(device) for one in (ids, ones.bool(), ones, position)))


_MB = 1e6


class TrainingBenchConfig(StrictModel):
    """Settings of ``training.py``, given as ``key=value``.

    Attributes:
        shapes: names of :data:`SHAPES`; None uses those that suit the device.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
        batch, length, loss_rows, steps: overrides of the :class:`TrainingShape`.
    """

    shapes: tuple[str, ...] | None = None
    device: str = "auto"
    batch: Positive | None = None
    length: Positive | None = None
    steps: Positive | None = None
    loss_rows: Positive | None = None


@dataclass(frozen=True)
class Variant:
    """Implementations of loss and attention, and whether activation checkpointing is used."""

    loss: str
    attention: str
    checkpointing: bool = False


def bench_training(settings: Sequence[str] = (), *, repeats: int = 3) -> dict[str, Any]:
    """Measure full training steps and the vocabulary loss alone at each shape.

    Args:
        settings: ``key=value`` of :class:`TrainingBenchConfig`.
        repeats: timed rounds, after one untimed round.

    Returns:
        Plain JSON: device, versions, and for every shape rows of ``step`` and ``loss``, or of ``rivals``,
        each with ``weights_mb``; ``missing`` is set to install instructions if only ours are measured. A row
        is the variant with ``seconds`` (median of the rounds in ``all_seconds``), ``extra_mb`` (peak memory
        minus memory held before: allocated memory on CUDA, live tensors on a CPU), ``peak_mb`` (peak
        allocated memory on CUDA) and for a step ``tokens_per_s`` (of its rows). Figures are None if a variant
        ran out of memory.

    Raises:
        UsageError: unknown shape or device.
        ConfigError: unknown setting.
    """
    config = parse_config(TrainingBenchConfig, apply_overrides({}, settings), source="the command line")
    device = choose_device(config.device)
    names = config.shapes or (CUDA_SHAPES if device.type == "cuda" else CPU_SHAPES)
    for name in names:
        check_known(name, SHAPES, "shape")
    given = config.model_dump(exclude={"shapes", "device"}, exclude_none=True)
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "repeats": repeats,
        "shapes": [
            (_measure_shape if SHAPES[name].draft_vocab is None else _measure_rivals)(
                name, dataclasses.replace(SHAPES[name], **given), device, repeats
            )
            for name in names
        ],
    }


def _measure_shape(name: str, shape: TrainingShape, device: torch.device, repeats: int) -> dict[str, Any]:
    target = random_target(shape, device, torch.bfloat16 if device.type == "cuda" else torch.float32)
    blocks = "flex" if device.type == "cuda" else "merged"
    variants = [Variant(loss, attention) for loss in ("fused", "naive") for attention in (blocks, "eager")]
    variants.insert(1, Variant("fused", blocks, checkpointing=True))
    make = _training(shape, target, device)
    steps: dict[Any, Callable[[], None]] = {variant: make(variant) for variant in variants}
    losses: dict[Any, Callable[[], None]] = {
        impl: _loss_alone(shape, target, impl) for impl in ("fused", "naive")
    }
    found: dict[str, Any] = {"name": name, "vocab": target.vocab_size, "step": [], "loss": []}
    found |= {key: getattr(shape, key) for key in ("batch", "length", "steps", "loss_rows")}
    for variant, row in _take_turns(f"{name}, steps", steps, device, repeats).items():
        rate = None if row["seconds"] is None else shape.batch * shape.length / row["seconds"]
        found["step"].append({**vars(variant), **row, "tokens_per_s": rate})
    for impl, row in _take_turns(f"{name}, loss", losses, device, repeats).items():
        found["loss"].append({"impl": impl, **row})
    return found


_DECAY = 0.8


def _measure_rivals(name: str, shape: TrainingShape, device: torch.device, repeats: int) -> dict[str, Any]:
    """Measure our step and that of speculators from the same states, with and without a trained LM head."""
    from transformers import AutoConfig

    rows, sizes = random_rows(dataclasses.replace(shape, batch=1), device, 0), shape.sizes
    vocab, hidden = int(sizes["vocab_size"]), int(sizes["hidden_size"])
    assert shape.draft_vocab is not None
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    torch.manual_seed(0)
    with torch.device(device):
        embedding, head = (torch.randn(vocab, hidden).mul_(0.05).to(dtype) for _ in "ab")
        ids = torch.randperm(vocab)[: shape.draft_vocab].sort().values
        features = torch.randn(1, shape.length, 3 * hidden, dtype=dtype)
        states = torch.randn(1, shape.length, hidden, dtype=dtype)
    facts = LogitFacts.of(states[0], head, IDENTITY).map(lambda each: each[None])
    batch = CapturedBatch(**vars(rows), features=features, hidden=states, facts=facts)
    config = AutoConfig.for_model(shape.model_type, **sizes).to_dict()
    wanted = drafter_sizes("eagle3", config, draft_vocab_size=len(ids))
    drafter: Any = new_drafter("eagle3", wanted, embedding, head, ids).to(device)
    settings = StepSettings(decay=_DECAY, loss=LossOptions("fused"))
    counted = rows_by_step(rows.loss_mask, rows.document, shape.steps)
    module = TrainStep(drafter, nn.ModuleDict(), head, settings)
    models: dict[str, tuple[Any, Callable[[], Tensor], list[Tensor]]] = {
        "vocabforge": (drafter, lambda: module(batch, shape.steps, counted)[0], [embedding, head])
    }
    if installed():
        model = speculators_model(drafter, head)
        models["speculators"] = (model, speculators_loss(model, batch, shape.steps, _DECAY), [])

    def step_of(model: Any, loss: Callable[[], Tensor], learns: bool) -> Callable[[], None]:
        def step() -> None:
            model.lm_head.weight.requires_grad_(learns)
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
                total = loss()
            total.backward()
            model.zero_grad(set_to_none=True)

        return step

    runs: dict[Any, Callable[[], None]] = {
        (who, learns): step_of(model, loss, learns)
        for learns in (True, False)
        for who, (model, loss, _) in models.items()
    }
    found: dict[str, Any] = {"name": name, "vocab": vocab, "draft_vocab": len(ids), "hidden": hidden}
    found |= {"batch": 1, "length": shape.length, "steps": shape.steps, "rivals": []}
    found["missing"] = None if installed() else INSTALL
    for (who, learns), row in _take_turns(name, runs, device, repeats).items():
        model, _, shared = models[who]
        held = [t.untyped_storage() for t in (*model.parameters(), *model.buffers(), *shared)]
        weights = {storage.data_ptr(): storage.nbytes() for storage in held}
        rate = None if row["seconds"] is None else shape.length / row["seconds"]
        known = {"library": who, "lm_head": "trained" if learns else "frozen"}
        found["rivals"].append(
            {**known, **row, "tokens_per_s": rate, "weights_mb": sum(weights.values()) / _MB}
        )
    return found


def _training(
    shape: TrainingShape, target: HFTarget, device: torch.device
) -> Callable[[Variant], Callable[[], None]]:
    """Return a function from a variant to its training step; all variants share a drafter and optimiser."""
    torch.manual_seed(1)
    sizes = drafter_sizes("eagle3", target.model.config.to_dict())
    with torch.device(device):
        drafter = new_drafter("eagle3", sizes, target.embedding, target.head_weight).to(device)
    parameters = trained(drafter)
    optimizer = make_optimizer(parameters, OptimConfig(steps=1))
    rows = random_rows(shape, device, 0)
    counted = rows_by_step(rows.loss_mask, rows.document, shape.steps)

    def steps_of(variant: Variant) -> Callable[[], None]:
        settings = StepSettings(
            decay=0.8,
            attention=variant.attention,
            checkpointing=variant.checkpointing,
            loss=LossOptions(variant.loss),  # type: ignore[arg-type]
        )
        module = TrainStep(drafter, nn.ModuleDict(), target.head_weight, settings)

        def step() -> None:
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
                states = target.capture(rows.input_ids, rows.position, rows.document)
                batch = CapturedBatch(**vars(rows), features=states.features, hidden=states.hidden)
                loss = module(batch, shape.steps, counted)[0]
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters.values(), 0.5)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        return step

    return steps_of


def _loss_alone(shape: TrainingShape, target: HFTarget, impl: str) -> Callable[[], None]:
    """Return a function that runs the vocabulary loss and its backward pass, with one teacher per row."""
    head = target.head_weight
    draft, teacher = (
        torch.randn(shape.loss_rows, head.shape[1], device=head.device).to(head.dtype) for _ in "ab"
    )
    draft.requires_grad_()
    weight = torch.full((shape.loss_rows,), 1 / shape.loss_rows, device=head.device)
    row = torch.arange(shape.loss_rows, device=head.device)
    options = LossOptions(impl)  # type: ignore[arg-type]

    def run() -> None:
        result = vocab_loss(LossInputs(draft, head, teacher, row, head, None, weight), options)
        result.total.backward()
        draft.grad = None

    return run


def _take_turns(
    label: str, runs: Mapping[Any, Callable[[], None]], device: torch.device, repeats: int
) -> dict[Any, dict[str, Any]]:
    """Measure memory in a first round, then time ``repeats`` rounds that alternate between the variants."""
    found: dict[Any, dict[str, Any]] = {
        key: {"seconds": None, "all_seconds": [], "extra_mb": None, "peak_mb": None} for key in runs
    }
    with ProgressBar(label, len(runs) * (repeats + 2), "runs") as bar:
        for key, run in runs.items():
            # If a variant runs out of memory, report it and continue with the others.
            try:
                run()  # create and compile what later runs reuse
                found[key]["extra_mb"], found[key]["peak_mb"] = _memory_of(run, device)
            except torch.OutOfMemoryError:
                torch.cuda.empty_cache()
            bar.update(2)
        for _ in range(repeats):
            for key, run in runs.items():
                if found[key]["extra_mb"] is not None:
                    found[key]["all_seconds"].append(_seconds(run, device))
                bar.update(1)
    for row in found.values():
        if row["all_seconds"]:
            row["seconds"] = statistics.median(row["all_seconds"])
    return found


def _seconds(run: Callable[[], None], device: torch.device) -> float:
    wait = synchroniser(str(device))
    wait()
    start = time.perf_counter()
    run()
    wait()
    return time.perf_counter() - start


def _memory_of(run: Callable[[], None], device: torch.device) -> tuple[float, float | None]:
    """Return megabytes above the memory held before, and on CUDA the peak in total."""
    if device.type != "cuda":
        with TensorMemory() as counted:
            run()
        return counted.peak / _MB, None
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    run()
    torch.cuda.synchronize(device)
    peak = torch.cuda.max_memory_allocated(device)
    return (peak - before) / _MB, peak / _MB


def shown(result: dict[str, Any]) -> list[DataTable | str]:
    # Total allocated memory is only available on a GPU.
    rows = [row for shape in result["shapes"] for row in shape.get("step", shape.get("rivals"))]
    peak = any(row["peak_mb"] is not None for row in rows)
    memory = ("extra MB", "peak MB") if peak else ("extra MB",)

    def cost(row: dict[str, Any]) -> list[str | None]:
        known = [row["seconds"], *(row[key] for key in ("extra_mb", "peak_mb")[: len(memory)])]
        return [None if one is None else f"{one:,.{1 if at else 4}f}" for at, one in enumerate(known)]

    found: list[DataTable | str] = [f"{result['device']}, torch {result['torch']}"]
    for shape in result["shapes"]:
        if "rivals" in shape:
            found += _rivals_shown(shape)
            continue
        steps = []
        for row in shape["step"]:
            label = f"{row['loss']} + {row['attention']}" + (
                " + checkpointing" if row["checkpointing"] else ""
            )
            rate = None if row["tokens_per_s"] is None else f"{row['tokens_per_s']:,.0f}"
            steps.append([label, rate, *cost(row)])
        title = f"{shape['name']}: {shape['batch']} rows of {shape['length']:,} tokens, K = {shape['steps']}"
        found.append(DataTable(title, ("loss + attention<", "tokens/s", "seconds", *memory), steps))
        title = f"{shape['name']}: vocabulary loss alone, {shape['loss_rows']:,} rows, V = {shape['vocab']:,}"
        losses = [[row["impl"], *cost(row)] for row in shape["loss"]]
        found.append(DataTable(title, ("loss<", "seconds", *memory), losses))
    meanings = ["extra MB: highest memory above what was held before, results included."]
    meanings += ["peak MB: all of the device's."] if peak else []
    return [*found, " ".join([*meanings, "–: out of memory. Seconds are medians of the rounds."])]


def _rivals_shown(shape: dict[str, Any]) -> list[DataTable | str]:
    rows = [
        [
            row["library"],
            row["lm_head"],
            *(None if row[key] is None else f"{row[key]:,.0f}" for key in ("tokens_per_s", "extra_mb")),
            f"{row['weights_mb']:,.0f}",
        ]
        for row in shape["rivals"]
    ]
    title = (
        f"{shape['name']}: EAGLE-3 step without the target, {shape['length']:,} tokens, K = {shape['steps']}, "
        f"H = {shape['hidden']:,}, V = {shape['vocab']:,}, R = {shape['draft_vocab']:,}"
    )
    table = DataTable(title, ("library<", "LM head<", "tokens/s", "extra MB", "weights MB"), rows)
    return [table] if shape["missing"] is None else [table, shape["missing"]]


if __name__ == "__main__":
    run(__doc__, bench_training, shown)
