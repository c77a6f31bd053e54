"""Model cards for exported drafters: ``README.md`` with Hugging Face front matter.

A card names files and models, never local paths: its readers have only the folder.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core.artifact import MANIFEST
from ..core.console import markdown_table
from ..core.files import read_json
from ..core.hub import model_licence
from ..corpus.sources.inputs import DataOrigin, origin_of
from ..layouts.block import block_readers
from ..layouts.interface import Export
from ..models.target.load import dtype_name

_SHOWN = 12  # at most this many sources are listed by name
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


def model_card(name: str, layout: str, export: Export, sections: Sequence[str] = ()) -> str:
    """Build the model card of an exported drafter.

    Args:
        export: input of the layout's writer; ``meta`` and ``config`` describe the drafter's training.
        sections: additional Markdown sections.
    """
    kind, target = export.drafter.label, base_model(export)
    article = "An" if kind[0] == "E" or kind == "MTP" else "A"
    parts = [
        _front_matter(layout, export),
        f"# {name}",
        f"{article} {kind} drafter for speculative decoding with `{target}`. It proposes tokens; "
        "the target checks them, so that the output is the target's own.",
        _table("## Drafter", _drafter_rows(layout, export, kind)),
        _table("## Training", list(_training_rows(export.meta, export.config or {}))),
        *sections,
        "## Use\n\n" + _commands(name, layout, export),
        _licence(export),
    ]
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def base_model(export: Export) -> str:
    for name in (export.target.get("_name_or_path"), export.target_name):
        if isinstance(name, str) and _REPOSITORY.fullmatch(name) and not Path(name).exists():
            return name
    return Path(export.target_name).name or export.target_name


def _front_matter(layout: str, export: Export) -> str:
    target = base_model(export)
    tags = ("speculative-decoding", "draft-model", export.drafter.kind, *readers(layout, export))
    lines = [
        "---",
        "# license: name the licence here before publishing",
        f"base_model: {target}" if "/" in target else "# base_model: the target's repository on the Hub",
        *_datasets(_origins(export.config or {})),
        "pipeline_tag: text-generation",
        "tags:",
        *(f"- {tag}" for tag in tags),
        "---",
    ]
    return "\n".join(lines)


def _drafter_rows(layout: str, export: Export, kind: str) -> list[tuple[str, str]]:
    drafter, config = export.drafter, export.drafter.config
    own = sum(p.numel() for p in drafter.parameters())
    rows = [
        ("kind", kind),
        (
            "target",
            f"`{base_model(export)}`, {config.vocab_size:,} tokens, hidden size {config.hidden_size:,}",
        ),
        ("layout", f"`{layout}`, {dtype_name(export.dtype)}"),
        ("own parameters", f"{own:,}"),
        ("draft vocabulary", _vocabulary(export)),
    ]
    if config.aux_layers:
        rows.append(("reads", f"outputs of target layers {', '.join(map(str, config.aux_layers))} (0-based)"))
    elif drafter.reads == "hidden":
        rows.append(("reads", "the target's last hidden states"))
    if fingerprint := export.meta.get("tokenizer_fingerprint"):
        rows.append(("tokenizer", f"the target's, fingerprint `{str(fingerprint)[:16]}`"))
    return rows


def _vocabulary(export: Export) -> str:
    drafter = export.drafter
    rows, size = len(drafter.target_ids), drafter.config.vocab_size
    if not drafter.has_own_head:
        said = f"{rows:,} of" if drafter.restricted else "all"
        return f"{said} {size:,} tokens, by the target's LM head"
    if rows == size:
        return f"all {size:,} tokens, by an LM head of its own"
    said, coverage = f"{rows:,} of {size:,} tokens", export.meta.get("coverage")
    return said if coverage is None else f"{said}, {coverage:.2%} of the tokens counted for it"


def _training_rows(meta: Mapping[str, Any], recipe: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    def of(section: str, name: str) -> Any:
        part = recipe.get(section)
        return part.get(name) if isinstance(part, Mapping) else None

    if data := _origins(recipe):
        yield "data", _named(data)
    facts = (
        ("steps", meta.get("steps") or of("optim", "steps")),
        ("rows a step", of("optim", "batch_size")),
        ("tokens a row", of("data", "sequence_length")),
        ("learning rate", of("optim", "lr")),
        ("unrolled draft steps", of("ttt", "steps")),
        ("started from", "another drafter" if of("drafter", "init") else None),
    )
    for name, value in facts:
        if value is not None:
            yield name, f"{value:,}" if isinstance(value, int) else f"{value}"
    heldout = meta.get("heldout")
    accuracy = heldout.get("accuracy") if isinstance(heldout, Mapping) else None
    if accuracy:
        yield "held-out accuracy by draft step", ", ".join(f"{value:.3f}" for value in accuracy)


def _origins(recipe: Mapping[str, Any]) -> list[DataOrigin]:
    """Return the origins of the training data; prepared data is only traced while its folder exists."""
    data = recipe.get("data")
    data = data if isinstance(data, Mapping) else {}
    sources, prepared = data.get("train"), data.get("prepared")
    if prepared and (Path(str(prepared)) / MANIFEST).is_file():
        sources = (read_json(Path(str(prepared)) / MANIFEST).get("config") or {}).get("train")
    return [origin_of(str(source)) for source in sources or ()]


def _named(data: Sequence[DataOrigin]) -> str:
    names = [f"`{origin.name}`" for origin in data[:_SHOWN]]
    return ", ".join(names) + (f" and {len(data) - _SHOWN:,} more" if len(data) > _SHOWN else "")


def _datasets(data: Sequence[DataOrigin]) -> list[str]:
    repositories = list(dict.fromkeys(origin.repository for origin in data if origin.repository is not None))
    return ["datasets:", *(f"- {name}" for name in repositories)] if repositories else []


def _licence(export: Export) -> str:
    lines = [
        "## Licence\n",
        "Set by whoever publishes this folder (`license:` above); the target's licence may bind it.\n",
    ]
    if export.target_path is not None and (licence := model_licence(export.target_path)) is not None:
        lines.append(f"- target `{base_model(export)}`: {licence}")
    data = dict.fromkeys((origin.repository, origin.licence) for origin in _origins(export.config or {}))
    lines += [f"- data `{name}`: {terms or 'see its card'}" for name, terms in data if name]
    return "\n".join(lines)


def _table(title: str, rows: Sequence[Sequence[str]]) -> str:
    return "\n".join([title, "", *markdown_table(("", ""), rows, text=2)]) if rows else ""


# layout -> its readers, as tags for the model card
_READERS = {
    "sglang-eagle3": ("sglang", "vllm"),
    "vllm": ("vllm",),
    "speculators-eagle3": ("vllm", "speculators"),
    "speculators-block": ("vllm", "speculators"),
    "fr-spec": ("sglang", "fr-spec"),
    "gguf": ("llama.cpp",),
    "medusa": ("vllm",),
    "mtp": ("sglang", "vllm"),
}


# Layouts that are not listed use "eagle".
_METHODS = {
    "sglang-eagle3": "eagle3",
    "vllm": "eagle3",
    "speculators-eagle3": "eagle3",
    "gguf": "eagle3",
    "medusa": "medusa",
}


def readers(layout: str, export: Export) -> tuple[str, ...]:
    """Return the servers that can read a folder of this layout."""
    if layout == "eagle":
        return (export.server or "sglang",)
    return block_readers(export) if layout == "block" else _READERS.get(layout, ())


def _inside(name: str, export: Export, count: int) -> list[tuple[str, str]]:
    """Return commands for servers that draft with a module inside the served checkpoint."""
    serve, before, rows = name, [], len(export.drafter.target_ids)
    limited = rows < export.drafter.config.vocab_size
    if not export.with_target:
        serve, target = f"{name}-checkpoint", base_model(export)
        copied = f"cp -rL {shlex.quote(target)} {serve} && cp {name}/*.safetensors {serve}/"
        before = [("Copy the target's folder and replace these shards", copied)]
    config = json.dumps({"method": "mtp", "num_speculative_tokens": count})
    steps = f"--speculative-num-steps {count} --speculative-eagle-topk 1 --speculative-num-draft-tokens {count + 1}"
    sglang = (
        f"python -m sglang.launch_server --model-path {serve} \\\n  --speculative-algorithm NEXTN {steps}"
    )
    if limited:
        sglang += f" \\\n  --speculative-token-map {name}/freq_{rows}.pt"
    vllm = f"vllm serve {serve} \\\n  --speculative-config {shlex.quote(config)}"
    over = "vLLM, which drafts over all tokens" if limited else "vLLM"
    return [*before, ("SGLang", sglang), (over, vllm)]


def _commands(name: str, layout: str, export: Export) -> str:
    # VocabForge first, then every server that reads the layout. Names are quoted for a shell.
    quoted, target = shlex.quote(name), shlex.quote(base_model(export))
    blocks = [("VocabForge", f'vocabforge generate --target {target} --drafter {quoted} --prompt "..."')]
    known, count = readers(layout, export), export.speculative_tokens
    if layout == "mtp":
        blocks += _inside(quoted, export, count)
        known = ()
    blocked = layout in ("block", "speculators-block")
    method = _METHODS.get(layout, export.drafter.kind if blocked else "eagle")
    most = export.drafter.max_steps or count
    count = most if blocked else min(count, most)  # Medusa: one per head; block drafters: the whole block
    window = getattr(export.drafter.config, "sliding_window", None)
    named = export.target.get("dtype") or export.target.get("torch_dtype")
    dtype = (
        [f"--dtype {named}"] if isinstance(named, str) else []
    )  # servers run the drafter in the target's dtype
    if "sglang" in known:
        options = [
            f"--model-path {target}",
            f"--speculative-algorithm {method.upper()}",
            f"--speculative-draft-model-path {quoted}",
            *(
                [f"--speculative-token-map {quoted}/freq_{len(export.drafter.head_weight)}.pt"]
                if layout == "fr-spec"
                else []
            ),
            *([] if blocked else [f"--speculative-num-steps {count}", "--speculative-eagle-topk 1"]),
            f"--speculative-num-draft-tokens {count + 1}",
            *([] if window is None else [f"--speculative-draft-window-size {window}"]),
            *dtype,
        ]
        blocks.append(("SGLang", " \\\n  ".join(["python -m sglang.launch_server", *options])))
    if "vllm" in known:
        asked: dict[str, Any] = {"method": method, "model": name, "num_speculative_tokens": count}
        if method == "peagle":
            asked |= {"method": "eagle3", "parallel_drafting": True}
        config = json.dumps(asked)
        start = " ".join(["vllm serve", target, *dtype])
        title = {
            "vllm": "vLLM, with VocabForge installed in its environment",
            "medusa": "vLLM 0.32 (0.33 has dropped Medusa)",
        }
        start = f"{start} \\\n  --speculative-config {shlex.quote(config)}"
        blocks.append((title.get(layout, "vLLM"), start))
    if "speculators" in known:
        blocks.append(("vLLM, the target as this folder names it", f"vllm serve {quoted}"))
    if "llama.cpp" in known:
        beside = f"{quoted}/target.gguf" if export.with_target else "TARGET.gguf"
        models = f"-m {beside} -md {quoted}/drafter.gguf"
        draft = f"--spec-type draft-{method} --spec-draft-n-max {count}"
        if blocked:
            made = f"python convert_hf_to_gguf.py {quoted} --target-model-dir {target}"
            blocks.append(("llama.cpp's converter", f"{made} \\\n  --outfile {quoted}/drafter.gguf"))
        blocks.append(("llama.cpp", f"llama-speculative-simple {models} \\\n  {draft} -p 'PROMPT'"))
    parts = [f"{title}:\n\n```\n{command}\n```" for title, command in blocks]
    if layout == "native":
        parts.append("`vocabforge export` writes it in the layouts of servers.")
    parts.append("`vocabforge doctor --target TARGET --drafter DIR` checks the folder against the target.")
    return "\n\n".join(parts)
