"""Draft heads in the real decoder: the state they are told, losslessness, and the commands that use them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.decode.build_support import grid_methods
from tests.decode.drafting import advance, eagle, make_drafter, propose
from tests.worlds import byte_tokenizer, tiny_drafter, tiny_target
from vocabforge.core.errors import MismatchError, UsageError
from vocabforge.corpus.tokenizer.tokenizer import load_tokenizer
from vocabforge.decode.build.heads import parse_budget
from vocabforge.decode.engine import Decoder
from vocabforge.decode.request import Request
from vocabforge.decode.tree import TreeSettings
from vocabforge.models.drafters.io import save_drafter
from vocabforge.models.heads.io import HeadOwner, drafter_digest, save_head
from vocabforge.models.heads.registry import DraftState, HeadSizes, RouterHead
from vocabforge.models.heads.scorer import LowRankScorer
from vocabforge.models.lean.model import load_target
from vocabforge.models.target.fingerprint import target_fingerprint
from vocabforge.models.target.hf import HFTarget
from vocabforge.train.capture.online import OnlineCapture, RowBatch
from vocabforge.train.heads.states import drafting_rows
from vocabforge.vocab.subset.subset import VocabSubset, save_subset

VOCAB, NEW = 261, 10
TREE = {"depth": 2, "topk": 3, "total_nodes": 10}
PROMPTS = [[72, 101, 108, 108, 111], [65, 66, 65, 66, 65, 66, 65], [9, 200, 3]]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``t`` target; drafters ``a``, ``b`` (own head) and ``m`` (Medusa); heads ``ranker-a``, ``low-rank``, ``router``
    of a, ``ranker-b`` of b; draft vocabularies ``core`` and ``pafr``."""
    place = tmp_path_factory.mktemp("heads")
    tiny_target(place / "t", vocab_size=VOCAB)
    byte_tokenizer(place / "t")
    tokenizer, target = load_tokenizer(place / "t"), HFTarget.load(place / "t")
    meta = {
        "target_fingerprint": target_fingerprint(place / "t"),
        "tokenizer_fingerprint": tokenizer.fingerprint,
    }
    save_drafter(place / "a", tiny_drafter(target), meta)
    ids = torch.arange(1, VOCAB, 3)
    save_drafter(place / "b", tiny_drafter(target, seed=7, own_head=len(ids), target_ids=ids), meta)
    scorer = LowRankScorer(32, VOCAB, 8)
    scorer.init_from_head(target.head_weight, 0)
    torch.manual_seed(0)
    router = RouterHead.new_module(HeadSizes(32, tokenizer.vocab_size, clusters=12))
    router.init(1, 5)
    for drafter in ("a", "b"):
        owner = HeadOwner(drafter_digest(place / drafter), *meta.values())
        save_head(place / f"ranker-{drafter}", "ranker", scorer, owner, {"shortlist": 20})
    owner = HeadOwner(drafter_digest(place / "a"), *meta.values())
    save_head(place / "low-rank", "low-rank", scorer, owner)
    save_head(place / "router", "router", router, owner, {"budgets": [4, 2]})
    other = HeadOwner(owner.drafter, "x" * 64, owner.tokenizer)
    save_head(place / "foreign", "ranker", scorer, other)
    save_drafter(place / "m", make_drafter("medusa", place / "t", target, medusa_heads=3), meta)
    ranked = np.random.default_rng(0).permutation(VOCAB - 5)[:60].astype(np.int64)
    for name, schedule in (("core", ()), ("pafr", (60, 30, 9))):
        size = tokenizer.vocab_size
        subset = VocabSubset(np.sort(ranked), ranked, size, tokenizer.fingerprint, schedule=schedule)
        save_subset(subset, place / name)
    return place


def methods_of(
    place: Path, drafters=("a",), heads=(), *, vocabs=(), proposers=(), draft=TREE, control="fixed", **asked
) -> dict[str, Any]:
    folders, named, reduced = ([str(place / name) for name in names] for names in (drafters, heads, vocabs))
    found = grid_methods(
        place / "t", folders, reduced, head=named, proposer=proposers, control=control, **draft, **asked
    )
    return {method.name: method for method in found}


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
    saved = methods_of(place, ["a"], ["ranker-a", "router", "low-rank"])
    assert saved["a+ranker-a"].head == "ranker head over 261 tokens, shortlist of 20"
    assert saved["a+router"].head == "router head over 261 tokens, clusters by draft step 4 2"
    assert saved["a+low-rank"].head == "low-rank head over 261 tokens"
    assert saved["a"].head is None
    assert "ranker head" in saved["a+ranker-a"].description
    asked = methods_of(place, ["a"], ["ranker-a", "router"], shortlist=7, budget="decay:9:3", head_rows="own")
    ranker, router = (asked[f"a+{name}"].generator.proposer.head for name in ("ranker-a", "router"))
    assert (ranker.shortlist, ranker.shared) == (7, False)
    assert (router.budgets, router.shared) == ((9, 9, 4), False)
    assert asked["a+router"].head.endswith("clusters by draft step 9 9 4, own rows")


def test_a_head_goes_to_the_drafter_it_belongs_to(place: Path) -> None:
    methods = methods_of(place, ["a", "b"], ["ranker-b", "router"])
    assert list(methods) == ["plain", "a", "a+router", "b", "b+ranker-b"]
    assert methods["b+ranker-b"].generator.proposer.head.size == 87
    result = methods["b+ranker-b"].generator.generate([72, 101], max_new_tokens=12, stop_ids=())
    assert (
        result.token_ids
        == methods["plain"].generator.generate([72, 101], max_new_tokens=12, stop_ids=()).token_ids
    )


def test_mistakes_are_told(place: Path) -> None:
    with pytest.raises(MismatchError, match="belongs to another drafter"):
        methods_of(place, ["a"], ["ranker-b"])
    with pytest.raises(MismatchError, match="belongs to another target"):
        methods_of(place, ["a"], ["foreign"])
    with pytest.raises(UsageError, match="--head belongs to a drafter"):
        methods_of(place, [], ["ranker-a"])
    with pytest.raises(UsageError, match="--budget has no effect here"):
        methods_of(place, ["a"], ["ranker-a"], budget="3")
    for budget in ("13", "decay:13:2"):
        with pytest.raises(UsageError, match=r"(?s)number of clusters.*13 clusters.*at most 12"):
            methods_of(place, ["a"], ["router"], budget=budget)
    methods_of(place, ["a"], ["router"], budget="12")
    for shortlist in (262, 2048):
        with pytest.raises(UsageError, match=r"(?s)larger than the vocabulary.*at most 261"):
            methods_of(place, ["a"], ["ranker-a"], shortlist=shortlist)
    methods_of(place, ["a"], ["ranker-a"], shortlist=261)
    with pytest.raises(UsageError, match="--head-rows has no effect here"):
        methods_of(place, ["a"], ["low-rank"], head_rows="own")
    with pytest.raises(UsageError, match="--shortlist has no effect here"):
        methods_of(place, ["a"], [], shortlist=3)


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


def check_texts(methods) -> None:
    """Every method writes what plain decoding writes; rows side by side draft as they do alone."""
    requests = [Request(prompt, NEW) for prompt in PROMPTS]
    plain = [methods["plain"].generator.generate(p, max_new_tokens=NEW, stop_ids=()) for p in PROMPTS]
    for method in methods.values():
        decoder = method.generator
        alone = [decoder.generate(prompt, max_new_tokens=NEW, stop_ids=()) for prompt in PROMPTS]
        assert [one.token_ids for one in alone] == [one.token_ids for one in plain]
        if decoder.proposer is None:
            continue
        beside = Decoder(decoder.target, decoder.proposer, rows=3).generate_batch(requests)
        assert [one.token_ids for one in beside] == [one.token_ids for one in plain]
        assert [one.accept_lengths for one in beside] == [one.accept_lengths for one in alone]


def test_an_eagle_drafter_under_every_head(place: Path) -> None:
    methods = methods_of(
        place, vocabs=("core", "pafr"), heads=("ranker-a",), dynamic=("context:40", "ranker:12")
    )
    assert list(methods)[1:] == [
        *("a", "a+core", "a+pafr", "a+ranker-a"),
        *("a+core+context", "a+core+ranker-a", "a+pafr+context", "a+pafr+ranker-a"),
    ]
    assert methods["a+core"].head is None
    assert methods["a+pafr"].head == "scheduled head over 60 tokens, tokens by draft step 60 30 9"
    assert "hot core of 60, up to 40 of the text" in methods["a+core+context"].description
    assert methods["a+core+ranker-a"].head.endswith("hot core of 60, tail of 12 from a ranker")
    tried = ("plain", "a+pafr", "a+ranker-a", "a+core+context", "a+core+ranker-a")
    check_texts({name: methods[name] for name in tried})


def test_medusa_under_every_head(place: Path) -> None:
    methods = methods_of(place, drafters=("m",), vocabs=("core", "pafr"), dynamic=("context:40",))
    assert list(methods)[2:] == ["m+core", "m+pafr", "m+core+context", "m+pafr+context"]
    del methods["m+pafr+context"]
    check_texts(methods)


def test_an_early_exit_under_every_head(place: Path) -> None:
    methods = methods_of(
        place,
        drafters=(),
        vocabs=("core", "pafr"),
        proposers=("early-exit",),
        draft={"depth": 3},
        dynamic=("context",),
    )
    assert list(methods)[2:] == [
        f"early-exit+{name}" for name in ("core", "pafr", "core+context", "pafr+context")
    ]
    del methods["early-exit"], methods["early-exit+pafr+context"]
    check_texts(methods)


def test_a_context_head_drafts_tokens_that_only_the_text_has(place: Path) -> None:
    methods = methods_of(place, vocabs=("core",), dynamic=("context:40",))
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
    result = methods["a+core+context"].generator.generate(
        [i for i in range(200) if i not in core][:30], max_new_tokens=40, stop_ids=()
    )
    assert len(result.token_ids) == 40
    assert len(seen) > 3
