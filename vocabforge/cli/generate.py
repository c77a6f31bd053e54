"""``vocabforge generate``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..core.console import spelled_out
from . import decode_options as decoding
from .app import JsonOption, print_json
from .head_options import (
    BudgetOption,
    HeadRowsOption,
    OneDynamicOption,
    OneHeadOption,
    RankerFp8Option,
    ShortlistOption,
    check_one_way,
    head_request,
)

if TYPE_CHECKING:
    from ..corpus.tokenizer import TextTokenizer
    from ..decode.build import Method
    from ..decode.request import SamplingParams
    from ..decode.result import Generation


def generate(
    target: Annotated[Path, typer.Option("--target", help="Folder of the target model (safetensors).")],
    prompt: Annotated[str, typer.Option("--prompt", help="Text to continue or to answer.")],
    drafter: Annotated[
        Path | None,
        typer.Option(
            "--drafter",
            help="Trained drafter, or a smaller model of any vocabulary; without one, plain.",
        ),
    ] = None,
    proposer: Annotated[
        list[str] | None,
        typer.Option(
            "--proposer",
            metavar="NAME",
            help="n-gram or early-exit (no drafter), or how the drafter drafts: draft-model for a model with the "
            "target's vocabulary, tli, slem or slrs for one with another, medusa, eagle1, eagle2 or eagle3 for a "
            "trained drafter [default: by its kind and vocabulary].",
        ),
    ] = None,
    vocab: Annotated[
        Path | None, typer.Option("--vocab", help="Subset artefact: draft with these tokens only.")
    ] = None,
    head: OneHeadOption = None,
    shortlist: ShortlistOption = None,
    budget: BudgetOption = None,
    head_rows: HeadRowsOption = None,
    ranker_fp8: RankerFp8Option = None,
    dynamic: OneDynamicOption = None,
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", min=1)] = 256,
    stop: Annotated[
        list[str] | None, typer.Option("--stop", help="End the output before this text. Repeatable.")
    ] = None,
    temperature: decoding.TemperatureOption = 0.0,
    sampling_top_k: decoding.SamplingTopKOption = 0,
    top_p: decoding.TopPOption = 1.0,
    min_p: decoding.MinPOption = 0.0,
    repetition_penalty: decoding.RepetitionOption = 1.0,
    presence_penalty: decoding.PresenceOption = 0.0,
    frequency_penalty: decoding.FrequencyOption = 0.0,
    seed: decoding.SeedOption = 0,
    tokenizer: Annotated[
        Path | None, typer.Option("--tokenizer", help="Tokenizer folder [default: the target's].")
    ] = None,
    prompt_format: Annotated[str, typer.Option("--prompt-format", help="auto, chat or raw.")] = "auto",
    tree: decoding.TreeOption = None,
    tree_file: decoding.TreeFileOption = None,
    draft_sampling: decoding.DraftSamplingOption = False,
    depth: decoding.DepthOption = None,
    topk: decoding.TopkOption = None,
    total_nodes: decoding.NodesOption = None,
    exit_layers: decoding.LayersOption = None,
    ngram: decoding.NgramOption = None,
    look_ahead: decoding.LookAheadOption = None,
    single_token: decoding.SingleOption = False,
    overlap: decoding.OneOverlapOption = None,
    drafter_tokenizer: decoding.DrafterTokenizerOption = None,
    control: decoding.ControlOption = decoding.ControlName.fixed,
    compiled: decoding.CompileOption = False,
    graphs: decoding.GraphsOption = None,
    dtype: Annotated[str, typer.Option("--dtype", help="float32, bfloat16 or float16.")] = "float32",
    device: Annotated[str | None, typer.Option("--device", help="cpu, cuda, cuda:1 …")] = None,
    as_json: JsonOption = False,
) -> None:
    """Generate text, streaming, and print the accepted length and tokens/s."""
    from ..corpus.tokenizer import load_tokenizer
    from ..decode.build import build_methods
    from ..decode.build_options import BuildOptions
    from ..decode.request import SamplingParams

    _check_one_drafter(drafter, proposer or [], vocab)
    check_one_way(vocab, head, dynamic)
    sampling = SamplingParams(
        temperature,
        sampling_top_k,
        top_p,
        min_p,
        repetition_penalty,
        presence_penalty,
        frequency_penalty,
        seed,
    )
    wrap = decoding.wrap_for(compiled, graphs, device)
    method = build_methods(
        target,
        [str(drafter)] if drafter else [],
        [str(vocab)] if vocab else [],
        options=BuildOptions(
            tokenizer=tokenizer,
            device=device,
            dtype=dtype,
            proposers=proposer or [],
            draft=decoding.draft_options(
                tree,
                ngram,
                sample=draft_sampling,
                depth=depth,
                topk=topk,
                total_nodes=total_nodes,
                tree_file=tree_file,
                layers=exit_layers,
                look_ahead=look_ahead,
                single=single_token,
            ),
            heads=head_request(
                [str(head)] if head else None,
                shortlist,
                budget,
                head_rows,
                [dynamic] if dynamic else None,
                ranker_fp8,
            ),
            control=control.value,
            wrap=wrap,
            sampled=temperature > 0,
            overlaps=[overlap] if overlap else [],
            drafter_tokenizer=drafter_tokenizer,
        ),
    )[-1]
    asked = _Asked(load_tokenizer(tokenizer or target), prompt, prompt_format)
    limits = (max_new_tokens, sampling, stop or [])
    result, text = _stream(method, asked, limits, warm=wrap is not None, quiet=as_json)
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
    from ..decode.request import Request
    from ..decode.result import Generation
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
    if counted := phrase_of(result.counts):
        say(f"[{method.name}] {counted}")
