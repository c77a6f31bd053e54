"""Mistakes that others have made, as changes of the package's source, and the check that notices each."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tests.decode.mutant_checks import (
    any_trees,
    dead_nodes,
    drawn,
    drawn_chain,
    drawn_with_penalties,
    early_exit_is_right,
    fresh_numbers,
    greedy_trees,
    limits,
    repeated_texts_are_drafted,
    several_cycles,
    stops,
    the_lowest_and_the_highest_uniform_number,
    transform,
)


class Mutant(NamedTuple):
    module: str
    right: str
    wrong: str
    killer: Callable[[], None]


DECODE = "vocabforge.decode"  # or the module, where a snippet stands in several
DRAWS = "found = draw_children(law, len(children), draw.chance)"
MUTANTS = {
    # The mistakes of METHODS section 10, and those of the issue.
    "one uniform number for all decisions": Mutant(
        DECODE,
        "self._uniform = np.random.Generator(np.random.Philox(key=seed)).random",
        "number = np.random.Generator(np.random.Philox(key=seed)).random(); self._uniform = lambda: number",
        fresh_numbers,
    ),
    "the best tokens verified as if drawn": Mutant(
        DECODE,
        DRAWS,
        "found = law.ids[np.argsort(-law.weights, kind='stable')[: len(children)]].tolist()",
        drawn,
    ),
    "drawn, then only the best kept": Mutant(
        DECODE,
        DRAWS,
        "found = sorted(draw_children(law, len(children) + 1, draw.chance),"
        " key=lambda token: -law.weights[list(law.ids).index(token)])[: len(children)]",
        drawn,
    ),
    "drawn from a part of the law": Mutant(
        DECODE,
        DRAWS,
        "found = draw_children(DraftLaw(law.ids[1:], law.weights[1:]), len(children), draw.chance)",
        drawn,
    ),
    "<= for <": Mutant(
        DECODE, "* total < weight", "* total <= weight", the_lowest_and_the_highest_uniform_number
    ),
    "a draw that takes weights of 0": Mutant(
        DECODE, 'side="right"', 'side="left"', the_lowest_and_the_highest_uniform_number
    ),
    "the residual skipped": Mutant(DECODE + ".verify.residual", "p = rest / rest.sum()", "p = p", drawn),
    "no residual outside the law's ids": Mutant(
        DECODE + ".verify.residual", "rest = p.copy()\n", "rest = 0 * p\n", drawn_chain
    ),
    "q of another order": Mutant(
        DECODE + ".verify.residual",
        "q = law.weights / law.weights.sum()",
        "q = (law.weights / law.weights.sum())[::-1]",
        drawn,
    ),
    "q of before the draw": Mutant(DECODE + ".verify.residual", "q = _without(q, place)", "q = q", drawn),
    "drawn siblings not removed": Mutant(
        DECODE,
        "weights[place] = 0 * weights[place]",
        "weights[place] = weights[place]",
        drawn,
    ),
    "siblings not removed": Mutant(
        DECODE + ".verify.point", "weights[token] = 0 * weight", "weights[token] = weight", any_trees
    ),
    "the whole mass stays 1": Mutant(
        DECODE + ".verify.point",
        "happens(weight, weights.sum())",
        "happens(weight, 3 * weights.max())",
        any_trees,
    ),
    "EOS dropped": Mutant(
        DECODE,
        "            ids.append(token)\n",
        "            ids.extend([] if token in request.stop_ids else [token])\n",
        stops,
    ),
    "tokens after EOS": Mutant(
        DECODE,
        "            if self.finish is not None:\n                break",
        "            pass",
        stops,
    ),
    "one token too many": Mutant(
        DECODE, "elif len(ids) == self.room:", "elif len(ids) == self.room + 1:", limits
    ),
    "token 0 lost": Mutant(
        DECODE + ".proposers.ngram",
        "for token in tokens:",
        "for token in filter(None, tokens):",
        repeated_texts_are_drafted,
    ),
    "a mask without the last committed slot": Mutant(
        DECODE, "(behind < 0)[:, None] |", "(behind < -1)[:, None] |", any_trees
    ),
    "a mask that shows siblings": Mutant(
        DECODE, "(inside & ((behind", "((inside | ~inside) & ((behind", any_trees
    ),
    "positions by slot": Mutant(
        DECODE,
        "self.committed[:, None] + tree.depths,\n            cache",
        "slots,\n            cache",
        any_trees,
    ),
    "compaction from the slot before": Mutant(
        DECODE,
        "self.committed[:, None] + path, self",
        "self.committed[:, None] + path - 1, self",
        any_trees,
    ),
    "no compaction": Mutant(DECODE, "if not tree.chain:", "if False:", several_cycles),
    "compaction one slot late": Mutant(
        DECODE,
        "self.committed[:, None] + self._slots[: path.shape[1]]",
        "self.committed[:, None] + self._slots[1 : path.shape[1] + 1]",
        several_cycles,
    ),
    "rows that move each other's slots": Mutant(
        "vocabforge.models.kv_cache",
        "cache[:, self.rows, :, destination] = cache[:, self.rows, :, source]",
        "cache[:, self.rows, :, destination] = cache[:, self.rows.flip(0), :, source]",
        several_cycles,
    ),
    "an early exit that overwrites the root": Mutant(
        DECODE,
        "slots = (self.committed[:, None] + 1) + self.slots[used",
        "slots = self.committed[:, None] + self.slots[used",
        early_exit_is_right,
    ),
    "one slot too few committed": Mutant(
        DECODE + ".target_side",
        "self.committed.add_(counts)",
        "self.committed.add_(counts - 1)",
        any_trees,
    ),
    "dead nodes alive": Mutant(DECODE, "if alive is None or alive[node]:", "if True:", dead_nodes),
    "dead nodes alive, greedily": Mutant(
        "vocabforge.ops.tree_verify", "agrees = agrees & alive", "agrees = agrees & True", dead_nodes
    ),
    "greedy penalties without the path": Mutant(
        DECODE + ".verify.greedy", "row.history, path_tokens)", "row.history, [])", greedy_trees
    ),
    "matched, penalties without the path": Mutant(
        DECODE + ".verify.match", "row.history, path_tokens)", "row.history, [])", any_trees
    ),
    "any child a match": Mutant(
        DECODE + ".verify.match", "if row.tokens[child] == token", "if True", any_trees
    ),
    "penalties without the path": Mutant(
        DECODE + ".verify.point", "row.history, path_tokens)", "row.history, [])", any_trees
    ),
    "drawn, penalties without the path": Mutant(
        DECODE + ".verify.residual", "row.history, path_tokens)", "row.history, [])", drawn_with_penalties
    ),
    "penalties without the output": Mutant(
        DECODE, "one.judge.history.add(verdicts.tokens[row])", "pass", any_trees
    ),
    "penalties without the first token": Mutant(DECODE, "history.add([first])", "pass", any_trees),
    "top-p without the token that reaches it": Mutant(
        DECODE, "sampling.top_p * mass[-1])) + 1]", "sampling.top_p * mass[-1]))]", transform
    ),
    "top-k that keeps one more": Mutant(DECODE, 'kind="stable")][:k]', 'kind="stable")][:k + 1]', transform),
    "a repetition penalty that favours": Mutant(
        DECODE,
        "touched > 0, touched / factor, touched * factor",
        "touched > 0, touched * factor, touched / factor",
        transform,
    ),
    "a frequency penalty once": Mutant(
        DECODE, "often.astype(np.float32)", "(often > 0).astype(np.float32)", transform
    ),
}
