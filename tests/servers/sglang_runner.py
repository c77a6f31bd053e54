"""Runs in SGLang's Python: REQUEST.json in, ANSWER.json out. Outputs and accepted lengths of real engines.

The request has ``target``, ``prompts`` (token ids), ``new_tokens`` and ``engines``: name -> settings of ``sgl.Engine``,
an empty object for plain decoding. Greedy, fp32, one prompt at a time.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from pathlib import Path
from typing import Any

os.environ.update(SGLANG_USE_CPU_ENGINE="1", HF_HUB_OFFLINE="1", TORCH_COMPILE_DISABLE="1")

import sglang_stand_ins

sglang_stand_ins.install()

import sglang.srt.entrypoints.engine as engine_module  # noqa: E402
from sglang.srt.managers.schedule_batch import Req  # noqa: E402

SETTINGS = {
    "dtype": "float32",
    "device": "cpu",
    # SGLang's own CPU backend; given as the base backend it falls back to another where the processor has no AMX.
    "prefill_attention_backend": "intel_amx",
    "decode_attention_backend": "intel_amx",
    "disable_radix_cache": True,
    "max_running_requests": 1,
    "max_total_tokens": 1024,
    "context_length": 512,
    "mem_fraction_static": 0.5,
    "skip_tokenizer_init": True,
    "skip_server_warmup": True,
    "log_level": "warning",
}


def main() -> None:
    request = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    watch()
    answers = {}
    for name, settings in request["engines"].items():
        receive, send = multiprocessing.Pipe(duplex=False)
        process = multiprocessing.Process(target=generate, args=(request, settings, send))
        process.start()
        send.close()
        answers[name] = receive.recv()
        process.join()
    Path(sys.argv[2]).write_text(json.dumps(answers), "utf-8")


def watch() -> None:
    """One import for all engines: processes are forked. The list of cycles takes the histogram's place in answers."""
    engine_module.mp.set_start_method = lambda *_, **__: None
    Req.update_spec_correct_drafts_histogram = lambda self, number: self.spec_correct_drafts_histogram.append(
        number
    )


def generate(request: dict[str, Any], settings: dict[str, Any], send: Any) -> None:
    engine = engine_module.Engine(model_path=request["target"], **SETTINGS, **settings)
    sampling = {"temperature": 0, "max_new_tokens": request["new_tokens"]}
    made = [engine.generate(input_ids=prompt, sampling_params=sampling) for prompt in request["prompts"]]
    send.send(
        {
            "tokens": [one["output_ids"] for one in made],
            "lengths": [
                [number + 1 for number in one["meta_info"].get("spec_correct_drafts_histogram", [])]
                for one in made
            ],
        }
    )
    engine.shutdown()


if __name__ == "__main__":
    main()
