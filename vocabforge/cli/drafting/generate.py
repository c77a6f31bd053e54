"""``vocabforge generate``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import Field

from ...core.config import ModelPath, Positive, StrictModel, TokenizerPath, option
from ...core.console import say, spelled_out
from ..app import JsonOption, print_json, stdout_console
from .decoding_options import OneMethod, PassOptions, SamplingOptions, wrap_for

if TYPE_CHECKING:
    from ...corpus.tokenizer.tokenizer import TextTokenizer
    from ...decode.build.methods import Method
    from ...decode.text import Answer

_NEAR = 8  # tokens that are decoded together to find the text of the last one

# Fields of a generation that --json prints.
_FIGURES = (
    "token_ids",
    "finish",
    "mean_accepted_length",
    "accept_lengths",
    "accepted_by_depth",
    "drafted_by_depth",
    "drafted",
    "verified",
    "timings",
    "target_forwards",
    "prefill_s",
    "decode_s",
)


class GenerateRequest(StrictModel):
    """The prompt, its format, stop conditions and the random seed."""

    target: ModelPath = option(..., "Target: a folder, a GGUF file, or a name of the Hub.")
    prompt: str = option(..., "Text to continue or to answer.")
    max_new_tokens: Positive = option(256, "Maximum number of output tokens.")
    stop: tuple[str, ...] = option((), "Stop before this text.", many=True)
    seed: Annotated[int, Field(ge=0, lt=2**63)] = option(0, "Random seed.", "N")
    tokenizer: TokenizerPath | None = option(None, "Tokenizer folder [default: the target's].")
    prompt_format: str = option("auto", "auto, chat or raw; auto uses the chat template if there is one.")


def generate(
    request: GenerateRequest,
    spec: OneMethod,
    sampling: SamplingOptions,
    passes: PassOptions,
    as_json: JsonOption = False,
) -> None:
    """Generate text, streaming, and print the accepted length and tokens/s.

    On a terminal, accepted drafts are green.

    Example: `vocabforge generate --target Qwen/Qwen3-0.6B --drafter run/drafter --prompt "Why is the sky
        blue?"`
    """
    from ...core.progress import hushed
    from ...decode.build.grid import check_spec
    from ...decode.build.methods import kind_of
    from ...decode.build.models import Models
    from ...decode.text import Answer, TextDecoder
    from ...models.device import choose_device
    from ...models.target.load import decoding_dtype

    sampled = sampling.temperature > 0
    # Check before loading models.
    check_spec(spec, None if spec.drafter is None else kind_of(spec.drafter), sampled=sampled)
    wrap = wrap_for(passes.compile, passes.graphs, passes.device)
    models = Models(
        request.target,
        request.tokenizer,
        device=passes.device,
        dtype=decoding_dtype(request.target, passes.dtype, choose_device(passes.device)),
        backend=passes.target_backend,
        device_map=passes.device_map,
    )
    decoder, answer = TextDecoder(models, spec, sampled=sampled, wrap=wrap), Answer()
    pieces = decoder.stream(
        request.prompt,
        max_new_tokens=request.max_new_tokens,
        sampling=sampling.with_seed(request.seed),
        stop=request.stop,
        prompt_format=request.prompt_format,
        answer=answer,
    )
    coloured = sys.stdout.isatty() and stdout_console().color_system is not None
    with ExitStack() as shown:
        for number, piece in enumerate(pieces):
            if as_json:
                continue
            if number == 0:
                shown.enter_context(hushed())
                show(answer.prompt)
            drafted = drafted_part(piece, answer.generation.token_ids, models.tokenizer) if coloured else ""
            if drafted:
                show(typer.style(spelled_out(drafted), fg="green"), escape=False)
            show(piece[len(drafted) :])
    if as_json:
        print_json(_facts(decoder.method, answer))
    else:
        typer.echo("")
        if coloured and answer.generation.drafted:
            typer.echo(f"{typer.style('Green', fg='green')}: accepted drafts.")
        _say_figures(decoder.method, answer)


def show(text: str, *, escape: bool = True) -> None:
    """Print generated text, with control characters escaped on a terminal only."""
    sys.stdout.write(spelled_out(text) if escape and sys.stdout.isatty() else text)
    sys.stdout.flush()


def drafted_part(piece: str, ids: Sequence[int], tokenizer: TextTokenizer) -> str:
    """Return the part of a cycle's text that was drafted: all but the last of the ``ids`` so far."""
    near = ids[-_NEAR:]
    before = tokenizer.decode(near[:-1])
    last = tokenizer.decode(near).removeprefix(before)
    return piece.removesuffix(last) if last and piece.endswith(last) else ""


def _facts(method: Method, answer: Answer) -> dict[str, Any]:
    from ...decode.proposers.counts import figures_of

    return {
        "method": method.name,
        **{name: getattr(method, name) for name in ("description", "head", "verifier", "lossless")},
        "text": answer.text,
        **{name: getattr(answer.generation, name) for name in _FIGURES},
        "counts": figures_of(answer.generation.counts),
        "tokens_per_s": answer.tokens_per_s,
    }


def _say_figures(method: Method, answer: Answer) -> None:
    from ...decode.proposers.counts import phrase_of

    result = answer.generation
    tokens, seconds = len(result.token_ids), result.prefill_s + result.decode_s
    say(
        f"[{method.name}] {tokens} tokens in {seconds:.2f} s, {answer.tokens_per_s:.1f} tokens/s | "
        f"accepted length {result.mean_accepted_length:.2f} | {result.target_forwards} target forwards | "
        f"ended by {'a full context' if result.finish == 'cache' else result.finish}"
    )
    if not method.lossless:
        say(
            f"[{method.name}] not lossless: the verifier {method.verifier} keeps other drafts than the target would"
        )
    if counted := phrase_of(result.counts):
        say(f"[{method.name}] {counted}")
