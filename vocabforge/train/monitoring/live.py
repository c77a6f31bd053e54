"""Live acceptance: run the real decoder on held-out prompts during training.

The drafter decodes with its current weights through the engine that ``eval`` and ``generate`` use. Outputs
are greedy, so they must equal those of plain decoding, which are generated once.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ...core.console import say
from ...core.distributed import rank
from ...core.errors import UsageError, VocabForgeError
from ...corpus.tokenizer.tokenizer import TextTokenizer
from ...decode.engine import Decoder
from ...decode.proposers.registry import Proposer, tree_proposer
from ...decode.request import Generation
from ...decode.tree import TreeSettings
from ...evaluate.acceptance.meter import LivePrompts, pooled, read_prompts
from ...evaluate.identity import first_difference, rounding
from ...evaluate.results.intervals import share_of
from ...models.backends import decoder_over, load_decoding_target
from ...models.drafters.interface import Drafter
from ...models.heads.registry import DraftHead, HeadOptions, base_of, build_head, exact_head
from ...models.target.head import TargetHead
from ...models.target.hf import HFTarget
from ...models.target.interface import Target, next_logits
from ..config import HeadsConfig, LiveConfig
from ..heads.draft_heads import KINDS, configured, shortlist_of


def live_acceptance(
    target: HFTarget | TargetHead | Target,
    prompts_file: Path,
    tokenizer: TextTokenizer,
    config: LiveConfig,
    *,
    chain_steps: int,
    heads: HeadsConfig | None = None,
    folder: Path | None = None,
) -> LiveAcceptance | None:
    """Return live acceptance for a run, or None if it is off; print the reason if it cannot be enabled.

    Args:
        target: the training process's target, whose weights are shared; or a lean target. With a capture
            cache or server only its head is loaded; ``config.load_target`` then loads the rest from
            ``folder``.
        prompts_file: held-out prompts in Spec-Bench format.
        chain_steps: K of the training-time test.
        heads: configuration of the draft heads in training, whose rankers keep their shortlists.
    """
    if rank() != 0 or not config.prompts:
        return None
    try:
        model = _decoder_of(target, folder if config.load_target else None)
        context = model.config.max_positions - config.max_new_tokens - config.total
        room = min(config.max_prompt_tokens, context)
        prompts, *_ = read_prompts(
            prompts_file, tokenizer, form=config.prompt_format, limit=config.prompts, room=room
        )
    except VocabForgeError as error:
        details = "; ".join(str(detail) for detail in (error.got, error.remedy) if detail is not None)
        say(f"Live acceptance is off: {error.message}{f' ({details})' if details else ''}.")
        return None
    steps = chain_steps if config.chain else 0
    return LiveAcceptance(model, prompts, config, chain_steps=steps, heads=heads)


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
            "training from a cache or a server loads the target's head only",
            got="no layers",
            remedy="run.live.load_target=true loads the rest",
        )
    return load_decoding_target(folder, dtype=target.head_weight.dtype, device=target.head_weight.device)


@dataclass
class _Run:
    """One way of drafting: its decoder and what it decoded so far."""

    what: str
    decoder: Decoder
    made: list[Generation] = field(default_factory=list)
    differing: int = 0

    def figures(self) -> dict[str, Any]:
        return pooled(self.made) | {"identical": len(self.made) - self.differing}


class LiveAcceptance:
    """Decodes the prompts with the drafter's current weights. Call it with the drafter and its draft heads.

    It does not change the drafter or its mode, and draws no random numbers. ``chain_steps`` is the length of
    the chain that is decoded in addition to the tree; 0 for none.

    Attributes:
        plain: plain decoding's generations of the first prompts, as far as they were needed.
    """

    def __init__(
        self,
        model: Target,
        prompts: LivePrompts,
        config: LiveConfig,
        *,
        chain_steps: int = 0,
        heads: HeadsConfig | None = None,
    ) -> None:
        self.model, self.prompts, self.config = model, prompts, config
        self._chain_steps, self._heads = chain_steps, {} if heads is None else configured(heads)
        longest = max(map(len, prompts.prompts)) + config.max_new_tokens
        self._context = min(model.config.max_positions, longest + 1)
        self._plain = self.decoder(None)
        self.plain: list[Generation] = []
        self._count: int | None = None  # prompts of every call with a budget
        self._told: set[str] = set()

    def __call__(
        self,
        drafter: Drafter,
        heads: Mapping[str, nn.Module] | None = None,
        step: int | None = None,
        budget_s: float | None = None,
    ) -> dict[str, Any]:
        """Decode every prompt with the drafter's tree, its chain, and each draft head.

        Args:
            drafter: a complete drafter, not sharded over processes; its dtype may differ from the target's.
            heads: name -> low-rank scorer (``ranker``, ``low_rank``: keys under ``heads`` of the
                configuration).
            step: training step, for messages.
            budget_s: seconds after which no further prompt is begun. The first call with a budget determines
                how many prompts all calls with a budget decode, so that their figures can be compared. None
                decodes all prompts.

        Returns:
            Metrics of the tree (see :func:`pooled`), ``chain_accepted_length``, and ``heads``: the same
            metrics by name with ``share_of_full``, the accepted length relative to the exact head's.
            ``judged_length`` is the tree's accepted length on the prompts that every call decodes. Empty,
            with a single message, if the drafter cannot decode in this process.
        """
        if divided(drafter, heads or {}):
            self._tell("off", "Live acceptance is off: the drafter's weights are divided over processes.")
            return {}
        with torch.autocast(self.model.device.type, enabled=False):
            runs = self._runs(drafter, heads or {})
            self._decode(runs, "" if step is None else f"step {step}: ", budget_s)
        figures = runs["tree"].figures()
        figures["judged_length"] = pooled(runs["tree"].made[: self._count])["accepted_length"]
        by_head = {}
        for name, run in runs.items():
            measured = run.figures()
            if name == "chain":
                figures["chain_accepted_length"] = measured["accepted_length"]
                figures["chain_by_position"] = measured["conditional_by_position"]
            elif name != "tree":
                share = share_of(measured["accepted_length"], figures["accepted_length"])
                by_head[name] = measured | {"share_of_full": share}
        return figures | ({"heads": by_head} if by_head else {})

    def _runs(self, drafter: Drafter, heads: Mapping[str, nn.Module]) -> dict[str, _Run]:
        copied: Any = for_decoding(drafter, self.model.dtype)
        exact = exact_head(copied)
        settings = {"tree": ("the draft tree", exact, self._tree(copied, exact))}
        if self._chain_steps:
            depth = _depth(copied, self._chain_steps - 1)
            settings["chain"] = ("the draft chain", exact, TreeSettings(1, depth, depth + 2))
        for name, module in heads.items():
            head = self._head(copied, name, module)
            settings[name] = (f"the head {name}", head, self._tree(copied, head))
        return {
            name: _Run(what, self.decoder(tree_proposer(self.model, copied, head, tree)))
            for name, (what, head, tree) in settings.items()
        }

    def _decode(self, runs: Mapping[str, _Run], where: str, budget_s: float | None) -> None:
        count, began = len(self.prompts.prompts), time.monotonic()
        limit = count if budget_s is None or self._count is None else self._count
        for number in range(limit):
            if number == len(self.plain):
                self.plain.append(self.decode(self._plain, number))
            for run in runs.values():
                made = self.decode(run.decoder, number)
                run.made.append(made)
                if (place := first_difference(made.token_ids, self.plain[number].token_ids)) is not None:
                    run.differing += 1
                    text = f"{where}{run.what} gives another output than plain decoding, prompt {number + 1}"
                    self._report(f"Warning: {text}, token {place + 1}", number, place, made.token_ids)
            if budget_s is not None and self._count is None and time.monotonic() - began > budget_s:
                limit = number + 1
                break
        if budget_s is not None and self._count is None:
            self._count = limit
            if limit < count:
                say(
                    f"Live acceptance decodes {limit} of {count} prompts, the last evaluation all: "
                    "more would take over a tenth of the time between evaluations."
                )

    def decoder(self, proposer: Proposer | None) -> Decoder:
        """Return a decoder for the prompts; None decodes plainly."""
        return Decoder(self.model, proposer, context=self._context)

    def decode(self, decoder: Decoder, number: int) -> Generation:
        """Return the generation of a prompt."""
        prompts, new = self.prompts, self.config.max_new_tokens
        return decoder.generate(
            prompts.prompts[number], max_new_tokens=new, stop_ids=prompts.stop_ids, seed=number
        )

    def _head(self, drafter: Any, name: str, module: nn.Module) -> DraftHead:
        shortlist = shortlist_of(name, self._heads[name]) if name in self._heads else None
        module, options = for_decoding(module, self.model.dtype), HeadOptions(shortlist=shortlist)
        return build_head(KINDS.get(name, name), base_of(drafter), module, options)

    def _tree(self, drafter: Any, head: DraftHead) -> TreeSettings:
        """Return the configured tree, limited by the drafter's steps and the draft vocabulary."""
        topk, depth = min(self.config.topk, head.size), _depth(drafter, self.config.depth)
        topk = 1 if self.model.config.recurrent else topk  # recurrent targets verify chains only
        return TreeSettings(topk, depth, max(depth + 2, min(self.config.total, topk + depth * topk**2 + 1)))

    @torch.inference_mode()
    def _report(self, text: str, index: int, place: int, got: Sequence[int]) -> None:
        """Print the first difference, and whether rounding decides between two of the target's logits."""
        plain = self.plain[index].token_ids
        if place == min(len(plain), len(got)):
            self._tell(
                "loss", text + ": its length differs. Decoding is NOT lossless here: please report it."
            )
            return
        logits = next_logits(self.model, [*self.prompts.prompts[index], *plain[:place]]).float()
        gap = float((logits[plain[place]] - logits[got[place]]).abs())
        if gap <= rounding(self.model.dtype) * float(logits.abs().max()):
            self._tell(
                "tie", f"{text}. Two logits differ by only {gap:.2g} there: rounding decides between them."
            )
        else:
            self._tell(
                "loss", f"{text}, by {gap:.3g} of a logit. Decoding is NOT lossless here: please report it."
            )

    def _tell(self, what: str, message: str) -> None:
        if what not in self._told:
            self._told.add(what)
            say(message)


def _depth(drafter: Any, depth: int) -> int:
    """Limit the depth to what the drafter supports (Medusa: its number of heads)."""
    return depth if drafter.max_steps is None else min(depth, drafter.max_steps - 1)


def for_decoding(module: Any, dtype: torch.dtype) -> Any:
    """Return a copy for decoding in evaluation mode; the original keeps its mode, tables and gradients.

    Tensors are shared, except trained parameters of another dtype: these are converted as when loading the
    saved drafter.
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
    """Return whether weights of these modules are sharded over processes."""
    from torch.distributed.tensor import DTensor

    tensors = [*drafter.parameters(), *(p for head in heads.values() for p in head.parameters())]
    return any(isinstance(tensor, DTensor) or tensor.numel() == 0 for tensor in tensors)
