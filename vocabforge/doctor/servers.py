"""Checks of how each server would read a drafter's folder, and whether it would compute the same drafter."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from ..corpus.tokenizer.tokenizer import TextTokenizer
from ..export.forms import SERVED
from ..export.servers.registry import READERS, open_folder, read_as, reader_of
from ..export.servers.types import LAYERS_FROM, Check, Folder, Served, ServedTarget
from ..layouts.block import ServedBlock
from ..layouts.gguf.layout import is_gguf
from ..models.drafters.interface import Drafter
from ..models.target.load import dtype_name, read_target_config
from .checks import Finding, Report
from .served_drafter import (
    PROMPTS,
    ProbedText,
    check_head_rows,
    check_layers_by_acceptance,
    check_logits,
    probe,
    wanted_layers,
)
from .target import TargetFacts, probe_ids

GROUP = "servers"
_NEW_TOKENS = 32  # generated per prompt


def check_servers(
    report: Report,
    path: Path,
    target: TargetFacts | None,
    drafter: Drafter | None,
    servers: Sequence[str] = (),
) -> None:
    """Add the rows of every server that would read the folder.

    Args:
        drafter: the drafter as loaded by VocabForge; None if loading failed, then comparisons are skipped.
        servers: server names; empty: every server that supports the folder's architecture.
    """
    if not (path / "config.json").is_file() and not is_gguf(path):
        report.run(GROUP, "layout", check_native, drafter)
        return
    folder = report.run(GROUP, "layout", check_folder, path, servers)
    if folder is None or target is None:
        return
    side = ServedTarget(
        read_target_config(target.path),
        target.model.config.num_layers,
        target.model.embedding.detach().float().cpu(),
        target.model.lm_head_weight.detach().float().cpu(),
    )
    names = [name for name in READERS.usable() if reader_of(name).matches(folder)]
    chosen = [name for name in names if not servers or name in servers]
    served = [read_as(name, folder, side) for name in chosen]
    texts = _texts(report, target, served)
    for server in served:
        _check_server(report, server, folder, side, target.tokenizer, drafter, texts)
    sound = next((server for server in served if server.drafter is not None), None)
    if sound is not None:
        report.run(GROUP, "head rows", check_head_rows, sound, folder, side)


def _check_server(
    report: Report,
    served: Served,
    folder: Folder,
    target: ServedTarget,
    tokenizer: TextTokenizer | None,
    drafter: Drafter | None,
    texts: list[ProbedText] | None,
) -> None:
    group, able = f"served by {served.title}", served.drafter and texts
    report.run(group, "configuration", check_configuration, served)
    report.run(group, "tensors", check_keys, served)
    if served.layers:
        report.run(group, "target layers", check_captured, served, drafter or ())
    report.run(group, "draft tokens", check_draft_tokens, served, tokenizer or (), target)
    report.run(group, "dtype", check_dtypes, folder, target)
    report.run(group, "logits", check_logits, served, drafter, able and able[0], served.title)
    if served.layers:
        needs = (served, able or None, target.layers)
        report.run(group, "layers by acceptance", check_layers_by_acceptance, *needs)


def _texts(report: Report, target: TargetFacts, served: Sequence[Served]) -> list[ProbedText] | None:
    """Return texts with the states of every layer that a server captures; None if no server would start."""
    able = [server for server in served if server.drafter is not None]
    if not able:
        return None
    count = target.model.config.num_layers
    layers = wanted_layers([server.layers for server in able if server.layers], count)
    tokenizer = target.tokenizer
    texts = [] if tokenizer is None else [tokenizer.encode(text, add_special=True) for text in PROMPTS]
    prompts = list(filter(None, texts)) or [probe_ids(target.model, None)]

    def look() -> Finding[list[ProbedText]]:
        texts = probe(target.model, prompts, _NEW_TOKENS, layers)
        tokens = sum(len(text.ids) - text.start for text in texts)
        return Finding(f"{len(texts)} texts, continued greedily by {tokens} tokens", value=texts)

    return report.run(GROUP, "texts", look)


def check_native(drafter: Drafter) -> Finding[None]:
    """Report the layouts that a native artefact can be exported to."""
    known = SERVED.get(drafter.kind, ("mtp",) if drafter.kind == "mtp" else ())
    if not known:
        return Finding(f"native: no server's layout holds {drafter.label} drafters")
    ways = " or ".join(known)
    return Finding(
        f"native, read only by vocabforge; for servers: export --format {ways} (see export --help)"
    )


def check_folder(path: Path, servers: Sequence[str]) -> Finding[Folder]:
    """Check which servers support the folder's architecture."""
    folder = open_folder(path)
    names = [name for name in READERS.usable() if reader_of(name).matches(folder)]
    named = ", ".join(folder.architectures) or "no architecture"
    missing = [name for name in servers if name not in names]
    if missing:
        wanted = "; ".join(f"{name}: {reader_of(name).layout}" for name in missing)
        return Finding(f"{named}: not supported by {', '.join(missing)}", "failed", f"export it ({wanted})")
    if not names:
        reason = "not read by any supported server"
        remedy = "write the architecture of a server into config.json, or export --format sglang-eagle3"
        if ServedBlock.matches(folder.body):
            reason = "a block drafter, which these checks do not support"
            remedy = "compare accepted lengths with the server's; export --format block lists the servers"
        return Finding(f"{named}: {reason}", "warning", remedy)
    titles = ", ".join(reader_of(name).title for name in names)
    return Finding(f"{named}: read by {titles}", value=folder)


def check_configuration(served: Served) -> Finding[None]:
    """Report the settings as the server reads them, including defaults."""
    facts = ", ".join(f"{name} {value}" for name, value in served.facts.items() if name != LAYERS_FROM)
    return _judged(
        served, "configuration", f"{served.architecture}: {facts}" if facts else served.architecture
    )


def check_keys(served: Served) -> Finding[None]:
    """Check every stored tensor and every parameter."""
    read = [key for key in served.keys if key.effect == "read"]
    renamed = sum(key.renamed for key in read)
    shared = [name for name, source in served.gaps.items() if source == "target"]
    unused = sum(key.effect == "ignored" for key in served.keys)
    summary = f"{len(read)} read ({renamed} under another name)"
    summary += f", {unused} not needed" if unused else ""
    summary += f", the target's {', '.join(shared)}" if shared else ""
    words = {"target": "the target’s", "random": "left as it was: random"}
    gaps = (f"{name}: {words[source]}" for name, source in served.gaps.items())
    details = (*map(str, served.keys), *gaps)
    return _judged(served, "tensors", summary, details)


def check_captured(served: Served, drafter: Drafter | tuple[()]) -> Finding[None]:
    """Compare the layers that the server captures with those that VocabForge reads from the folder."""
    origin = served.facts.get(LAYERS_FROM, "")
    summary = f"captures the outputs of layers {list(served.layers)} (0-based), from {origin}"
    if served.of("layers"):
        return _judged(served, "layers", summary)
    if drafter and drafter.config.aux_layers != served.layers:
        return Finding(
            f"{summary}, but vocabforge reads the folder as {list(drafter.config.aux_layers)}",
            "failed",
            "see layers by acceptance for the correct ones; vocabforge export lists them for every server",
        )
    return Finding(summary)


def _judged(served: Served, check: Check, summary: str, details: tuple[str, ...] = ()) -> Finding[None]:
    problems = sorted(served.of(check), key=lambda problem: problem.state != "failed")
    if not problems:
        return Finding(summary, details=details)
    return Finding(
        "; ".join(problem.message for problem in problems),
        problems[0].state,
        "; ".join(dict.fromkeys(problem.remedy for problem in problems)),
        details=details,
    )


_HELD = ("float64", "float32", "bfloat16", "float16")
_MAPS = ("d2t", "t2d", "model.d2t", "model.t2d")


def check_dtypes(folder: Folder, target: ServedTarget) -> Finding[None]:
    """Check that all weights have the dtype in ``config.json`` and that it fits the target's range."""
    # llama.cpp's files store norms in float32, whatever the dtype of the other weights
    weights = {
        name: tensor for name, tensor in folder.tensors.items() if name not in _MAPS and tensor.dim() > 1
    }
    dtypes = {name: dtype_name(tensor.dtype) for name, tensor in weights.items()}
    packed = [name for name, kind in dtypes.items() if kind not in _HELD]
    if packed or not dtypes:
        return Finding(
            f"packed or quantised: {', '.join(packed[:4])}" if packed else "no weights",
            "failed",
            "pass the drafter before quantisation",
        )
    first, *more = sorted(set(dtypes.values()))
    if more:
        kinds = ", ".join([first, *more])
        return Finding(f"weights of several dtypes: {kinds}", "warning", "export it in one dtype")
    named, theirs = (
        str(body.get("dtype") or body.get("torch_dtype") or first).removeprefix("torch.")
        for body in (folder.body, target.config)
    )
    summary = f"weights in {first}"
    if named != first:
        return Finding(f"{summary}, but config.json says {named}", "warning", f"write dtype {first}")
    if first == theirs:
        return Finding(summary)
    summary += f"; the target's are {theirs}"
    if "float16" in theirs and first in ("float16", "bfloat16"):  # one half precision to the other
        return Finding(summary, "warning", f"export --dtype {theirs} from the trained drafter")
    return Finding(summary)


def check_draft_tokens(
    served: Served, tokenizer: TextTokenizer | tuple[()], target: ServedTarget
) -> Finding[None]:
    """Check the server's token map, which should contain every end token."""
    problems = served.of("draft tokens")
    if problems:
        return Finding("; ".join(problem.message for problem in problems), "failed", problems[0].remedy)
    total = len(target.embedding)
    if served.target_ids is None:
        return Finding(f"all {total:,} tokens can be proposed")
    rows = len(served.target_ids)
    summary = f"{rows:,} of {total:,} tokens can be proposed ({rows / total:.1%})"
    ends = [int(token) for token in tokenizer.eos_ids] if tokenizer else []
    outside = [token for token in ends if not bool(torch.isin(torch.tensor(token), served.target_ids))]
    if outside:
        return Finding(
            f"{summary}, but not the end tokens {outside}",
            "warning",
            "an answer's end is never drafted: select the vocabulary again (end tokens are forced in)",
        )
    return Finding(summary + (f", the end tokens {ends} among them" if ends else ""))
