"""Options that VocabForge no longer has, and what to use instead."""

from __future__ import annotations

from collections.abc import Sequence

_HEAL = "train the new drafter on with `vocabforge train-drafter drafter.init=OUTPUT ...`"
_EVAL = "run `vocabforge eval` on the old and the new drafter, then `vocabforge report before=A after=B`"

_RECALL = (
    "the held-out report of `vocabforge train-router` compares budgets of clusters by recall and acceptance"
)

_STATIC = (
    "count the target's answers (`regenerate`, `count-freq --mode assistant`), `select-vocab --size N`, compare with "
    "`eval --vocab`, and give `--vocab`"
)

# command -> option -> what to do instead
REMOVED: dict[str, dict[str, str]] = {
    "revocab": {
        **dict.fromkeys(("--heal", "--data", "--heal-output"), _HEAL),
        "--missing": "missing rows are always the target's; " + _HEAL,
        **dict.fromkeys(
            ("--prompts", "--limit", "--max-new-tokens", "--prompt-format", "--decode-dtype", "--device"),
            _EVAL,
        ),
        **dict.fromkeys(("--depth", "--topk", "--total-nodes"), _EVAL),
        "--counts": "run `vocabforge coverage --counts COUNTS --vocab old=DIR --vocab new=DIR`",
    },
    "train-router": {"--data": "use `--input`, as in the other commands that read texts"},
    "compare-vocab": {"--save": "use `--output`"},
    "cluster-vocab": {
        **dict.fromkeys(("--text", "--contexts", "--dtype", "--device"), _RECALL),
        "--backend": "torch finds the nearest centroids, as every backend did; leave it out",
        "--init": "k-means always starts by k-means++; leave it out",
        "--restarts": "run again with another `--seed` and keep the output with the larger mean cosine",
    },
    "regenerate": {
        "--truncated": "rows with a cut answer are kept and marked `cut`, and its end is not learnt; to leave "
        "them out, filter the rows of `responses.jsonl` by `generation.answers[].finish_reason`",
    },
    "count-freq": {"--max-tokens": "use `--sample SHARE` to count a share of the documents"},
    "eval": {
        "--list-benchmarks": "--help names the benchmarks; the error for an absent one says where it was looked for",
        "--benchmark-format": "the first row tells the format: `spec-bench`, `human-eval`, `gsm8k` or conversations",
    },
    "export": {
        **dict.fromkeys(("--fallback-size", "--prompts"), _STATIC),
    },
    "report": {
        "--across-machines": "the table shows each run's speed-up over the plain decoding of its own machine"
    },
    "study": {"--seed": "add `seeds=[N]`; a later run with more seeds takes over what is made"},
    "tune": {
        "--measure-budget": "latency takes a tenth of `--seconds`",
        "--router-budget": "use `--budget`, as in eval; the time for measuring is `--seconds`",
        "--chain": "use `--tree chain --depth`, one less than the draft tokens",
        "--levels": "use `--depth`, one less than the levels",
        "--nodes": "use `--total-nodes`",
    },
}


def removed_option(command: str | None, args: Sequence[str]) -> str | None:
    """The answer to the first removed option in a command line; None if it has none."""
    known = REMOVED.get(command or "", {})
    for word in args:
        name = word.partition("=")[0]
        if name == "--":
            return None
        if name in known:
            return f"{name} was removed: {known[name]}."
    return None
