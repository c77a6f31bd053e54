"""``vocabforge coverage``: which share of which text a draft vocabulary holds, at every size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .app import JsonOption, OverwriteOption, print_json

if TYPE_CHECKING:
    from ..vocab.mixing import Part
    from ..vocab.subset import VocabSubset

CountsOption = Annotated[
    Path,
    typer.Option(
        "--counts",
        metavar="DIR",
        help="Frequency table that the ranking is made from; its domains are told apart.",
    ),
]
HeldoutOption = Annotated[
    list[str] | None,
    typer.Option(
        "--heldout",
        metavar="[NAME=]DIR",
        help="Frequency table of text that was not counted for the ranking; may be repeated.",
    ),
]
VocabOption = Annotated[
    list[str] | None,
    typer.Option("--vocab", metavar="[NAME=]DIR", help="Draft vocabulary to compare; may be repeated."),
]
SizeOption = Annotated[
    list[int] | None,
    typer.Option(
        "--size",
        metavar="N",
        min=1,
        help="Size to print; may be repeated [default: powers of two, the sizes half way between, and the whole "
        "vocabulary].",
    ),
]
TargetOption = Annotated[
    Path | None,
    typer.Option(
        metavar="PATH",
        help="Target model: also measure the ceilings of acceptance (lemmas 1 and 2) on --text.",
    ),
]
TextOption = Annotated[
    list[str] | None,
    typer.Option(
        "--text",
        metavar="[NAME=]PATH",
        help="File or folder that the target reads, a domain of its own; a NAME given again adds to it.",
    ),
]
TokenizerOption = Annotated[
    Path | None, typer.Option(metavar="PATH", help="The target's tokenizer [default: the target's folder].")
]
TokensOption = Annotated[
    int, typer.Option(min=1, metavar="N", help="Positions that the target reads of each domain.")
]
ContextOption = Annotated[
    int, typer.Option(min=2, metavar="N", help="Longest window of text for the target.")
]
SeedOption = Annotated[int, typer.Option(min=0, help="Draws the windows.")]
DtypeOption = Annotated[str, typer.Option(help="float32, bfloat16 or float16, for the target.")]
DeviceOption = Annotated[
    str | None, typer.Option(help="cpu, cuda, cuda:1 … for the target [default: cuda where there is one].")
]
OutputOption = Annotated[
    Path,
    typer.Option(
        "--output", metavar="DIR", help="Folder to make for coverage.json, coverage.html and plots/*.svg."
    ),
]


def coverage(
    counts: CountsOption,
    output: OutputOption,
    heldout: HeldoutOption = None,
    vocab: VocabOption = None,
    size: SizeOption = None,
    target: TargetOption = None,
    text: TextOption = None,
    tokenizer: TokenizerOption = None,
    tokens: TokensOption = 8192,
    context: ContextOption = 512,
    seed: SeedOption = 0,
    dtype: DtypeOption = "float32",
    device: DeviceOption = None,
    as_json: JsonOption = False,
    overwrite: OverwriteOption = False,
) -> None:
    """Measure coverage against size, by domain, on counted and on held-out text; with a target also its ceilings.

    The static ceiling is the target's own probability of the tokens inside: no drafter over them can be accepted
    more often. The oracle ceiling is that of the best tokens at each position, which dynamic heads aim at.

    Example: `vocabforge coverage --counts counts/ --heldout test/ --vocab subsets/r32768 --output coverage/`
    """
    from ..core.artifact import check_output
    from ..core.errors import UsageError
    from ..evaluate.coverage_results import measure_coverage

    if (target is None) != (not text):
        raise UsageError(
            "ceilings need a target and text for it to read",
            got="--target without --text" if text is None else "--text without --target",
            expected="--target MODEL --text FILE",
        )
    check_output(output, overwrite=overwrite)
    parts = _parts(counts, heldout or [])
    vocabs, parents = _vocabs(vocab or [])
    results = measure_coverage(parts[0], parts[1:], vocabs, sizes=size or ())
    parents |= {f"heldout {part.name}": str(part.content_hash) for part in parts[1:]}
    parents["counts"] = str(parts[0].content_hash)
    if target is not None:
        from ..evaluate.target_ceilings import SampleSettings

        settings = SampleSettings(tokens, context, seed)
        results["ceilings"] = _ceilings(
            parts[0], vocabs, results, (target, tokenizer or target), text or [], (dtype, device), settings
        )
    _write(results, output, parents, overwrite=overwrite)
    if as_json:
        print_json(results)
    else:
        _print(results, output)


def _parts(counts: Path, heldout: Sequence[str]) -> list[Part]:
    from .table_inputs import load_part, split_name

    return [load_part(*split_name(str(counts)))] + [load_part(*split_name(item)) for item in heldout]


def _vocabs(given: Sequence[str]) -> tuple[dict[str, VocabSubset], dict[str, str]]:
    """Draft vocabularies by name, and the hashes of their artefacts."""
    from ..core.artifact import open_artifact
    from ..core.errors import UsageError
    from ..vocab.subset import load_subset
    from .table_inputs import split_name

    vocabs: dict[str, VocabSubset] = {}
    parents = {}
    for name, path in map(split_name, given):
        if name in vocabs:
            raise UsageError(
                "two draft vocabularies have one name", got=name, remedy="name them: --vocab NAME=DIR"
            )
        vocabs[name] = load_subset(path)
        parents[f"vocabulary {name}"] = open_artifact(path, verify=False).content_hash
    return vocabs, parents


def _ceilings(
    counts: Part,
    vocabs: Mapping[str, VocabSubset],
    results: Mapping[str, Any],
    folders: tuple[Path, Path],
    text: Sequence[str],
    precision: tuple[str, str | None],
    settings: Any,
) -> dict[str, Any]:
    """Load the target and its tokenizer, check that they belong to the table, and run."""
    from ..core.errors import UsageError
    from ..corpus.fingerprint import check_fingerprint
    from ..corpus.tokenizer import load_tokenizer
    from ..decode.build import DTYPES
    from ..evaluate.target_ceilings import measure_target
    from ..models.device import choose_device
    from ..models.lean import load_target
    from ..models.target import check_tokenizer_fits
    from ..vocab.coverage import rank_all

    target, folder = folders
    dtype, device = precision
    if dtype not in DTYPES:
        raise UsageError("there is no such dtype", got=dtype, expected=", ".join(DTYPES))
    loaded = load_tokenizer(folder)
    check_fingerprint(
        loaded.fingerprint,
        counts.table.fingerprint,
        expected_from=f"the target's tokenizer {loaded.source}",
        got_from=f"the frequency table {counts.name}",
        remedy="count with the target's own tokenizer, or pass it with --tokenizer",
    )
    texts = _texts(text)
    model = load_target(target, dtype=DTYPES[dtype], device=choose_device(device))
    check_tokenizer_fits(loaded.vocab_size, model.config.vocab_size, tokenizer=loaded.source, target=target)
    ranked = rank_all(counts.table.counts, results["forced"])
    found = measure_target(model, loaded, texts, (ranked, vocabs), results["sizes"], settings)
    return {"target": target.resolve().name, "dtype": dtype, **found}


def _texts(given: Sequence[str]) -> dict[str, list[Path]]:
    from .table_inputs import split_name

    texts: dict[str, list[Path]] = {}
    for item in given:
        name, path = split_name(item)
        texts.setdefault(name, []).append(path)
    return texts


def _write(results: dict[str, Any], output: Path, parents: Mapping[str, str], *, overwrite: bool) -> None:
    import shlex
    import sys
    import time

    from ..core.artifact import write_artifact
    from ..core.files import atomic_write, atomic_write_json
    from ..evaluate.coverage_report import report_files

    results["created"] = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    results["command"] = shlex.join(["vocabforge", *sys.argv[1:]])
    results["facts"] = {f"{role} hash": digest[:16] for role, digest in parents.items()} | {
        "tokenizer fingerprint": results["fingerprint"][:16],
        "forced ids first": ", ".join(map(str, results["forced"])) or "none",
        "measured": results["created"],
    }
    meta = {
        "vocab_size": results["vocab_size"],
        "fingerprint": results["fingerprint"],
        "texts": [one["name"] for one in results["texts"]],
        "sizes": results["sizes"],
        "target": results["ceilings"]["target"] if results["ceilings"] else None,
    }
    with write_artifact(output, "coverage", meta, parents=parents, overwrite=overwrite) as folder:
        atomic_write_json(folder / "coverage.json", results)
        for name, text in report_files(results).items():
            atomic_write(folder / name, text)


def _print(results: Mapping[str, Any], output: Path) -> None:
    from ..core.console import open_console
    from ..evaluate.coverage_terminal import ceiling_table, coverage_table, summary_lines, vocabulary_table

    out = open_console()
    out.print(coverage_table(results))
    if results["vocabularies"]:
        out.print(vocabulary_table(results))
    if results["ceilings"]:
        out.print(ceiling_table(results))
    for line in summary_lines(results):
        out.print(line, markup=False, soft_wrap=True)
    out.print(f"Report: {output / 'coverage.html'}", soft_wrap=True, markup=False)
