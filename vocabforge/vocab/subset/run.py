"""Select draft vocabularies: create, write and describe them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ...core.artifact import MANIFEST, check_output, open_artifact
from ...core.console import say
from ...core.errors import UsageError
from ...core.files import sha256_file
from ...core.values import sizes_in, split_weight, words_in
from ...corpus.sources.inputs import origin_of
from ...corpus.tokenizer.tokenizer import TextTokenizer, check_fingerprint, load_tokenizer
from ..counts.mixtures import choose_domains
from ..counts.table import FrequencyTable, load_counts
from .coverage import size_for_coverage
from .forced import forced_ids, target_rows
from .maps import ExportInputs, exporters, read_fr_spec, subset_from_list
from .request import SelectRequest
from .schedule import schedule_sizes
from .select import Ids
from .subset import VocabSubset, make_subset, save_subset


def run_select(asked: SelectRequest, *, overwrite: bool = False) -> dict[str, Any]:
    """Create and write the draft vocabularies, of plain sizes; return the output of ``--json``."""
    asked = checked(asked)
    if asked.from_list is not None and asked.tokenizer is not None:
        return _import_list(asked, asked.from_list, load_tokenizer(asked.tokenizer), overwrite=overwrite)
    sizes: tuple[int, ...] = ()
    if asked.schedule is not None and asked.k_max is not None:
        sizes = schedule_sizes(asked.schedule, asked.k_max, asked.k_min, asked.steps)
    table, forced, parents = read_table(asked)
    if asked.evaluation is not None:
        parents["evaluation"] = open_artifact(asked.evaluation, "evaluation", verify=False).content_hash
    plan = _plan(asked, table.counts, forced)
    places = {size: asked.output / f"r{size}" if len(plan) > 1 else asked.output for size in plan}
    if len(plan) > 1 and (asked.output / MANIFEST).exists():
        raise UsageError(
            "the output is an artefact and cannot contain the folders of several sizes",
            got=asked.output,
            remedy="choose another --output",
        )
    for place in places.values():
        check_output(place, overwrite=overwrite)
    rows = None if asked.target is None else target_rows(asked.target, table.vocab_size)
    made: dict[Path, VocabSubset] = {}
    for size in plan:
        made[places[size]] = make_subset(
            table.counts, size, forced, fingerprint=table.fingerprint, fill=asked.fill, schedule=sizes
        )
    exports = {place: ExportInputs(subset, table.counts, rows) for place, subset in made.items()}
    _save(exports, parents, asked, table.sources, overwrite=overwrite)
    return _facts([{"path": str(asked.counts[0])}], made, list(plan.values()), rows)


def checked(asked: SelectRequest) -> SelectRequest:
    """Check source and sizes; return the request with the target's tokenizer if it needs one."""
    target = asked.target
    if asked.tokenizer is None and not asked.counts and target and (target / "tokenizer.json").is_file():
        asked = asked.model_copy(update={"tokenizer": target})
    _check_source(asked)
    _check_sizes(asked)
    return asked


def _check_source(asked: SelectRequest) -> None:
    if bool(asked.counts) == (asked.from_list is not None):
        raise UsageError(
            "give exactly one source",
            got="--counts and --from-list" if asked.counts else "none",
            expected="--counts or --from-list",
        )
    if len(asked.counts) > 1:
        raise UsageError(
            "give exactly one frequency table",
            got=f"{len(asked.counts)} times --counts",
            expected="one",
            remedy="mix them first: vocabforge merge-freq --weight DIR=0.7 --weight OTHER=0.3 --output MIXED",
        )
    if asked.domain and not asked.counts:
        raise UsageError(
            "--from-list has no domains",
            got=f"--domain {asked.domain[0]}",
            expected="--domain with --counts",
            remedy="leave --domain out",
        )
    if not asked.counts and asked.tokenizer is None:
        raise UsageError(
            "--from-list needs the tokenizer of its ids",
            expected="--tokenizer PATH, or --target with a tokenizer.json in it",
        )


def _check_sizes(asked: SelectRequest) -> None:
    """Check that there are sizes and coverages, or one schedule, or none of them for an imported list."""
    sized = {"--size": words_in(asked.size), "--coverage": asked.coverage}
    scheduled = {"--schedule": asked.schedule, "--k-max": asked.k_max, "--k-min": asked.k_min}
    given = [name for name, value in (sized | scheduled).items() if value]
    if asked.from_list is not None:
        if given:
            raise UsageError(
                "an imported list has its size already", got=", ".join(given), remedy="leave them out"
            )
    elif not given:
        raise UsageError(
            "the size of the draft vocabulary is missing",
            expected="--size N, --size auto, --coverage SHARE, or --schedule NAME --k-max N",
        )
    elif any(scheduled.values()) and (any(sized.values()) or not (asked.schedule and asked.k_max)):
        raise UsageError(
            "a schedule makes one artefact, of its largest size",
            got=", ".join(given),
            expected="--schedule NAME --k-max N without --size and --coverage",
        )


def _plan(asked: SelectRequest, counts: Ids, forced: Sequence[int]) -> dict[int, str]:
    """Return size -> the option that requested it, in order."""
    if asked.k_max is not None:
        return {asked.k_max: f"schedule {asked.schedule}"}
    plan = {size: f"size {size}" for size in sizes_in("--size", words_in(asked.size), least=1)}
    for share in dict.fromkeys(asked.coverage):
        size = size_for_coverage(counts, share, forced)
        plan[size] = ", ".join(filter(None, (plan.get(size), f"coverage {share:g}")))
    return plan


def _import_list(
    asked: SelectRequest, file: Path, tokenizer: TextTokenizer, *, overwrite: bool
) -> dict[str, Any]:
    if asked.force or asked.force_tools:
        raise UsageError(
            "an imported list is taken as it is, so nothing can be forced into it",
            remedy="select from a frequency table instead",
        )
    check_output(asked.output, overwrite=overwrite)
    subset, missing = subset_from_list(read_fr_spec(file), tokenizer, source=file)
    rows = None if asked.target is None else target_rows(asked.target, subset.vocab_size)
    if missing:
        say(
            f"Warning: the list lacks the end tokens {', '.join(map(str, missing))}: a drafter with it never drafts "
            "an end of turn. Select from a frequency table to have them inside."
        )
    digest = sha256_file(file)
    export = ExportInputs(subset, None, rows)
    _save({asked.output: export}, {"list": digest}, asked, (), overwrite=overwrite)
    given = [{"path": str(file), "sha256": digest}]
    return _facts(given, {asked.output: subset}, [f"list {file}"], rows, missing)


def read_table(asked: SelectRequest) -> tuple[FrequencyTable, tuple[int, ...], dict[str, str]]:
    """Return the table, the forced ids, and the hash of the table's artefact by role."""
    (path,) = asked.counts
    table = load_counts(path)
    if asked.domain:
        weights = dict(split_weight(text, "--domain", table.domains) for text in asked.domain)
        table = choose_domains(table, weights)
    parents = {"counts": open_artifact(path, "counts", verify=False).content_hash}
    if asked.tokenizer is not None:
        tokenizer = load_tokenizer(asked.tokenizer)
        check_fingerprint(
            table.fingerprint,
            tokenizer.fingerprint,
            expected_from="the frequency table",
            got_from=tokenizer.source,
        )
    forced = forced_ids(table, asked.force, tools=asked.force_tools, folder=asked.target)
    return table, forced, parents


def _save(
    made: Mapping[Path, ExportInputs],
    parents: Mapping[str, str],
    asked: SelectRequest,
    sources: Iterable[str],
    *,
    overwrite: bool,
) -> None:
    formats = tuple(dict.fromkeys(asked.export))
    # Check all exporters before writing anything.
    config = {"data": [asdict(origin_of(source)) for source in sources]}
    ready = {place: exporters(formats, inputs) for place, inputs in made.items()}
    for place, writers in ready.items():
        save_subset(
            made[place].subset, place, parents=parents, config=config, overwrite=overwrite, exports=writers
        )


def _facts(
    given: list[dict[str, Any]],
    made: Mapping[Path, VocabSubset],
    asked: Sequence[str],
    rows: int | None,
    missing_eos: Sequence[int] = (),
) -> dict[str, Any]:
    subsets: list[dict[str, Any]] = [
        {
            "output": str(place),
            "asked": words,
            "size": len(subset),
            "vocab_size": subset.vocab_size,
            "share": len(subset) / subset.vocab_size,
            "coverage": subset.coverage,
            "forced": list(subset.forced),
            "filled": subset.filled,
            "schedule": list(subset.schedule),
            "files": sorted(open_artifact(place, "subset", verify=False).manifest["files"]),
            "fingerprint": subset.fingerprint,
        }
        for (place, subset), words in zip(made.items(), asked, strict=True)
    ]
    return {
        "counts": given,
        "target_rows": rows,
        "padded_rows": None if rows is None else rows - subsets[0]["vocab_size"],
        "missing_eos": list(missing_eos),
        "subsets": subsets,
    }
