"""``vocabforge generate``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..core.console import spelled_out
from .app import JsonOption, print_json
from .decode_options import (
    OneDraftingOptions,
    PassOptions,
    PromptFormatOption,
    TargetOption,
    TokenizerOption,
    build_options,
)
from .head_options import OneHeadOptions, check_one_way
from .sampling_options import SamplingOptions

if TYPE_CHECKING:
    from ..corpus.tokenizer import TextTokenizer
    from ..decode.build import Method
    from ..decode.request import Generation, SamplingParams


@dataclass(frozen=True, kw_only=True)
class WayOptions:
    """The target, and what drafts for it."""

    target: TargetOption
    drafter: Annotated[
        Path | None,
        typer.Option(
            "--drafter",
            help="Trained drafter, or a smaller model of any vocabulary; without one, plain.",
        ),
    ] = None
    proposer: Annotated[
        list[str] | None,
        typer.Option(
            "--proposer",
            metavar="NAME",
            help="n-gram or early-exit (no drafter), or how the drafter drafts: draft-model for a model with the "
            "target's vocabulary, tli, slem or slrs for one with another, medusa, eagle1, eagle2 or eagle3 for a "
            "trained drafter [default: by its kind and vocabulary].",
        ),
    ] = None
    vocab: Annotated[
        Path | None, typer.Option("--vocab", help="Subset artefact: draft with these tokens only.")
    ] = None
    heads: OneHeadOptions

    def check(self) -> None:
        """Refuse what needs no model to be refused.

        Raises:
            UsageError: nothing that a vocabulary restricts, or several ways of drafting.
        """
        _check_one_drafter(self.drafter, self.proposer or [], self.vocab)
        check_one_way(self.vocab, self.heads.head, self.heads.dynamic)


@dataclass(frozen=True, kw_only=True)
class EndOptions:
    """Where the output ends."""

    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", min=1)] = 256
    stop: Annotated[
        list[str] | None, typer.Option("--stop", help="End the output before this text. Repeatable.")
    ] = None


@dataclass(frozen=True, kw_only=True)
class RequestOptions:
    """How the prompt is read, and where the draws begin."""

    seed: Annotated[
        int,
        typer.Option(
            "--seed",
            metavar="N",
            min=0,
            max=2**63 - 1,
            help="Start of the random streams; the same seed, the same output.",
        ),
    ] = 0
    tokenizer: TokenizerOption = None
    prompt_format: PromptFormatOption = "auto"


def generate(
    way: WayOptions,
    prompt: Annotated[str, typer.Option("--prompt", help="Text to continue or to answer.")],
    end: EndOptions,
    sampling: SamplingOptions,
    request: RequestOptions,
    drafting: OneDraftingOptions,
    passes: PassOptions,
    as_json: JsonOption = False,
) -> None:
    """Generate text, streaming, and print the accepted length and tokens/s."""
    from ..corpus.tokenizer import load_tokenizer
    from ..decode.build import build_methods

    way.check()
    law = sampling.with_seed(request.seed)
    options = build_options(
        drafting.as_many(),
        way.heads.as_many(),
        passes,
        tokenizer=request.tokenizer,
        proposers=way.proposer or [],
        sampled=sampling.temperature > 0,
    )
    drafters, vocabs = ([] if path is None else [str(path)] for path in (way.drafter, way.vocab))
    method = build_methods(way.target, drafters, vocabs, options=options)[-1]
    asked = _Asked(load_tokenizer(request.tokenizer or way.target), prompt, request.prompt_format)
    limits = (end.max_new_tokens, law, end.stop or [])
    result, text = _stream(method, asked, limits, warm=options.wrap is not None, quiet=as_json)
    if as_json:
        print_json(_facts(method, result, text))
    else:
        typer.echo("")
        _say_figures(method, result)


def _check_one_drafter(drafter: Path | None, proposers: Sequence[str], vocab: Path | None) -> None:
    from ..core.errors import UsageError
    from ..decode.proposers import ALONE

    if vocab is not None and drafter is None and "early-exit" not in proposers:
        raise UsageError("--vocab restricts a drafter", expected="--drafter DIR beside it")
    ways = [f"--proposer {name}" for name in proposers]
    if set(proposers) & set(ALONE) and drafter is not None:
        ways.append("--drafter")
    elif len(proposers) < 2:
        return
    raise UsageError(
        "one run of generate drafts in one way",
        got=" and ".join(ways),
        expected="one of them",
        remedy="vocabforge eval compares several",
    )


class _Asked:
    """A prompt as the target reads it, and the text of what follows it.

    Args:
        prompt_format: auto, chat or raw.
    """

    def __init__(self, tokenizer: TextTokenizer, prompt: str, prompt_format: str) -> None:
        from ..corpus.tokenizer import encode_prompt
        from ..evaluate.prompts import resolve_format

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
    from ..decode.engine import Decoder
    from ..decode.request import Generation, Request
    from ..decode.stops import StopStrings
    from ..decode.work import check_request

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
    from ..decode.drafting_counts import figures_of

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
    from ..core.progress import say
    from ..decode.drafting_counts import phrase_of

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
