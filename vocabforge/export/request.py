"""What is exported, and how it is written."""

from __future__ import annotations

from pathlib import Path

from ..core.config import ModelPath, Positive, StrictModel, option

FULL = "full"
_FORMATS = (
    "sglang-eagle3 (SGLang and vLLM), vllm (vLLM with --head: the draft head runs in the server), speculators-eagle3 "
    "(vLLM), block (DFlash and DSpark: SGLang, vLLM, llama.cpp), speculators-block (P-EAGLE, DFlash and DSpark: "
    "speculators, vLLM), gguf (llama.cpp), eagle (EAGLE-1/2, see --server), fr-spec (EAGLE-1/2 with a draft "
    "vocabulary: SGLang, FR-Spec), medusa (vLLM 0.32), mtp (the target's own module, written back into its shards), or "
    "native: what this toolkit trains and decodes with. native imports a drafter made elsewhere."
)


class ExportRequest(StrictModel):
    """The drafter, and the format to write."""

    drafter: ModelPath = option(
        ..., "Drafter in any of the formats: OUTPUT/drafter of train-drafter, or one made elsewhere."
    )
    format: str = option(..., _FORMATS)
    output: Path = option(..., "Folder to make.")
    target: ModelPath | None = option(
        None, "Target: a folder, a GGUF file, or a name of the Hub [default: that of its training]."
    )
    vocab: str | None = option(
        None,
        "Draft vocabulary to write: a subset artefact, or full for the whole vocabulary. Rows that the drafter lacks "
        "are the target's.",
        "DIR|full",
    )
    head: Path | None = option(
        None,
        "vllm: draft head (ranker, low-rank, router) of this drafter to include.",
    )
    server: str | None = option(None, "eagle: sglang or vllm, whose layouts differ [default: sglang].")
    eval: tuple[Path, ...] = option((), "Evaluation of this drafter, for the model card.", many=True)
    speculative_tokens: Positive = option(
        5, "Draft tokens per cycle to recommend in speculators-eagle3 and the model card."
    )
    with_target: bool = option(
        False,
        "gguf, mtp: also write the target: as a second file (Llama and Qwen3), or as the whole checkpoint.",
    )
    dtype: str = option("float32", "Dtype of the written weights: float32, bfloat16 or float16.")
