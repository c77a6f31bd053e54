"""Captured passes, here tapes of tensor operations: whole requests give what eager passes give, token by token."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.decode.drafting import OWN_HEADS, make_drafter
from tests.decode.node_support import Alternating, load_tiny, noisy
from tests.decode.recording import SAMPLED, TraceRecorder, outcome, requests, same_as_eager, traced
from tests.folders import edit_folder
from tests.models.lean_support import build as build_family
from tests.shares import by_default
from tests.worlds import tiny_target
from vocabforge.cli.drafting.decoding_options import wrap_for
from vocabforge.core.errors import UsageError
from vocabforge.core.registry import resolve
from vocabforge.decode.accelerate.graphs import GraphCapture
from vocabforge.decode.caches import FIRST_POSITIONS
from vocabforge.decode.engine import Decoder
from vocabforge.decode.proposers.registry import ProposerParts, make_proposer
from vocabforge.decode.request import Request, SamplingParams
from vocabforge.decode.spec import MethodSpec
from vocabforge.models.heads.registry import HEADS, HeadOptions, HeadSizes, base_of, build_head
from vocabforge.models.lean.model import LeanModel, load_target
from vocabforge.models.target.hf import HFTarget

TREE = MethodSpec(tree="dynamic", depth=2, topk=3, total_nodes=9)
CHAIN = MethodSpec(tree="chain", depth=2)
LINE = MethodSpec(tree_file="line.json")  # a line above a tree
STATIC = MethodSpec(tree="static", depth=2, topk=2, total_nodes=7)
FORM = "eagle3.1 of two layers"
BLOCKS = ("dflash", "dspark", "peagle")
CAPTURED: list[tuple[str, MethodSpec, int]] = [
    ("eagle3", TREE, 1),
    ("eagle3", TREE, 3),
    ("eagle3", CHAIN, 2),
    ("eagle2", TREE, 2),
    ("eagle1", STATIC, 1),
    ("eagle1", STATIC, 2),
    ("draft-model", TREE, 1),
    ("draft-model", TREE, 3),
    ("draft-model", CHAIN, 2),
    *((kind, options, rows) for kind in BLOCKS for options, rows in ((TREE, 1), (TREE, 2), (CHAIN, 3))),
    ("medusa", STATIC, 2),
    (OWN_HEADS, STATIC, 1),
    ("early-exit", TREE, 2),
    ("early-exit", CHAIN, 1),
    (FORM, TREE, 2),
    ("plain", TREE, 1),
    ("plain", TREE, 2),
    ("short", TREE, 2),
    ("draft-model", LINE, 2),
]
# One of each way of drafting, a tree of several rows, and the last four.
SOME = [*{case[0]: case for case in CAPTURED[:-4]}.values(), CAPTURED[1], *CAPTURED[-4:]]
PATTERN = (True, False, False, None, True, False)


class Models:
    """A target, what drafts for it, and proposers of them."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoModelForCausalLM

        tiny_target(folder, num_hidden_layers=3)
        self.target = load_target(folder)
        self.line = folder / "line.json"
        self.line.write_text("[[0], [0, 0], [0, 1], [0, 0, 0], [0, 1, 0]]")
        hf = HFTarget(AutoModelForCausalLM.from_pretrained(folder))
        self.drafters: dict[str, Any] = {
            kind: make_drafter(kind, folder, hf) for kind in ("eagle3", "eagle1", "medusa", *BLOCKS)
        }
        self.drafters["draft-model"] = noisy(load_target(folder))
        # It sees its last positions only: a window for all its layers.
        self.drafters["short"] = load_tiny(folder / "short", num_hidden_layers=1, max_position_embeddings=12)
        self.drafters |= {case: make_drafter(case, folder, hf, "reduced") for case in (OWN_HEADS, FORM)}

    def parts(self, name: str, options: MethodSpec) -> Callable[[], tuple[LeanModel, Any]]:
        if name == "plain":
            return lambda: (self.target, None)
        drafter = self.drafters.get({"eagle2": "eagle1"}.get(name, name))
        kind = {"short": "draft-model", OWN_HEADS: "medusa", FORM: "eagle3"}.get(name, name)
        if options is LINE:
            options = MethodSpec(tree_file=self.line)
        parts = ProposerParts(self.target, drafter, options=options)
        return lambda: (self.target, make_proposer(kind, parts))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory.mktemp("graphs"))


@pytest.mark.parametrize(("name", "options", "rows"), by_default(CAPTURED, SOME.__contains__))
def test_whole_cycles_equal_eager_ones(models: Models, name: str, options: MethodSpec, rows: int) -> None:
    capture, found = same_as_eager(models.parts(name, options), requests(rows + 1), rows=rows)
    assert len(capture.done) == 1, "one recording serves all lengths"
    if name == "draft-model":
        assert any(max(one[1]) > 2 for one in found), "nothing was accepted"


@pytest.mark.parametrize(
    ("name", "verifier"),
    by_default(
        itertools.product(["draft-model", "plain"], ["match", "point"]),
        [("draft-model", "point"), ("plain", "match")].__contains__,
    ),
)
def test_sampled_tokens_are_those_of_the_eager_engine(models: Models, name: str, verifier: str) -> None:
    """The same numbers decide the same: match draws number n of a stream for token n, point one a decision."""
    _, found = same_as_eager(models.parts(name, TREE), requests(4, *SAMPLED), rows=2, verifier=verifier)
    greedy = outcome(Decoder(models.target).generate_batch(requests(4)))
    assert [one[0] for one in found] != [one[0] for one in greedy]


@pytest.mark.parametrize("case", ["mistral-window", "qwen3-bias-window", "olmo2"])
def test_families_and_windows(case: str, tmp_path: Path) -> None:
    """On the ops where a family fits them (a window, norms of heads), else layer by layer under bits."""
    build_family(case, tmp_path)
    target = load_target(tmp_path)

    def make() -> tuple[LeanModel, Any]:
        options = MethodSpec(tree="dynamic", depth=1, topk=3, total_nodes=7, exit_layers=1)
        return target, make_proposer("early-exit", ProposerParts(target, options=options))

    same_as_eager(make, requests(3), rows=2)


@pytest.mark.parametrize("kind", ["context", "router", "ranker"])
def test_heads_that_choose_their_rows(models: Models, kind: str) -> None:
    """The tokens of the text change between replays, at one place; a router begins before the drafter's pass."""
    drafter, vocab = models.drafters["eagle3"], models.target.config.vocab_size
    options = {
        "context": HeadOptions(ranked=tuple(range(8)), context=6, ops=True),
        "router": HeadOptions(budgets=(4, 3), ops=True),
        "ranker": HeadOptions(shortlist=12, ops=True),
    }[kind]
    clusters = 8 if kind == "router" else None
    torch.manual_seed(3)
    sizes = HeadSizes(32, vocab, rank=6, clusters=clusters, width=8, depth=1)
    module = resolve(HEADS, kind, "draft head").new_module(sizes)

    def make() -> tuple[LeanModel, Any]:
        head = build_head(kind, base_of(drafter), module, options)
        return models.target, make_proposer("eagle3", ProposerParts(models.target, drafter, head, TREE))

    same_as_eager(make, requests(3), rows=2)


@pytest.mark.parametrize("name", ["eagle3", "draft-model", "n-gram", "medusa", OWN_HEADS])
def test_other_cycles_are_captured_in_parts(models: Models, name: str) -> None:
    """Penalties are the host's work: drafting and target pass are captured by themselves."""
    penalised = SamplingParams(0.0, repetition_penalty=1.3)
    options = {"n-gram": MethodSpec(), "medusa": STATIC, OWN_HEADS: STATIC}.get(name, TREE)
    capture, _ = same_as_eager(models.parts(name, options), requests(3, penalised), whole=False, rows=2)
    assert "target" in [one.name for one in capture.done]


def test_changing_plans_are_captured_in_parts(models: Models) -> None:
    make = models.parts("eagle3", TREE)
    plans = make()[1].plans()
    same_as_eager(make, requests(2), whole=False, rows=1, control=Alternating(plans, PATTERN))


def test_one_decoder_serves_all_kinds_of_requests(models: Models) -> None:
    """Whole cycles, cycles in parts, and whole ones again, with caches that grow in between."""
    plain, penalised = requests(2), requests(2, SamplingParams(0.0, repetition_penalty=1.3))
    long = [Request(one.prompt_ids * 9, 9, ()) for one in requests(2)]
    make = models.parts("draft-model", CHAIN)
    found, eager = Decoder(*make(), rows=2, wrap=traced()), Decoder(*make(), rows=2)
    found._caches.allocate(32)
    for asked in (plain, penalised, long, plain):
        assert outcome(found.generate_batch(asked)) == outcome(eager.generate_batch(asked))


@pytest.mark.parametrize("name", by_default(["draft-model", "eagle3"], lambda name: name == "eagle3"))
def test_decoders_that_share_a_proposer(models: Models, name: str) -> None:
    """What one has captured reaches memory that the next one's takes the place of, captured itself or not."""
    make = models.parts(name, TREE)
    target, proposer = make()
    one, two, eager = (Decoder(target, proposer, rows=2, wrap=wrap) for wrap in (traced(), traced(), None))
    alone = Decoder(*make(), rows=2)
    penalised = requests(2, SamplingParams(0.0, repetition_penalty=1.3))
    for decoder in (two, one, eager):
        for asked in (penalised, requests(3)):
            assert outcome(decoder.generate_batch(asked)) == outcome(alone.generate_batch(asked))
            for ours, theirs in zip(proposer.backend.device_state(), alone.proposer.backend.device_state()):
                torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_rotary_tables_stay_where_they_were_captured(models: Models) -> None:
    """Another decoder of the same drafter needs longer ones."""
    first, second = (Decoder(*models.parts("eagle3", TREE)(), wrap=traced()) for _ in range(2))
    table = weakref.ref(models.drafters["eagle3"].cos)
    second._caches.allocate(10 * FIRST_POSITIONS)
    assert len(models.drafters["eagle3"].cos) > 10 * FIRST_POSITIONS
    assert table() is not None
    assert first.proposer is not None


def test_recordings_keep_the_state_that_they_name() -> None:
    """A warm-up run and, here, the recording itself count; the first replay must still be the first."""
    state = torch.zeros(2)

    def step(more: torch.Tensor) -> torch.Tensor:
        state.add_(more)
        return state * 1

    capture = GraphCapture(TraceRecorder)
    run = capture("step", step, lambda: [state])
    first = run(torch.ones(2))
    assert first.tolist() == [1.0, 1.0]
    assert run(torch.full((2,), 2.0)).tolist() == [3.0, 3.0]
    assert first.tolist() == [1.0, 1.0], "an output was written over"
    assert run(torch.ones(1)).tolist() == [4.0, 4.0]
    assert len(capture.done) == 2
    capture.forget()
    run(torch.ones(2))
    assert len(capture.done) == 3


def test_a_tree_deeper_than_a_window_is_refused(tmp_path: Path) -> None:
    build_family("mistral-window", tmp_path)
    target = load_target(edit_folder(tmp_path, sliding_window=3))
    options = MethodSpec(tree="chain", depth=2, exit_layers=1)
    proposer = make_proposer("early-exit", ProposerParts(target, options=options))
    Decoder(target, proposer)
    with pytest.raises(UsageError, match="too deep to be captured"):
        Decoder(target, proposer, wrap=traced())


def test_graphs_are_left_out_or_refused_where_there_is_no_cuda_device() -> None:
    assert wrap_for(False, None, "cpu") is wrap_for(False, False, "cpu") is None
    for compiled, words in ((False, r"(?s)CUDA devices only.*--device cuda"), (True, "either compiled")):
        with pytest.raises(UsageError, match=words):
            wrap_for(compiled, True, "cpu")
