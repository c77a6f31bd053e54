"""Compiled passes: the same numbers as eager ones, one compilation for all views."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.worlds import tiny_target
from vocabforge.decode.accelerate.compiled import CompiledPass, PassCompiler, compile_passes, compiler_problem
from vocabforge.decode.engine import Decoder
from vocabforge.models.hf.model import load_transformers
from vocabforge.models.lean.model import LeanModel, load_target

CAPACITY = 160
needs_compiler = pytest.mark.skipif(
    compiler_problem() is not None, reason=f"no C++ compiler: {compiler_problem()}"
)


class Passes:
    """A target's pass as the engine wraps it: model and cache are reached, not handed over."""

    def __init__(self, model: LeanModel) -> None:
        self.model = model
        self.renew(0)

    def renew(self, seed: int) -> None:
        """A new cache with random contents."""
        torch.manual_seed(seed)
        self.cache = self.model.new_cache(CAPACITY)
        self.cache.k.normal_()
        self.cache.v.normal_()

    def forward(self, tokens: Tensor, slots: Tensor, mask: Tensor, window_mask: Tensor | None) -> Tensor:
        output = self.model.forward(
            tokens, slots, cache=self.cache, slots=slots, mask=mask, window_mask=window_mask
        )
        return self.model.logits(output.hidden)


def inputs(count: int, view: int, start: int = 20) -> tuple[Tensor, Tensor, Tensor, None]:
    """Tokens and slots (1, T), a causal mask (1, T, view)."""
    slots = torch.arange(start, start + count)[None]
    return torch.arange(3, 3 + count)[None], slots, torch.arange(view) <= slots[:, :, None], None


def compare(run: CompiledPass, passes: Passes, count: int, view: int) -> None:
    """Logits and both caches agree with the eager pass."""
    arguments = inputs(count, view)
    passes.renew(view)  # a new cache is looked up, not remembered
    with torch.inference_mode():
        keys, values = passes.cache.k.clone(), passes.cache.v.clone()
        expected = passes.forward(*arguments)
        written = passes.cache.k.clone(), passes.cache.v.clone()
        passes.cache.k.copy_(keys)
        passes.cache.v.copy_(values)
        found = run(*arguments)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close((passes.cache.k, passes.cache.v), written, atol=1e-5, rtol=1e-5)
    assert not torch.equal(passes.cache.k, keys)


@pytest.mark.long
@pytest.mark.slow
@needs_compiler
def test_compiled_passes_equal_eager_ones(tmp_path, capsys):
    from torch._inductor import config

    settings, mkl = config.get_config_copy(), torch._C.has_mkl
    wrap = compile_passes()
    passes = Passes(load_target(tiny_target(tmp_path, num_hidden_layers=1)))
    run = wrap("target", passes.forward)
    for view in (64, 128, CAPACITY):
        compare(run, passes, 4, view)
    assert [one.name for one in wrap.done] == ["target"], "a view was compiled for"
    assert wrap.seconds > 0
    assert capsys.readouterr().err.count("Compiling target") == 1
    assert config.get_config_copy() == settings, "settings leaked"
    assert torch._C.has_mkl == mkl


@pytest.mark.proof
@pytest.mark.slow
@needs_compiler
def test_a_target_of_transformers_is_compiled(tmp_path: Path) -> None:
    """Once, in a context that is full at the end and shorter than the steps in which views grow."""
    model = load_transformers(tiny_target(tmp_path, num_hidden_layers=1))
    prompt, told = list(range(3, 50)), {"max_new_tokens": 17, "stop_ids": ()}
    wrap = compile_passes()
    found = Decoder(model, None, 64, wrap=wrap).generate(prompt, **told)
    assert found.token_ids == Decoder(model, None, 64).generate(prompt, **told).token_ids
    assert len(found.token_ids) == 17
    assert len(wrap.done) == 1


def test_calls_are_told_apart_by_shape_type_and_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled code checks nothing, so a call that differs in anything but the view needs a compilation."""
    seen: list[Any] = []

    def compile_it(self: CompiledPass, key: tuple[object, ...], args: Any) -> None:
        seen.append(key)
        self._compiled[key] = lambda *_: None

    def masked(tokens: Tensor, mask: Tensor) -> None: ...

    monkeypatch.setattr(CompiledPass, "_compile", compile_it)
    run = PassCompiler()("masked", masked)
    tokens, mask = torch.zeros(1, 4), torch.zeros(4, 64)
    run(tokens, mask)
    run(tokens, torch.zeros(4, 128))
    assert len(seen) == 1
    for other in ((torch.zeros(1, 5), mask), (tokens, mask[:3]), (tokens.long(), mask), (tokens, None)):
        run(*other)
    assert len(seen) == 5
    monkeypatch.setattr(torch, "get_num_threads", lambda: 99)
    run(tokens, mask)
    assert len(seen) == 6
