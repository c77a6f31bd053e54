"""The decode loop: prefill, then draft, verify, commit, until a stop token or a limit.

One request at a time. Every tensor has a fixed shape: the tree, its path and the drafter's rows are padded,
and caches are looked at in steps of :data:`~vocabforge.decode.masks.VIEW_STEP` slots.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..core.errors import MismatchError, UsageError
from ..models.kv_cache import causal_mask
from ..models.lean import LeanModel, LeanOutput
from .clock import Clock
from .masks import tree_masks, view_length
from .proposers import Proposer
from .result import Finish, Generation
from .tree import DraftTree, build_tree
from .verify import Chance, SeededChance, Verdict, verify_greedy, verify_sampling

PREFILL_CHUNK = 512
FIRST_POSITIONS = 2048  # room in new caches; longer requests make it grow


class Decoder:
    """Continues prompts with a target and, optionally, a proposer.

    Args:
        target: lean model.
        proposer: drafts trees; None decodes plainly (a tree of the root alone).
        context: most positions of a request; default: the target's own limit. Caches grow up to it.

    Raises:
        UsageError: ``context`` beyond the target's positions.
        MismatchError: the proposer reads layers that the target does not have.
    """

    def __init__(
        self, target: LeanModel, proposer: Proposer | None = None, context: int | None = None
    ) -> None:
        limit = target.config.max_positions
        if context is not None and not 1 < context <= limit:
            raise UsageError("the context does not fit the target", got=context, expected=f"2 to {limit}")
        self.target, self.proposer = target, proposer
        self.context = context or limit
        self.levels = proposer.settings.levels if proposer else 0
        self._nodes = proposer.settings.total_nodes if proposer else 1
        self._aux = proposer.aux_layers if proposer else ()
        if self._aux and max(self._aux) >= target.config.num_layers:
            raise MismatchError(
                "the drafter reads layers that the target does not have",
                got=f"auxiliary layers {list(self._aux)} (0-based)",
                expected=f"at most {target.config.num_layers - 1}",
            )
        root = torch.zeros(1, dtype=torch.int64, device=target.device)
        self._plain = build_tree(root, root, 0)
        self._allocate(min(self.context, FIRST_POSITIONS))

    def _allocate(self, positions: int) -> None:
        """Caches for requests of this many positions; what the old ones hold is lost."""
        self.cache = self.target.new_cache(positions + self._nodes)
        self._slots = torch.arange(self.cache.capacity, device=self.target.device)
        if self.proposer is not None:
            self.proposer.reserve(positions)

    def _reserve(self, positions: int) -> None:
        """Grow the caches to the next power of two that holds ``positions``, at most the context."""
        if positions + self._nodes > self.cache.capacity:
            with torch.inference_mode(False):  # as in the constructor: usable in both modes
                self._allocate(min(self.context, 1 << (positions - 1).bit_length()))

    def generate(
        self,
        prompt_ids: Sequence[int],
        *,
        max_new_tokens: int,
        stop_ids: Collection[int],
        temperature: float = 0.0,
        seed: int = 0,
    ) -> Generation:
        """Continue a prompt; see :class:`~vocabforge.decode.result.Generation`.

        Raises:
            UsageError: an empty prompt, one that fills the context, or a token the target does not have.
        """
        result = Generation()
        for _ in self.stream(
            prompt_ids,
            max_new_tokens=max_new_tokens,
            stop_ids=stop_ids,
            temperature=temperature,
            seed=seed,
            result=result,
        ):
            pass
        return result

    @torch.inference_mode()
    def stream(
        self,
        prompt_ids: Sequence[int],
        *,
        max_new_tokens: int,
        stop_ids: Collection[int],
        result: Generation,
        temperature: float = 0.0,
        seed: int = 0,
    ) -> Iterator[list[int]]:
        """Yield the tokens of each cycle as they are committed; ``result`` is filled along the way."""
        self._check_prompt(prompt_ids, max_new_tokens)
        if not 0.0 <= temperature < math.inf:
            raise UsageError(
                "the temperature is no temperature", got=temperature, expected="0 (greedy) or more"
            )
        chance = SeededChance(seed)
        room = min(max_new_tokens, self.context - len(prompt_ids))
        self._reserve(len(prompt_ids) + room)
        clock = Clock(result, self.target.device)
        root, committed = self._prefill(prompt_ids, temperature, chance)
        result.target_forwards = -(-len(prompt_ids) // PREFILL_CHUNK)
        clock.lap("prefill")
        fresh = [int(root)]
        if self.proposer is None:
            result.accept_lengths.append(1)
        while True:
            done = _take(result, fresh, room, stop_ids, cut_by_cache=room < max_new_tokens)
            yield result.token_ids[len(result.token_ids) - done.taken :]
            if done.finish is not None:
                result.finish = done.finish
                clock.finish()
                return
            clock.lap("other")
            tree = self._draft(root)
            clock.lap("draft")
            output, verdict = self._verify(tree, committed, temperature, chance)
            clock.lap("verify")
            committed = self._commit(tree, output, verdict, committed)
            root = torch.tensor(verdict.tokens[-1:], device=self.target.device)
            fresh = verdict.tokens
            self._record(result, tree, verdict)
            clock.lap("commit")

    def _check_prompt(self, prompt_ids: Sequence[int], max_new_tokens: int) -> None:
        if max_new_tokens < 1:
            raise UsageError(
                "nothing is to be generated", got=f"{max_new_tokens} new tokens", expected="at least 1"
            )
        if not 0 < len(prompt_ids) < self.context:
            raise UsageError(
                "the prompt does not fit the context",
                got=f"{len(prompt_ids):,} tokens",
                expected=f"1 to {self.context - 1:,}",
                remedy="shorten the prompt, or use a target with a longer context",
            )
        vocab = self.target.config.vocab_size
        if not 0 <= min(prompt_ids) <= max(prompt_ids) < vocab:
            raise UsageError(
                "the prompt holds token ids that the target does not have",
                got=f"ids {min(prompt_ids)} to {max(prompt_ids)}",
                expected=f"0 to {vocab - 1}",
                remedy="use the target's own tokenizer",
            )

    def _prefill(
        self, prompt_ids: Sequence[int], temperature: float, chance: SeededChance
    ) -> tuple[Tensor, int]:
        """Read the prompt in chunks; returns the first new token (1,) and the committed length."""
        target, device = self.target, self.target.device
        ids = torch.tensor(prompt_ids, device=device)
        features: list[Tensor] = []
        hidden = torch.empty(0, device=device)
        for start in range(0, len(ids), PREFILL_CHUNK):
            part = ids[start : start + PREFILL_CHUNK]
            positions = self._slots[start : start + len(part)]
            view = view_length(start + len(part), self.cache.capacity)
            window = target.config.sliding_window
            output = target.forward(
                part[None],
                positions[None],
                cache=self.cache,
                slots=positions,
                mask=causal_mask(positions, self._slots[:view]),
                window_mask=None if window is None else causal_mask(positions, self._slots[:view], window),
                aux_layers=self._aux,
            )
            hidden = output.hidden[0, -1:]
            if self.proposer is not None:
                features.append(self._states(output))
        root = torch.tensor(
            _judge(self._plain, target.logits(hidden), 0, temperature, chance).tokens, device=device
        )
        if self.proposer is not None:
            self.proposer.reset()
            following = torch.cat([ids[1:], root])
            for start, part in zip(range(0, len(ids), PREFILL_CHUNK), features):
                self.proposer.advance(following[start : start + len(part)], part, len(part))
        return root, len(ids)

    def _states(self, output: LeanOutput) -> Tensor:
        """(T, .) of the one sequence: what the proposer reads of the target."""
        if self.proposer is not None and self.proposer.reads == "hidden":
            return output.hidden[0]
        assert output.aux is not None
        return output.aux[0]

    def _draft(self, root: Tensor) -> DraftTree:
        if self.proposer is not None:
            return self.proposer.propose(root)
        return DraftTree(root, self._plain.parents, self._plain.depths, self._plain.ancestors)

    def _verify(
        self, tree: DraftTree, committed: int, temperature: float, chance: SeededChance
    ) -> tuple[LeanOutput, Verdict]:
        """One target pass over all nodes, then the walk."""
        view = view_length(committed + self._nodes, self.cache.capacity)
        mask, window_mask = tree_masks(
            tree.ancestors, tree.depths, committed, view, self.target.config.sliding_window
        )
        output = self.target.forward(
            tree.tokens[None],
            (committed + tree.depths)[None],
            cache=self.cache,
            slots=self._slots[committed : committed + self._nodes],
            mask=mask,
            window_mask=window_mask,
            aux_layers=self._aux,
        )
        logits = self.target.logits(output.hidden[0])  # (N, V)
        return output, _judge(tree, logits, self.levels, temperature, chance)

    def _commit(self, tree: DraftTree, output: LeanOutput, verdict: Verdict, committed: int) -> int:
        """Keep the accepted path in both caches; returns the new committed length."""
        if self.proposer is not None:
            path, accepted = verdict.path, verdict.accepted
            self.cache.move(committed + path, self._slots[committed : committed + len(path)])
            following = tree.tokens[path].roll(-1)
            following[accepted] = verdict.tokens[-1]
            self.proposer.advance(following, self._states(output)[path], accepted + 1)
        return committed + verdict.accepted + 1

    def _record(self, result: Generation, tree: DraftTree, verdict: Verdict) -> None:
        result.target_forwards += 1
        result.accept_lengths.append(verdict.accepted + 1)
        if self.proposer is None:
            return
        result.drafted += self._nodes - 1
        if not result.drafted_by_depth:
            result.drafted_by_depth = [0] * self.levels
            result.accepted_by_depth = [0] * self.levels
        deepest = int(tree.depths.max())
        for level in range(self.levels):
            result.drafted_by_depth[level] += level < deepest
            result.accepted_by_depth[level] += level < verdict.accepted


class _Taken(NamedTuple):
    taken: int
    finish: Finish | None


def _judge(tree: DraftTree, logits: Tensor, levels: int, temperature: float, chance: Chance) -> Verdict:
    if temperature > 0:
        return verify_sampling(tree, logits, levels, temperature, chance)
    return verify_greedy(tree, logits, levels)


def _take(
    result: Generation, fresh: list[int], room: int, stop_ids: Collection[int], *, cut_by_cache: bool
) -> _Taken:
    """Append committed tokens up to a stop token or the limit."""
    before = len(result.token_ids)
    for token in fresh:
        result.token_ids.append(token)
        if token in stop_ids:
            return _Taken(len(result.token_ids) - before, "stop")
        if len(result.token_ids) == room:
            return _Taken(len(result.token_ids) - before, "cache" if cut_by_cache else "length")
    return _Taken(len(result.token_ids) - before, None)
