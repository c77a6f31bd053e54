"""``vocabforge select-vocab``: choose draft vocabularies from a frequency table."""

from __future__ import annotations

from ..app import print_json
from .select_options import Forcing, Output, SelectInputs, SizeOptions


def select_vocab(inputs: SelectInputs, choice: SizeOptions, forcing: Forcing, output: Output) -> None:
    """Choose the most frequent tokens as a draft vocabulary (FR-Spec, VocabTrim, EAGLE-3's d2t).

    Exactly N unique ids: first the forced ones (end tokens and the chat template's control tokens, always),
    then by count, ties to the lower id.

    Examples: `vocabforge select-vocab --counts counts/ --size 8192 --size 32768 --output subsets/`
    and `vocabforge select-vocab --counts counts/ --coverage 0.95 --export fr-spec --output subset/`
    """
    from .select_run import run

    result = run(inputs, choice, forcing, output)
    if output.result.as_json:
        print_json(result.facts())
    else:
        result.print()
