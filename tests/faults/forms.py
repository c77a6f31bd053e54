"""Commands in further forms: states and answers from servers, a block drafter, an MTP module written back."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
import yaml

from tests.faults.faults_world import (
    Job,
    content,
    eval_result,
    figures,
    file_digest,
    trained,
    write_lines,
)
from tests.faults.servers import SENT, url_of
from tests.train.run_support import settings as train_settings

DRAFTER = {"kind": "dflash", "block_size": 4, "num_layers": 1}


def make_forms_world(world: Path) -> None:
    """Questions, a recipe of a block drafter, a target with an MTP module, and another module for it."""
    from tests.models.mtp_targets import make_target
    from tests.worlds import byte_tokenizer
    from vocabforge.layouts.registry import load_drafter
    from vocabforge.models.drafters.io import load_target_tensors, save_drafter
    from vocabforge.models.target.fingerprint import target_fingerprint

    asked = [["Tell a story", "Once more"], ["Write a poem"], ["Who was it"], ["What is it", "And why"]]
    rows = [{"question_id": n, "category": "plain", "turns": turns} for n, turns in enumerate(asked, 1)]
    write_lines(world / "served.jsonl", rows)
    sections = {
        "data": {"sequence_length": 32, "heldout_documents": 3, "heldout_prompts": 2},
        "drafter": DRAFTER,
        "ttt": {"anchors": 4},
        "optim": {"steps": 6, "batch_size": 2},
        "run": {"live": {"prompts": 0}, "trackers": [], "eval_every": 3, "checkpoint_every": 2, "keep": 2},
    }
    values = train_settings(world, "unused", **sections)
    values["ttt"].pop("steps")
    (world / "block.yaml").write_text(yaml.safe_dump(values))
    own = byte_tokenizer(make_target(world / "own", "qwen3_next", vocab_size=264))
    module, _ = load_drafter(own, load_target_tensors(own), own)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(1.25)
    save_drafter(world / "module", module, {"target_fingerprint": target_fingerprint(own)})


def _captured(work: Path) -> Mapping[str, str]:
    left = sorted(file.name for file in (work / SENT).iterdir())
    return {"out": content(work / "out"), "unread states": ", ".join(left)}


def _block(work: Path) -> Mapping[str, str]:
    out = work / "out"
    found = trained(work, "drafter", "best")
    return {**found, "metrics.jsonl": figures(out), "prompts": file_digest(out / "heldout_prompts.jsonl")}


def _written(work: Path) -> Mapping[str, str]:
    files = sorted((work / "out").glob("*.safetensors"))
    assert len(files) == 2, files
    return {"out": content(work / "out"), **{file.name: file_digest(file) for file in files}}


FORMS: dict[str, Job] = {
    job.name: job
    for job in (
        Job(
            "capture-server",
            lambda world, work: [
                *("capture", "--config", world / "train.yaml", f"output={work / 'run'}", "--yes"),
                *("--server", url_of(world, work, "states"), "--server-folder", work / SENT),
                *("--output", work / "out", "--shard-mb", 1, "capture.server.concurrency=2"),
            ],
            result=_captured,
        ),
        Job(
            "eval-server",
            lambda world, work: [
                *("eval", "--server", f"eagle3={url_of(world, work, 'vllm')}"),
                *("--server", f"plain={url_of(world, work, 'plain')}", "--benchmark", world / "served.jsonl"),
                *("--max-new-tokens", 16, "--warmup", 1, "--output", work / "out"),
            ],
            result=eval_result,
        ),
        Job(
            "train-dflash",
            lambda world, work: ["train-drafter", "--config", world / "block.yaml", f"output={work / 'out'}"],
            ("out/drafter", "out/best", "out/checkpoints/step-*", "out/data/*"),
            _block,
        ),
        Job(
            "export-mtp",
            lambda world, work: [
                *("export", "--drafter", world / "module", "--target", world / "own", "--format", "mtp"),
                *("--with-target", "--output", work / "out"),
            ],
            result=_written,
        ),
    )
}
