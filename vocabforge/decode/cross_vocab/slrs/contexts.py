"""Draft distributions after a text and after any continuation of it, for SLRS.

Contexts are paths of draft tokens after the committed text. Their keys are in the slots after it, a few
hundred at a time. Distributions are computed once for each path, many paths per pass, and drafts are drawn
from exactly these.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ....models.kv_cache import KVCache
from ....models.target.interface import Target
from ...interface import Wrap
from ...positions import view_length
from ...request import SamplingParams
from ...sampling import Weights, draft_weights
from .trie import DraftWords

SCRATCH = 512  # draft nodes whose keys are kept
READ_AT_ONCE = 256  # tokens of the text per pass
MOST_LOGITS = 1 << 24  # maximum computed at once

Path = tuple[int, ...]  # draft tokens after the committed text


class StreamDistribution:
    """The distribution of the next draft token.

    ``weights`` (C,), known up to a factor, are those of the drafter's tokens in the order of their bytes,
    ``words`` of them, then of its end tokens. ``heights`` (C + 1,) are cumulative from 0 to 1; they are
    fractions if the weights are.
    """

    def __init__(self, weights: Weights, words: int) -> None:
        heights = np.concatenate([0 * weights[:1], np.cumsum(weights)])
        self.heights, self.words = heights / heights[-1], words

    @property
    def weights(self) -> Weights:
        """Probabilities (C,)."""
        return np.diff(self.heights)

    @property
    def end(self) -> Any:
        """Probability that the text ends."""
        return self.heights[-1] - self.heights[self.words]

    def between(self, first: int, last: int) -> Any:
        """Return the probability of the tokens at indices ``first`` to ``last`` - 1."""
        return self.heights[last] - self.heights[first]


class ContextModel:
    """A draft model as a source of distributions; its LM head's rows are copied in byte order."""

    def __init__(self, drafter: Target, words: DraftWords) -> None:
        self.drafter, self.words = drafter, words
        rows = torch.tensor([*words.ids, *words.eos], device=drafter.device)
        self._weight = drafter.lm_head_weight.detach()[rows]  # (C, H)
        self.reach = drafter.config.max_positions

    def distributions(self, hidden: Tensor, sampling: SamplingParams) -> list[StreamDistribution]:
        """Return the distribution of each state of (N, H)."""
        distributions = []
        for part in hidden.split(max(MOST_LOGITS // len(self._weight), 1)):
            logits = self.drafter.transform(F.linear(part, self._weight)).float().cpu().numpy()
            distributions += [
                StreamDistribution(draft_weights(scores, sampling), len(self.words)) for scores in logits
            ]
        return distributions


class RowContexts:
    """The contexts of one text.

    ``cache`` has one row: the slots that the text uses, then ``scratch`` slots for nodes, at least as many as
    a path has tokens. ``wrap`` speeds up the pass of a single token. ``sampling`` is the transform of the
    distributions, ``evaluated`` counts the distributions computed since :meth:`begin`.
    """

    def __init__(self, model: ContextModel, cache: KVCache, scratch: int, wrap: Wrap | None = None) -> None:
        self._model, self._cache, self._scratch = model, cache, scratch
        self._single = self._run if wrap is None else wrap("drafter", self._run)
        self._slots = torch.arange(cache.capacity, device=model.drafter.device)
        self.sampling, self.evaluated, self._read = SamplingParams(), 0, 0
        self.restart(())

    def begin(self, ids: Sequence[int], sampling: SamplingParams) -> None:
        """Start a new text, of which nothing has been read."""
        self.evaluated = 0
        self.restart(ids, sampling)

    def restart(self, ids: Sequence[int], sampling: SamplingParams | None = None, kept: int = 0) -> None:
        """Replace the text with ``ids``, of which the first ``kept`` are unchanged."""
        self.sampling = sampling or self.sampling
        self._ids, self._read = list(ids), min(self._read, kept)
        self._distributions: dict[Path, StreamDistribution] = {}
        self._nodes: dict[Path, int] = {}  # path -> index among the nodes' slots

    def known(self, path: Path) -> StreamDistribution | None:
        """Return the distribution after a path, if it was computed."""
        return self._distributions.get(path)

    def distribution(self, path: Path) -> StreamDistribution:
        """Return the distribution after a path."""
        self.evaluate([path])
        return self._distributions[path]

    @torch.inference_mode()
    def evaluate(self, paths: Iterable[Path]) -> None:
        """Compute the distributions after paths, in one pass as long as their keys fit."""
        missing = sorted({path for path in paths if path not in self._distributions})
        if not missing:
            return
        self._read_text()
        wanted: dict[Path, None] = {}
        for path in missing:  # sorted: paths with a common prefix are adjacent
            above = [path[:size] for size in range(1, len(path) + 1)]
            fresh = [node for node in above if node not in self._nodes and node not in wanted]
            if len(self._nodes) + len(wanted) + len(fresh) > self._scratch:
                self._run_nodes(list(wanted))
                self._nodes, wanted, fresh = {}, {}, above
            wanted.update(dict.fromkeys(fresh))
        self._run_nodes(list(wanted))

    def _read_text(self) -> None:
        end = len(self._ids)
        if self._read == end and () not in self._distributions:
            self._read = end - 1
        while self._read < end:
            start, stop = self._read, min(self._read + READ_AT_ONCE, end)
            ids = torch.tensor(self._ids[start:stop], device=self._slots.device)
            slots = self._slots[start:stop]
            view = self._slots[: view_length(stop, self._cache.capacity)]
            mask = (view <= slots[:, None]) & (slots[:, None] - view < self._model.reach)
            hidden = self._forward(ids, slots, slots, mask, slots[:, None] - view)
            self._read = stop
            if stop == end:
                self._note([()], hidden[-1:])

    def _run_nodes(self, paths: Sequence[Path]) -> None:
        """Compute the keys of nodes and the distributions after them.

        The ancestors of each node have keys or precede it in ``paths``.
        """
        if not paths:
            return
        text, device = len(self._ids), self._slots.device
        for path in paths:
            self._nodes[path] = len(self._nodes)
        view = view_length(text + len(self._nodes), self._cache.capacity)
        depths = np.array([len(path) for path in paths])
        # Distance from a node's position to each slot; out of reach if the node must not attend to it.
        distance = np.full((len(paths), view), text + depths.max() + self._model.reach)
        distance[:, :text] = text + depths[:, None] - 1 - np.arange(text)
        for row, path in enumerate(paths):
            for size in range(1, len(path) + 1):
                distance[row, text + self._nodes[path[:size]]] = len(path) - size
        apart = torch.from_numpy(distance).to(device)
        ids = torch.tensor([path[-1] for path in paths], device=device)
        places = torch.tensor([text + self._nodes[path] for path in paths], device=device)
        positions = torch.from_numpy(text + depths - 1).to(device)
        self._note(paths, self._forward(ids, positions, places, apart < self._model.reach, apart))

    def _forward(self, ids: Tensor, positions: Tensor, slots: Tensor, mask: Tensor, apart: Tensor) -> Tensor:
        """Return states (T, H) of tokens (T,) under ``mask`` (T, view); ``apart``: distances."""
        window = self._model.drafter.config.sliding_window
        near = None if window is None else mask & (apart < window)
        run = self._single if len(ids) == 1 else self._run
        hidden: Tensor = run(ids[None], positions[None], slots, mask, near)
        return hidden[0]

    def _run(
        self, ids: Tensor, positions: Tensor, slots: Tensor, mask: Tensor, window_mask: Tensor | None
    ) -> Tensor:
        return self._model.drafter.forward(
            ids, positions, cache=self._cache, slots=slots, mask=mask, window_mask=window_mask
        ).hidden

    def _note(self, paths: Sequence[Path], hidden: Tensor) -> None:
        """Keep the distributions of states (N, H).

        A known distribution is not replaced, because drafts may have been drawn from it.
        """
        new = [place for place, path in enumerate(paths) if path not in self._distributions]
        if new:
            distributions = self._model.distributions(hidden[new], self.sampling)
            self._distributions.update(zip((paths[place] for place in new), distributions, strict=True))
            self.evaluated += len(new)
