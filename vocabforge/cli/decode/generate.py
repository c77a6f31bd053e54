"""``vocabforge generate``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import Field

from ...core.config import ModelPath, Positive, StrictModel, TokenizerPath
from ...core.console import spelled_out
from ..app import JsonOption, print_json
from ..options.decoding import OneMethod, PassOptions, SamplingOptions, wrap_for
from ..options.groups import option

if TYPE_CHECKING:
    from ...corpus.tokenizer.tokenizer import TextTokenizer
    from ...decode.build.methods import Method
    from ...decode.request import Generation, SamplingParams


class GenerateRequest(StrictModel):
    """The prompt, how it is read, where the output ends, and where the draws begin."""

    target: ModelPath = option(..., "Target: a folder, or a name of the Hub (safetensors).")
    prompt: str = option(..., "Text to continue or to answer.")
    max_new_tokens: Positive = option(256, "Most tokens of the output.")
    stop: tuple[str, ...] = option((), "End the output before this text.", many=True)
    seed: Annotated[int, Field(ge=0, lt=2**63)] = option(
        0, "Start of the random streams; the same seed, the same output.", "N"
    )
    tokenizer: TokenizerPath | None = option(None, "Tokenizer folder [default: the target's].")
    prompt_format: str = option("auto", "auto, chat or raw; auto uses the chat template if there is one.")


def generate(
    request: GenerateRequest,
    spec: OneMethod,
    sampling: SamplingOptions,
    passes: PassOptions,
    as_json: JsonOption = False,
) -> None:
    """Generate text, streaming, and print the accepted length and tokens/s."""
    from ...corpus.tokenizer.tokenizer import load_tokenizer
    from ...decode.build.grid import check_spec
    from ...decode.build.methods import build_method, kind_of
    from ...decode.build.models import Models
    from ...decode.control.threads import choose_threads
    from ...models.device import choose_device
    from ...models.target.load import decoding_dtype

    sampled = sampling.temperature > 0
    check_spec(spec, None if spec.drafter is None else kind_of(spec.drafter), sampled=sampled)
    limits = (request.max_new_tokens, sampling.with_seed(request.seed), request.stop)
    wrap = wrap_for(passes.compile, passes.graphs, passes.device)
    models = Models(
        request.target,
        request.tokenizer,
        device=passes.device,
        dtype=decoding_dtype(request.target, passes.dtype, choose_device(passes.device)),
        backend=passes.target_backend,
        device_map=passes.device_map,
    )
    method = build_method(models, spec, spec.label, wrap=wrap, sampled=sampled)
    choose_threads([method.generator], wrap, sampled=sampled)
    asked = _Asked(load_tokenizer(request.tokenizer or request.target), request.prompt, request.prompt_format)
    result, text = _stream(method, asked, limits, warm=wrap is not None, quiet=as_json)
    if as_json:
        print_json(_facts(method, result, text))
    else:
        typer.echo("")
        _say_figures(method, result)


class _Asked:
    """A prompt as the target reads it, and the text of what follows it.

    Args:
        prompt_format: auto, chat or raw.
    """

    def __init__(self, tokenizer: TextTokenizer, prompt: str, prompt_format: str) -> None:
        from ...corpus.tokenizer.tokenizer import encode_prompt
        from ...evaluate.run.prompts import resolve_format

        self.tokenizer, self.prompt = tokenizer, prompt
        self.chat = resolve_format(tokenizer, prompt_format) == "chat"
        self.ids = encode_prompt(tokenizer, [{"role": "user", "content": prompt}] if self.chat else prompt)
        # Text that goes on: decoders strip the first space of a text.
        self.before = () if self.chat else tuple(self.ids[-8:])
        self._base = len(tokenizer.decode(self.before)) if self.before else 0

    def text(self, ids: Sequence[int]) -> str:
        """What new tokens say."""
        return self.tokenizer.decode([*self.before, *ids])[self._base :]


class _Shown:
    """Text on the terminal; what is shown never changes."""

    def __init__(self, quiet: bool) -> None:
        self._quiet, self._written = quiet, ""

    def show(self, text: str) -> None:
        """Print what ``text`` adds."""
        if self._quiet or not text.startswith(self._written):
            return
        new = text[len(self._written) :]
        # A model's text may hold what a terminal obeys; a file or a pipe gets it as it is.
        sys.stdout.write(spelled_out(new) if sys.stdout.isatty() else new)
        sys.stdout.flush()
        self._written = text


def _stream(
    method: Method,
    asked: _Asked,
    limits: tuple[int, SamplingParams, Sequence[str]],
    *,
    warm: bool,
    quiet: bool,
) -> tuple[Generation, str]:
    """Decode and print as it comes; what was decoded and its text.

    Args:
        limits: most new tokens, how they are chosen, texts that end the output.
        warm: passes are compiled or captured first, not while the text is being shown and not in its time.
    """
    from ...core.progress import hide
    from ...decode.engine import Decoder
    from ...decode.request import Generation, Request
    from ...decode.stops import StopStrings
    from ...decode.work import check_request

    decoder = method.generator
    assert isinstance(decoder, Decoder)
    most, sampling, stop = limits
    stops = StopStrings(asked.tokenizer, stop, asked.before) if stop else None
    request = Request(asked.ids, most, set(asked.tokenizer.eos_ids), sampling, stops)
    check_request(request, decoder.context, decoder.target.config.vocab_size)
    if warm:
        # The same size of cache and the same kind of choice; three cycles meet every pass.
        for _ in islice(decoder.stream(Request(asked.ids, most, (), sampling), Generation()), 4):
            pass
    if not quiet:
        hide()
    if not quiet and not asked.chat:
        typer.echo(asked.prompt, nl=False)
    result, shown = Generation(), _Shown(quiet)
    for _ in decoder.stream(request, result):
        text = asked.text(result.token_ids) if stops is None else stops.settled
        shown.show(text.rstrip("\N{REPLACEMENT CHARACTER}"))  # the rest of a character may still come
    text = asked.text(result.token_ids) if stops is None else stops.text
    shown.show(text)
    return result, text


def _facts(method: Method, result: Generation, text: str) -> dict[str, Any]:
    """What ``--json`` prints."""
    from ...decode.counts import figures_of

    return {
        "method": method.name,
        "description": method.description,
        "head": method.head,
        "verifier": method.verifier,
        "lossless": method.lossless,
        "text": text,
        "token_ids": result.token_ids,
        "finish": result.finish,
        "mean_accepted_length": result.mean_accepted_length,
        "accept_lengths": result.accept_lengths,
        "accepted_by_depth": result.accepted_by_depth,
        "drafted_by_depth": result.drafted_by_depth,
        "drafted": result.drafted,
        "verified": result.verified,
        "timings": result.timings,
        "target_forwards": result.target_forwards,
        "counts": figures_of(result.counts),
        "tokens_per_s": len(result.token_ids) / (result.prefill_s + result.decode_s),
        "prefill_s": result.prefill_s,
        "decode_s": result.decode_s,
    }


def _say_figures(method: Method, result: Generation) -> None:
    from ...core.console import say
    from ...decode.counts import phrase_of

    tokens, seconds = len(result.token_ids), result.prefill_s + result.decode_s
    say(
        f"[{method.name}] {tokens} tokens in {seconds:.2f} s, {tokens / seconds:.1f} tokens/s | "
        f"accepted length {result.mean_accepted_length:.2f} | {result.target_forwards} target forwards | "
        f"ended by {'a full context' if result.finish == 'cache' else result.finish}"
    )
    if not method.lossless:
        say(
            f"[{method.name}] not lossless: the verifier {method.verifier} keeps other drafts than the target would"
        )
    if counted := phrase_of(result.counts):
        say(f"[{method.name}] {counted}")
