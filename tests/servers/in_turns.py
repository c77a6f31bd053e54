"""Answers prompts, one at a time: ``in_turns KIND`` in the environment of that decoder.

Standard input has the settings on its first line and then a prompt (token ids) a line; every line is answered by a
line of JSON. Greedy, fp32. ``drafts`` is the length of a chain, 0 for plain decoding.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# Output tokens of a prompt, and the target's passes behind the one over the prompt; None: one a token.
Answer = Callable[[list[int]], tuple[list[int], int | None]]


@contextlib.contextmanager
def vocabforge(told: dict[str, Any]) -> Iterator[Answer]:
    import torch

    from vocabforge.decode.build.methods import build_method
    from vocabforge.decode.build.models import Models
    from vocabforge.decode.spec import MethodSpec

    torch.set_num_threads(told["threads"])
    chain = {"drafter": told["drafter"], "tree": "chain", "depth": told["drafts"] - 1, "control": "fixed"}
    spec = MethodSpec.model_validate(chain if told["drafts"] else {})
    method = build_method(Models(Path(told["target"]), device="cpu", dtype="float32"), spec, "turns")

    def answer(prompt: list[int]) -> tuple[list[int], int | None]:
        made = method.generator.generate(prompt, max_new_tokens=told["new_tokens"], stop_ids=told["ends"])
        return made.token_ids, len(made.verified_lengths) if told["drafts"] else None

    yield answer


@contextlib.contextmanager
def transformers(told: dict[str, Any]) -> Iterator[Answer]:
    """``generate``; with drafts, prompt lookup, which is what it has without a draft model."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(told["threads"])
    model: Any = AutoModelForCausalLM.from_pretrained(told["target"], dtype=torch.float32).eval()
    passes = 0

    def count(*_: object) -> None:
        nonlocal passes
        passes += 1

    model.register_forward_pre_hook(count)
    options = {"prompt_lookup_num_tokens": told["drafts"]} if told["drafts"] else {}
    options |= {"max_new_tokens": told["new_tokens"], "eos_token_id": told["ends"], "pad_token_id": 0}

    def answer(prompt: list[int]) -> tuple[list[int], int | None]:
        nonlocal passes
        passes, ids = 0, torch.tensor([prompt])
        made = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, **options)
        return made[0, len(prompt) :].tolist(), passes - 1

    yield answer


@contextlib.contextmanager
def vllm(told: dict[str, Any]) -> Iterator[Answer]:
    import vllm_runner

    drafting = {"method": "eagle3", "num_speculative_tokens": told["drafts"], "model": told["drafter"]}
    cycles, _ = vllm_runner.watch()
    engine = vllm_runner.engine(told["target"], 1, drafting if told["drafts"] else None)
    ends = {"stop_token_ids": told["ends"]}
    sampling = vllm_runner.vllm.SamplingParams(temperature=0.0, max_tokens=told["new_tokens"], **ends)

    def answer(prompt: list[int]) -> tuple[list[int], int | None]:
        cycles.clear()
        made = engine.generate([{"prompt_token_ids": prompt}], sampling, use_tqdm=False)[0].outputs[0]
        return list(made.token_ids), sum(map(len, cycles.values())) if told["drafts"] else None

    yield answer


@contextlib.contextmanager
def sglang(told: dict[str, Any]) -> Iterator[Answer]:
    import sglang_runner

    sglang_runner.watch()
    drafts = told["drafts"]
    settings = {"num_steps": drafts, "eagle_topk": 1, "num_draft_tokens": drafts + 1, "algorithm": "EAGLE3"}
    settings |= {"draft_model_path": told["drafter"]}
    engine = sglang_runner.engine_module.Engine(
        model_path=told["target"],
        **sglang_runner.SETTINGS,
        sleep_on_idle=True,  # the others have their turns
        **({f"speculative_{name}": value for name, value in settings.items()} if drafts else {}),
    )
    sampling = {"temperature": 0, "max_new_tokens": told["new_tokens"], "stop_token_ids": told["ends"]}

    def answer(prompt: list[int]) -> tuple[list[int], int | None]:
        made = engine.generate(input_ids=prompt, sampling_params=sampling)
        lengths = made["meta_info"].get("spec_correct_drafts_histogram", [])
        return made["output_ids"], len(lengths) if drafts else None

    yield answer
    engine.shutdown()


@contextlib.contextmanager
def llamacpp(told: dict[str, Any]) -> Iterator[Answer]:
    """``llama-server``, started as ``eval --start`` does; it counts draft tokens, and a pass gives one token more."""
    from vocabforge.evaluate.servers.process import started

    threads = told["threads"]
    command = (
        f"{told['program']} -m {told['target']} --port {{port}} --host 127.0.0.1 -t {threads} -np 1 -c 1024"
    )
    command += " -fa off -ctk f32 -ctv f32 -fit off --no-cache-prompt --no-ui"
    if told["drafts"]:
        command += f" -md {told['drafter']} --spec-type draft-eagle3 --spec-draft-n-max {told['drafts']}"
        command += f" -ctkd f32 -ctvd f32 -td {threads}"
    with started("llama.cpp", command, Path(told["log"]), key=None, health_s=120.0) as url:
        asked = {"temperature": 0, "n_predict": told["new_tokens"], "return_tokens": True}

        def answer(prompt: list[int]) -> tuple[list[int], int | None]:
            body = json.dumps({"prompt": prompt, **asked}).encode()
            where = f"{url.removesuffix('/v1')}/completion"
            request = urllib.request.Request(where, body, {"Content-Type": "application/json"})
            with urllib.request.urlopen(request) as response:
                made = json.load(response)
            taken = made["timings"].get("draft_n_accepted", 0)
            return made["tokens"], made["timings"]["predicted_n"] - 1 - taken if told["drafts"] else None

        yield answer


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # engines print what they like
    kinds = {one.__name__: one for one in (vocabforge, transformers, vllm, sglang, llamacpp)}
    with kinds[sys.argv[1]](json.loads(sys.stdin.readline())) as answer:
        print(json.dumps("ready"), file=answers, flush=True)
        for line in sys.stdin:
            begin = time.perf_counter()
            tokens, passes = answer(json.loads(line))
            seconds = time.perf_counter() - begin
            row = {"tokens": tokens, "passes": passes, "seconds": seconds}
            print(json.dumps(row), file=answers, flush=True)


if __name__ == "__main__":
    main()
