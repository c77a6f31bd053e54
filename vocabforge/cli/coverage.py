"""``vocabforge coverage``: the share of each text that a draft vocabulary covers, by size."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from ..core.config import ModelPath, Positive, StrictModel, TokenizerPath, option
from ..core.errors import UsageError
from ..core.hub import model_name
from ..core.registry import check_known
from ..core.values import labelled, sizes_in
from .app import ResultOptions, print_json, print_line, stdout_console

if TYPE_CHECKING:
    from ..vocab.counts.mixtures import TablePart
    from ..vocab.subset.subset import VocabSubset


class CoverageRequest(StrictModel):
    """The texts and vocabularies to measure, and the output."""

    counts: Path = option(..., "Frequency table for the ranking, reported by domain.", "DIR")
    output: Path = option(..., "Output folder for coverage.json and coverage.png.", "DIR")
    heldout: tuple[str, ...] = option((), "Frequency table of held-out text.", "[NAME=]DIR", many=True)
    vocab: tuple[str, ...] = option((), "Draft vocabulary to compare.", "[NAME=]DIR", many=True)
    size: tuple[str, ...] = option(
        (),
        "Size to print: 16384, 16k or a list [default: powers of two, the sizes half way between, and the whole "
        "vocabulary].",
        "N,...",
        many=True,
    )
    target: ModelPath | None = option(
        None, "Target model: also measure the acceptance ceilings (lemmas 1 and 2) on --text.", "PATH"
    )
    text: tuple[str, ...] = option(
        (),
        "File or folder of text for --target, as a separate domain. Repeat a NAME to add to it.",
        "[NAME=]PATH",
        many=True,
    )
    tokenizer: TokenizerPath | None = option(
        None, "The target's tokenizer [default: the target's folder].", "PATH"
    )
    tokens: Positive = option(8192, "Positions of each domain to evaluate with the target.", "N")
    context: Annotated[int, Field(ge=2)] = option(512, "Longest text window for the target, tokens.", "N")
    seed: Annotated[int, Field(ge=0)] = option(0, "Seed for drawing the windows.")
    dtype: str = option("float32", "Dtype of the target: float32, bfloat16 or float16.")
    device: str | None = option(None, "cpu, cuda, cuda:1 … for the target [default: cuda if available].")


def coverage(asked: CoverageRequest, ending: ResultOptions) -> None:
    """Measure coverage against size, by domain, on counted and on held-out text; with a target, also the
    acceptance ceilings.

    The static ceiling is the target's probability mass inside the vocabulary: no drafter over it can be
    accepted more often. The oracle ceiling is the mass of the best tokens at each position, the limit for
    dynamic heads.

    Example: `vocabforge coverage --counts counts/ --heldout test/ --vocab subsets/r32768 --output coverage/`
    """
    from ..core.artifact import check_output
    from ..evaluate.reports.coverage_data import measure_coverage
    from ..vocab.counts.mixtures import TablePart

    if (asked.target is None) != (not asked.text):
        raise UsageError(
            "ceilings need a target and text for it to read",
            got="--text without --target" if asked.text else "--target without --text",
            expected="--target MODEL --text FILE",
        )
    check_output(asked.output, overwrite=ending.overwrite)
    parts = [TablePart.load(*labelled(item)) for item in (str(asked.counts), *asked.heldout)]
    vocabs, parents = _vocabs(asked.vocab)
    results = measure_coverage(parts[0], parts[1:], vocabs, sizes=sizes_in("--size", asked.size, least=1))
    parents |= {f"heldout {part.name}": str(part.content_hash) for part in parts[1:]}
    parents["counts"] = str(parts[0].content_hash)
    results["ceilings"] = _ceilings(parts[0], vocabs, results, asked)
    _write(results, asked.output, parents, overwrite=ending.overwrite)
    if ending.as_json:
        print_json(results)
    else:
        _print(results, asked.output)


def _vocabs(given: tuple[str, ...]) -> tuple[dict[str, VocabSubset], dict[str, str]]:
    from ..core.artifact import open_artifact
    from ..vocab.subset.subset import load_subset

    vocabs: dict[str, VocabSubset] = {}
    parents = {}
    for name, path in map(labelled, given):
        if name in vocabs:
            raise UsageError(
                "two draft vocabularies have one name", got=name, remedy="name them: --vocab NAME=DIR"
            )
        vocabs[name] = load_subset(path)
        parents[f"vocabulary {name}"] = open_artifact(path, verify=False).content_hash
    return vocabs, parents


def _ceilings(
    counts: TablePart, vocabs: Mapping[str, VocabSubset], results: Mapping[str, Any], asked: CoverageRequest
) -> dict[str, Any] | None:
    """Load target and tokenizer, check that they match the table, and measure; None without a target."""
    if asked.target is None:
        return None
    from ..corpus.tokenizer.tokenizer import check_fingerprint, load_tokenizer
    from ..evaluate.acceptance.ceilings import measure_target
    from ..models.device import choose_device
    from ..models.lean.model import load_target
    from ..models.target.hf import check_tokenizer_fits
    from ..models.target.load import DTYPES
    from ..vocab.subset.coverage import rank_all

    check_known(asked.dtype, DTYPES, "dtype", source="--dtype")
    loaded = load_tokenizer(asked.tokenizer or asked.target)
    check_fingerprint(
        loaded.fingerprint,
        counts.table.fingerprint,
        expected_from=f"the target's tokenizer {loaded.source}",
        got_from=f"the frequency table {counts.name}",
        remedy="count with the target's own tokenizer, or pass it with --tokenizer",
    )
    texts: dict[str, list[Path]] = {}
    for name, path in map(labelled, asked.text):
        texts.setdefault(name, []).append(path)
    model = load_target(asked.target, dtype=DTYPES[asked.dtype], device=choose_device(asked.device))
    check_tokenizer_fits(
        loaded.vocab_size, model.config.vocab_size, tokenizer=loaded.source, target=asked.target
    )
    ranked = rank_all(counts.table.counts, results["forced"])
    found = measure_target(
        model,
        loaded,
        texts,
        (ranked, vocabs),
        results["sizes"],
        tokens=asked.tokens,
        context=asked.context,
        seed=asked.seed,
    )
    return {"target": model_name(asked.target), "dtype": asked.dtype, **found}


def _write(results: dict[str, Any], output: Path, parents: Mapping[str, str], *, overwrite: bool) -> None:
    import shlex
    import time

    from ..core.artifact import write_artifact
    from ..core.files import atomic_write, atomic_write_json
    from ..core.provenance import command_line
    from ..evaluate.reports.coverage import render_coverage

    results["created"] = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    results["command"] = shlex.join(command_line())
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
        atomic_write(folder / "coverage.png", render_coverage(results))


def _print(results: Mapping[str, Any], output: Path) -> None:
    from ..evaluate.reports.coverage import coverage_tables, summary_lines

    for table in coverage_tables(results):
        stdout_console().print(table)
    for line in summary_lines(results):
        print_line(line)
    print_line(f"Plot: {output / 'coverage.png'}")
