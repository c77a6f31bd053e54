"""What a draft model would draw behind a text and behind any continuation of it, for SLRS.

Contexts are paths of draft tokens behind the committed text. Their keys lie in slots behind it, a few hundred at a
time; distributions are computed once for each path, many paths a pass, and what was drawn was drawn from exactly these.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ....models.kv_cache import KVCache
from ....models.lean.model import LeanModel
from ...proposers.interface import Wrap
from ...request import SamplingParams
from ...sampling import Weights, draft_weights
from ...target_side import view_length
from .trie import DraftWords

SCRATCH = 512  # draft nodes whose keys are kept
READ_AT_ONCE = 256  # tokens of the text in one pass
MOST_LOGITS = 1 << 24  # computed at once

Path = tuple[int, ...]  # draft tokens behind the committed text


@dataclass(frozen=True)
class StreamDistribution:
    """The distribution of the next draft token: ``heights`` (C + 1,) are cumulative from 0 to 1, over the drafter's
    tokens in the order of their bytes, ``words`` of them, then its end tokens. Fractions if the transform's weights
    are."""

    heights: Weights
    words: int

    @property
    def weights(self) -> Weights:
        """(C,) probabilities."""
        return np.diff(self.heights)

    @property
    def end(self) -> Any:
        """Probability that the text ends."""
        return self.heights[-1] - self.heights[self.words]

    def between(self, first: int, last: int) -> Any:
        """Probability of the tokens at places first to last - 1."""
        return self.heights[last] - self.heights[first]


def stream_distribution(weights: Weights, words: int) -> StreamDistribution:
    """The distribution of weights (C,) up to a factor."""
    heights = np.concatenate([0 * weights[:1], np.cumsum(weights)])
    return StreamDistribution(heights / heights[-1], words)


class ContextModel:
    """A draft model as a source of distributions: its LM head's rows are copied in the order of the tokens' bytes."""

    def __init__(self, drafter: LeanModel, words: DraftWords) -> None:
        self.drafter, self.words = drafter, words
        rows = torch.tensor([*words.ids, *words.eos], device=drafter.device)
        self._weight = drafter.lm_head_weight.detach()[rows]  # (C, H)
        self.reach = drafter.config.max_positions

    def distributions(self, hidden: Tensor, sampling: SamplingParams) -> list[StreamDistribution]:
        """The distribution of each state of (N, H)."""
        found = []
        for part in hidden.split(max(MOST_LOGITS // len(self._weight), 1)):
            logits = self.drafter.transform(F.linear(part, self._weight)).float().cpu().numpy()
            found += [stream_distribution(draft_weights(one, sampling), len(self.words)) for one in logits]
        return found


class RowContexts:
    """The contexts of one text.

    ``cache`` is of one row: the text's slots and, behind whatever it uses of them, ``scratch`` for nodes, at least as
    many as a path has tokens. ``wrap`` makes the pass of a single token faster. ``sampling`` is the transform of the
    distributions, ``evaluated`` counts the distributions computed since :meth:`begin`.
    """

    def __init__(self, model: ContextModel, cache: KVCache, scratch: int, wrap: Wrap | None = None) -> None:
        self._model, self._cache, self._scratch = model, cache, scratch
        self._single = self._run if wrap is None else wrap("drafter", self._run)
        self._slots = torch.arange(cache.capacity, device=model.drafter.device)
        self.sampling, self.evaluated, self._read = SamplingParams(), 0, 0
        self.restart(())

    def begin(self, ids: Sequence[int], sampling: SamplingParams) -> None:
        """A new text; nothing of it is read yet."""
        self.evaluated = 0
        self.restart(ids, sampling)

    def restart(self, ids: Sequence[int], sampling: SamplingParams | None = None, kept: int = 0) -> None:
        """The text is ``ids`` now, the first ``kept`` of which are as they were."""
        self.sampling = sampling or self.sampling
        self._ids, self._read = list(ids), min(self._read, kept)
        self._distributions: dict[Path, StreamDistribution] = {}
        self._nodes: dict[Path, int] = {}  # path -> place among the nodes' slots

    def known(self, path: Path) -> StreamDistribution | None:
        """The distribution behind a path, if it was computed."""
        return self._distributions.get(path)

    def distribution(self, path: Path) -> StreamDistribution:
        """The distribution behind a path."""
        self.evaluate([path])
        return self._distributions[path]

    @torch.inference_mode()
    def evaluate(self, paths: Iterable[Path]) -> None:
        """Compute the distributions behind paths, in one pass as long as their keys find room."""
        missing = sorted({path for path in paths if path not in self._distributions})
        if not missing:
            return
        self._read_text()
        wanted: dict[Path, None] = {}
        for path in missing:  # sorted: paths with a common beginning come together
            above = [path[:size] for size in range(1, len(path) + 1)]
            fresh = [node for node in above if node not in self._nodes and node not in wanted]
            if len(self._nodes) + len(wanted) + len(fresh) > self._scratch:
                self._run_nodes(list(wanted))
                self._nodes, wanted, fresh = {}, {}, above
            wanted.update(dict.fromkeys(fresh))
        self._run_nodes(list(wanted))

    def _read_text(self) -> None:
        """Compute the keys of the text's tokens that have none, and the distribution behind the last."""
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
        """Compute the keys of nodes, whose ancestors have theirs or come before them, and the distributions behind
        them."""
        if not paths:
            return
        text, device = len(self._ids), self._slots.device
        for path in paths:
            self._nodes[path] = len(self._nodes)
        view = view_length(text + len(self._nodes), self._cache.capacity)
        depths = np.array([len(path) for path in paths])
        # How far behind its own position a node sees each slot; beyond all reach where it does not see it.
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
        """States (T, H) of tokens (T,) that see what ``mask`` (T, view) says, ``apart`` positions away."""
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
        """Keep the distributions of states (N, H); one that is known stays, as something may have been drawn from
        it."""
        new = [place for place, path in enumerate(paths) if path not in self._distributions]
        if new:
            distributions = self._model.distributions(hidden[new], self.sampling)
            self._distributions.update(zip((paths[place] for place in new), distributions, strict=True))
            self.evaluated += len(new)
