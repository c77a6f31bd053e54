"""Ids that a draft vocabulary includes regardless of their counts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ...core.errors import DataError, MismatchError
from ...corpus.tokenizer.files import model_rows, named_eos_ids, read_side_files
from ...corpus.tokenizer.special_tokens import SpecialTokens
from ...corpus.tokenizer.tokenizer import check_fingerprint, load_tokenizer
from ..counts.table import FrequencyTable


def forced_ids(
    table: FrequencyTable, ids: Sequence[int] = (), *, tools: bool = False, folder: Path | None = None
) -> tuple[int, ...]:
    """Return the end tokens, the chat template's control tokens and ``ids``, ascending.

    Args:
        table: frequency table with the tokenizer's special tokens.
        ids: further ids.
        tools: whether to force the template's tool tokens.
        folder: target folder whose end tokens are forced; its tokenizer must be the table's.

    Raises:
        DataError: no end token is known and none is forced by id.
        MismatchError: the target has another tokenizer, or fewer rows than the tokenizer has tokens.
    """
    special, target = table.special, SpecialTokens()
    if folder is not None:
        target = _target_special(table, folder)
    eos = {*special.eos, *target.eos}
    if not eos and not ids:
        raise DataError(
            "no end token is known, and a draft vocabulary without one could never draft an end",
            expected="eos_token in tokenizer_config.json, or eos_token_id in generation_config.json",
            remedy="pass --target FOLDER (with its generation_config.json), or --force ID for the end token",
        )
    forced = {*ids, *eos, *special.control, *target.control}
    if tools:
        forced |= {*special.tools, *target.tools}
    return tuple(sorted(forced))


def target_rows(folder: Path, vocab_size: int) -> int | None:
    """Return the rows of a target's LM head (``vocab_size`` of its config.json), or None if missing.

    Raises:
        DataError: no such folder.
        MismatchError: fewer rows than ``vocab_size`` token ids (more are padding).
    """
    if not folder.is_dir():
        raise DataError(
            "the target is missing", expected=f"{folder}, a model folder", remedy="check the path"
        )
    rows = model_rows(read_side_files(folder)["config.json"])
    if rows is not None and rows < vocab_size:
        raise MismatchError(
            "the target has fewer rows than the tokenizer has tokens",
            got=f"{vocab_size:,} token ids",
            expected=f"at most the target's vocab_size {rows:,}",
            source=folder,
            remedy="count with the target's own tokenizer",
        )
    return rows


def _target_special(table: FrequencyTable, folder: Path) -> SpecialTokens:
    target_rows(folder, table.vocab_size)
    side = read_side_files(folder)
    if not side["generation_config.json"] and not side["config.json"]:
        raise DataError(
            "the target holds neither generation_config.json nor config.json",
            source=folder,
            remedy="give the folder of the model's checkpoint",
        )
    eos = named_eos_ids(side)
    if not (folder / "tokenizer.json").is_file():
        return SpecialTokens(eos=eos)
    tokenizer = load_tokenizer(folder)
    check_fingerprint(
        tokenizer.fingerprint,
        table.fingerprint,
        expected_from=f"the target {folder}",
        got_from="the frequency table",
        remedy="count again with --tokenizer set to the target's folder",
    )
    own = SpecialTokens.of(tokenizer)
    return SpecialTokens(eos=(*own.eos, *eos), control=own.control, tools=own.tools)
