"""What is exported or given another draft vocabulary, and how it is written."""

from __future__ import annotations

from pathlib import Path

from ..core.config import ModelPath, Positive, StrictModel, TokenizerPath, option

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
    vocab: Path | None = option(None, "Subset artefact: restrict the draft head to these tokens.")
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


class RevocabRequest(StrictModel):
    """The drafter, its new draft vocabulary, and the output format."""

    drafter: ModelPath = option(..., "Trained drafter in any layout, including others' drafters.")
    vocab: str = option(..., "Subset artefact, or full for the whole vocabulary.", "DIR|full")
    output: Path = option(..., "Folder to make.")
    target: ModelPath | None = option(
        None, "Target: a folder, a GGUF file, or a name of the Hub [default: that of its training]."
    )
    tokenizer: TokenizerPath | None = option(None, "Tokenizer folder [default: the target's].")
    format: str = option("native", "Layout to write, as in export.")
    dtype: str | None = option(None, "float32, bfloat16 or float16 [default: as the drafter is stored].")
