"""Random drafters of every kind, driven by hand or by the engine, and a proposer that knows the answer."""

from __future__ import annotations

import dataclasses
import math
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.models.mtp_targets import FAMILY_KEYS, family_switches
from tests.worlds import tiny_drafter
from vocabforge.decode import target_side
from vocabforge.decode.engine import Decoder
from vocabforge.decode.interface import Commit, Plan
from vocabforge.decode.proposers.block import BiasedHead
from vocabforge.decode.proposers.eagle import EagleBackend
from vocabforge.decode.proposers.model import ModelProposer
from vocabforge.decode.proposers.registry import Proposer, tree_proposer
from vocabforge.decode.request import Generation
from vocabforge.decode.tree import DraftTree, TreeSettings
from vocabforge.decode.trees.dynamic import DynamicPolicy
from vocabforge.models.drafters.eagle3 import Eagle3Drafter
from vocabforge.models.drafters.registry import DRAFTERS, drafter_sizes, new_drafter
from vocabforge.models.heads.exact import answer
from vocabforge.models.heads.registry import DraftHead, FullHead, StaticHead, exact_head
from vocabforge.models.kv_cache import KVCache
from vocabforge.models.lean.model import LeanModel, load_target
from vocabforge.models.target.hf import HFTarget, default_aux_layers
from vocabforge.models.target.load import read_target_config

PROMPT = [3, 17, 8, 44, 21, 9]
SHAPES = {
    "chain": TreeSettings(1, 4, 6),
    "wide": TreeSettings(7, 0, 8),
    "tree": TreeSettings(3, 3, 17),
    "smallest": TreeSettings(1, 0, 2),
    "whole": TreeSettings(2, 2, 11),
}
FAMILY_CASES = [
    "llama",
    "llama-tied",
    "llama-llama3-rope",
    "mistral-window",
    "qwen2-layer-types",
    "qwen3-bias-window",
]


@dataclass
class Pair:
    """A target twice, and a random drafter for it."""

    hf: Any
    lean: LeanModel
    drafter: Eagle3Drafter
    restricted: Eagle3Drafter

    def proposer(self, shape: TreeSettings, *, restricted: bool = False) -> ModelProposer:
        drafter = self.restricted if restricted else self.drafter
        head = (
            StaticHead(drafter.head_weight, drafter.target_ids)
            if restricted
            else FullHead(drafter.head_weight)
        )
        return eagle(drafter, head, shape, 16)


def eagle(drafter: Any, head: DraftHead, shape: TreeSettings, positions: int, rows: int = 1) -> ModelProposer:
    """An EAGLE proposer with a dynamic tree, ready to be driven by hand."""
    proposer = ModelProposer(EagleBackend(drafter, "eagle3", "EAGLE-3"), head, DynamicPolicy(shape))
    return ready(proposer, positions, rows)


def ready(proposer: Any, positions: int, rows: int = 1) -> Any:
    proposer.allocate(rows, positions, KVCache(1, rows, 1, 1, 1))
    for row in range(rows):
        proposer.begin(row, [])
    return proposer


def advance(proposer: Any, following: torch.Tensor, states: torch.Tensor | None, count: int) -> None:
    """Commit the first ``count`` of N positions of one row: tokens after them (N,), states (N, .)."""
    proposer.commit(
        Commit(
            following[None],
            None if states is None else states[None],
            torch.tensor([count]),
            torch.zeros(1, len(following), dtype=torch.int64),
            [following[:count].tolist()],
        )
    )


def propose(proposer: Any, root: int, plan: Plan | None = None) -> DraftTree:
    return proposer.propose(torch.tensor([root]), plan or proposer.plan, None, lambda part: None)


def make_pair(folder: Path, hf: Any) -> Pair:
    target = HFTarget(hf)
    ids = torch.arange(0, target.vocab_size, 3)
    return Pair(
        hf, load_target(folder), tiny_drafter(target), tiny_drafter(target, own_head=len(ids), target_ids=ids)
    )


class Knows:
    """Drafts as ever, then writes the true continuation into a part of one path of each row, so that much is
    accepted. ``truths`` are prompts with their continuations."""

    truths: list[list[int]]
    draw: random.Random

    def begin(self, row: int, ids: Any) -> None:
        super().begin(row, ids)  # type: ignore[misc]
        prompt = list(ids[:-1])
        known = next((text for text in self.truths if text[: len(prompt)] == prompt), [])
        self.rest = {**getattr(self, "rest", {}), row: known[len(prompt) :]}

    def commit(self, commit: Commit) -> None:
        super().commit(commit)  # type: ignore[misc]
        for row, tokens in enumerate(commit.tokens):
            if tokens:
                self.rest[row] = self.rest[row][len(tokens) :]

    def propose(self, roots: torch.Tensor, *rest: Any) -> DraftTree:
        tree = super().propose(roots, *rest)  # type: ignore[misc]
        tokens = tree.tokens.clone()
        for row, truth in self.rest.items():
            if row < len(tokens) and truth and tokens[row, 0] == truth[0]:  # an idle row drafts anything
                alive = [True] * tokens.shape[1] if tree.alive is None else tree.alive[row].tolist()
                self._tell(tokens[row], tree.parents[row].tolist(), alive, truth[1:])
        return dataclasses.replace(tree, tokens=tokens, distributions=None, exits=None)

    def _tell(self, tokens: torch.Tensor, parents: list[int], alive: list[bool], truth: list[int]) -> None:
        node = 0
        for right in truth:
            children = [n for n in range(1, len(tokens)) if parents[n] == node and alive[n]]
            if not children or self.draw.random() < 0.25:
                break
            node = next((n for n in children if tokens[n] == right), self.draw.choice(children))
            tokens[node] = right


def knowing(proposer: Any, *truths: list[int], seed: int = 0) -> Any:
    if not isinstance(proposer, Knows):
        proposer.__class__ = type("Knowing", (Knows, type(proposer)), {})
    proposer.truths, proposer.draw, proposer.rest = list(truths), random.Random(seed), {}
    return proposer


def hf_greedy(model: Any, prompt: list[int], count: int) -> list[int]:
    model.generation_config.eos_token_id = None
    ids = torch.tensor([prompt])
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False, pad_token_id=0
    )
    return out[0, len(prompt) :].tolist()


def check_figures(result: Generation, decoder: Decoder, prompt: list[int]) -> None:
    """What must hold between the figures of any drafted generation."""
    cycles = len(result.accept_lengths)
    chunks = math.ceil(len(prompt) / target_side.PREFILL_CHUNK)
    assert result.target_forwards == chunks + cycles
    assert len(result.token_ids) == 1 + sum(result.accept_lengths)
    assert sum(result.verified_lengths) - sum(result.accept_lengths) <= decoder.levels
    assert result.verified_lengths[:-1] == result.accept_lengths[:-1]
    assert result.drafted == cycles * (decoder.proposer.plan.nodes - 1)
    assert result.verified == result.drafted + cycles
    assert sum(result.accepted_by_depth) == sum(result.verified_lengths) - cycles
    assert all(a <= b <= cycles for a, b in zip(result.accepted_by_depth, result.drafted_by_depth))
    assert result.accepted_by_depth == sorted(result.accepted_by_depth, reverse=True)
    assert min(result.accept_lengths, default=1) >= 1
    assert set(result.timings) <= {"prefill", "layers", "head", "draft", "verify", "other"}
    assert result.prefill_s == result.timings["prefill"] > 0
    assert result.decode_s == pytest.approx(sum(v for k, v in result.timings.items() if k != "prefill"))


def watch_rows(proposer: Any) -> tuple[list[torch.Tensor], list[int]]:
    """Collects the states and the following tokens of every position that one row commits."""
    rows: list[torch.Tensor] = []
    tokens: list[int] = []
    prefill, commit = proposer.prefill, proposer.commit

    def watched_prefill(row: int, following: torch.Tensor, states: torch.Tensor) -> None:
        rows.append(states)
        tokens.extend(following.tolist())
        prefill(row, following, states)

    def watched_commit(given: Commit) -> None:
        count = int(given.counts[0])
        assert given.states is not None
        assert given.following[0, :count].tolist() == list(given.tokens[0])
        rows.append(given.states[0, :count])
        tokens.extend(given.tokens[0])
        commit(given)

    proposer.prefill, proposer.commit = watched_prefill, watched_commit
    return rows, tokens


KINDS = list(DRAFTERS)
# Forms of a kind, as other tools train them: name -> kind and the switches of its sizes.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "eagle3 normed residual, q and k": ("eagle3", {"norm_before_residual": True, "qk_norm": True}),
    "eagle3 input norm": ("eagle3", {"norm_before_fc": True}),
    "eagle3 layer norms, normed output": ("eagle3", {"fc_norm": True, "norm_output": True}),
    "eagle3 of three layers": ("eagle3", {"num_layers": 3}),
    "eagle3.1 of two layers": (
        "eagle3",
        {"num_layers": 2, "fc_norm": True, "norm_output": True, "qk_norm": True},
    ),
    "medusa of two blocks": ("medusa", {"medusa_layers": 2}),
}
OWN_HEADS = "medusa with own LM heads"  # not over the target's head
VARIANTS_OWN: dict[str, tuple[str, dict[str, Any]]] = {
    OWN_HEADS: ("medusa", {"medusa_layers": 2, "medusa_own_heads": True})
}
VARIANTS |= {f"mtp of {family}": ("mtp", family_switches(family)) for family in FAMILY_KEYS}
CASES = [*KINDS, *VARIANTS]
# Block drafters small enough for tests.
SMALL: dict[str, dict[str, Any]] = {
    "peagle": {"num_layers": 2, "block_size": 5},
    "dflash": {"num_layers": 2, "block_size": 5, "mask_token_id": 2},
    "dspark": {"num_layers": 2, "block_size": 5, "markov_rank": 6},
}
# Every case over every LM head that it can have.
CASE_HEADS = [(case, head) for case in CASES for head in ("target", "own", "reduced")]
CASE_HEADS += [(OWN_HEADS, head) for head in ("own", "reduced")]
HEADS = ["target", "own", "reduced"]
TokenPath = tuple[int, ...]


def sizes_for(case: str, folder: Path, **wishes: Any) -> Any:
    """Sizes of a kind, or of a form of ``VARIANTS``."""
    kind, switches = (VARIANTS | VARIANTS_OWN).get(case, (case, {}))
    config = read_target_config(folder)
    if kind in SMALL:  # over the layers that the tests' targets capture
        layers = default_aux_layers(config["num_hidden_layers"])
        wishes = {**SMALL[kind], "aux_layers": layers, **wishes}
    return dataclasses.replace(drafter_sizes(kind, config, **wishes), **switches)


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
            if name.startswith("lm_head"):
                parameter.add_(drafter.target_head[drafter.target_ids])
    return drafter.eval()


def head_of(drafter: Any) -> DraftHead:
    if drafter.heads_differ:
        return exact_head(drafter)
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
    proposer: Any = tree_proposer(None, drafter, head, shape)  # type: ignore[arg-type]
    if isinstance(proposer.head, BiasedHead) and hasattr(head, "told"):
        proposer.head = OverBias(proposer.head, head)
    return ready(proposer, positions)


class ScriptedHead:
    """Proposes given tokens, one a row that it is asked about, and keeps the rows' logits."""

    context_size = 0

    def __init__(self, drafter: Any, script: list[int]) -> None:
        self.drafter, self.script, self.size = drafter, list(script), drafter.config.vocab_size
        self.by_step = drafter.heads_differ
        self.logits: list[Tensor] = []

    def topk(self, hidden: Tensor, k: int, state: Any = None) -> tuple[Tensor, Tensor]:
        return self.told(self.scores(hidden, k, state)[0], k, None)

    def scores(self, hidden: Tensor, k: int, state: Any = None) -> tuple[Tensor, Tensor]:
        weight = self.drafter.head_rows(state.step)
        return torch.nn.functional.linear(hidden, weight), self.drafter.target_ids

    def told(self, logits: Tensor, k: int, answer: Any) -> tuple[Tensor, Tensor]:
        assert k == 1
        self.logits += list(logits)
        tokens = [self.script.pop(0) for _ in logits]
        return torch.zeros(len(logits), 1), torch.tensor(tokens)[:, None]


class OverBias:
    """DSpark's biased head under another one that is ``told`` of its logits, and answers."""

    def __init__(self, biased: BiasedHead, head: Any) -> None:
        self.biased, self.head = biased, head
        self.size, self.context_size, self.by_step = biased.size, 0, False

    def topk(self, hidden: Tensor, k: int, state: Any = None) -> tuple[Tensor, Tensor]:
        logits, ids = self.biased.scores(hidden, k, state)
        return self.head.told(logits, k, answer(logits, ids, k))


def chain_logits(
    drafter: Any, commit: Any, path: list[int], steps: int, root: Tensor | None = None
) -> list[Tensor]:
    """Draft logits of ``steps`` steps of a chain over the tokens of ``path``."""
    head = ScriptedHead(drafter, (path + [0] * steps)[:steps])
    proposer = drawing(drafter, head, TreeSettings(1, steps - 1, steps + 1))
    commit(proposer)
    propose(proposer, 1 if root is None else int(root))
    return head.logits


def tree_paths(tree: DraftTree, row: int = 0) -> list[TokenPath]:
    """Tokens below the root on the way to every node of a row."""
    found: list[TokenPath] = [()]
    tokens, parents = tree.tokens[row].tolist(), tree.parents[row].tolist()
    for token, parent in list(zip(tokens, parents))[1:]:
        found.append((*found[parent], token))
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
