"""``vocabforge revocab``: change a trained drafter's draft vocabulary without training."""

from __future__ import annotations

from pathlib import Path

from ...core.config import ModelPath, StrictModel, TokenizerPath
from ..app import ResultOptions, print_json
from ..options.groups import option

FULL = "full"


class RevocabRequest(StrictModel):
    """The drafter, its new draft vocabulary, and the output format."""

    drafter: ModelPath = option(..., "Trained drafter in any layout, including others' drafters.")
    vocab: str = option(..., "Subset artefact, or full for the whole vocabulary.", "DIR|full")
    output: Path = option(..., "Folder to make.")
    target: ModelPath | None = option(
        None, "Target: a folder, a GGUF file, or a name of the Hub [default: that of its training]."
    )
    tokenizer: TokenizerPath | None = option(None, "Tokenizer folder [default: the target's].")
    format: str = option("native", "Layout to write, as in export.")
    dtype: str | None = option(None, "float32, bfloat16 or float16 [default: as the drafter is stored].")


def revocab(request: RevocabRequest, ending: ResultOptions) -> None:
    """Prune, extend or re-map a trained drafter's head to another draft vocabulary, without training.

    Existing rows are copied bit for bit; missing rows come from the target's head. The manifest records what
    changed.

    Example: `vocabforge revocab --drafter run/drafter --target model/ --vocab subsets/r32768 --output small/`
    """
    from .revocab_run import print_made, revocabularise

    made = revocabularise(request, overwrite=ending.overwrite)
    if ending.as_json:
        print_json(made)
    else:
        print_made(made)
