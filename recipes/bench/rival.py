"""EAGLE-3 training step of the speculators library, for comparison with ours.

The model runs as the library configures it: eager attention and losses on a CPU, its defaults (flex
attention, fused losses, compiled) on CUDA. As in ours, the LM head is frozen unless training it is requested.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from vocabforge.models.drafters.eagle3 import Eagle3Drafter
from vocabforge.train.capture.online import CapturedBatch

INSTALL = (
    "speculators is not installed, so only our step is measured: "
    "pip install --no-deps --target FOLDER speculators hs-connectors loguru pydantic-settings openai aiohttp sniffio, "
    "then PYTHONPATH=FOLDER"
)


def installed() -> bool:
    """Return whether the library can be imported."""
    return find_spec("speculators") is not None


def speculators_model(drafter: Eagle3Drafter, target_head: Tensor) -> nn.Module:
    """Build the library's model with the drafter's sizes, initial embedding and heads."""
    from speculators.config import SpeculatorsConfig, VerifierConfig
    from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
    from speculators.proposals.greedy import GreedyTokenProposalConfig
    from transformers import AutoConfig

    sizes, device = drafter.config, target_head.device
    layer = AutoConfig.for_model(
        "llama",
        hidden_size=sizes.hidden_size,
        intermediate_size=sizes.intermediate_size,
        num_hidden_layers=1,
        num_attention_heads=sizes.num_heads,
        num_key_value_heads=sizes.num_kv_heads,
        head_dim=sizes.head_dim,
        vocab_size=sizes.vocab_size,
        max_position_embeddings=sizes.max_position_embeddings,
        rms_norm_eps=sizes.rms_norm_eps,
    )
    layer._attn_implementation = "simple_flex_attention" if device.type == "cuda" else "eager"
    ids = drafter.target_ids
    config = Eagle3SpeculatorConfig(
        transformer_layer_config=layer,
        draft_vocab_size=len(ids),
        speculators_config=SpeculatorsConfig(
            algorithm="eagle3",
            proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=1)],
            default_proposal_method="greedy",
            verifier=VerifierConfig(name_or_path=None, architectures=[]),
        ),
    )
    with torch.device(device):
        model = Eagle3DraftModel(config).float()
    member = torch.zeros(sizes.vocab_size, dtype=torch.bool, device=device)
    member[ids] = True
    model.load_vocab_mappings(member, ids - torch.arange(len(ids), device=device))
    with torch.no_grad():
        model.embed_tokens.weight.copy_(drafter.embedding)
        for head in (model.lm_head, model.verifier_lm_head):
            head.weight.copy_(target_head[ids])
    return model.to(device)


def speculators_loss(model: Any, batch: CapturedBatch, steps: int, decay: float) -> Callable[[], Tensor]:
    """Return a function for the loss of one packed row (1, T), as the library's trainer computes it.

    The loss covers the same rows as ours. The library's row t has the features of t, and the token, mask and
    teacher of t + 1, which its data loader shifts left.
    """
    from speculators.losses import resolve_loss_config

    losses = resolve_loss_config("kl_div", "fused" if batch.hidden.is_cuda else "eager")
    document = torch.where(batch.document != 0, batch.document, -1)[:, :-1]
    mask = torch.nn.functional.pad(batch.loss_mask[:, 1:-1] & batch.loss_mask[:, 2:], (0, 1))

    def loss() -> Tensor:
        return model(
            batch.features[:, :-1],
            batch.input_ids[:, 1:],
            document,
            loss_mask=mask,
            verifier_last_hidden_states=batch.hidden[:, 1:],
            ttt_steps=steps,
            ttt_step_loss_decay=decay,
            loss_config=losses,
        )[1]

    return loss
