"""Source, sizes and forced ids of a draft vocabulary."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from ...core.config import Positive, Size, StrictModel, TokenizerPath, option


class SelectRequest(StrictModel):
    """Source, number and forced ids of the draft vocabulary, and its output formats."""

    counts: tuple[Path, ...] = option(
        (), "Frequency table made by count-freq or merge-freq.", "DIR", many=True
    )
    from_list: Path | None = option(
        None,
        "Instead of --counts: import an FR-Spec list (.pt) unchanged. Needs --tokenizer, or --target with one.",
        "FILE",
    )
    tokenizer: TokenizerPath | None = option(None, "Tokenizer of an imported file.", "PATH")
    domain: tuple[str, ...] = option(
        (), "Count only this domain of the table. NAME=WEIGHT mixes domains by weight.", "NAME", many=True
    )
    size: tuple[str, ...] = option(
        (),
        "Ids of the draft vocabulary: 16384, 16k or a list. `auto`: the size with the most tokens/s according to "
        "--evaluation.",
        "N,...",
        many=True,
    )
    evaluation: Path | None = option(
        None,
        "For --size auto: an evaluation of the drafter over its full vocabulary, or over a larger one than wanted.",
        "DIR",
    )
    coverage: tuple[float, ...] = option(
        (),
        "Instead of --size: the smallest size that covers this share of the counted tokens, such as 0.95.",
        "SHARE",
        many=True,
    )
    schedule: str | None = option(
        None,
        "PA-FR: `constant`, `linear`, `geometric` or `decay`; draft step t uses the first B(t) ids in rank order.",
        "NAME",
    )
    k_max: Size | None = option(None, "Schedule: size at draft steps 0 and 1, and size of the artefact.", "N")
    k_min: Size | None = option(None, "Schedule: smallest size.", "N")
    steps: Positive = option(7, "Schedule: number of draft steps.", "K")
    force: tuple[int, ...] = option((), "Force this token id.", "ID", many=True)
    force_tools: bool = option(False, "Force the chat template's tokens for tool calls and thinking.")
    target: TokenizerPath | None = option(
        None,
        "Target model folder: its end tokens are forced, its tokenizer must match the counts, and `t2d` "
        "includes its padded rows.",
        "PATH",
    )
    fill: Literal["error", "lowest-id"] = option(
        "error",
        "If too few ids have a count: **error** reports how many have one; **lowest-id** fills up with the "
        "lowest ids and reports how many.",
    )
    output: Path = option(
        ..., "With one size, the artefact itself; with several, a folder with one artefact `rN` each.", "DIR"
    )
    export: tuple[str, ...] = option(
        (),
        "Also write into the artefact: `fr-spec` (freq_SIZE.pt), `d2t` (d2t.safetensors), `counts-text` "
        "(counts.txt, one count a line).",
        "FORMAT",
        many=True,
    )
