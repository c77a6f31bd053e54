"""Distributions behind paths of draft tokens: whatever was committed, moved, dropped or cut, as if computed afresh."""

from __future__ import annotations

import json
import random
from pathlib import Path as Folder
from typing import Any

import numpy as np
import pytest
import torch

from tests.worlds import tiny_target
from vocabforge.decode.cross_vocab.slrs.contexts import ContextModel, Path, RowContexts
from vocabforge.decode.cross_vocab.slrs.trie import DraftWords
from vocabforge.decode.request import SamplingParams
from vocabforge.models.lean.model import LeanModel, load_target

FORMS: list[bytes | None] = [
    None,
    None,
    b"</s>",
    *(bytes([97 + token % 20, 97 + token]) for token in range(20)),
]
TOKENS = range(3, 23)
ROOM = 60
HOT = SamplingParams(1.3)


def load(folder: Folder, **changes: Any) -> LeanModel:
    return load_target(tiny_target(folder, vocab_size=23, num_hidden_layers=2, **changes))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, LeanModel]:
    window = {"sliding_window": 3, "architectures": ["MistralForCausalLM"], "model_type": "mistral"}
    made = {
        "plain": load(tmp_path_factory.mktemp("plain")),
        "short": load(tmp_path_factory.mktemp("short"), max_position_embeddings=16),
    }
    folder = tiny_target(tmp_path_factory.mktemp("window"), vocab_size=23, num_hidden_layers=2)
    config = folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | window))
    made["window"] = load_target(folder)
    return made


def contexts_of(model: LeanModel, scratch: int = 40, row: int = 0) -> RowContexts:
    words = DraftWords(FORMS, [2])
    cache = model.new_cache(ROOM + scratch, row + 1).row(row)
    return RowContexts(ContextModel(model, words), cache, scratch)


def plainly(model: LeanModel, ids: list[int], path: Path) -> np.ndarray[Any, Any]:
    """The distribution from one pass over the whole text, by id: tokens that are words, and the end."""
    text = torch.tensor([*ids, *path])
    steps = torch.arange(len(text))
    apart = steps[:, None] - steps
    mask = (apart >= 0) & (apart < model.config.max_positions)
    window = model.config.sliding_window
    near = None if window is None else mask & (apart < window)
    cache = model.new_cache(len(text))
    output = model.forward(text[None], steps[None], cache=cache, slots=steps, mask=mask, window_mask=near)
    logits = model.logits(output.hidden)[0, -1].double() / HOT.temperature
    allowed = torch.full_like(logits, -torch.inf)
    allowed[2:] = logits[2:]
    return allowed.softmax(-1).numpy()


def check(contexts: RowContexts, model: LeanModel, ids: list[int], paths: list[Path]) -> None:
    contexts.evaluate(paths)
    order = [*DraftWords(FORMS, [2]).ids, 2]
    for path in paths:
        found = contexts.known(path)
        assert found is not None
        assert found.heights[-1] == 1
        np.testing.assert_allclose(found.weights, plainly(model, ids, path)[order], atol=2e-5)
        assert found.end == pytest.approx(plainly(model, ids, path)[2], abs=2e-5)


def some_paths(draw: random.Random, count: int, alphabet: int = 3, longest: int = 4) -> list[Path]:
    return [
        tuple(draw.choice(TOKENS[:alphabet]) for _ in range(draw.randint(0, longest))) for _ in range(count)
    ]


@pytest.mark.parametrize("kind", ["plain", "short", "window"])
@pytest.mark.parametrize("row", [0, 2])
def test_distributions_after_any_history(models: dict[str, LeanModel], kind: str, row: int) -> None:
    """Commits along paths and away from them, respelled ends, cut beginnings; keys that overflow and come back."""
    model, draw = models[kind], random.Random(f"{kind} {row}")
    contexts = contexts_of(model, scratch=9, row=row)
    ids = [1, *draw.choices(TOKENS, k=11)]
    contexts.begin(ids, HOT)
    for _ in range(14):
        check(contexts, model, ids, some_paths(draw, draw.choice([0, 1, 6, 14])))
        kept = len(ids)
        if draw.random() < 0.3:
            kept -= draw.randint(1, 3)
        ids = [*ids[:kept], *draw.choices(TOKENS[: draw.choice([3, 3, 20])], k=draw.randint(0, 4))]
        if len(ids) > 30 or draw.random() < 0.1:
            ids = ids[-12:]
            contexts.restart(ids)
        else:
            contexts.restart(ids, kept=kept)


def counted(model: LeanModel, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Tokens of each pass from here on."""
    sizes: list[int] = []
    real = type(model).forward

    def forward(self: LeanModel, ids: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        sizes.append(ids.shape[1])
        return real(self, ids, *args, **kwargs)

    monkeypatch.setattr(type(model), "forward", forward)
    return sizes


def test_distributions_stay_when_keys_are_dropped(
    models: dict[str, LeanModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    contexts = contexts_of(models["plain"], scratch=4)
    contexts.begin([1, 3, 4], HOT)
    paths = [(3, 4, 5), (4, 5, 6), (5, 6, 7)]
    contexts.evaluate(paths[:1])
    first = contexts.known((3, 4))
    contexts.evaluate(paths[1:])
    sizes = counted(models["plain"], monkeypatch)
    check(contexts, models["plain"], [1, 3, 4], [(3, 4, 6)])
    assert contexts.known((3, 4)) is first  # something may have been drawn from it
    assert sizes[0] == 3  # its ancestors' keys once more
