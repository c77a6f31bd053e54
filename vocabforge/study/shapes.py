"""Times of draft heads and of the layers of a target and a drafter at the shape of an 8B model, with random weights."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import ceil, floor, sqrt
from statistics import median
from typing import Annotated, Any, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn

from ..core.config import Positive, StrictModel
from ..core.errors import MismatchError
from ..core.progress import say
from ..evaluate.bench_cycle_models import Pair, random_pair
from ..evaluate.bench_kernels_timing import Protocol, time_calls
from ..evaluate.doctor.machine import free_memory
from ..evaluate.environment import describe_environment
from ..evaluate.op_benches.types import QWEN3_8B, Shape, distinct_ids, generator, normal
from ..models.heads import DraftHead, DraftState, HeadBase, HeadOptions, RouterHead, build_head
from ..models.low_rank import LowRankScorer
from ..models.router import Router
from ..models.sight import Sight, line_sight
from ..tune.interpolate import Found, Sample, interpolate
from ..tune.records import Time
from ..tune.rounds import Task, run_rounds
from ..tune.types import HeadSetting, Seconds, TreeSetting, total
from .roofline import SLABS


class Timed(StrictModel):
    """One measured time.

    Attributes:
        rows: hidden rows of the step, or tokens of the pass.
        seconds: median of the rounds; ``low`` and ``high`` bound most such medians.
        count: rounds.
    """

    rows: Positive
    seconds: Time
    low: Time
    high: Time
    count: Positive

    @property
    def bounds(self) -> Seconds:
        return Seconds(self.seconds, self.low, self.high)


class HeadTime(Timed):
    """The same of a draft head; ``setting`` has one ``scored`` size."""

    setting: HeadSetting


class Cycle(NamedTuple):
    """Seconds of a cycle, those of its draft head among them, and on which sizes nothing was measured."""

    seconds: Seconds
    head: Seconds
    notes: tuple[str, ...]


class ShapeTimes(StrictModel):
    """What was measured of one shape on one machine, with random weights.

    Attributes:
        hidden, rows, layers: H, V and number of layers of the target.
        prefix: positions that caches held.
        heads: draft heads.
        drafter: its layer with the norm behind it, by rows.
        target: one of the target's layers, by rows; ``logits`` its LM head and the choice.
        fuse: the target's features fused, once a cycle.
        notes: what was left out, and why.
    """

    hidden: Positive
    rows: Positive
    layers: Positive
    prefix: Annotated[int, Field(ge=0)]
    dtype: str
    environment: dict[str, Any]
    heads: tuple[HeadTime, ...]
    drafter: tuple[Timed, ...]
    target: tuple[Timed, ...]
    logits: tuple[Timed, ...]
    fuse: tuple[Timed, ...]
    notes: tuple[str, ...] = ()
    rounds: Positive = 1
    seconds: Time = 0.0

    def head_at(self, setting: HeadSetting, rows: int, step: int = 0) -> Found:
        """Seconds of a head in one draft step, between what was measured of its family.

        Raises:
            MismatchError: no head of its family was measured.
        """
        samples = self._by_family.get(time_family(setting))
        if samples is None:
            raise MismatchError(
                "the times of the larger shape lack this kind of draft head",
                got=", ".join(sorted(one.setting.label for one in self.heads)) or "no head",
                expected=setting.label,
                remedy="run the stage times again with a longer times.shape_budget_s",
            )
        at = {"rows": rows, "core": setting.core, "scored": setting.at(step)}
        return interpolate(samples, ("rows", "core", "scored"), at)

    def target_pass(self, nodes: int) -> Seconds:
        """The whole target over so many tokens, with its LM head."""
        layers = self._pass(self.target, nodes).times(self.layers)
        return total([layers, self._pass(self.logits, nodes)])

    def plain(self) -> Seconds:
        """One step of plain decoding."""
        return self.target_pass(1)

    def cycle(self, setting: HeadSetting, tree: TreeSetting) -> Cycle:
        """One speculative cycle of one request: a head and a layer a level, and the target over all nodes.

        The first level has one row, further ones ``topk``. What the host adds is not in it.

        Raises:
            MismatchError: see :meth:`head_at`.
        """
        heads, notes = [], dict[str, None]()
        for step in range(tree.levels):
            found = self.head_at(setting, tree.topk if step else 1, step)
            heads.append(found.seconds)
            notes |= {f"head: {axis} beyond what was measured": None for axis in sorted(found.beyond)}
        passes = [self._pass(self.drafter, 1), self._pass(self.drafter, tree.topk).times(tree.depth)]
        head = total(heads)
        rest = [*passes, self._pass(self.fuse, 1), self.target_pass(tree.total)]
        return Cycle(total([head, *rest]), head, tuple(notes))

    @cached_property
    def _by_family(self) -> dict[tuple[object, ...], list[Sample]]:
        found: dict[tuple[object, ...], list[Sample]] = {}
        for one in self.heads:
            setting = one.setting
            at = {"rows": one.rows, "core": setting.core, "scored": setting.scored[0]}
            found.setdefault(time_family(setting), []).append(Sample(at, one.bounds, one.count))
        return found

    def _pass(self, times: Sequence[Timed], rows: int) -> Seconds:
        samples = [Sample({"rows": one.rows}, one.bounds, one.count) for one in times]
        if not samples:
            raise MismatchError(
                "the times of the larger shape lack its passes",
                remedy="run the stage times again with a longer times.shape_budget_s",
            )
        return interpolate(samples, ("rows",), {"rows": rows}).seconds


def time_family(setting: HeadSetting) -> tuple[object, ...]:
    """What no interpolation crosses: a head's kind, but that slabs of rows are all alike."""
    if setting.kind in SLABS:
        return ("slab",)
    return setting.family


def representatives(settings: Iterable[HeadSetting]) -> list[HeadSetting]:
    """One head of every size that any of these has at any step, sizes of a slab once whatever they are called.

    The whole vocabulary first, then by family and size.
    """
    found: dict[tuple[object, ...], HeadSetting] = {}
    for setting in settings:
        for scored in setting.scored:
            kind = "static" if setting.kind == "scheduled" else setting.kind
            one = setting.model_copy(update={"kind": kind, "scored": (scored,)})
            key = (*time_family(one), one.core, scored)
            if key not in found or kind == "full":
                found[key] = one
    return sorted(
        found.values(),
        key=lambda one: (one.kind != "full", one.kind, one.rank, one.clusters, one.core, one.scored),
    )


def weights_of(setting: HeadSetting, rows: int, hidden: int, *, copies: bool) -> Mapping[str, int]:
    """Bytes of what a head needs beside the LM head, by a name that heads with the same part share.

    Args:
        copies: heads are built on the ops, where a router sorts a copy of the LM head and a hybrid its scorer.
    """
    found: dict[str, int] = {}
    if setting.rank:
        found[f"scorer {setting.rank}"] = 2 * setting.rank * (rows + hidden)
    if setting.core:
        found[f"core {setting.core}"] = 2 * setting.core * hidden
    if setting.kind == "hybrid" and copies:
        found[f"tail {setting.rank} {setting.core}"] = 2 * setting.rank * rows
    if setting.clusters and copies:
        found[f"slabs {setting.clusters}"] = 2 * rows * hidden
    return found


Call = Callable[[], Any]

_LOGIT = 3.0  # standard deviation of random logits
_FEW = 64  # rows of an embedding that nothing but a layer's input is read from


def shape_of(hidden: int, rows: int) -> Shape:
    """A model of that hidden size built as Qwen3-8B is: its number of layers, heads in proportion.

    With 4,096 it is Qwen3-8B itself.
    """
    of = QWEN3_8B
    head = min(of.head_dim, hidden)
    heads = max(1, hidden // head)
    return replace(
        of,
        name=f"H = {hidden:,}",
        hidden=hidden,
        vocab=rows,
        intermediate=hidden * of.intermediate // of.hidden,
        heads=heads,
        kv_heads=max(1, heads * of.kv_heads // of.heads),
        head_dim=head,
    )


class ShapeHeads:
    """Draft heads over one random LM head.

    Args:
        rows, hidden: V and H.
        text: most tokens of a text that a context head may be asked to read.

    Attributes:
        weight: (V, H) bf16.
    """

    def __init__(self, rows: int, hidden: int, device: torch.device, *, text: int = 1, seed: int = 0) -> None:
        self._random = generator(device, seed)
        self.weight = self._normal((rows, hidden), _LOGIT / hidden**0.5)
        self._base = HeadBase(
            nn.Parameter(self.weight, False), torch.arange(rows, device=device), self.weight
        )
        self._text = distinct_ids(rows, (1, min(text, rows)), self._random)  # (1, C)
        self._scorers: dict[int, LowRankScorer] = {}
        self._routers: dict[tuple[int, str], RouterHead] = {}

    def head(self, setting: HeadSetting) -> DraftHead:
        """A head of these sizes; what several have in common is made once."""
        scored, core = setting.scored[0], setting.core
        if setting.kind == "router":
            return self._router(setting.clusters, scored, "shared" if setting.shared else "own")
        if setting.kind in ("static", "scheduled"):  # a part of the rows lies in one piece
            base = self._base
            part = HeadBase(base.weight[:scored], base.target_ids[:scored], base.embedding)
            return build_head("static", part)
        scorer = self._scorer(setting.rank) if setting.rank else None
        options = HeadOptions()
        if setting.kind == "ranker":
            options = HeadOptions(shortlist=scored, rows="shared" if setting.shared else "own")
        elif setting.kind == "context":
            options = HeadOptions(ranked=self._spread(core), context=max(1, scored - core))
        elif setting.kind == "hybrid":
            options = HeadOptions(ranked=self._spread(core), shortlist=max(1, scored - core))
        return build_head(setting.kind, self._base, scorer, options)

    def call(self, head: DraftHead, rows: int, k: int) -> Call:
        """What a draft step asks of a head: the ``k`` best tokens of ``rows`` siblings."""
        width = self.weight.shape[1]
        hidden, previous = (self._siblings(rows, width) for _ in range(2))
        tokens = torch.zeros(rows, dtype=torch.int64, device=hidden.device)
        text = self._text[:, : head.context_size] if head.context_size else None
        state = DraftState(1, tokens, previous, 1, text)
        most = min(k, head.size)
        return lambda: head.topk(hidden, most, state)

    def logits(self, rows: int) -> Call:
        """The target's LM head and its choice."""
        hidden = self._siblings(rows, self.weight.shape[1])
        return lambda: nn.functional.linear(hidden, self.weight).argmax(-1)

    def _normal(self, size: tuple[int, ...], scale: float) -> Tensor:
        return normal(size, self._random, torch.bfloat16, scale)

    def _siblings(self, rows: int, width: int) -> Tensor:
        """(N, H) hidden states of unit scale."""
        return self._normal((rows, width), 1.0)

    def _spread(self, count: int) -> tuple[int, ...]:
        rows = len(self.weight)
        return tuple(place * rows // count for place in range(count))

    def _scorer(self, rank: int) -> LowRankScorer:
        if rank not in self._scorers:
            rows, hidden = self.weight.shape
            with torch.device("meta"):
                made = LowRankScorer(hidden, rows, rank)
            made.down.weight = nn.Parameter(self._normal((rank, hidden), hidden**-0.5), False)
            made.vocab.weight = nn.Parameter(self._normal((rows, rank), _LOGIT / rank**0.5), False)
            self._scorers[rank] = made
        return self._scorers[rank]

    def _router(self, clusters: int, scored: int, each: Literal["own", "shared"]) -> RouterHead:
        """One that opens about so many tokens; all of one number of clusters share their rows."""
        rows, hidden = self.weight.shape
        budget = min(clusters, max(1, round(scored * clusters / rows)))
        if (clusters, each) not in self._routers:
            assignment = torch.arange(rows, device=self.weight.device) % clusters
            with torch.device("meta"):
                router = Router(hidden, torch.zeros(1, dtype=torch.int64), clusters)
            router.assignment = assignment
            for layer in (*router.layers, router.out):
                assert isinstance(layer, nn.Linear)
                fan = layer.in_features
                layer.weight = nn.Parameter(self._normal((layer.out_features, fan), fan**-0.5), False)
                layer.bias = nn.Parameter(self._normal((layer.out_features,), 0.1), False)
            made = build_head("router", self._base, router, HeadOptions(budgets=(budget,), rows=each))
            assert isinstance(made, RouterHead)
            self._routers[clusters, each] = made
        return self._routers[clusters, each].with_budgets((budget,))


class ShapeLayers:
    """One layer of a target and the layer of an EAGLE-3 drafter, each with caches of some positions.

    Args:
        prefix: positions that the caches hold.
        most: rows of a pass at most.
    """

    def __init__(self, shape: Shape, device: torch.device, *, prefix: int, most: int) -> None:
        few = replace(shape, vocab=_FEW, layers=1)
        self._pair: Pair = random_pair(few, device, torch.bfloat16)
        self._prefix, self._device = prefix, device
        self._cache = self._pair.target.new_cache(prefix + most)
        self._own = self._pair.target.new_cache(prefix + most)
        self._random = generator(device, 1)
        self._width = shape.hidden

    def target(self, rows: int) -> Call:
        """One layer of the target over ``rows`` tokens, with the final norm."""
        ids, slots, seen = self._fed(rows)
        x = self._states(rows)
        model, cache = self._pair.target, self._cache
        return lambda: model.forward(ids, slots, cache=cache, slots=slots, mask=seen, layers=range(1), x=x)

    def drafter(self, rows: int) -> Call:
        """A draft step before its head: the layer, and the norm that the head reads."""
        ids, slots, seen = self._fed(rows)
        g = self._states(rows)
        drafter, cache = self._pair.drafter, self._own
        return lambda: drafter.read(drafter.extend(ids, g, slots, cache=cache, slots=slots, mask=seen))

    def fuse(self) -> Call:
        """What a cycle adds before its first step: the target's features fused."""
        drafter = self._pair.drafter
        features = self._states(1).repeat(1, 1, len(drafter.config.aux_layers))
        return lambda: drafter.fuse(features)

    def _states(self, rows: int) -> Tensor:
        return normal((1, rows, self._width), self._random, torch.bfloat16)

    def _fed(self, rows: int) -> tuple[Tensor, Tensor, Tensor | Sight]:
        """Tokens (1, T), slots (1, T), and what each token sees: all before it."""
        slots = torch.arange(self._prefix, self._prefix + rows, device=self._device)[None]
        ids = torch.zeros_like(slots)
        if self._device.type == "cuda":
            return ids, slots, line_sight(slots)
        places = torch.arange(self._prefix + rows)
        return ids, slots, (places <= slots[0][:, None])[None]


_CPU_CACHE = 1 << 27  # bytes, more than a core sees of any cache
_SECONDS = 0.02  # for the repeats of one measurement of a round, on CUDA
_LEAST = 1e-7  # seconds: below it a difference of two times says nothing
_ROOM = 0.8  # of free memory that may be taken
_SPARE = 4  # copies of a step's logits in fp32


@dataclass(frozen=True)
class ShapePlan:
    """What is measured.

    Attributes:
        hidden, rows: H and V.
        width: hidden rows of a draft step of a tree, and tokens asked of each.
        nodes: tokens of the target's passes.
        prefix: positions that caches hold.
        budget_s: seconds; every head and pass is measured once whatever it takes.
        rounds: most of them.
    """

    hidden: int
    rows: int
    width: int
    nodes: tuple[int, ...]
    prefix: int
    budget_s: float
    rounds: int = 40


def measure_shape(
    settings: Iterable[HeadSetting], plan: ShapePlan, device: torch.device
) -> ShapeTimes | None:
    """Measure one head of every size.

    Args:
        settings: heads at this shape (``roofline.scaled``).

    Returns:
        None where not even the LM head and a layer fit into memory, which is said.
    """
    began, cuda = time.monotonic(), device.type == "cuda"
    wanted = representatives(settings)
    kept, notes = fitting(wanted, plan, free_bytes(device), copies=cuda)
    if not kept:
        say("Times of the larger shape are left out: " + "; ".join(notes))
        return None
    with torch.inference_mode():
        meter = _Meter(plan, kept, device)
        rounds, late = run_rounds(meter.tasks, [], seconds=plan.budget_s, most=plan.rounds, seed=0)
    return meter.times(rounds, (*notes, *late), time.monotonic() - began)


def free_bytes(device: torch.device) -> float:
    """Memory that can still be taken; infinite where that is unknown."""
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    found = free_memory()
    return float("inf") if found is None else float(found)


def fitting(
    wanted: Sequence[HeadSetting], plan: ShapePlan, free: float, *, copies: bool
) -> tuple[list[HeadSetting], list[str]]:
    """The heads whose weights fit into memory beside the LM head and a layer, and what does not.

    Args:
        free: bytes.
        copies: see :func:`~vocabforge.study.shape_times.weights_of`.
    """
    shape = shape_of(plan.hidden, plan.rows)
    layer = 4 * plan.hidden**2 + 3 * plan.hidden * shape.intermediate
    drafter = layer + 6 * plan.hidden**2
    taken = 2.0 * (plan.rows * plan.hidden + layer + drafter)
    taken += _SPARE * 4 * plan.rows * max(plan.width, *plan.nodes)
    room = _ROOM * free
    if taken > room:
        return [], [f"they need {taken / 1e9:.1f} GB of memory, and {room / 1e9:.1f} GB may be taken"]
    kept, notes, known = list[HeadSetting](), list[str](), set[str]()
    for setting in wanted:
        parts = weights_of(setting, plan.rows, plan.hidden, copies=copies)
        more = sum(size for name, size in parts.items() if name not in known)
        if taken + more > room:
            notes.append(f"not measured, no memory left: {setting.label}")
            continue
        taken, known = taken + more, known | set(parts)
        kept.append(setting)
    return kept, notes


@dataclass
class _Meter:
    """Tasks of a round, and what they found.

    Attributes:
        found: seconds by what they are of and rows.
    """

    plan: ShapePlan
    settings: Sequence[HeadSetting]
    device: torch.device
    found: dict[tuple[object, int], list[float]] = field(default_factory=dict)
    tasks: list[Task] = field(default_factory=list)

    def __post_init__(self) -> None:
        plan = self.plan
        text = max((one.scored[0] - one.core for one in self.settings if one.kind == "context"), default=1)
        heads = ShapeHeads(plan.rows, plan.hidden, self.device, text=text)
        self._clock = ColdClock(self.device, min(4 * heads.weight.nbytes, _CPU_CACHE))
        shape = shape_of(plan.hidden, plan.rows)
        self._layers = shape.layers
        passes = ShapeLayers(shape, self.device, prefix=plan.prefix, most=max(plan.width, *plan.nodes))
        steps = sorted({1, plan.width})
        nodes = sorted({1, *plan.nodes})
        self._add({("drafter", rows): passes.drafter(rows) for rows in steps})
        self._add({("target", rows): passes.target(rows) for rows in nodes})
        self._add({("logits", rows): heads.logits(rows) for rows in nodes})
        self._add({("fuse", 1): passes.fuse()})
        for setting in self.settings:
            head = heads.head(setting)
            self._add({(setting, rows): heads.call(head, rows, rows) for rows in steps})

    def _add(self, calls: Mapping[tuple[object, int], Call]) -> None:
        for (what, rows), call in calls.items():
            name = what.label if isinstance(what, HeadSetting) else str(what)
            self.tasks.append((f"{name}, {rows} rows", partial(self._measure, (what, rows), call)))

    def _measure(self, key: tuple[object, int], call: Call, number: int) -> None:
        if key not in self.found:
            call()  # what is only done once is done
        self.found.setdefault(key, []).append(self._clock(call))

    def times(self, rounds: int, notes: Sequence[str], seconds: float) -> ShapeTimes:
        """Everything that was found."""

        def of(name: str) -> tuple[Timed, ...]:
            return tuple(
                Timed(rows=rows, **_summary(each))
                for (what, rows), each in self.found.items()
                if what == name
            )

        heads = [
            HeadTime(setting=what, rows=rows, **_summary(each))
            for (what, rows), each in self.found.items()
            if isinstance(what, HeadSetting)
        ]
        return ShapeTimes(
            hidden=self.plan.hidden,
            rows=self.plan.rows,
            layers=self._layers,
            prefix=self.plan.prefix,
            dtype="bfloat16",
            environment=describe_environment(device=str(self.device), dtype="bfloat16"),
            heads=tuple(heads),
            drafter=of("drafter"),
            target=of("target"),
            logits=of("logits"),
            fuse=of("fuse"),
            notes=tuple(notes),
            rounds=max(rounds, 1),
            seconds=seconds,
        )


def _summary(seconds: Sequence[float]) -> dict[str, Any]:
    """The median, and its 95% interval from order statistics (David and Nagaraja, *Order Statistics*, 2003, 7.1)."""
    ordered, count = sorted(seconds), len(seconds)
    off = 0.98 * sqrt(count)
    low, high = max(0, floor(count / 2 - off)), min(count - 1, ceil(count / 2 + off))
    return {"seconds": median(ordered), "low": ordered[low], "high": ordered[high], "count": count}


class ColdClock:
    """Seconds of a call that finds nothing of its inputs in a cache.

    Args:
        cache: bytes that are read before each call on a CPU; on CUDA it is twice the device's cache.
    """

    def __init__(self, device: torch.device, cache: int) -> None:
        self._protocol = Protocol(device, seconds=_SECONDS)
        size = 2 * self._protocol.cache_bytes() if self._protocol.cuda else cache
        self._other = torch.ones(max(1, size // 4), device=device)

    def __call__(self, call: Callable[[], object]) -> float:
        if self._protocol.cuda:
            both = time_calls([partial(_one_by_one, self._read, call)], self._protocol)
            return max(_LEAST, both.seconds - time_calls([self._read], self._protocol).seconds)
        self._read()
        began = time.perf_counter()
        call()
        return time.perf_counter() - began

    def _read(self) -> Tensor:
        # Read, not written: what lies changed in a cache would have to be written back while the call is timed.
        return self._other.sum()


def _one_by_one(*calls: Callable[[], object]) -> list[object]:
    return [call() for call in calls]
