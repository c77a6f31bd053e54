"""``vocabforge export``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .app import JsonOption, OverwriteOption, print_json


def export(
    drafter: Annotated[
        Path, typer.Option("--drafter", help="Drafter artefact (OUTPUT/drafter of train-drafter).")
    ],
    format_name: Annotated[
        str, typer.Option("--format", help="native | sglang-eagle3 (SGLang and vLLM read it).")
    ],
    output: Annotated[Path, typer.Option("--output", help="Folder to make.")],
    target: Annotated[
        Path | None,
        typer.Option("--target", help="Folder of the target [default: the one it was trained with]."),
    ] = None,
    vocab: Annotated[
        Path | None, typer.Option("--vocab", help="Subset artefact: restrict the draft head to these tokens.")
    ] = None,
    dtype: Annotated[str, typer.Option("--dtype", help="float32, bfloat16 or float16.")] = "float32",
    overwrite: OverwriteOption = False,
    as_json: JsonOption = False,
) -> None:
    """Write a trained drafter as a decoder or server reads it, optionally with a restricted head."""
    from ..core.artifact import check_output
    from ..core.errors import UsageError
    from ..core.progress import say
    from ..decode.build import DTYPES
    from ..export.formats import layout_of, load_drafter, restrict
    from ..export.layout import Export
    from ..models.drafter_io import load_target_tensors
    from ..models.target import read_target_config

    layout = layout_of(format_name)
    if dtype not in DTYPES:
        raise UsageError("there is no such dtype", got=dtype, expected=", ".join(DTYPES))
    check_output(output, overwrite=overwrite)
    target_path = target or _trained_with(drafter)
    shared = load_target_tensors(target_path)
    loaded, artifact = load_drafter(drafter, shared, target_path)
    parents = {} if artifact is None else {"drafter": artifact.content_hash}
    if vocab is not None:
        from ..core.artifact import open_artifact

        loaded = restrict(loaded, vocab, artifact)
        parents["vocab"] = open_artifact(vocab, "subset").content_hash
    meta = {} if artifact is None else dict(artifact.meta)
    facts = {"format": format_name, "draft_vocab_size": loaded.config.draft_vocab_size, "dtype": dtype}
    layout.write(
        output,
        Export(
            loaded,
            read_target_config(target_path),
            shared,
            str(target_path),
            DTYPES[dtype],
            meta=meta | facts,
            parents=parents,
            overwrite=overwrite,
        ),
    )
    if as_json:
        print_json({"output": str(output), **facts})
    else:
        rows = loaded.head_weight.shape[0]
        say(f"Wrote {output} ({format_name}, {rows:,} draft tokens, {dtype})")


def _trained_with(drafter: Path) -> Path:
    """The target's folder as the drafter's manifest records it.

    Raises:
        UsageError: nothing recorded, or the folder is gone.
    """
    from ..core.artifact import MANIFEST, open_artifact
    from ..core.errors import DataError, UsageError

    recorded = None
    if not drafter.is_dir():
        raise DataError(
            "there is no drafter here", got=f"{drafter} (no such folder)", remedy="check the path"
        )
    if (drafter / MANIFEST).is_file():
        config = open_artifact(drafter, verify=False).manifest.get("config")
        recorded = config.get("target") if isinstance(config, dict) else None
    if not isinstance(recorded, str) or not Path(recorded).is_dir():
        raise UsageError(
            "the drafter's target is not known",
            got=recorded or "nothing recorded",
            expected="a folder",
            source=drafter,
            remedy="give --target",
        )
    return Path(recorded)
