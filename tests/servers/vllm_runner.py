"""Runs vLLM on a CPU, in vLLM's own environment: ``vllm_runner REQUEST ANSWER`` (JSON).

vLLM is imported once; each job has a process of its own, forked from that, because an engine leaves its state behind.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

os.environ.update(
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    VLLM_CPU_KVCACHE_SPACE="1",
    VLLM_CPU_OMP_THREADS_BIND="nobind",
    HF_HUB_OFFLINE="1",
    VLLM_LOGGING_LEVEL="WARNING",
    VLLM_NO_USAGE_STATS="1",
)

import vllm
from vllm.v1.core.sched.scheduler import Scheduler


def watch() -> tuple[dict[str, list[int]], list[list[list[int]]]]:
    """The tokens that each cycle of each request will commit, by request, and what will be drafted in every step."""
    cycles: dict[str, list[int]] = {}
    drafts: list[list[list[int]]] = []
    taken = Scheduler.update_draft_token_ids

    def noted(self: Any, found: Any) -> Any:
        drafts.append([list(map(int, one)) for one in found.draft_token_ids])
        return taken(self, found)

    Scheduler.update_draft_token_ids = noted
    original = Scheduler.make_spec_decoding_stats

    def watched(self: Any, stats: Any, num_draft_tokens: int, num_accepted_tokens: int, **more: Any) -> Any:
        cycles.setdefault(more["request_id"], []).append(num_accepted_tokens + 1)
        return original(
            self, stats, num_draft_tokens=num_draft_tokens, num_accepted_tokens=num_accepted_tokens, **more
        )

    Scheduler.make_spec_decoding_stats = watched
    return cycles, drafts


def engine(target: str, side_by_side: int, speculative: dict[str, Any] | None, **more: Any) -> vllm.LLM:
    settings = {
        "dtype": "float32",
        "enforce_eager": True,
        "max_model_len": 512,
        "enable_prefix_caching": False,
        "disable_log_stats": False,
        "max_num_seqs": side_by_side,
        "speculative_config": speculative,
    }
    return vllm.LLM(target, **{**settings, **more})


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Greedy outputs of all prompts, and what :func:`watch` has seen."""
    cycles, drafts = watch()
    made = engine(job["model"], job["side_by_side"], job["speculative"], **job.get("engine", {}))
    ends = {"ignore_eos": job.get("ignore_eos", False)}
    sampling = vllm.SamplingParams(temperature=0.0, max_tokens=job["new_tokens"], **ends)
    prompts = [{"prompt_token_ids": prompt} for prompt in job["prompts"]]
    outputs = made.generate(prompts, sampling, use_tqdm=False)
    return {
        "drafts": drafts,
        "tokens": [list(one.outputs[0].token_ids) for one in outputs],
        # vLLM adds a tag of its own behind the number of a request.
        "lengths": [
            next((found for name, found in cycles.items() if name.split("-")[0] == one.request_id), [])
            for one in outputs
        ],
    }


def forked(job: dict[str, Any], answer: Path) -> dict[str, Any]:
    child = os.fork()
    if child == 0:
        try:
            answer.write_text(json.dumps(run(job)), "utf-8")
        except BaseException:  # noqa: BLE001 (told to the test, whatever it is)
            answer.write_text(json.dumps({"error": traceback.format_exc()}), "utf-8")
        finally:
            sys.stdout.flush()
            os._exit(0)
    os.waitpid(child, 0)
    return json.loads(answer.read_text("utf-8"))


def main() -> None:
    request, answer = Path(sys.argv[1]), Path(sys.argv[2])
    jobs = json.loads(request.read_text("utf-8"))["jobs"]
    found = {name: forked(job, answer) for name, job in jobs.items()}
    answer.write_text(json.dumps(found), "utf-8")


if __name__ == "__main__":
    main()
