"""The table of verifiers, and verification of B rows, each with its own verifier."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...core.errors import UsageError
from ...core.registry import ExtensionTable, check_known, resolve
from ..request import SamplingParams
from ..sampling import Chance, TokenHistory, no_distribution
from ..tree import Distribution, DraftTree, RowTree, Verifier, children_of
from .greedy import decide_greedy

# name -> "module:attr" of a tree.Verifier; a new verifier is a file and a row.
VERIFIERS = ExtensionTable(
    "vocabforge.verifiers",
    {
        "greedy": "vocabforge.decode.verify.greedy:GREEDY",
        "match": "vocabforge.decode.verify.match:MATCH",
        "point": "vocabforge.decode.verify.point:POINT",
        "residual": "vocabforge.decode.verify.residual:RESIDUAL",
    },
)


def chosen_verifier(name: str, *, sampled: bool) -> Verifier:
    """Return a verifier; reject one that is never used at this temperature."""
    check_known(name, VERIFIERS, "verifier", source="--verifier")
    verifier: Verifier = resolve(VERIFIERS, name, "verifier")
    if verifier.samples and not sampled:
        raise UsageError(
            "--verifier only applies when sampling; this run is greedy",
            got=f"{name} at temperature 0",
            expected="a temperature above 0",
            source="--verifier",
            remedy="leave --verifier out: greedy outputs are verified by argmax",
        )
    if sampled and not verifier.samples:
        raise UsageError(
            f"the verifier {name!r} takes the best token, but the request samples",
            got="a temperature above 0",
            expected="temperature 0, or a verifier that samples: "
            + ", ".join(other for other in VERIFIERS if other != name),
        )
    return verifier


@dataclass
class RowVerification:
    """State for verifying a row: its sampling parameters, random stream and token history.

    The history is the prompt and the committed output, including the tree's root.
    """

    sampling: SamplingParams
    chance: Chance
    history: TokenHistory


@dataclass(frozen=True)
class Verdicts:
    """Outcome of one verification of B rows."""

    path: Tensor  # (B, levels + 1) int64 nodes from the root to the last accepted one, repeated as padding
    tokens: list[list[int]]  # accepted draft tokens, then the target's own; none for an idle row

    @property
    def accepted(self) -> list[int]:
        """Number of accepted draft tokens: path[row, : accepted + 1] is real; -1 for an idle row."""
        return [len(own) - 1 for own in self.tokens]


def verify(
    tree: DraftTree,
    logits: Tensor,
    rows: Sequence[RowVerification | None],
    levels: int,
    verifier: str | None = None,
) -> Verdicts:
    """Return the path of each row's tree that the target accepts, and the token that follows it.

    Args:
        logits: (B, N, V) of the target at each node.
        rows: the requests; None if a row is idle.
        levels: number of levels below the root, which sets the length of the paths.
        verifier: a name in :data:`VERIFIERS` for the rows above temperature 0; None takes ``residual`` if the
            tree has distributions, otherwise ``match``. Rows at temperature 0 are always verified greedily.

    Raises:
        UsageError: the verifier is unknown, or cannot sample for a row above temperature 0.
        DataError: the target's logits have no maximum.
    """
    together = [row is not None and by_argmax(row.sampling) for row in rows]
    tokens: list[list[int]] = [[] for _ in rows]
    path: Tensor | None = None
    if any(together) or not any(rows):
        greedy = [row if taken else None for row, taken in zip(rows, together)]
        verdicts = greedy_verdicts(*decide_greedy(tree, logits, levels), greedy)
        path, tokens = verdicts.path, verdicts.tokens
    alone = [number for number, row in enumerate(rows) if row is not None and not together[number]]
    if alone:
        walked = _walk_rows(tree, logits, rows, alone, verifier)
        paths = [[0] * (levels + 1) for _ in rows]
        for number, (nodes, own) in zip(alone, walked):
            paths[number] = nodes + nodes[-1:] * (levels + 1 - len(nodes))
            tokens[number] = own
        moved = torch.tensor(paths, device=logits.device)
        picked = torch.tensor(together, device=logits.device)
        path = moved if path is None else torch.where(picked[:, None], path, moved)
    assert path is not None
    return Verdicts(path, tokens)


def greedy_verdicts(path: Tensor, numbers: Tensor, rows: Sequence[RowVerification | None]) -> Verdicts:
    """Return the verdicts of rows that all take the argmax, from the results of ``decide_greedy``."""
    tokens: list[list[int]] = [[] for _ in rows]
    for number, (row, (count, good, *own)) in enumerate(zip(rows, numbers.tolist())):  # one copy to the host
        if row is not None:
            if good < path.shape[1]:
                raise no_distribution("target", row.history.length + good)
            tokens[number] = own[: count + 1]
    return Verdicts(path, tokens)


def by_argmax(sampling: SamplingParams) -> bool:
    """Return whether a row's tokens are the argmax of the unchanged logits."""
    return sampling.greedy and not sampling.penalised


def _walk_rows(
    tree: DraftTree,
    logits: Tensor,
    rows: Sequence[RowVerification | None],
    numbers: Sequence[int],
    name: str | None,
) -> list[tuple[list[int], list[int]]]:
    """Verify the rows ``numbers`` one by one; return their accepted nodes and tokens."""
    count = tree.tokens.shape[1]
    if count == 1:
        drafted, parents = [[0]] * len(rows), [[0]] * len(rows)  # a root's token is never read
    else:
        drafted, parents = torch.stack([tree.tokens, tree.parents]).tolist()
    alive = None if tree.alive is None else tree.alive.tolist()
    walked = []
    for number in numbers:
        row = rows[number]
        assert row is not None
        distributions: Mapping[int, Distribution] = (
            tree.distributions[number] if tree.distributions is not None else {}
        )
        children = children_of(parents[number], alive[number] if alive else None)
        row_tree = RowTree(
            drafted[number], children, logits[number], row.sampling, row.chance, row.history, distributions
        )
        wanted = name or ("match" if tree.distributions is None else "residual")
        greedy = row.sampling.greedy
        walked.append(chosen_verifier("greedy" if greedy else wanted, sampled=not greedy).walk(row_tree))
    return walked
