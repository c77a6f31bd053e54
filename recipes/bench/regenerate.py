"""Compare VocabForge's decoder with transformers' generate on the same prompts, alternating by batch.

python recipes/bench/regenerate.py --target FILE.gguf --questions prompts.jsonl --batch-size 16
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence

import torch
from command import read_prompts, spread, spread_text
from transformers import AutoModelForCausalLM, GenerationConfig

import vocabforge as vf
from vocabforge.decode.build.models import Models
from vocabforge.decode.text import continue_batches


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", required=True)
    parser.add_argument("--questions", required=True, help="benchmark, or file of questions or conversations")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--batches", type=int, default=3)
    parser.add_argument("--max-new-tokens", type=int, default=96)
    asked = parser.parse_args()
    models = vf.load_target(asked.target)
    rows, limit, ends = asked.batch_size, asked.max_new_tokens, list(models.tokenizer.eos_ids)
    prompts = sorted(read_prompts(models, asked.questions, rows * asked.batches, limit), key=len)
    ours, _ = continue_batches(models, vf.MethodSpec(), rows=rows, max_new_tokens=limit)

    def answers(batch: Sequence[list[int]]) -> list[list[int]]:
        return [ids for _, ids in sorted(ours([(prompt, 0) for prompt in batch]))]

    sides: dict[str, Callable[[Sequence[list[int]]], list[list[int]]]] = {
        "vocabforge": answers,
        "transformers": their_answers(models, limit, ends),
    }
    speeds: dict[str, list[float]] = {name: [] for name in sides}
    equal = 0
    for first in range(0, len(prompts), rows):
        batch = prompts[first : first + rows]
        made: list[list[list[int]]] = []
        for name, side in sides.items():
            began = time.perf_counter()
            made.append(side(batch))
            speeds[name].append(sum(map(len, made[-1])) / (time.perf_counter() - began))
        equal += sum(one == other for one, other in zip(*made, strict=True))
        print({name: round(rates[-1], 1) for name, rates in speeds.items()}, flush=True)
    ratios = spread([a / b for a, b in zip(*speeds.values(), strict=True)])
    rates = ", ".join(f"{name} {spread(one)['median']:.1f} tokens/s" for name, one in speeds.items())
    print(f"{len(prompts)} prompts, batches of {rows}, up to {limit} new tokens: {rates}")
    print(f"ratio {spread_text(ratios)}, {equal} of {len(prompts)} answers equal")


def their_answers(
    models: Models, limit: int, ends: list[int]
) -> Callable[[Sequence[list[int]]], list[list[int]]]:
    """Return transformers' decoding of a batch: padded on the left, cut behind the first end token."""
    model = AutoModelForCausalLM.from_pretrained(models.target, dtype=torch.float32).eval()
    model.generation_config = GenerationConfig()
    settings = GenerationConfig(
        max_new_tokens=limit, do_sample=False, eos_token_id=ends, pad_token_id=ends[0]
    )

    def answers(batch: Sequence[list[int]]) -> list[list[int]]:
        width = max(map(len, batch))
        ids = torch.tensor([[ends[0]] * (width - len(one)) + one for one in batch])
        mask = torch.tensor([[0] * (width - len(one)) + [1] * len(one) for one in batch])
        with torch.inference_mode():
            out = model.generate(input_ids=ids, attention_mask=mask, generation_config=settings)
        made = []
        for new in out[:, width:].tolist():
            stop = next((at for at, token in enumerate(new) if token in ends), limit)
            made.append(new[: stop + 1])
        return made

    return answers


if __name__ == "__main__":
    main()
