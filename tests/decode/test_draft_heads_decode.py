"""Draft heads in the real decoder: the state they are told, losslessness, and the commands that use them."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from tests.decode.build_support import PROMPT, VOCAB, methods_of, outputs_of
from tests.decode.drafting import advance, eagle, propose
from tests.worlds import tiny_drafter
from vocabforge.core.errors import MismatchError, UsageError
from vocabforge.decode.build.heads import parse_budget
from vocabforge.decode.engine import Decoder
from vocabforge.decode.request import Request
from vocabforge.decode.tree import TreeSettings
from vocabforge.models.heads.registry import DraftState
from vocabforge.models.lean.model import load_target
from vocabforge.models.target.hf import HFTarget
from vocabforge.train.capture.online import OnlineCapture, RowBatch
from vocabforge.train.heads.states import drafting_rows

TREE = {"depth": 2, "topk": 3, "total_nodes": 10}


class Watching:
    """A head of given answers that keeps what it was told."""

    context_size, by_step = 0, False

    def __init__(self, script: list[int]) -> None:
        self.size, self.script, self.told = VOCAB, list(script), []

    def topk(self, hidden: torch.Tensor, k: int, state: DraftState) -> tuple[torch.Tensor, torch.Tensor]:
        self.told.append((state, hidden))
        return torch.zeros(1, 1), torch.tensor([[self.script.pop(0)]])


@torch.inference_mode()
def test_the_state_told_in_decoding_is_the_one_trained_on(place: Path) -> None:
    """Same token fed, same hidden state fed, same step, on every row of a text: parity with the unroll."""
    target, lean = HFTarget.load(place / "t"), load_target(place / "t")
    drafter = tiny_drafter(target)
    ids = torch.randint(0, VOCAB, (20,), generator=torch.Generator().manual_seed(1))
    ones = torch.ones(1, 20, dtype=torch.int64)
    rows = RowBatch(ids[None], ones.bool(), ones, torch.arange(20)[None])
    batch = OnlineCapture(target, 0)(rows, [("train", 0)])
    steps, trained = 4, {}
    for part in drafting_rows(drafter, batch, steps):
        for i, column in enumerate(part.where[1].tolist()):
            trained[column, part.state.step] = (part.state.part(slice(i, i + 1)), part.hidden[i])
    compared = 0
    for root in range(2, 14):
        script = ids[root + 2 : root + 2 + steps].tolist()
        head = Watching(script)
        proposer = eagle(drafter, head, TreeSettings(1, steps - 1, steps + 1), 64)
        output = lean.forward(
            ids[None, : root + 1],
            torch.arange(root + 1)[None],
            cache=lean.new_cache(64),
            slots=torch.arange(root + 1),
            mask=torch.ones(root + 1, root + 1).tril().bool(),
            aux_layers=drafter.config.aux_layers,
        )
        advance(proposer, ids[1 : root + 2], output.aux[0], root + 1)
        propose(proposer, int(ids[root + 1]))
        assert [state.step for state, _ in head.told] == list(range(steps))
        for state, hidden in head.told:
            known, normed = trained[root, state.step]
            assert state.tokens.tolist() == known.tokens.tolist()
            torch.testing.assert_close(state.previous, known.previous, rtol=1e-3, atol=1e-3)
            torch.testing.assert_close(hidden[0], normed, rtol=1e-3, atol=1e-3)
            compared += 1
    assert compared == 48


def test_heads_are_used_as_saved_or_as_asked_and_say_so(place: Path) -> None:
    saved = methods_of(place, "a", head=["ranker-a", "router", "low-rank"], **TREE)
    assert saved["a"].head is None
    assert saved["a+ranker-a"].head == "ranker head over 261 tokens, shortlist of 20"
    assert saved["a+router"].head == "router head over 261 tokens, clusters by draft step 4 2"
    assert "ranker head" in saved["a+ranker-a"].description
    options = {"shortlist": 7, "budget": "decay:9:3", "head_rows": "own"}
    asked = methods_of(place, "a", head=["ranker-a", "router"], **options, **TREE)
    ranker, router = (asked[f"a+{name}"].generator.proposer.head for name in ("ranker-a", "router"))
    assert (ranker.shortlist, ranker.shared) == (7, False)
    assert (router.budgets, router.shared) == ((9, 9, 4), False)
    assert asked["a+router"].head.endswith("clusters by draft step 9 9 4, own rows")


@pytest.mark.parametrize(
    ("error", "words", "drafters", "head", "asked"),
    [
        (MismatchError, "belongs to another drafter", "a", "ranker-b", {}),
        (MismatchError, "belongs to another target", "a", "foreign", {}),
        (UsageError, "--head belongs to a drafter", "", "ranker-a", {}),
        (UsageError, "--budget has no effect here", "a", "ranker-a", {"budget": "3"}),
        (UsageError, r"(?s)number of clusters.*13 clusters.*at most 12", "a", "router", {"budget": "13"}),
        (UsageError, r"(?s)number of clusters.*at most 12", "a", "router", {"budget": "decay:13:2"}),
        (UsageError, r"(?s)larger than the vocabulary.*at most 261", "a", "ranker-a", {"shortlist": 262}),
        (UsageError, "--head-rows has no effect here", "a", "low-rank", {"head_rows": "own"}),
        (UsageError, "--shortlist has no effect here", "a", "", {"shortlist": 3}),
        (None, "", "a", "router", {"budget": "12"}),
        (None, "", "a", "ranker-a", {"shortlist": 261}),
    ],
)
def test_mistakes_are_told(place, error, words, drafters, head, asked):
    with pytest.raises(error, match=words) if error else nullcontext():
        methods_of(place, *drafters, head=[head] if head else [], **asked, **TREE)


@pytest.mark.parametrize(
    ("text", "steps", "sizes"),
    [("32", 3, (32, 32, 32)), ("decay:32:8", 5, (32, 32, 16, 10, 8)), ("constant:4", 1, (4, 4))],
)
def test_budgets(text: str, steps: int, sizes: tuple[int, ...]) -> None:
    assert parse_budget(text, steps) == sizes


@pytest.mark.parametrize("text", ["", "x", "decay:3", "decay:3:9", "decay:9:3:1", "wild:9:3", "0", "-3", ":"])
def test_budgets_that_cannot_be_read(text: str) -> None:
    with pytest.raises(UsageError):
        parse_budget(text, 4)


@pytest.mark.parametrize(
    ("drafters", "asked", "names"),
    [
        ("ab", {"head": ("ranker-b", "router")}, "a a+router b b+ranker-b"),
        (
            "a",
            {"vocabs": ("core", "pafr"), "head": ("ranker-a",), "dynamic": ("context:40",)},
            "a a+core a+pafr a+ranker-a a+core+context a+pafr+context",
        ),
        (
            "m",
            {"vocabs": ("core", "pafr"), "dynamic": ("context:40",)},
            "m m+core m+pafr m+core+context m+pafr+context",
        ),
        (
            "",
            {"vocabs": ("core", "pafr"), "proposer": ["early-exit"], "dynamic": ("context",), "depth": 3},
            "early-exit early-exit+core early-exit+pafr early-exit+core+context early-exit+pafr+context",
        ),
    ],
)
def test_every_head_writes_what_plain_decoding_writes(place, drafters, asked, names):
    """A head goes to the drafter it belongs to; rows side by side draft as they do alone."""
    draft = {} if "depth" in asked else TREE
    methods = methods_of(place, *drafters, **asked, **draft)
    assert list(methods) == ["plain", *names.split()]
    alone, requests = outputs_of(methods, 10)["plain"], [Request(PROMPT, 10), Request([9, 200, 3], 10)]
    for method in [*methods.values()][1:]:
        decoder = method.generator
        beside = Decoder(decoder.target, decoder.proposer, rows=3).generate_batch(requests)
        single = [Decoder(decoder.target, decoder.proposer).generate_batch([one])[0] for one in requests]
        assert beside[0].token_ids == alone.token_ids
        for ours, theirs in zip(beside, single):
            assert (ours.token_ids, ours.accept_lengths) == (theirs.token_ids, theirs.accept_lengths)


def test_a_context_head_drafts_tokens_that_only_the_text_has(place: Path) -> None:
    methods = methods_of(place, "a", vocabs=["core"], dynamic=("context:40",), **TREE)
    head = methods["a+core+context"].generator.proposer.head
    core = set(methods["a+core"].generator.proposer.head.target_ids.tolist())
    seen: set[int] = set()
    topk = head.topk

    def watching(hidden, k, state):
        answer = topk(hidden, k, state)
        held = {i for i in state.context.flatten().tolist() if i >= 0}
        assert set(answer[1].flatten().tolist()) <= core | held
        seen.update(set(answer[1].flatten().tolist()) - core)
        return answer

    head.topk = watching
    prompt = [i for i in range(200) if i not in core][:30]
    methods["a+core+context"].generator.generate(prompt, max_new_tokens=40, stop_ids=())
    assert len(seen) > 3
