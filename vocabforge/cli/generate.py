"""``vocabforge generate``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from . import decode_options as decoding
from .app import JsonOption, print_json
from .head_options import (
    BudgetOption,
    HeadRowsOption,
    OneDynamicOption,
    OneHeadOption,
    ShortlistOption,
    check_one_way,
    head_request,
)


def generate(
    target: Annotated[Path, typer.Option("--target", help="Folder of the target model (safetensors).")],
    prompt: Annotated[str, typer.Option("--prompt", help="Text to continue or to answer.")],
    drafter: Annotated[
        Path | None,
        typer.Option(
            "--drafter",
            help="Trained drafter, or a smaller model of the same vocabulary; without one, plain.",
        ),
    ] = None,
    proposer: Annotated[
        str | None,
        typer.Option("--proposer", help="n-gram or early-exit (no drafter), or how the drafter drafts."),
    ] = None,
    vocab: Annotated[
        Path | None, typer.Option("--vocab", help="Subset artefact: draft with these tokens only.")
    ] = None,
    head: OneHeadOption = None,
    shortlist: ShortlistOption = None,
    budget: BudgetOption = None,
    head_rows: HeadRowsOption = None,
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
    control: decoding.ControlOption = decoding.ControlName.fixed,
    compiled: decoding.CompileOption = False,
    dtype: Annotated[str, typer.Option("--dtype", help="float32, bfloat16 or float16.")] = "float32",
    device: Annotated[str | None, typer.Option("--device", help="cpu, cuda, cuda:1 …")] = None,
    as_json: JsonOption = False,
) -> None:
    """Generate text, streaming, and print the accepted length and tokens/s."""
    from ..core.errors import UsageError
    from ..core.progress import say
    from ..corpus.tokenizer import encode_prompt, load_tokenizer
    from ..decode.build import build_methods
    from ..decode.build_options import BuildOptions
    from ..decode.engine import Decoder
    from ..decode.proposers import ALONE
    from ..decode.request import Request, SamplingParams
    from ..decode.result import Generation
    from ..decode.stops import StopStrings
    from ..decode.work import check_request
    from ..evaluate.prompts import resolve_format

    if vocab is not None and drafter is None and proposer != "early-exit":
        raise UsageError("--vocab restricts a drafter", expected="--drafter DIR beside it")
    if proposer in ALONE and drafter is not None:
        raise UsageError(
            "one run of generate drafts in one way",
            got=f"--proposer {proposer} and --drafter",
            expected="one of them",
        )
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
    methods = build_methods(
        target,
        [str(drafter)] if drafter else [],
        [str(vocab)] if vocab else [],
        options=BuildOptions(
            tokenizer=tokenizer,
            device=device,
            dtype=dtype,
            proposers=[proposer] if proposer else [],
            draft=decoding.draft_options(
                tree, draft_sampling, depth, topk, total_nodes, tree_file, exit_layers, ngram
            ),
            heads=head_request(
                [str(head)] if head else None, shortlist, budget, head_rows, [dynamic] if dynamic else None
            ),
            control=control.value,
            wrap=decoding.wrap_for(compiled, device),
        ),
    )
    text_tokenizer = load_tokenizer(tokenizer or target)
    chat = resolve_format(text_tokenizer, prompt_format) == "chat"
    ids = encode_prompt(text_tokenizer, [{"role": "user", "content": prompt}] if chat else prompt)
    decoder = methods[-1].generator
    assert isinstance(decoder, Decoder)
    result = Generation()
    before = () if chat else tuple(ids[-8:])  # text that goes on: decoders strip the first space of a text
    stops = StopStrings(text_tokenizer, stop, before) if stop else None
    request = Request(ids, max_new_tokens, set(text_tokenizer.eos_ids), sampling, stops)
    check_request(request, decoder.context, decoder.target.config.vocab_size)
    if compiled:  # not while the text is being shown, and not in its time
        decoder.generate(ids, max_new_tokens=min(8, max_new_tokens), stop_ids=())
    if not as_json and not chat:
        typer.echo(prompt, nl=False)
    base = len(text_tokenizer.decode(before)) if before else 0
    written = text = ""

    def show(new: str) -> str:
        """Print what ``new`` adds; what is shown never changes."""
        if as_json or not new.startswith(written):
            return written
        sys.stdout.write(new[len(written) :])
        sys.stdout.flush()
        return new

    def whole() -> str:
        if stops is not None:
            return stops.text
        return text_tokenizer.decode([*before, *result.token_ids])[base:]

    for _ in decoder.stream(request, result):
        text = whole() if stops is None else stops.settled
        written = show(text.rstrip("\N{REPLACEMENT CHARACTER}"))  # the rest of a character may still come
    text = whole()
    show(text)
    tokens, seconds = len(result.token_ids), result.prefill_s + result.decode_s
    if as_json:
        print_json(
            {
                "method": methods[-1].name,
                "head": methods[-1].head,
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
                "tokens_per_s": tokens / seconds,
                "prefill_s": result.prefill_s,
                "decode_s": result.decode_s,
            }
        )
        return
    typer.echo("")
    say(
        f"[{methods[-1].name}] {tokens} tokens in {seconds:.2f} s, {tokens / seconds:.1f} tokens/s | "
        f"accepted length {result.mean_accepted_length:.2f} | {result.target_forwards} target forwards | "
        f"ended by {'a full context' if result.finish == 'cache' else result.finish}"
    )
