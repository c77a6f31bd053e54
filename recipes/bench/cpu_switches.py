"""Measure the gain of each CPU optimisation on a real model, disabling one at a time.

Prompts are interleaved; figures are medians.

python recipes/bench/cpu_switches.py --target FILE.gguf --drafter smollm2-135m --questions prompts.jsonl
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast
from unittest.mock import patch

import torch

import vocabforge as vf
from vocabforge.decode.build.methods import build_method
from vocabforge.decode.engine import Decoder
from vocabforge.decode.request import Generation, Request

_LEAN, _LAYERS = "vocabforge.models.lean.model", "vocabforge.models.drafters.eagle_layers"
_PROPOSER = "vocabforge.decode.proposers.model"


@contextlib.contextmanager
def without(name: str) -> Iterator[None]:
    """Disable one optimisation."""
    patches: dict[str, list[tuple[str, object]]] = {
        "few_rows": [
            ("vocabforge.ops.few_rows.MOST_ROWS", 0),
            (f"{_LEAN}.MOST_ROWS", 0),
            (f"{_LAYERS}.MOST_ROWS", 0),
            (f"{_PROPOSER}.FEW", 0),
        ],
        "few_rows above 16": [
            *((f"{place}.MOST_ROWS", 16) for place in ("vocabforge.ops.few_rows", _LEAN, _LAYERS)),
            (f"{_PROPOSER}.FEW", 16),
        ],
        "decoder_layers": [(f"{_LEAN}.runs_layers", _never), (f"{_LAYERS}.runs_layers", _never)],
        "draft_chain": [("vocabforge.decode.proposers.eagle.runs_chains", _never)],
    }
    with contextlib.ExitStack() as stack:
        for place, value in patches.get(name, []):
            stack.enter_context(patch(place, value))
        yield


def _never(*_: object, **__: object) -> bool:
    return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", required=True)
    parser.add_argument("--drafter", required=True)
    parser.add_argument("--questions", type=Path, required=True, help="JSONL with messages or turns")
    parser.add_argument("--limit", type=int, default=6)
    parser.add_argument("--max-new-tokens", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    models = vf.load_target(asked.target)
    tokenizer = models.tokenizer
    prompts = []
    for line in asked.questions.read_text("utf-8").splitlines()[: asked.limit]:
        row = json.loads(line)
        turns = row.get("messages") or [{"role": "user", "content": row["turns"][0]}]
        prompts.append(tokenizer.encode(tokenizer.render(turns[:1], add_generation_prompt=True)))
    chain = vf.MethodSpec(drafter=asked.drafter, tree="chain", depth=3, control="fixed")
    tree = vf.MethodSpec(
        drafter=asked.drafter, tree="dynamic", depth=3, topk=4, total_nodes=25, control="fixed"
    )
    methods = {"plain": vf.MethodSpec(), "chain of 4": chain, "tree of 24": tree}
    switches = ["nothing", "few_rows", "few_rows above 16", "decoder_layers", "draft_chain", "one thread"]
    threads = torch.get_num_threads()
    seconds: dict[tuple[str, str], list[float]] = {}
    tokens: dict[str, list[list[int]]] = {}
    for round_ in range(asked.rounds):
        for place in range(len(switches)):
            switch = switches[(place + round_) % len(switches)]
            torch.set_num_threads(1 if switch == "one thread" else threads)
            with without(switch):
                for name, spec in methods.items():
                    decoder = cast("Decoder", build_method(models, spec, name).generator)
                    spent, answers = 0.0, []
                    for ids in prompts:
                        result = Generation()
                        request = Request(ids, asked.max_new_tokens, set(tokenizer.eos_ids))
                        began = time.perf_counter()
                        for _ in decoder.stream_batch([request], [result]):
                            pass
                        spent += time.perf_counter() - began - result.prefill_s
                        answers.append(result.token_ids)
                    seconds.setdefault((switch, name), []).append(spent)
                    tokens.setdefault(name, answers)
                    count = sum(map(len, answers)) - len(answers)
                    print(f"round {round_} without {switch}: {name} {count / spent:.1f} tokens/s", flush=True)
    print("\n| without | " + " | ".join(methods) + " |\n|---" + "|---" * len(methods) + "|")
    for switch in switches:
        cells = []
        for name in methods:
            base = statistics.median(seconds["nothing", name])
            own = statistics.median(seconds[switch, name])
            count = sum(map(len, tokens[name])) - len(prompts)
            cells.append(f"{count / own:.1f} ({base / own:.2f}x)")
        print(f"| {switch} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
