"""Live acceptance: the real decoder on held-out prompts while a drafter is trained.

The drafter decodes with the weights it has at that moment, through the same engine that ``eval`` and ``generate``
use. Outputs are greedy, so they must be those of plain decoding, which are fixed and made once.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ...core.console import say
from ...core.distributed import rank
from ...core.errors import UsageError, VocabForgeError
from ...corpus.tokenizer.tokenizer import TextTokenizer
from ...decode.proposers.registry import tree_proposer
from ...decode.tree import TreeSettings
from ...models.backends import decoder_over, load_decoding_target
from ...models.drafters.interface import Drafter
from ...models.heads.registry import DraftHead, HeadOptions, base_of, build_head, exact_head
from ...models.target.head import TargetHead
from ...models.target.hf import HFTarget
from ...models.target.interface import Target
from ...train.config import LiveConfig
from ...train.heads.draft_heads import KINDS
from ..identity.compare import first_difference
from ..identity.rounding import next_logits
from .meter import AcceptanceMeter, pooled, share_of
from .prompts import LivePrompts, read_prompts

_NEAR_TIE = 1e-3  # share of the largest logit


def live_acceptance(
    target: HFTarget | TargetHead | Target,
    prompts_file: Path,
    tokenizer: TextTokenizer,
    config: LiveConfig,
    *,
    chain_steps: int,
    shortlists: Mapping[str, int] | None = None,
    folder: Path | None = None,
) -> LiveAcceptance | None:
    """Live acceptance for a run, or None if it is off; why it cannot be on is said once.

    Args:
        target: the training process's target, whose weights are shared; or a lean one. With a capture cache or server
            it is the head only: ``config.load_target`` then decides whether the rest is loaded from ``folder``.
        prompts_file: held-out prompts in Spec-Bench format.
        chain_steps: K of the training-time test.
        shortlists: candidates of a ranker, by name of the head.
    """
    if rank() != 0 or not config.prompts:
        return None
    try:
        model = _decoder_of(target, folder if config.load_target else None)
        prompts = read_prompts(prompts_file, tokenizer, config, model.config.max_positions)
    except VocabForgeError as error:
        found = "; ".join(str(one) for one in (error.got, error.remedy) if one is not None)
        say(f"Live acceptance is off: {error.message}{f' ({found})' if found else ''}.")
        return None
    steps = chain_steps if config.chain else 0
    return LiveAcceptance(model, prompts, config, chain_steps=steps, shortlists=shortlists)


def _decoder_of(target: HFTarget | TargetHead | Target, folder: Path | None) -> Target:
    if isinstance(target, HFTarget):
        if target.tensor_parallel:
            raise UsageError(
                "it runs in one process",
                got="a target divided over processes",
                remedy="use a device map instead",
            )
        return decoder_over(target)
    if not isinstance(target, TargetHead):
        return target
    if folder is None:
        raise UsageError(
            "training from a cache or a server holds the target's head only",
            got="no layers",
            remedy="run.live.load_target=true loads the rest",
        )
    return load_decoding_target(folder, dtype=target.head_weight.dtype, device=target.head_weight.device)


class LiveAcceptance:
    """Decodes the prompts with a drafter as it is now; call it with the drafter and its draft heads.

    It leaves the drafter and its mode as they were, and draws no random number. ``chain_steps`` are the drafts of the
    chain that is decoded beside the tree; 0 for none.
    """

    def __init__(
        self,
        model: Target,
        prompts: LivePrompts,
        config: LiveConfig,
        *,
        chain_steps: int = 0,
        shortlists: Mapping[str, int] | None = None,
    ) -> None:
        self.model, self.prompts, self.config = model, prompts, config
        self._chain_steps = chain_steps
        self._shortlists = dict(shortlists or {})
        self.meter = AcceptanceMeter(model, prompts, config.max_new_tokens)
        self._told: set[str] = set()

    def __call__(
        self, drafter: Drafter, heads: Mapping[str, nn.Module] | None = None, step: int | None = None
    ) -> dict[str, Any]:
        """Decode every prompt with the drafter's tree, its chain, and each draft head.

        Args:
            drafter: whole, not divided over processes; its weights may be of another dtype than the target's.
            heads: low-rank scorers by name (``ranker``, ``low_rank``: keys under ``heads`` of the configuration).
            step: for messages.

        Returns:
            figures of the tree (see :func:`pooled`), ``chain_accepted_length``, and ``heads``: the same by name
            with ``share_of_full``, their accepted length as a share of the exact head's. Empty, with one
            message, if the drafter cannot decode in this process.
        """
        if divided(drafter, heads or {}):
            self._tell("off", "Live acceptance is off: the drafter's weights are divided over processes.")
            return {}
        where = "" if step is None else f"step {step}: "
        with torch.autocast(self.model.device.type, enabled=False):
            copied: Any = for_decoding(drafter, self.model.dtype)
            exact = exact_head(copied)
            figures = self._measure(copied, exact, self._tree(copied, exact), where + "the draft tree")
            if self._chain_steps:
                depth = _depth(copied, self._chain_steps - 1)
                settings = TreeSettings(1, depth, depth + 2)
                chain = self._measure(copied, exact, settings, where + "the draft chain")
                figures["chain_accepted_length"] = chain["accepted_length"]
                figures["chain_by_position"] = chain["conditional_by_position"]
            by_head = {}
            for name, module in (heads or {}).items():
                head = self._head(copied, name, module)
                found = self._measure(copied, head, self._tree(copied, head), f"{where}the head {name}")
                share = share_of(found["accepted_length"], figures["accepted_length"])
                by_head[name] = found | {"share_of_full": share}
        return figures | ({"heads": by_head} if by_head else {})

    def _head(self, drafter: Any, name: str, module: nn.Module) -> DraftHead:
        kind = KINDS.get(name, name)
        options = HeadOptions(shortlist=self._shortlists.get(name) if kind == "ranker" else None)
        return build_head(kind, base_of(drafter), for_decoding(module, self.model.dtype), options)

    def _tree(self, drafter: Any, head: DraftHead) -> TreeSettings:
        """The configured tree, as far as the drafter's steps and the draft vocabulary can fill it."""
        topk, depth = min(self.config.topk, head.size), _depth(drafter, self.config.depth)
        topk = 1 if self.model.config.recurrent else topk  # such targets verify chains
        return TreeSettings(topk, depth, max(depth + 2, min(self.config.total, topk + depth * topk**2 + 1)))

    def _measure(self, drafter: Any, head: DraftHead, settings: TreeSettings, what: str) -> dict[str, Any]:
        made = self.meter.decode(tree_proposer(self.model, drafter, head, settings))
        pairs = zip(made, self.meter.plain(), strict=True)
        places = {
            index: place
            for index, (one, plain) in enumerate(pairs)
            if (place := first_difference(one.token_ids, plain.token_ids)) is not None
        }
        if places:
            index, place = next(iter(places.items()))
            text = (
                f"Warning: {what} gives another output than plain decoding on {len(places)} of "
                f"{len(made)} prompts, first prompt {index + 1}, token {place + 1}"
            )
            self._report(text, index, place, made[index].token_ids)
        return pooled(made) | {"identical": len(made) - len(places)}

    @torch.inference_mode()
    def _report(self, text: str, index: int, place: int, got: Sequence[int]) -> None:
        """Tell what differs first, and whether two logits of the target are so close that rounding decides."""
        plain = self.meter.plain()[index].token_ids
        if place == min(len(plain), len(got)):
            self._tell("loss", text + ": it ends elsewhere. Decoding is NOT lossless here: please report it.")
            return
        logits = next_logits(self.model, [*self.prompts.prompts[index], *plain[:place]]).float()
        gap = float((logits[plain[place]] - logits[got[place]]).abs())
        if gap <= _NEAR_TIE * float(logits.abs().max()):
            self._tell("tie", f"{text}. There two logits lie {gap:.2g} apart: rounding decides between them.")
        else:
            self._tell(
                "loss", f"{text}, by {gap:.3g} of a logit. Decoding is NOT lossless here: please report it."
            )

    def _tell(self, what: str, message: str) -> None:
        """Each kind of message once."""
        if what not in self._told:
            self._told.add(what)
            say(message)


def _depth(drafter: Any, depth: int) -> int:
    """At most what the drafter can fill (Medusa: its heads)."""
    return depth if drafter.max_steps is None else min(depth, drafter.max_steps - 1)


def for_decoding(module: Any, dtype: torch.dtype) -> Any:
    """A copy to decode with, in evaluation mode: the original keeps its mode, its tables and its gradients.

    All tensors are shared, but for trained parameters of another dtype: those are converted, as loading the saved
    drafter onto the target would.
    """
    parameters = dict(module.named_parameters())
    shared = {id(tensor): tensor for tensor in (*module.buffers(), *parameters.values())}
    copied = copy.deepcopy(module, shared)
    for name, parameter in parameters.items():
        if parameter.dtype != dtype:
            owner, _, own = name.rpartition(".")
            frozen = nn.Parameter(parameter.detach().to(dtype), requires_grad=False)
            copied.get_submodule(owner).register_parameter(own, frozen)
    for name, buffer in module.named_buffers():
        if buffer.is_floating_point() and buffer.dtype != dtype:
            owner, _, own = name.rpartition(".")
            setattr(copied.get_submodule(owner), own, buffer.to(dtype))
    return copied.eval()


def divided(drafter: Any, heads: Mapping[str, nn.Module]) -> bool:
    """Whether weights of these modules are divided over processes."""
    from torch.distributed.tensor import DTensor

    tensors = [*drafter.parameters(), *(p for head in heads.values() for p in head.parameters())]
    return any(isinstance(tensor, DTensor) or tensor.numel() == 0 for tensor in tensors)
