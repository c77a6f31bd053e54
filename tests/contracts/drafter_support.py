"""Random drafters of every kind of the table, and drafting along given paths."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tests.decode.engine_support import advance, propose, ready
from vocabforge.decode.proposers.registry import Proposer, tree_proposer
from vocabforge.decode.tree import DraftTree, TreeSettings
from vocabforge.models.drafters.registry import DRAFTERS, drafter_sizes, new_drafter
from vocabforge.models.heads.registry import DraftHead, FullHead, StaticHead
from vocabforge.models.target.hf import HFTarget, read_target_config

KINDS = list(DRAFTERS)
# Forms of a kind, as other tools train them: name -> kind and the switches of its sizes.
VARIANTS: dict[str, tuple[str, dict[str, bool]]] = {
    "eagle3 normed residual, q and k": ("eagle3", {"norm_before_residual": True, "qk_norm": True}),
    "eagle3 input norm": ("eagle3", {"norm_before_fc": True}),
    "eagle3 layer norms, normed output": ("eagle3", {"fc_norm": True, "norm_output": True}),
}
CASES = [*KINDS, *VARIANTS]
HEADS = ["target", "own", "reduced"]
TokenPath = tuple[int, ...]


def sizes_for(case: str, folder: Path, **wishes: Any) -> Any:
    """Sizes of a kind, or of a form of ``VARIANTS``."""
    kind, switches = VARIANTS.get(case, (case, {}))
    return dataclasses.replace(drafter_sizes(kind, read_target_config(folder), **wishes), **switches)


def make_drafter(
    case: str, folder: Path, target: HFTarget, head: str = "target", *, seed: int = 1, **wishes: Any
) -> Any:
    """A drafter with random weights of a trained one's size.

    Args:
        case: a kind, or a form of ``VARIANTS``.
        head: ``target``, ``own`` (every token) or ``reduced`` (every third).
    """
    torch.manual_seed(seed)
    vocab = target.vocab_size
    ids = torch.arange(0, vocab, 3) if head == "reduced" else None
    rows = {"target": None, "own": vocab, "reduced": len(range(0, vocab, 3))}[head]
    sizes = sizes_for(case, folder, draft_vocab_size=rows, **wishes)
    drafter: Any = new_drafter(sizes.kind, sizes, target.embedding, target.head_weight, ids)
    with torch.no_grad():
        for name, parameter in drafter.named_parameters():
            if parameter.dim() == 1:
                parameter.uniform_(0.5, 1.5)
            else:
                parameter.normal_(0.0, 1.2 * parameter.shape[1] ** -0.5)
            if name == "lm_head.weight":
                parameter.add_(drafter.target_head[drafter.target_ids])
    return drafter.eval()


def head_of(drafter: Any) -> DraftHead:
    if len(drafter.target_ids) == drafter.config.vocab_size:
        return FullHead(drafter.head_weight)
    return StaticHead(drafter.head_weight, drafter.target_ids)


def levels_of(drafter: Any, wanted: int) -> int:
    """Levels of a tree, at most what the drafter has."""
    return wanted if drafter.max_steps is None else min(wanted, drafter.max_steps)


def shape_for(drafter: Any, topk: int, levels: int, total: int) -> TreeSettings:
    depth = levels_of(drafter, levels) - 1
    return TreeSettings(topk, depth, min(total, topk + depth * topk**2 + 1))


def drawing(drafter: Any, head: Any, shape: TreeSettings, positions: int = 256) -> Any:
    """The drafter's proposer with a dynamic tree, ready to be driven by hand."""
    return ready(tree_proposer(None, drafter, head, shape), positions)  # type: ignore[arg-type]


class ScriptedHead:
    """Proposes given tokens, one a row that it is asked about, and keeps the rows' logits."""

    context_size, by_step = 0, False

    def __init__(self, drafter: Any, script: list[int]) -> None:
        self.drafter, self.script, self.size = drafter, list(script), drafter.config.vocab_size
        self.logits: list[Tensor] = []

    def topk(self, hidden: Tensor, k: int, state: Any = None) -> tuple[Tensor, Tensor]:
        assert k == 1
        self.logits += list(torch.nn.functional.linear(hidden, self.drafter.head_weight))
        tokens = [self.script.pop(0) for _ in hidden]
        return torch.zeros(len(hidden), 1), torch.tensor(tokens)[:, None]


def chain_logits(
    drafter: Any, commit: Any, path: list[int], steps: int, root: Tensor | None = None
) -> list[Tensor]:
    """Draft logits of ``steps`` steps of a chain over the tokens of ``path``.

    Args:
        commit: called with the proposer; commits the context.
    """
    head = ScriptedHead(drafter, (path + [0] * steps)[:steps])
    proposer = drawing(drafter, head, TreeSettings(1, steps - 1, steps + 1))
    commit(proposer)
    propose(proposer, 1 if root is None else int(root))
    return head.logits


def tree_paths(tree: DraftTree) -> list[TokenPath]:
    """Tokens below the root on the way to every node."""
    found: list[TokenPath] = [()]
    for node in range(1, tree.tokens.shape[1]):
        found.append((*found[int(tree.parents[0, node])], int(tree.tokens[0, node])))
    return found


def commit_rows(proposer: Proposer, states: Tensor, tokens: Tensor, *, padding: int = 4) -> None:
    """Commit (N, .) rows in two parts, the second padded, as the decode loop does."""
    cut = max(1, len(tokens) - 3)
    advance(proposer, tokens[:cut], states[:cut], cut)
    rest = len(tokens) - cut
    if rest:
        advance(
            proposer,
            torch.cat([tokens[cut:], torch.full((padding,), 5)]),
            torch.cat([states[cut:], states[:1].expand(padding, -1)]),
            rest,
        )
