"""A whole run of training over targets whose configurations are not Llama's."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.models.architectures import make_architecture
from tests.train.run_support import make_place, settings
from vocabforge.models.drafters.io import native_sizes
from vocabforge.train.config import TrainConfig
from vocabforge.train.loop import train
from vocabforge.train.setup import build_trainer


@pytest.mark.parametrize(("name", "rope"), [("gpt-oss", "yarn"), ("qwen3-next", "default")])
def test_a_drafter_is_trained(name: str, rope: str, tmp_path: Path) -> None:
    make_place(tmp_path, 12)
    make_architecture(name, vocab_size=261).save_pretrained(tmp_path / "target")
    drafter = train(build_trainer(TrainConfig(**settings(tmp_path, "out", optim={"steps": 2}))))
    sizes = native_sizes(drafter)
    assert (sizes.hidden_size, sizes.vocab_size, sizes.rope.kind) == (64, 261, rope)
