"""``vocabforge generate``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from .app import JsonOption, print_json
from .head_options import BudgetOption, HeadRowsOption, OneHeadOption, ShortlistOption, head_request


def generate(
    target: Annotated[Path, typer.Option("--target", help="Folder of the target model (safetensors).")],
    prompt: Annotated[str, typer.Option("--prompt", help="Text to continue or to answer.")],
    drafter: Annotated[
        Path | None, typer.Option("--drafter", help="Drafter; without one, plain decoding.")
    ] = None,
    vocab: Annotated[
        Path | None, typer.Option("--vocab", help="Subset artefact: draft with these tokens only.")
    ] = None,
    head: OneHeadOption = None,
    shortlist: ShortlistOption = None,
    budget: BudgetOption = None,
    head_rows: HeadRowsOption = None,
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", min=1)] = 256,
    temperature: Annotated[float, typer.Option("--temperature", min=0.0, help="0 is greedy.")] = 0.0,
    seed: Annotated[int, typer.Option("--seed", min=0, max=2**63 - 1)] = 0,
    tokenizer: Annotated[
        Path | None, typer.Option("--tokenizer", help="Tokenizer folder [default: the target's].")
    ] = None,
    prompt_format: Annotated[str, typer.Option("--prompt-format", help="auto, chat or raw.")] = "auto",
    depth: Annotated[int | None, typer.Option("--depth", min=0, help="Depth of the draft tree.")] = None,
    topk: Annotated[int | None, typer.Option("--topk", min=1, help="Children of a node.")] = None,
    total_nodes: Annotated[
        int | None, typer.Option("--total-nodes", min=2, help="Nodes, root included.")
    ] = None,
    dtype: Annotated[str, typer.Option("--dtype", help="float32, bfloat16 or float16.")] = "float32",
    device: Annotated[str | None, typer.Option("--device", help="cpu, cuda, cuda:1 …")] = None,
    as_json: JsonOption = False,
) -> None:
    """Generate text, streaming, and print the accepted length and tokens/s."""
    from ..core.errors import UsageError
    from ..core.progress import say
    from ..corpus.tokenizer import encode_prompt, load_tokenizer
    from ..decode.build import build_methods
    from ..decode.engine import Decoder
    from ..decode.result import Generation
    from ..evaluate.prompts import resolve_format

    if vocab is not None and drafter is None:
        raise UsageError("--vocab restricts a drafter", expected="--drafter DIR beside it")
    if vocab is not None and head is not None:
        raise UsageError(
            "one run of generate drafts in one way", got="--vocab and --head", expected="one of them"
        )
    methods = build_methods(
        target,
        [str(drafter)] if drafter else [],
        [str(vocab)] if vocab else [],
        tokenizer=tokenizer,
        device=device,
        dtype=dtype,
        depth=depth,
        topk=topk,
        total_nodes=total_nodes,
        heads=head_request([str(head)] if head else None, shortlist, budget, head_rows),
    )
    text_tokenizer = load_tokenizer(tokenizer or target)
    chat = resolve_format(text_tokenizer, prompt_format) == "chat"
    ids = encode_prompt(text_tokenizer, [{"role": "user", "content": prompt}] if chat else prompt)
    decoder = methods[-1].generator
    assert isinstance(decoder, Decoder)
    result = Generation()
    shown = "" if chat else prompt
    if not as_json:
        typer.echo(shown, nl=False)
    written = ""
    for _ in decoder.stream(
        ids,
        max_new_tokens=max_new_tokens,
        stop_ids=set(text_tokenizer.eos_ids),
        temperature=temperature,
        seed=seed,
        result=result,
    ):
        text = text_tokenizer.decode(result.token_ids)
        stable = text.rstrip("\N{REPLACEMENT CHARACTER}")  # the rest of a character may still come
        if not as_json:
            sys.stdout.write(stable[len(written) :])
            sys.stdout.flush()
        written = stable
    tokens, seconds = len(result.token_ids), result.prefill_s + result.decode_s
    if as_json:
        print_json(
            {
                "method": methods[-1].name,
                "head": methods[-1].head,
                "text": text_tokenizer.decode(result.token_ids),
                "token_ids": result.token_ids,
                "finish": result.finish,
                "mean_accepted_length": result.mean_accepted_length,
                "accept_lengths": result.accept_lengths,
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
        f"ended by {result.finish}"
    )
