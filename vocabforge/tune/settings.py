"""Settings of ``vocabforge tune``: models, questions, the time limit, and the searched methods."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from ..core.config import ModelPath, Positive, StrictModel, TokenizerPath, option
from ..core.values import Backend, parse_size, words_in


def _listed(value: Any, parse: Any = str) -> Any:
    return tuple(dict.fromkeys(map(parse, words_in(value)))) if isinstance(value, str) else value


Words = BeforeValidator(_listed)
Sizes = Annotated[tuple[int, ...], BeforeValidator(lambda value: _listed(value, parse_size))]


class TuneSettings(StrictModel):
    """The models, the questions and the time limit of a run. Every field is an option of the command."""

    target: ModelPath = option(..., "Target: a folder, a GGUF file, or a name of the Hub.")
    drafter: ModelPath = option(..., "Trained drafter, native or in another layout.")
    prompts: str = option(
        ...,
        "Question file of any format that eval reads, or the name of a benchmark. The first turns are decoded.",
    )
    batch: Positive = option(1, "Requests decoded side by side.")
    max_new_tokens: int = option(128, "Maximum tokens per answer.", ge=2)
    limit: Annotated[int, Field(ge=2)] = option(64, "Maximum questions, spread over the file.")
    prompt_format: str = option("auto", "auto, chat or raw; auto uses the chat template if there is one.")
    seconds: float = option(
        600.0,
        "Time budget. Unmeasured configurations are reported; re-run with more time to continue. inf measures "
        "everything.",
        ge=0,
        allow_inf_nan=True,
    )
    tokenizer: TokenizerPath | None = option(None, "Tokenizer folder [default: the target's].")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = option(
        "auto", "Dtype of target and drafter; auto is the checkpoint's own on a GPU, float32 on a CPU."
    )
    device: str | None = option(None, "cpu, cuda, cuda:1 … [default: cuda if available].")
    target_backend: Backend = option("auto", "lean, transformers (the target's own code) or auto.")


class MethodSpace(StrictModel):
    """Draft heads times draft trees; the options are those of ``eval``, several as lists."""

    vocab: tuple[str, ...] = option((), "Draft vocabulary (subset artefact).", "[LABEL=]DIR", many=True)
    head: tuple[str, ...] = option(
        (), "Draft head (ranker, low-rank, router) to draft with.", "[LABEL=]DIR", many=True
    )
    dynamic: tuple[str, ...] = option(
        (),
        "Add the tokens of the text so far to each --vocab.",
        "context[:SIZE]",
        many=True,
    )
    shortlist: Sizes = option((), "Numbers of candidates of a ranker [default: the saved one].", "N,...")
    budget: Annotated[tuple[str, ...], Words] = option(
        (), "Budgets of a router, as in eval [default: the saved one].", "K|SCHEDULE:MAX:MIN,..."
    )
    tree: Annotated[tuple[Literal["chain", "dynamic"], ...], Words] = option(
        ("chain", "dynamic"), "Shapes of the draft.", "chain,dynamic"
    )
    depth: Sizes = option(
        (), "Depths; d + 1 levels [default: 0,1,2,3,5 for chains, 1,3,5 for dynamic trees].", "N,..."
    )
    topk: Sizes = option((2, 4, 8), "Children of a node in dynamic trees.", "N,...")
    total_nodes: Sizes = option(
        (8, 16, 32, 60), "Nodes per verification of dynamic trees, including the root.", "N,..."
    )
