"""Which prompts are answered, by what, and how."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from ...core.config import (
    CONTENT_FORMAT,
    RAY,
    STRICT,
    ModelPath,
    Positive,
    StrictModel,
    TokenizerPath,
    option,
)


class RegenerateRequest(StrictModel):
    """The rows, the backend that answers, the sampling settings and the output."""

    input: tuple[str, ...] = option(
        ...,
        "Conversations: files, folders, globs, data sets (`ultrachat`, `hub:NAME[:CONFIG[:SPLIT]]`).",
        "PATH",
        many=True,
    )
    output: Path = option(..., "Artefact; its rows are in `responses.jsonl`.", "DIR")
    target: ModelPath | None = option(
        None, "Target that answers in this process: a folder or a Hub name.", "DIR"
    )
    server: tuple[str, ...] = option(
        (),
        "Instead of --target: an OpenAI-compatible server that runs the target (`http://host:8000`).",
        "URL",
        many=True,
    )
    model: str | None = option(None, "Model name at the servers [default: the model they serve].", "NAME")
    temperature: Annotated[float, Field(ge=0)] = option(0.0, "0 is greedy.", "T")
    top_p: Annotated[float, Field(ge=1e-6, le=1)] = option(1.0, "Nucleus sampling.", "P")
    max_tokens: Positive = option(2048, "Maximum tokens per answer.", "N")
    seed: Annotated[int, Field(ge=0)] = option(
        0, "Random seed. Each request derives its own from it and the content.", "N"
    )
    first_turn_only: bool = option(False, "Answer the first question and end the conversation there.")
    prompt_field: str | None = option(
        None, "Field of rows with only a prompt (a text or a list of turns).", "NAME"
    )
    send_reasoning: bool = option(False, "Include the reasoning of earlier turns in the prompt.")
    template_arg: tuple[str, ...] = option(
        (), "Argument of the chat template (`enable_thinking=false`).", "KEY=VALUE", many=True
    )
    body: tuple[str, ...] = option(
        (), "Additional key of a server request (`top_k=20`); `null` removes one.", "KEY=VALUE", many=True
    )
    empty: Literal["keep", "drop"] = option(
        "drop", "Whether to **keep** or **drop** rows with an empty answer."
    )
    drop_failed: bool = option(False, "Drop rows whose requests failed.")
    concurrency: Positive = option(32, "Concurrent requests per server.", "N")
    timeout: Annotated[float, Field(ge=0.1)] = option(600.0, "Timeout of one answer, seconds.", "S")
    retries: Annotated[int, Field(ge=0)] = option(7, "Retries if a server is busy or unreachable.", "N")
    api_key_env: str | None = option(None, "Environment variable with the servers' API key.", "VARIABLE")
    batch_size: Positive = option(
        16, "With --target: requests decoded side by side. It does not change the answers.", "N"
    )
    ray: str | None = option(None, f"With --target. {RAY}", "ADDRESS")
    drafter: ModelPath | None = option(
        None,
        "With --target: a drafter, or a smaller model, that drafts the answers. It does not change them.",
        "DIR",
    )
    proposer: str | None = option(None, "With --target: another way of drafting, such as `n-gram`.", "NAME")
    dtype: str = option(
        "auto",
        "With --target: `auto` (the checkpoint's own on CUDA, `float32` on a CPU), `float32`, `bfloat16` or `float16`.",
        "NAME",
    )
    device: str = option("auto", "With --target: `auto`, `cpu`, `cuda`, `cuda:1`.", "NAME")
    device_map: str | None = option(
        None, "With --target: `auto` (over the GPUs), or JSON of modules and devices.", "PLAN"
    )
    tokenizer: TokenizerPath | None = option(
        None, "With --target: its tokenizer, if not in its folder.", "PATH"
    )
    sample: float | None = option(None, "Answer only this share of the rows, sampled with --seed.", "SHARE")
    content_format: Literal["auto", "text", "parts"] = option("auto", CONTENT_FORMAT)
    strict: bool = option(False, STRICT)
    fresh: bool = option(False, "Discard the answers of an unfinished run.")
