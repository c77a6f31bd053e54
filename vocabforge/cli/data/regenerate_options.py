"""What ``vocabforge regenerate`` is asked for: rows, who answers, how answers are drawn, what becomes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from ...core.config import Positive, StrictModel


def _option(default: Any, text: str, metavar: str | None = None) -> Any:
    return Field(default, description=text, json_schema_extra={"metavar": metavar})


class RegenerateOptions(StrictModel):
    """Every field is an option."""

    target: Path | None = _option(None, "Target that answers in this process: a Hugging Face folder.", "DIR")
    server: tuple[str, ...] | None = _option(
        None, "Instead: an OpenAI-compatible server that runs the target (`http://host:8000`).", "URL"
    )
    model: str | None = _option(None, "Model name at the servers; default: the one they serve.", "NAME")
    temperature: Annotated[float, Field(ge=0)] = _option(0.0, "0 is greedy.", "T")
    top_p: Annotated[float, Field(ge=1e-6, le=1)] = _option(1.0, "Nucleus sampling.", "P")
    max_tokens: Positive = _option(2048, "Tokens of one answer at most.", "N")
    seed: Annotated[int, Field(ge=0)] = _option(
        0, "Each request draws its own seed from this one and its content.", "N"
    )
    first_turn_only: bool = _option(False, "Answer the first question and end the conversation there.")
    prompt_field: str | None = _option(
        None, "Field of rows that hold a prompt alone (a text, or a list of turns).", "NAME"
    )
    send_reasoning: bool = _option(False, "Let the target read the thinking of earlier turns.")
    template_arg: tuple[str, ...] | None = _option(
        None, "Argument of the chat template (`enable_thinking=false`).", "KEY=VALUE"
    )
    body: tuple[str, ...] | None = _option(
        None, "Further key of a server's request (`top_k=20`); `null` removes one.", "KEY=VALUE"
    )
    empty: Literal["keep", "drop"] = _option("drop", "Rows with an empty answer: **keep** or **drop** them.")
    drop_failed: bool = _option(False, "Leave out rows whose requests found no answer.")
    concurrency: Positive = _option(32, "Requests under way at each server.", "N")
    timeout: Annotated[float, Field(ge=0.1)] = _option(600.0, "Seconds that an answer may take.", "S")
    retries: Annotated[int, Field(ge=0)] = _option(7, "Further attempts at a busy or absent server.", "N")
    api_key_env: str | None = _option(
        None, "Environment variable that holds the servers' API key.", "VARIABLE"
    )
    batch_size: Positive = _option(16, "With --target: conversations a batch.", "N")
    dtype: str = _option("auto", "With --target: `auto`, `float32`, `bfloat16` or `float16`.", "NAME")
    device: str = _option("auto", "With --target: `auto`, `cpu`, `cuda`, `cuda:1`.", "NAME")
    device_map: str | None = _option(None, "With --target: `auto` spreads it over the GPUs.", "PLAN")
    tokenizer: Path | None = _option(None, "With --target: its tokenizer, if not in its folder.", "PATH")
    sample: float | None = _option(None, "Answer only this share of the rows, drawn by the seed.", "SHARE")
    strict: bool = _option(False, "The first unreadable row is an error.")
    fresh: bool = _option(False, "Discard the answers of an unfinished run.")
