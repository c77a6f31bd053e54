"""The decode loop: whatever is drafted, the output is the target's own."""

from __future__ import annotations

import dataclasses
import math
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from tests.models.lean_support import build
from tests.support import tiny_drafter, tiny_target
from vocabforge.core.errors import MismatchError, UsageError
from vocabforge.decode import engine
from vocabforge.decode.engine import Decoder
from vocabforge.decode.proposer_eagle3 import Eagle3Proposer
from vocabforge.decode.result import Generation
from vocabforge.decode.tree import DraftTree, TreeSettings
from vocabforge.models.eagle3 import Eagle3Drafter
from vocabforge.models.heads import FullHead, StaticHead
from vocabforge.models.kv_cache import causal_mask
from vocabforge.models.lean import LeanModel, load_target
from vocabforge.models.target import HFTarget

PROMPT = [3, 17, 8, 44, 21, 9]
SHAPES = {
    "chain": TreeSettings(1, 4, 6),
    "wide": TreeSettings(7, 0, 8),
    "tree": TreeSettings(3, 3, 17),
    "smallest": TreeSettings(1, 0, 2),
    "whole": TreeSettings(2, 2, 11),
}
CASES = [
    "llama",
    "llama-tied",
    "llama-llama3-rope",
    "mistral-window",
    "qwen2-layer-types",
    "qwen3-bias-window",
]


@dataclass
class Pair:
    """A target twice, and a random drafter for it."""

    hf: Any
    lean: LeanModel
    drafter: Eagle3Drafter
    restricted: Eagle3Drafter

    def proposer(self, shape: TreeSettings, *, restricted: bool = False) -> Eagle3Proposer:
        drafter = self.restricted if restricted else self.drafter
        head = (
            StaticHead(drafter.head_weight, drafter.target_ids)
            if restricted
            else FullHead(drafter.head_weight)
        )
        return Eagle3Proposer(drafter, head, shape, 16)


def make_pair(folder: Path, hf: Any) -> Pair:
    target = HFTarget(hf)
    ids = torch.arange(0, target.vocab_size, 3)
    return Pair(
        hf, load_target(folder), tiny_drafter(target), tiny_drafter(target, own_head=len(ids), target_ids=ids)
    )


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Pair]:
    made = {}
    for case in CASES:
        folder = tmp_path_factory.mktemp(case)
        made[case] = make_pair(folder, build(case, folder))
    return made


@pytest.fixture(scope="module")
def pair(pairs: dict[str, Pair]) -> Pair:
    return pairs["llama"]


class Knowing(Eagle3Proposer):
    """Drafts as ever, then writes the true continuation into a part of one path, so that much is accepted."""

    truth: list[int]
    draw: random.Random

    def propose(self, root_token: torch.Tensor) -> DraftTree:
        tree = super().propose(root_token)
        tokens, parents = tree.tokens.tolist(), tree.parents.tolist()
        assert self.truth[self.rows] == tokens[0], "the root is the last committed token"
        node = 0
        for right in self.truth[self.rows + 1 :]:
            children = [n for n in range(1, len(tokens)) if parents[n] == node]
            if not children or self.draw.random() < 0.25:
                break
            node = next((n for n in children if tokens[n] == right), self.draw.choice(children))
            tokens[node] = right
        return dataclasses.replace(tree, tokens=torch.tensor(tokens))


def knowing(proposer: Eagle3Proposer, truth: list[int], seed: int = 0) -> Eagle3Proposer:
    proposer.__class__ = Knowing
    proposer.truth, proposer.draw = truth, random.Random(seed)
    return proposer


def hf_greedy(model: Any, prompt: list[int], count: int) -> list[int]:
    model.generation_config.eos_token_id = None
    ids = torch.tensor([prompt])
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False, pad_token_id=0
    )
    return out[0, len(prompt) :].tolist()


def check_figures(result: Generation, decoder: Decoder, prompt: list[int]) -> None:
    """What must hold between the figures of any drafted generation."""
    cycles = len(result.accept_lengths)
    chunks = math.ceil(len(prompt) / engine.PREFILL_CHUNK)
    assert result.target_forwards == chunks + cycles
    assert (
        len(result.token_ids) <= 1 + sum(result.accept_lengths) < len(result.token_ids) + decoder.levels + 1
    )
    assert result.drafted == cycles * (decoder.proposer.settings.total_nodes - 1)
    assert sum(result.accepted_by_depth) == sum(result.accept_lengths) - cycles
    assert all(a <= b <= cycles for a, b in zip(result.accepted_by_depth, result.drafted_by_depth))
    assert result.accepted_by_depth == sorted(result.accepted_by_depth, reverse=True)
    assert min(result.accept_lengths, default=1) >= 1
    assert set(result.timings) <= {"prefill", "draft", "verify", "other"}
    assert result.prefill_s == result.timings["prefill"] > 0
    assert result.decode_s == pytest.approx(sum(v for k, v in result.timings.items() if k != "prefill"))


@pytest.mark.parametrize("case", CASES)
def test_output_is_hugging_faces_greedy_output(pairs: dict[str, Pair], case: str) -> None:
    pair = pairs[case]
    expected = hf_greedy(pair.hf, PROMPT, 40)
    plain = Decoder(pair.lean).generate(PROMPT, max_new_tokens=40, stop_ids=())
    assert plain.token_ids == expected
    assert plain.accept_lengths == [1] * 40
    assert plain.target_forwards == 40
    for number, (name, shape) in enumerate(SHAPES.items()):
        for restricted in (False, True):
            decoder = Decoder(
                pair.lean, knowing(pair.proposer(shape, restricted=restricted), PROMPT + expected, number)
            )
            result = decoder.generate(PROMPT, max_new_tokens=40, stop_ids=())
            assert result.token_ids == expected, (name, restricted)
            assert result.finish == "length"
            assert max(result.accept_lengths) > 1, "the test needs accepted drafts"
            check_figures(result, decoder, PROMPT)
            assert sum(result.accepted_by_depth) > 0


def test_an_honest_random_drafter_changes_nothing_either(pair: Pair) -> None:
    expected = Decoder(pair.lean).generate(PROMPT, max_new_tokens=30, stop_ids=()).token_ids
    decoder = Decoder(pair.lean, pair.proposer(SHAPES["tree"], restricted=True))
    result = decoder.generate(PROMPT, max_new_tokens=30, stop_ids=())
    assert result.token_ids == expected
    check_figures(result, decoder, PROMPT)


@pytest.mark.parametrize("length", [1, 2, 7, 8, 9, 50])
def test_prompts_over_any_number_of_prefill_chunks(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    prompt = [(7 * i + 3) % 67 for i in range(length)]
    expected = hf_greedy(pair.hf, prompt, 20)
    monkeypatch.setattr(engine, "PREFILL_CHUNK", 8)
    decoder = Decoder(pair.lean, knowing(pair.proposer(SHAPES["tree"]), prompt + expected))
    result = decoder.generate(prompt, max_new_tokens=20, stop_ids=())
    assert result.token_ids == expected
    check_figures(result, decoder, prompt)
    assert Decoder(pair.lean).generate(prompt, max_new_tokens=20, stop_ids=()).token_ids == expected


@pytest.mark.parametrize("shape", ["chain", "tree", "wide"])
def test_a_full_context_ends_by_cache(pair: Pair, shape: str) -> None:
    """The drafter's rotary table ends with the target's context; padding and trees go beyond it."""
    config = dataclasses.replace(pair.drafter.config, max_position_embeddings=128)
    drafter = Eagle3Drafter(config, pair.drafter.embedding, pair.drafter.target_head)
    drafter.load_state_dict(pair.drafter.state_dict())
    prompt = [(5 * i + 1) % 67 for i in range(100)]
    expected = Decoder(pair.lean).generate(prompt, max_new_tokens=500, stop_ids=())
    assert (len(expected.token_ids), expected.finish) == (28, "cache")
    proposer = Eagle3Proposer(drafter, FullHead(drafter.head_weight), SHAPES[shape], 128)
    for seed in range(3):
        decoder = Decoder(pair.lean, knowing(proposer, prompt + expected.token_ids, seed))
        result = decoder.generate(prompt, max_new_tokens=500, stop_ids=())
        assert (result.token_ids, result.finish) == (expected.token_ids, "cache")
    exact = decoder.generate(prompt, max_new_tokens=28, stop_ids=())
    assert (exact.token_ids, exact.finish) == (expected.token_ids, "length")


def test_a_drafter_for_a_shorter_context_decodes_a_longer_one(pair: Pair) -> None:
    config = dataclasses.replace(pair.drafter.config, max_position_embeddings=32)
    short = Eagle3Drafter(config, pair.drafter.embedding, pair.drafter.target_head)
    short.load_state_dict(pair.drafter.state_dict())
    trees: list[list[list[int]]] = []
    for drafter in (pair.drafter, short):
        proposer = Eagle3Proposer(drafter, FullHead(drafter.head_weight), SHAPES["tree"], 16)
        made: list[list[int]] = []
        propose = proposer.propose
        proposer.propose = lambda root, propose=propose, made=made: kept(propose(root), made)
        Decoder(pair.lean, proposer).generate(PROMPT * 8, max_new_tokens=20, stop_ids=())
        trees.append(made)
    assert trees[0] == trees[1], "rotary positions beyond the drafter's own limit follow the same formula"


def kept(tree: DraftTree, made: list[list[int]]) -> DraftTree:
    made.append(tree.tokens.tolist())
    return tree


def test_small_contexts_and_their_limits(pair: Pair) -> None:
    expected = Decoder(pair.lean).generate(PROMPT, max_new_tokens=10, stop_ids=()).token_ids
    for context in (7, 8, 12):
        decoder = Decoder(pair.lean, knowing(pair.proposer(SHAPES["tree"]), PROMPT + expected), context)
        result = decoder.generate(PROMPT, max_new_tokens=50, stop_ids=())
        assert (result.token_ids, result.finish) == (expected[: context - 6], "cache")


def test_a_stop_token_inside_a_draft_ends_there(pair: Pair) -> None:
    expected = Decoder(pair.lean).generate(PROMPT, max_new_tokens=40, stop_ids=()).token_ids
    cut_inside = 0
    for stop in sorted(set(expected)):
        end = expected.index(stop) + 1
        for seed in range(2):
            decoder = Decoder(pair.lean, knowing(pair.proposer(SHAPES["chain"]), PROMPT + expected, seed))
            result = decoder.generate(PROMPT, max_new_tokens=40, stop_ids={stop})
            assert (result.token_ids, result.finish) == (expected[:end], "stop")
            check_figures(result, decoder, PROMPT)
            cut_inside += 1 + sum(result.accept_lengths) > end
    assert cut_inside > 0, "the test needs a stop token that is not the last of its cycle"


def test_the_number_of_new_tokens_is_exact(pair: Pair) -> None:
    expected = Decoder(pair.lean).generate(PROMPT, max_new_tokens=30, stop_ids=()).token_ids
    decoder = Decoder(pair.lean, knowing(pair.proposer(SHAPES["tree"]), PROMPT + expected))
    for count in range(1, 14):
        result = decoder.generate(PROMPT, max_new_tokens=count, stop_ids=())
        assert (result.token_ids, result.finish) == (expected[:count], "length")
        check_figures(result, decoder, PROMPT)


def test_a_decoder_remembers_nothing_of_earlier_prompts(pair: Pair) -> None:
    decoder = Decoder(pair.lean, pair.proposer(SHAPES["tree"]))
    plain = Decoder(pair.lean)
    prompts = [PROMPT, [60], [5] * 70, PROMPT[::-1], PROMPT]
    results = [decoder.generate(p, max_new_tokens=15, stop_ids=()) for p in prompts]
    for prompt, result in zip(prompts, results):
        assert result.token_ids == plain.generate(prompt, max_new_tokens=15, stop_ids=()).token_ids
    assert results[0].token_ids == results[-1].token_ids
    assert results[0].accept_lengths == results[-1].accept_lengths


@pytest.mark.parametrize("case", ["llama", "mistral-window"])
@torch.inference_mode()
def test_caches_after_commits_equal_those_of_a_fresh_pass(pairs: dict[str, Pair], case: str) -> None:
    pair = pairs[case]
    expected = Decoder(pair.lean).generate(PROMPT, max_new_tokens=60, stop_ids=()).token_ids
    proposer = knowing(pair.proposer(SHAPES["tree"]), PROMPT + expected)
    decoder = Decoder(pair.lean, proposer)
    result = decoder.generate(PROMPT, max_new_tokens=30, stop_ids=())
    assert max(result.accept_lengths) > 2
    committed = len(PROMPT) + sum(result.accept_lengths)  # the last token has no row yet
    assert proposer.rows == committed
    text = (PROMPT + expected)[: committed + 1]
    slots, window = torch.arange(committed), pair.lean.config.sliding_window
    fresh = pair.lean.new_cache(committed)
    output = pair.lean.forward(
        torch.tensor([text[:-1]]),
        slots[None],
        cache=fresh,
        slots=slots,
        mask=causal_mask(slots, slots),
        window_mask=None if window is None else causal_mask(slots, slots, window),
        aux_layers=proposer.aux_layers,
    )
    torch.testing.assert_close(decoder.cache.k[..., :committed, :], fresh.k, rtol=0, atol=2e-4)
    torch.testing.assert_close(decoder.cache.v[..., :committed, :], fresh.v, rtol=0, atol=2e-4)
    other = pair.proposer(SHAPES["tree"])
    other.reserve(committed)
    other.advance(torch.tensor(text[1:]), output.aux[0], committed)
    for ours, theirs in ((proposer.cache.k, other.cache.k), (proposer.cache.v, other.cache.v)):
        torch.testing.assert_close(ours[..., :committed, :], theirs[..., :committed, :], rtol=0, atol=2e-4)
    torch.testing.assert_close(proposer._g, other._g, rtol=0, atol=2e-3)


def test_caches_grow_with_the_request_and_keep_the_output(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = Decoder(pair.lean).generate(PROMPT, max_new_tokens=500, stop_ids=()).token_ids
    monkeypatch.setattr(engine, "FIRST_POSITIONS", 16)
    decoder = Decoder(pair.lean, knowing(pair.proposer(SHAPES["tree"]), PROMPT + expected))
    sizes = []
    for count in (5, 50, 5, 100):
        assert decoder.generate(PROMPT, max_new_tokens=count, stop_ids=()).token_ids == expected[:count]
        sizes.append(decoder.cache.capacity - 17)
    assert sizes == [16, 64, 64, 128]
    assert not decoder.cache.k.is_inference()
    assert decoder.generate(PROMPT, max_new_tokens=10**9, stop_ids=()).finish == "cache"
    assert decoder.cache.capacity == 128 + 17, "the target's limit"


def test_sampling_follows_its_seed_and_tiny_temperatures_are_greedy(pair: Pair) -> None:
    decoder = Decoder(pair.lean, pair.proposer(SHAPES["tree"]))

    def sample(seed: int, temperature: float = 1.0) -> list[int]:
        return decoder.generate(
            PROMPT, max_new_tokens=25, stop_ids=(), temperature=temperature, seed=seed
        ).token_ids

    assert sample(1) == sample(1)
    assert len({tuple(sample(seed)) for seed in range(4)}) == 4
    assert sample(1, 1e-20) == Decoder(pair.lean).generate(PROMPT, max_new_tokens=25, stop_ids=()).token_ids


def test_sampled_first_tokens_follow_the_target_through_the_whole_engine(pair: Pair) -> None:
    """The second token is the first that drafts can spoil: its law given the first, against the target's."""
    decoder = Decoder(pair.lean, pair.proposer(TreeSettings(10, 0, 11)))
    seen: dict[tuple[int, int], int] = {}
    count = 400
    for seed in range(count):
        first, second = decoder.generate(
            PROMPT, max_new_tokens=2, stop_ids=(), temperature=0.7, seed=seed
        ).token_ids
        seen[first, second] = seen.get((first, second), 0) + 1
    with torch.no_grad():
        law = (pair.hf(torch.tensor([PROMPT])).logits[0, -1] / 0.7).softmax(-1)
        batch = torch.tensor([[*PROMPT, token] for token in range(67)])
        joint = law[:, None] * (pair.hf(batch).logits[:, -1] / 0.7).softmax(-1)  # (V, V)
    cells = [(divmod(i, 67), float(p)) for i, p in enumerate(joint.flatten()) if p * count >= 4]
    statistic = sum((seen.get(cell, 0) - p * count) ** 2 / (p * count) for cell, p in cells)
    rest = 1 - sum(p for _, p in cells)
    others = count - sum(seen.get(cell, 0) for cell, _ in cells)
    statistic += (others - rest * count) ** 2 / (rest * count)
    assert len(cells) >= 8, "the test needs likely pairs"
    assert statistic < len(cells) + 4.5 * math.sqrt(2 * len(cells)), (statistic, len(cells))


def test_streaming_yields_exactly_the_tokens_of_the_result(pair: Pair) -> None:
    expected = Decoder(pair.lean).generate(PROMPT, max_new_tokens=40, stop_ids=()).token_ids
    for stop in ((), {expected[20]}):
        decoder = Decoder(pair.lean, knowing(pair.proposer(SHAPES["chain"]), PROMPT + expected))
        result = Generation()
        pieces, growing = [], []
        for piece in decoder.stream(PROMPT, max_new_tokens=40, stop_ids=stop, result=result):
            assert piece
            pieces.append(piece)
            growing += piece
            assert growing == result.token_ids, "the result is filled along the way"
        assert len(pieces) > 1
        assert len(pieces[0]) == 1
        check_figures(result, decoder, PROMPT)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"prompt_ids": []}, "does not fit the context"),
        ({"prompt_ids": [1] * 128}, "does not fit the context"),
        ({"prompt_ids": [1, 67]}, "token ids that the target does not have"),
        ({"prompt_ids": [-1, 3]}, "token ids that the target does not have"),
        ({"max_new_tokens": 0}, "nothing is to be generated"),
        ({"temperature": -0.5}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
    ],
)
def test_mistakes_are_told(pair: Pair, arguments: dict[str, Any], words: str) -> None:
    given = {"prompt_ids": PROMPT, "max_new_tokens": 4, "stop_ids": (), **arguments}
    with pytest.raises(UsageError, match=words):
        Decoder(pair.lean).generate(given.pop("prompt_ids"), **given)


def test_parts_that_do_not_fit_are_refused(pair: Pair, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not fit the target"):
        Decoder(pair.lean, context=129)
    with pytest.raises(UsageError, match="wider than the draft vocabulary"):
        pair.proposer(TreeSettings(30, 0, 31), restricted=True)
    deep = tiny_drafter(HFTarget.load(tiny_target(tmp_path, vocab_size=67, num_hidden_layers=9)))
    assert max(deep.config.aux_layers) == 5
    with pytest.raises(MismatchError, match="layers that the target does not have"):
        Decoder(pair.lean, Eagle3Proposer(deep, FullHead(deep.head_weight), SHAPES["chain"], 16))


class NoDefaultDevice(TorchFunctionMode):
    """Fails where a tensor is made without naming its device: on an accelerator it would lie on the host."""

    MAKERS = frozenset(
        getattr(torch, name)
        for name in ("tensor", "arange", "zeros", "ones", "full", "empty", "eye", "randn")
    )

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function in self.MAKERS:
            assert "device" in kwargs, f"{function.__name__}{args} names no device"
        return function(*args, **kwargs)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_no_tensor_of_the_loop_is_made_on_the_default_device(
    pairs: dict[str, Pair], temperature: float
) -> None:
    pair = pairs["mistral-window"]
    pair.drafter.ensure_positions(500)  # made on the host and moved
    with NoDefaultDevice():
        for proposer in (None, pair.proposer(SHAPES["tree"]), pair.proposer(SHAPES["tree"], restricted=True)):
            decoder = Decoder(pair.lean, proposer)
            decoder.generate(PROMPT, max_new_tokens=6, stop_ids=(), temperature=temperature)


@pytest.mark.parametrize("restricted", [False, True])
def test_bf16_decodes_in_bf16(tmp_path: Path, restricted: bool) -> None:
    pair = make_pair(tmp_path, build("llama", tmp_path))
    lean = load_target(tmp_path, dtype=torch.bfloat16)
    drafter = (pair.restricted if restricted else pair.drafter).bfloat16()
    proposer = pair.proposer(SHAPES["tree"], restricted=restricted)
    assert proposer.cache.k.dtype == torch.bfloat16
    result = Decoder(lean, proposer).generate(PROMPT, max_new_tokens=30, stop_ids=())
    assert proposer._g.dtype == torch.bfloat16
    assert bool(proposer._g.isfinite().all())
    assert len(result.token_ids) == 30
    if restricted:
        assert drafter.target_ids.dtype == torch.int64
