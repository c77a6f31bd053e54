"""Measure the gain of each CPU optimisation on a real model, disabling one at a time, in turns.

python recipes/bench/cpu_switches.py --target FILE.gguf --drafter smollm2-135m --questions prompts.jsonl
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
from collections.abc import Iterator
from functools import partial
from unittest.mock import patch

import torch
from command import seconds_of, take_turns
from decoding import OurSide, read_prompts

import vocabforge as vf
from vocabforge.core.console import markdown_table
from vocabforge.models.device import threads_set

_LEAN, _LAYERS = "vocabforge.models.lean.model", "vocabforge.models.drafters.eagle_layers"
_PROPOSER = "vocabforge.decode.proposers.model"
_MOST_ROWS = [f"{place}.MOST_ROWS" for place in ("vocabforge.ops.few_rows", _LEAN, _LAYERS)]


def _never(*_: object, **__: object) -> bool:
    return False


# optimisation -> what disables it
SWITCHES: dict[str, list[tuple[str, object]]] = {
    "nothing": [],
    "few_rows": [*((name, 0) for name in _MOST_ROWS), (f"{_PROPOSER}.FEW", 0)],
    "few_rows above 16": [*((name, 16) for name in _MOST_ROWS), (f"{_PROPOSER}.FEW", 16)],
    "decoder_layers": [(f"{_LEAN}.runs_layers", _never), (f"{_LAYERS}.runs_layers", _never)],
    "draft_chain": [("vocabforge.decode.proposers.eagle.runs_chains", _never)],
    "one thread": [],
}


@contextlib.contextmanager
def without(switch: str) -> Iterator[None]:
    """Disable one optimisation."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(threads_set(1 if switch == "one thread" else torch.get_num_threads()))
        for place, value in SWITCHES[switch]:
            stack.enter_context(patch(place, value))
        yield


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", required=True)
    parser.add_argument("--drafter", required=True)
    parser.add_argument("--questions", required=True, help="benchmark, or file of questions or conversations")
    parser.add_argument("--limit", type=int, default=6)
    parser.add_argument("--max-new-tokens", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    models = vf.load_target(asked.target)
    prompts = read_prompts(models, asked.questions, asked.limit, asked.max_new_tokens)
    trained = partial(vf.MethodSpec, drafter=asked.drafter, depth=3, control="fixed")
    methods = {
        "plain": vf.MethodSpec(),
        "chain of 4": trained(tree="chain"),
        "tree of 24": trained(tree="dynamic", topk=4, total_nodes=25),
    }

    def measure(switch: str, name: str) -> float:
        """Return tokens per second of decoding, without the prompts' passes."""
        with without(switch):
            side = OurSide(models, name, methods[name], asked.max_new_tokens, ends=models.tokenizer.eos_ids)
            seconds = seconds_of(side.round, prompts) - sum(result.prefill_s for result in side.results)
        return sum(len(result.token_ids) - 1 for result in side.results) / seconds

    sides = {(switch, name): partial(measure, switch, name) for switch in SWITCHES for name in methods}
    rounds = take_turns("decoding", sides, asked.rounds)
    rates = {side: statistics.median(measured) for side, measured in rounds.items()}

    def cell(switch: str, name: str) -> str:
        return f"{rates[switch, name]:.1f} ({rates[switch, name] / rates['nothing', name]:.2f}x)"

    rows = [[switch, *(cell(switch, name) for name in methods)] for switch in SWITCHES]
    print("\n".join(markdown_table(["without", *methods], rows)))


if __name__ == "__main__":
    main()
