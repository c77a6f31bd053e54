"""Heads over a draft vocabulary in the real decoder: same text as plain decoding, alone and side by side."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.corpus.tokenizer_factory import byte_tokenizer
from tests.decode.build_support import grid_methods
from tests.decode.drafting import make_drafter
from tests.support import tiny_drafter, tiny_target
from vocabforge.core.errors import UsageError
from vocabforge.corpus.tokenizer.tokenizer import load_tokenizer
from vocabforge.decode.engine import Decoder
from vocabforge.decode.request import Request
from vocabforge.models.drafters.io import save_drafter
from vocabforge.models.heads.io import HeadOwner, drafter_digest, save_head
from vocabforge.models.heads.scorer import LowRankScorer
from vocabforge.models.target.fingerprint import target_fingerprint
from vocabforge.models.target.hf import HFTarget
from vocabforge.vocab.subset.subset import VocabSubset, save_subset

VOCAB, NEW = 261, 10
TREE = {"depth": 2, "topk": 3, "total_nodes": 10}
PROMPTS = [[72, 101, 108, 108, 111], [65, 66, 65, 66, 65, 66, 65], [9, 200, 3]]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``t`` target, drafters ``a`` and ``m`` (Medusa), ``ranker`` of a, ``core`` and ``pafr`` draft vocabularies."""
    place = tmp_path_factory.mktemp("vocab-heads-decode")
    tiny_target(place / "t", vocab_size=VOCAB)
    byte_tokenizer(place / "t")
    tokenizer, target = load_tokenizer(place / "t"), HFTarget.load(place / "t")
    meta = {
        "target_fingerprint": target_fingerprint(place / "t"),
        "tokenizer_fingerprint": tokenizer.fingerprint,
    }
    save_drafter(place / "a", tiny_drafter(target), meta)
    save_drafter(place / "m", make_drafter("medusa", place / "t", target, medusa_heads=3), meta)
    scorer = LowRankScorer(32, VOCAB, 8)
    scorer.init_from_head(target.head_weight, 0)
    owner = HeadOwner(drafter_digest(place / "a"), *meta.values())
    save_head(place / "ranker", "ranker", scorer, owner, {"shortlist": 20})
    ranked = np.random.default_rng(0).permutation(VOCAB - 5)[:60].astype(np.int64)
    for name, schedule in (("core", ()), ("pafr", (60, 30, 9))):
        size = tokenizer.vocab_size
        subset = VocabSubset(np.sort(ranked), ranked, size, tokenizer.fingerprint, schedule=schedule)
        save_subset(subset, place / name)
    return place


def methods_of(
    place: Path, *, drafters=("a",), vocabs=("core",), heads=(), proposers=(), draft=TREE, **asked
):
    found = grid_methods(
        place / "t",
        [str(place / name) for name in drafters],
        [str(place / name) for name in vocabs],
        head=[str(place / name) for name in heads],
        proposer=proposers,
        **draft,
        **asked,
    )
    return {method.name: method for method in found}


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
        place, vocabs=("core", "pafr"), heads=("ranker",), dynamic=("context:40", "ranker:12")
    )
    assert list(methods)[1:] == [
        *("a", "a+core", "a+pafr", "a+ranker"),
        *("a+core+context", "a+core+ranker", "a+pafr+context", "a+pafr+ranker"),
    ]
    assert methods["a+core"].head is None
    assert methods["a+pafr"].head == "scheduled head over 60 tokens, tokens by draft step 60 30 9"
    assert "hot core of 60, up to 40 of the text" in methods["a+core+context"].description
    assert methods["a+core+ranker"].head.endswith("hot core of 60, tail of 12 from a ranker")
    tried = ("plain", "a+pafr", "a+ranker", "a+core+context", "a+core+ranker")
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
    methods = methods_of(place, dynamic=("context:40",))
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


def test_dynamic_tokens_need_a_vocabulary(place: Path) -> None:
    with pytest.raises(UsageError, match="--vocab DIR beside it"):
        methods_of(place, vocabs=(), dynamic=("context",))


def test_a_draft_model_under_a_context_head(place: Path, tmp_path: Path) -> None:
    """The target itself, as its own draft model: with its whole vocabulary it would always be right."""
    tiny_target(tmp_path / "small", vocab_size=VOCAB)
    byte_tokenizer(tmp_path / "small")
    found = grid_methods(
        place / "t",
        [f"small={tmp_path / 'small'}"],
        [str(place / "core")],
        dynamic=("context",),
        depth=3,
    )
    methods = {method.name: method for method in found}
    assert list(methods)[1:] == ["small", "small+core", "small+core+context"]
    check_texts(methods)
