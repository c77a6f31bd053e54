"""Compare VocabForge's decoder with transformers' generate on the same prompts, alternating by batch.

python recipes/bench/regenerate.py --target FILE.gguf --questions prompts.jsonl --batch-size 16
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, GenerationConfig

import vocabforge as vf
from vocabforge.decode.text import continue_batches


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", required=True)
    parser.add_argument("--questions", type=Path, required=True, help="JSONL with messages")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--batches", type=int, default=3)
    parser.add_argument("--max-new-tokens", type=int, default=96)
    asked = parser.parse_args()
    models = vf.load_target(asked.target)
    tokenizer, rows, limit = models.tokenizer, asked.batch_size, asked.max_new_tokens
    ends = list(tokenizer.eos_ids)
    theirs = AutoModelForCausalLM.from_pretrained(models.target, dtype=torch.float32).eval()
    theirs.generation_config = GenerationConfig()
    settings = GenerationConfig(
        max_new_tokens=limit, do_sample=False, eos_token_id=ends, pad_token_id=ends[0], use_cache=True
    )
    ours, _ = continue_batches(models, vf.MethodSpec(), rows=rows, max_new_tokens=limit)
    lines = asked.questions.read_text("utf-8").splitlines()[: rows * asked.batches]
    prompts = []
    for line in lines:
        messages = json.loads(line)["messages"][:1]
        prompts.append(tokenizer.encode(tokenizer.render(messages, add_generation_prompt=True)))
    prompts.sort(key=len)
    speeds: dict[str, list[float]] = {"vocabforge": [], "transformers": []}
    equal = 0
    for first in range(0, len(prompts), rows):
        batch = prompts[first : first + rows]
        began = time.perf_counter()
        answers = dict(ours([(ids, 0) for ids in batch]))
        seconds = time.perf_counter() - began
        count = sum(map(len, answers.values()))
        speeds["vocabforge"].append(count / seconds)
        width = max(map(len, batch))
        ids = torch.full((len(batch), width), ends[0])
        mask = torch.zeros_like(ids)
        for row, one in enumerate(batch):
            ids[row, width - len(one) :] = torch.tensor(one)
            mask[row, width - len(one) :] = 1
        began = time.perf_counter()
        with torch.inference_mode():
            out = theirs.generate(input_ids=ids, attention_mask=mask, generation_config=settings)
        seconds = time.perf_counter() - began
        made = 0
        for row, new in enumerate(out[:, width:].tolist()):
            stop = next((at for at, token in enumerate(new) if token in ends), None)
            new = new if stop is None else new[: stop + 1]
            made += len(new)
            equal += new == answers[row]
        speeds["transformers"].append(made / seconds)
        print({name: round(found[-1], 1) for name, found in speeds.items()}, flush=True)
    ratios = [a / b for a, b in zip(speeds["vocabforge"], speeds["transformers"])]
    print(
        f"{len(prompts)} prompts, batches of {rows}, up to {limit} new tokens: "
        + ", ".join(f"{name} {statistics.median(found):.1f} tokens/s" for name, found in speeds.items())
        + f", ratio {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}), "
        f"{equal} of {len(prompts)} answers equal"
    )


if __name__ == "__main__":
    main()
