"""What the decode loop keeps, refuses and reports: caches, seeds, streams, devices, dtypes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from tests.decode.drafting import (
    PROMPT,
    SHAPES,
    Pair,
    check_figures,
    eagle,
    knowing,
    make_pair,
)
from tests.models.lean_support import build
from tests.worlds import tiny_drafter, tiny_target
from vocabforge.core.errors import MismatchError, UsageError
from vocabforge.decode import caches
from vocabforge.decode.engine import Decoder
from vocabforge.decode.request import Generation, Request
from vocabforge.decode.tree import TreeSettings
from vocabforge.models.heads.registry import FullHead
from vocabforge.models.lean.model import load_target
from vocabforge.models.target.hf import HFTarget


def test_caches_grow_with_the_request_and_keep_the_output(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = Decoder(pair.lean).generate(PROMPT, max_new_tokens=500, stop_ids=()).token_ids
    monkeypatch.setattr(caches, "FIRST_POSITIONS", 16)
    decoder = Decoder(pair.lean, knowing(pair.proposer(SHAPES["tree"]), PROMPT + expected))
    sizes = []
    for count in (5, 50, 5, 100):
        assert decoder.generate(PROMPT, max_new_tokens=count, stop_ids=()).token_ids == expected[:count]
        sizes.append(decoder._side.cache.capacity - 17)
    assert sizes == [16, 64, 64, 128]
    assert not decoder._side.cache.k.is_inference()
    assert decoder.generate(PROMPT, max_new_tokens=10**9, stop_ids=()).finish == "cache"
    assert decoder._side.cache.capacity == 128 + 17, "the target's limit"


def test_streaming_yields_exactly_the_tokens_of_the_result(pair: Pair) -> None:
    expected = Decoder(pair.lean).generate(PROMPT, max_new_tokens=40, stop_ids=()).token_ids
    for stop in ((), {expected[20]}):
        decoder = Decoder(pair.lean, knowing(pair.proposer(SHAPES["chain"]), PROMPT + expected))
        result = Generation()
        pieces, growing = [], []
        for piece in decoder.stream(Request(PROMPT, 40, stop), result):
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
        Decoder(pair.lean, eagle(deep, FullHead(deep.head_weight), SHAPES["chain"], 16))


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
    assert proposer.backend._g.dtype == torch.bfloat16
    result = Decoder(lean, proposer).generate(PROMPT, max_new_tokens=30, stop_ids=())
    assert proposer.backend._g.dtype == torch.bfloat16
    assert bool(proposer.backend._g.isfinite().all())
    assert len(result.token_ids) == 30
    if restricted:
        assert drafter.target_ids.dtype == torch.int64
