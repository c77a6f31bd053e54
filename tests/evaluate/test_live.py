"""Live acceptance: the real decoder on a drafter that is being trained."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.train.run_support import make_place
from tests.worlds import write_questions
from vocabforge.core.errors import UsageError
from vocabforge.corpus.tokenizer.tokenizer import load_tokenizer
from vocabforge.decode.engine import Decoder
from vocabforge.decode.proposers.registry import tree_proposer
from vocabforge.decode.tree import TreeSettings
from vocabforge.evaluate.acceptance.meter import read_prompts
from vocabforge.models.drafters.registry import DRAFTERS, drafter_sizes, new_drafter
from vocabforge.models.heads.registry import exact_head
from vocabforge.models.heads.scorer import LowRankScorer
from vocabforge.models.lean.model import load_target
from vocabforge.models.target.head import TargetHead
from vocabforge.models.target.hf import HFTarget
from vocabforge.models.target.load import read_target_config
from vocabforge.train.config import LiveConfig
from vocabforge.train.monitoring.live import LiveAcceptance, for_decoding, live_acceptance

CONFIG = LiveConfig(prompts=3, max_new_tokens=20, depth=3, topk=3, total=12)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = make_place(tmp_path_factory.mktemp("live"))
    write_questions(place / "prompts.jsonl", *(["the cat sat " * n, "second"] for n in range(1, 6)))
    return place


@pytest.fixture(scope="module")
def target(place: Path) -> HFTarget:
    return HFTarget.load(place / "target")


def open_live(place: Path, target: Any, **changes: Any) -> LiveAcceptance | None:
    return live_acceptance(
        target,
        place / "prompts.jsonl",
        load_tokenizer(place / "target"),
        CONFIG.model_copy(update=changes),
        chain_steps=4,
    )


def make_drafter(kind: str, place: Path, target: HFTarget, ids: list[int] | None = None) -> Any:
    """A random drafter, over these target ids only: few ids make it right now and then."""
    torch.manual_seed(3)
    rows = None if ids is None else len(ids)
    sizes = drafter_sizes(kind, read_target_config(place / "target"), draft_vocab_size=rows)
    reduced = None if ids is None else torch.tensor(ids)
    drafter = new_drafter(kind, sizes, target.embedding, target.head_weight, reduced)
    with torch.no_grad():
        for parameter in drafter.parameters():
            parameter.normal_(0.0, 0.2)
    return drafter


def spoken(live: LiveAcceptance) -> list[int]:
    """The ids that the target says most on the prompts."""
    plain = live.decoder(None)
    made = [live.decode(plain, number) for number in range(len(live.prompts.prompts))]
    counted = Counter(token for one in made for token in one.token_ids)
    return sorted(token for token, _ in counted.most_common(6))


@pytest.mark.parametrize("kind", sorted(DRAFTERS))
def test_figures_are_the_decoders_and_nothing_is_disturbed(place: Path, target: HFTarget, kind: str) -> None:
    live = open_live(place, target)
    assert live is not None
    drafter = make_drafter(kind, place, target, spoken(live)).train()
    before = {name: (p, p.clone()) for name, p in drafter.named_parameters()}
    positions, rng = drafter.positions, torch.get_rng_state()
    figures = live(drafter)
    assert torch.equal(rng, torch.get_rng_state()), "a resumed run would draw other numbers"
    assert drafter.training
    assert drafter.positions == positions
    for name, parameter in drafter.named_parameters():
        assert parameter is before[name][0]
        assert parameter.requires_grad
        assert torch.equal(parameter, before[name][1])
    # The same prompts by hand, with the plain loader's target and a decoder of its own.
    lean = load_target(place / "target")
    depth = 3 if drafter.max_steps is None else min(3, drafter.max_steps - 1)
    proposer = tree_proposer(lean, drafter.eval(), exact_head(drafter), TreeSettings(3, depth, 12))
    decoder = Decoder(lean, proposer)
    lengths: list[int] = []
    verified: list[int] = []
    for prompt in live.prompts.prompts:
        made = decoder.generate(prompt, max_new_tokens=20, stop_ids=live.prompts.stop_ids)
        lengths += made.accept_lengths
        verified += made.verified_lengths
    assert figures["accepted_length"] == pytest.approx(sum(lengths) / len(lengths))
    assert figures["accepted_length"] > 1.1, "nothing accepted would prove little"
    assert figures["cycles"] == len(lengths)
    assert figures["accepted"] == sum(verified) - len(verified)
    assert figures["identical"] == figures["prompts"] == 3
    assert sum(figures["reached_by_position"]) == pytest.approx(figures["accepted"] / figures["cycles"])
    assert figures["chain_accepted_length"] >= 1


def test_a_reduced_vocabulary_and_heads(place: Path, target: HFTarget) -> None:
    live = open_live(place, target)
    assert live is not None
    drafter = make_drafter("eagle3", place, target, spoken(live))
    full_rank = LowRankScorer(target.hidden_size, target.vocab_size, target.hidden_size)
    with torch.no_grad():
        full_rank.down.weight.copy_(torch.eye(target.hidden_size))
        full_rank.vocab.weight[drafter.target_ids] = drafter.head_weight
    figures = live(drafter, {"low_rank": full_rank, "ranker": full_rank})
    for name in ("low_rank", "ranker"):  # a scorer that is the exact head itself loses nothing
        head = figures["heads"][name]
        assert head["accepted_length"] > 1.1
        assert head["share_of_full"] == pytest.approx(1.0)
        assert head["accepted_length"] == pytest.approx(figures["accepted_length"])


def test_another_dtype_is_converted_in_a_copy(place: Path, target: HFTarget) -> None:
    live = open_live(place, target)
    assert live is not None
    drafter = make_drafter("eagle3", place, target).to(torch.bfloat16)
    figures = live(drafter)
    assert figures["identical"] == 3
    assert all(p.dtype == torch.bfloat16 for p in drafter.parameters())
    assert for_decoding(drafter, torch.float32).fc.weight.dtype == torch.float32
    assert for_decoding(drafter, torch.bfloat16).fc.weight is drafter.fc.weight


def test_what_cannot_decode_is_switched_off_with_one_message(place, target, capsys):
    divided = HFTarget.load(place / "target")
    divided.tensor_parallel = True
    assert open_live(place, divided) is None
    assert "Live acceptance is off: it runs in one process" in capsys.readouterr().err
    assert open_live(place, target, prompts=0) is None
    assert capsys.readouterr().err == ""
    assert open_live(place, target, max_prompt_tokens=2) is None
    assert "too few questions are short enough" in capsys.readouterr().err


def test_a_divided_drafter_switches_it_off(place, target, capsys):
    live = open_live(place, target)
    assert live is not None
    drafter = make_drafter("eagle3", place, target)
    drafter.fc.weight = torch.nn.Parameter(torch.empty(0))  # as a partitioned parameter looks from outside
    assert live(drafter) == {}
    assert live(drafter) == {}
    assert capsys.readouterr().err.count("divided over processes") == 1


def test_beside_a_capture_cache_the_target_is_loaded_only_if_asked(place, target, capsys):
    head = TargetHead.load(place / "target")
    assert open_live(place, head) is None
    assert "run.live.load_target=true" in capsys.readouterr().err
    live = live_acceptance(
        head,
        place / "prompts.jsonl",
        load_tokenizer(place / "target"),
        CONFIG.model_copy(update={"load_target": True}),
        chain_steps=0,
        folder=place / "target",
    )
    assert live is not None
    figures = live(make_drafter("eagle3", place, target))
    assert figures["identical"] == 3
    assert "chain_accepted_length" not in figures


def test_a_divergence_is_reported(place: Path, target: HFTarget, capsys: pytest.CaptureFixture[str]) -> None:
    live = open_live(place, target)
    assert live is not None
    drafter = make_drafter("eagle3", place, target)
    live(drafter)
    second = live.plain[1].token_ids
    second[4] = (second[4] + 1) % 200
    figures = live(drafter, step=70)
    live(drafter, step=80)
    said = capsys.readouterr().err
    assert figures["identical"] == 2
    assert said.count("NOT lossless") == 1
    assert "step 70: the draft tree" in said
    assert "prompt 2, token 5" in said


def test_a_budget_decodes_the_same_few_prompts_each_time(place, target, capsys):
    live = open_live(place, target)
    assert live is not None
    drafter = make_drafter("eagle3", place, target, spoken(live))
    few = live(drafter, budget_s=0.0)
    assert few["prompts"] == 1  # never none
    assert live(drafter, budget_s=1e9) == few  # comparable from one evaluation to the next
    assert capsys.readouterr().err.count("decodes 1 of 3 prompts") == 1
    every = live(drafter)
    assert every["prompts"] == 3
    assert every["judged_length"] == few["accepted_length"]


def test_prompts_are_spread_and_long_ones_left_out(place: Path) -> None:
    tokenizer = load_tokenizer(place / "target")

    def read(limit: int, room: int, least: int = 1) -> Any:
        return read_prompts(
            place / "prompts.jsonl", tokenizer, form="auto", limit=limit, room=room, least=least
        )

    (some, *_), (every, _, left_out) = read(2, 256), read(9, 256)
    assert left_out == 0
    assert some.prompts == [every.prompts[0], every.prompts[2]]
    assert read(9, len(every.prompts[1]))[0].prompts == every.prompts[:2]
    for room, least in ((2, 1), (len(every.prompts[0]), 2)):
        with pytest.raises(UsageError, match="short enough"):
            read(9, room, least)
