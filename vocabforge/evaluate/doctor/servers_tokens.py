"""Which tokens a server could propose, and whether those that end an answer are among them."""

from __future__ import annotations

import torch

from ...corpus.tokenizer import TextTokenizer
from ...export.readers.types import Served, TargetSide
from .checks import Finding


def check_draft_tokens(
    served: Served, tokenizer: TextTokenizer | tuple[()], target: TargetSide
) -> Finding[None]:
    """The map as the server has it; every end token should be inside."""
    problems = served.of("draft tokens")
    if problems:
        return Finding("; ".join(one.found for one in problems), "failed", problems[0].remedy)
    total = len(target.embedding)
    if served.target_ids is None:
        return Finding(f"all {total:,} tokens can be proposed")
    rows = len(served.target_ids)
    found = f"{rows:,} of {total:,} tokens can be proposed ({rows / total:.1%})"
    ends = [int(token) for token in tokenizer.eos_ids] if tokenizer else []
    outside = [token for token in ends if not bool(torch.isin(torch.tensor(token), served.target_ids))]
    if outside:
        return Finding(
            f"{found}, but not the end tokens {outside}",
            "warning",
            "an answer's end is never drafted: select the vocabulary again (end tokens are forced in)",
        )
    return Finding(found + (f", the end tokens {ends} among them" if ends else ""))
