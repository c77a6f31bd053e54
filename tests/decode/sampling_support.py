"""Many sequences from the real verifiers and the real engine, and the law that they should have."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tests.decode.markov import CHECK, NEVER, MarkovTarget, state_of, table
from tests.decode.probability import p_value
from tests.decode.proofs import TRANSFORMS, Case, reference_law
from vocabforge.decode.proposers.interface import Draw
from vocabforge.decode.request import SamplingParams
from vocabforge.decode.sampling import Chance, SeededChance, TokenHistory, target_weights
from vocabforge.decode.tree import DraftTree, build_tree
from vocabforge.decode.trees.fixed import ShapePolicy
from vocabforge.decode.trees.shapes import TreeShape
from vocabforge.decode.verify.registry import RowVerification, verify
from vocabforge.models.heads.exact import answer
from vocabforge.models.heads.registry import DraftState

LENGTH = 4
PROMPT = (2, 0, 1)
ROOT = (3,)
SHAPES = {
    "chain": TreeShape((0, 0, 1), (0, 0, 0)),
    "tree": TreeShape((0, 0, 0, 1, 1, 2), (0, 0, 1, 0, 1, 0)),
    "wide": TreeShape((0, 0, 0, 0), (0, 0, 1, 2)),
}


@dataclass(frozen=True)
class Configuration:
    """One way of verifying, sampled many times."""

    kind: str
    shape: str
    verifier: str
    transform: str

    @property
    def sampling(self) -> SamplingParams:
        return TRANSFORMS[self.transform]


CONFIGURATIONS = [
    Configuration(kind, shape, verifier, transform)
    for (kind, transform), shape, verifier in itertools.product(
        [("plain", "plain"), ("ties", "top-p"), ("plain", "all"), ("zeros", "temperature")],
        SHAPES,
        ("match", "point", "residual"),
    )
]


class TableHead:
    """A draft head whose hidden states are places in a table."""

    context_size, by_step = 0, False

    def __init__(self, rows: Tensor) -> None:
        self.rows, self.size, self.target_ids = rows, rows.shape[1], torch.arange(rows.shape[1])

    def scores(self, hidden: Tensor, k: int, state: DraftState | None = None) -> tuple[Tensor, Tensor]:
        return self.rows[hidden[:, 0]], self.target_ids

    def topk(self, hidden: Tensor, k: int, state: DraftState | None = None) -> tuple[Tensor, Tensor]:
        return answer(*self.scores(hidden, k, state), k)

    def log_probs(self, hidden: Tensor, state: DraftState | None = None) -> Tensor:
        return self.rows[hidden[:, 0]].log_softmax(-1)


class Sampler:
    """Sequences of ``LENGTH`` tokens: what one verification gives, cut or continued by plain sampling.

    Args:
        configuration: what is verified.
        vocab: V.
    """

    def __init__(self, configuration: Configuration, vocab: int = 4) -> None:
        self.configuration, self.vocab = configuration, vocab
        self.shape = SHAPES[configuration.shape]
        self.target = MarkovTarget(configuration.kind, vocab, 4, layers=1)
        self.table = self.target.table.masked_fill(self.target.table == NEVER, float("-inf"))
        self.head = TableHead(table("plain", vocab, 5, vocab * CHECK))
        self._weights: dict[tuple[int, ...], Any] = {}
        self._states: dict[tuple[int, ...], int] = {}

    @property
    def case(self) -> Case:
        return Case(self.configuration.sampling, [*PROMPT, *ROOT], LENGTH)

    def counts(self, count: int, seed: int, batch: int = 250) -> Counter[tuple[int, ...]]:
        """How often each sequence came, in ``count`` of them."""
        chance, seen = SeededChance(seed), Counter[tuple[int, ...]]()
        for _ in range(-(-count // batch)):
            drawn = self.configuration.verifier == "residual"
            tree, logits = self.trees(batch if drawn else 1, chance)
            if not drawn:  # all alike
                tree = build_tree(
                    tree.tokens.repeat(batch, 1), tree.parents.repeat(batch, 1), self.shape.levels
                )
                logits = logits.expand(batch, -1, -1)
            rows = [
                RowVerification(self.configuration.sampling, chance, self.history()) for _ in range(batch)
            ]
            verdicts = verify(tree, logits, rows, self.shape.levels, self.configuration.verifier)
            for tokens in verdicts.tokens:
                seen[self.continued(tuple(tokens), chance)] += 1
        return seen

    def history(self) -> TokenHistory:
        """The prompt, and the root as the first token of the output."""
        return TokenHistory([*PROMPT, *ROOT], self.vocab)

    def trees(self, batch: int, chance: Chance) -> tuple[DraftTree, Tensor]:
        """Trees (B, N) as the real policy grows them, with the target's logits (B, N, V)."""
        roots = torch.full((batch,), ROOT[0])
        policy = ShapePolicy(self.shape, self.configuration.verifier == "residual")
        growth = policy.grow(batch, policy.plan, [Draw(self.configuration.sampling, chance)] * batch)
        contexts = [[ROOT] for _ in range(batch)]
        for level in itertools.count():
            hidden = torch.tensor([[[self.state(path)] for path in row] for row in contexts])
            tokens = roots.repeat_interleave(hidden.shape[1])
            state = DraftState(level, tokens, hidden.flatten(0, 1), batch)
            frontier = growth.add(self.head, hidden, state)
            if frontier is None:
                break
            steps = zip(contexts, frontier.parents.tolist(), frontier.tokens.tolist())
            contexts = [
                [(*row[parent], token) for parent, token in zip(parents, found)]
                for row, parents, found in steps
            ]
        tree = growth.finish(roots)
        parents = self.shape.parents
        states = []
        for row in tree.tokens.tolist():
            paths = [ROOT]
            for node in range(1, len(row)):
                paths.append((*paths[parents[node]], row[node]))
            states.append([self.state(path) for path in paths])
        return tree, self.table[torch.tensor(states)]

    def state(self, path: tuple[int, ...]) -> int:
        if path not in self._states:
            self._states[path] = state_of([*PROMPT, *path], self.vocab)
        return self._states[path]

    def continued(self, tokens: tuple[int, ...], chance: Chance) -> tuple[int, ...]:
        while len(tokens) < LENGTH:
            if tokens not in self._weights:
                history = self.history()
                history.add(tokens)
                logits = self.target.reference([*PROMPT, *ROOT, *tokens])
                self._weights[tokens] = target_weights(logits, self.configuration.sampling, history, [])
            tokens = (*tokens, chance.draw(self._weights[tokens]))
        return tokens[:LENGTH]

    def p_value(self, count: int, seed: int) -> float:
        law = {tokens: float(weight) for tokens, weight in reference_law(self.target, self.case).items()}
        return p_value(self.counts(count, seed), law)
