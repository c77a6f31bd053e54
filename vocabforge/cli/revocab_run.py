"""What ``revocab`` does with its options: the new head is made, measured, healed, and written."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.errors import UsageError
from ..core.extension import check_known
from ..core.files import check_apart
from ..core.progress import ProgressBar, console, say
from ..core.values import labelled
from ..corpus.tokenizer import load_tokenizer
from ..evaluate.acceptance import AcceptanceMeter
from ..evaluate.live_prompts import LivePrompts, read_prompts
from ..evaluate.prompts import resolve_format
from ..evaluate.revocab_report import (
    AFTER,
    BEFORE,
    FITTED,
    HEALED,
    OUTPUTS,
    RevocabMeter,
    RevocabRecord,
    end_tokens,
    helps,
    revocab_table,
    text_coverage,
)
from ..evaluate.state_pairs import state_pairs
from ..export.checked import write_checked
from ..export.formats import layout_of, load_drafter
from ..export.layout import Export
from ..export.revocab import change_of, fitted_rows, fitted_states, head_drift, revocab_head
from ..export.row_fit import RowFit
from ..models.device import choose_device
from ..models.drafter import Drafter
from ..models.lean import load_target
from ..models.target import check_tokenizer_fits, read_target_config
from ..models.target_load import DTYPES
from ..train.config import LiveConfig
from .export_run import trained_with
from .revocab_heal import HealRequest, heal, heal_config
from .revocab_inputs import FULL, Inputs, read_inputs
from .revocab_options import FormOptions, MeasureOptions, Missing, NewHeadOptions

_NODES = 60


@dataclass(frozen=True)
class RevocabRequest:
    """The options of the command; the healing run's with its folder."""

    head: NewHeadOptions
    measure: MeasureOptions
    heal: HealRequest
    form: FormOptions

    def check(self) -> None:
        """Raises: UsageError: what can be told before anything is loaded."""
        layout_of(self.head.format_name)
        for name, value in (("--dtype", self.form.dtype), ("--decode-dtype", self.form.decode_dtype)):
            if value is not None:
                check_known(value, DTYPES, "dtype", source=name)
        if self.measure.prompts is not None and not self.measure.prompts.is_file():
            raise UsageError(
                "there is no such file",
                got=self.measure.prompts,
                expected="a file of prompts",
                source="--prompts",
            )
        if self.head.missing is Missing.states and self.measure.prompts is None:
            raise UsageError(
                "states are read on prompts",
                got="--missing states without --prompts",
                expected="--prompts FILE beside it",
            )
        self.heal.check()
        read: list[tuple[str, Path | None]] = [
            ("--drafter", self.head.drafter),
            ("--target", self.head.target),
            ("--vocab", None if self.head.vocab == FULL else Path(self.head.vocab)),
            ("--prompts", self.measure.prompts),
            ("--heal-output", None if self.heal.steps is None else self.heal.folder),
            *(("--counts", path) for _, path in map(labelled, self.measure.counts or ())),
            *(("--data", path) for path in self.heal.data),
        ]
        check_apart(self.head.output, read)


@dataclass(frozen=True)
class Made:
    """What was written, and everything that was found."""

    output: Path
    format_name: str
    dtype: str
    record: RevocabRecord

    def to_json(self) -> dict[str, Any]:
        """The result for ``--json``."""
        facts = {"output": str(self.output), "format": self.format_name, "dtype": self.dtype}
        return {**facts, **self.record.to_json()}

    def print(self) -> None:
        """The result for people."""
        console().print(revocab_table(self.record, f"draft vocabulary of {self.output.name}"))
        for line in self.record.lines():
            say(line)
        rows = self.record.head["after"]
        say(f"Wrote {self.output} ({self.format_name}, {rows:,} draft tokens, {self.dtype})")


def revocabularise(request: RevocabRequest) -> Made:
    """Make the new drafter, measure what is asked for, and write it.

    Raises:
        VocabForgeError: anything missing, damaged, or not belonging together.
    """
    request.check()
    head = request.head
    target = head.target or trained_with(head.drafter)
    inputs = read_inputs(head.drafter, target, head.vocab, head.tokenizer, request.measure.counts or ())
    healing, fresh = None, False
    if request.heal.steps is not None:  # mistakes in it are told before anything is decoded
        tokenizer = head.tokenizer or target
        healing = heal_config(request.heal, inputs.drafter.kind, target, tokenizer, inputs.recorded)
        fresh = request.heal.is_new(healing[0], overwrite=request.form.overwrite)
    dtype = request.form.dtype or inputs.stored
    if healing is not None or request.measure.prompts is not None:
        _try(request, inputs, dtype)
    meter = _meter(request, inputs)
    made, record = _new_head(inputs, meter, head.missing.value)
    _cover(record, inputs, made, meter)
    if healing is not None:
        values, config = healing
        folder = heal(made, inputs.facts(), (request.heal, values, config), fresh=fresh)
        made, _ = load_drafter(folder, inputs.shared, target)
        record.healing = {"steps": config.optim.steps, "run": str(config.output), "config": values}
        _decode(meter, HEALED, made)
    record.accepted = None if meter is None else meter.to_json()
    export = _export(request, inputs, made, record.to_json(), dtype)
    layers = int(read_target_config(target).get("num_hidden_layers") or 0)
    write_checked(layout_of(head.format_name), head.output, export, layers)
    return Made(head.output, head.format_name, dtype, record)


def _try(request: RevocabRequest, inputs: Inputs, dtype: str) -> None:
    """Refuse a drafter that the layout cannot express before anything is measured: one is written, and removed.

    Raises:
        VocabForgeError: what the layout's writer raises.
    """
    output = request.head.output
    made = revocab_head(inputs.drafter, inputs.ids)
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{output.name}.", dir=output.parent) as folder:
        layout = layout_of(request.head.format_name)
        layout.write(Path(folder) / "tried", _export(request, inputs, made, {}, dtype))


def _new_head(inputs: Inputs, meter: RevocabMeter | None, missing: str) -> tuple[Drafter, RevocabRecord]:
    """The drafter with its new head, fitted rows in it where these were asked for and help."""
    drafter = inputs.drafter
    made = revocab_head(drafter, inputs.ids)
    change, drift = change_of(drafter, made), head_drift(drafter)
    rows: dict[str, Any] = {"wanted": missing, "used": "target" if change.added else "none", "fit": None}
    _decode(meter, BEFORE, drafter)
    _decode(meter, AFTER, made)
    fit = _fit(inputs, meter, missing) if change.added else None
    if fit is not None:
        rows["fit"] = fit.to_json()
    if fit is not None and fit.form != "none":
        fitted = revocab_head(drafter, inputs.ids, fit)
        _decode(meter, FITTED, fitted)
        found = None if meter is None else meter.measured
        if found is None or helps(found[FITTED].accepted, found[AFTER].accepted):
            made, rows["used"] = fitted, missing
    record = RevocabRecord(
        head=change.to_json(),
        drift=None if drift is None else drift.to_json(),
        missing=rows,
        eos=end_tokens(drafter.target_ids, made.target_ids, inputs.eos),
    )
    return made, record


def _fit(inputs: Inputs, meter: RevocabMeter | None, missing: str) -> RowFit | None:
    """The correction of missing rows that was asked for; None for none, and where there is nothing to fit."""
    if missing == "rows":
        return fitted_rows(inputs.drafter)
    if missing == "states" and inputs.drafter.has_own_head:
        assert meter is not None  # RevocabRequest.check
        with ProgressBar("Reading states", 1, "passes") as bar:
            read, hidden = state_pairs(inputs.drafter, meter.meter.model, meter.spare, meter.meter.new)
            bar.update(1)
        return fitted_states(inputs.drafter, read, hidden)
    return None


def _decode(meter: RevocabMeter | None, name: str, drafter: Drafter) -> None:
    """Measure a version, with a progress bar; the first time the prompts are decoded plainly too."""
    if meter is None:
        return
    passes = 1 if meter.measured else 2
    with ProgressBar(f"Decoding, {name}", passes * len(meter.meter.prompts.prompts), "prompts") as bar:
        meter.meter.each = lambda: bar.update(1)
        meter.measure(name, drafter)


def _cover(record: RevocabRecord, inputs: Inputs, made: Drafter, meter: RevocabMeter | None) -> None:
    """Coverage of the frequency tables and of the target's own answers."""
    counts = dict(inputs.counts)
    if meter is not None:
        counts[OUTPUTS] = meter.output_counts(inputs.drafter.config.vocab_size)
    before, after = inputs.drafter.target_ids.numpy(), made.target_ids.numpy()
    record.coverage = {name: text_coverage(before, after, table) for name, table in counts.items()}


def _meter(request: RevocabRequest, inputs: Inputs) -> RevocabMeter | None:
    """Target and prompts, loaded; None where nothing is to be decoded.

    Where states are to be read, every other prompt is set aside for them.

    Raises:
        VocabForgeError: prompts or tokenizer that cannot be used.
    """
    asked = request.measure
    if asked.prompts is None:
        return None
    loaded = inputs.tokenizer or load_tokenizer(request.head.tokenizer or inputs.target)
    form = resolve_format(loaded, asked.prompt_format)
    model = load_target(
        inputs.target, dtype=DTYPES[request.form.decode_dtype], device=choose_device(request.form.device)
    )
    check_tokenizer_fits(
        loaded.vocab_size, model.config.vocab_size, tokenizer=loaded.source, target=inputs.target
    )
    context = model.config.max_positions
    nodes = asked.tree.total_nodes or _NODES
    live = LiveConfig(
        prompts=asked.limit,
        max_new_tokens=asked.max_new_tokens,
        max_prompt_tokens=context,
        prompt_format=form,
        total=nodes,
    )
    prompts = read_prompts(asked.prompts, loaded, live, context)
    sizes = [len(inputs.drafter.target_ids), len(inputs.ids)]
    spare: Sequence[Sequence[int]] = ()
    if request.head.missing is Missing.states and len(prompts.prompts) > 1:
        spare = prompts.prompts[::2]
        prompts = LivePrompts(prompts.prompts[1::2], prompts.stop_ids)
    tree = (asked.tree.depth, asked.tree.topk, asked.tree.total_nodes)
    meter = AcceptanceMeter(model, prompts, asked.max_new_tokens)
    return RevocabMeter(meter, min(sizes), inputs.drafter.max_steps, tree, spare)


def _export(
    request: RevocabRequest, inputs: Inputs, made: Drafter, record: Mapping[str, Any], dtype: str
) -> Export:
    facts = {
        "format": request.head.format_name,
        "draft_vocab_size": made.config.draft_vocab_size,
        "dtype": dtype,
        "revocab": {"from": str(request.head.drafter), "vocab": request.head.vocab, **record},
    }
    ranked = None if inputs.subset is None else tuple(inputs.subset.ranked.tolist())
    return Export(
        made,
        read_target_config(inputs.target),
        inputs.shared,
        str(inputs.target),
        DTYPES[dtype],
        meta={**inputs.facts(), **facts},
        parents=inputs.parents,
        config={**(inputs.recorded or {}), "target": str(inputs.target)},
        ranked=ranked,
        overwrite=request.form.overwrite,
    )
