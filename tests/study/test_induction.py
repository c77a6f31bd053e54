"""A small Llama that copies from its prompt before it has learnt anything, and still does when it has."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from vocabforge.core.errors import UsageError
from vocabforge.study.induction import build_induction

VOCAB = 2000


def llama(**changes: Any) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {
        "vocab_size": VOCAB,
        "hidden_size": 256,
        "intermediate_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rope_theta": 1.0e6,
        "initializer_range": 0.03,
        "tie_word_embeddings": True,
        "attn_implementation": "eager",
    }
    model = LlamaForCausalLM(LlamaConfig(**sizes | changes))
    for layer in model.model.layers:
        layer.mlp.down_proj.weight.data.zero_()
    return model.eval()


def repeated(length: int) -> Tensor:
    """(1, 2 * length): a text of different tokens, twice."""
    text = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(5))[:length]
    return torch.cat([text, text])[None]


@pytest.mark.parametrize(
    "changes", [{}, {"num_key_value_heads": 4}, {"num_key_value_heads": 1}, {"hidden_size": 512}]
)
@pytest.mark.parametrize("length", [20, 100])
def test_an_untrained_model_repeats_a_text(changes: dict[str, Any], length: int) -> None:
    model, ids = llama(**changes), repeated(length)
    build_induction(model, 256)
    with torch.no_grad():
        found = model(ids, output_attentions=True)
    here = torch.arange(length, 2 * length - 1)  # the text's second time, but its last token
    said = found.logits[0, here].argmax(-1)
    assert float((said == ids[0, here + 1]).float().mean()) > 0.8
    back, up = (layer[0] for layer in found.attentions[:2])  # (heads, T, T)
    assert float(back[:, here, here - 1].min()) > 0.99
    assert float(up[:, here, here - length + 1].mean()) > 0.9


def test_only_the_circuit_is_kept() -> None:
    model = llama()
    build_induction(model, 256)
    kept = {name for name, p in model.named_parameters() if not p.requires_grad}
    matrices = "q_proj", "k_proj", "v_proj", "o_proj"
    assert kept == {f"model.layers.{i}.self_attn.{name}.weight" for i in (0, 1) for name in matrices}
    assert float(model.model.norm.weight[0].detach()) == 0.0  # the constant raises no token


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_hidden_layers": 2}, "2 layers"),
        ({"rope_theta": 20.0}, "0 rotary pairs turn by less than a radian within 256 positions"),
        ({"hidden_size": 8, "num_attention_heads": 2}, "hidden size 8"),
    ],
)
def test_a_model_without_room_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(
        UsageError, match=rf"(?s)too small for an induction circuit.*{said}.*induction: false"
    ):
        build_induction(llama(**changes), 256)
