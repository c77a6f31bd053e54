"""What ``--graphs`` means on a machine without a CUDA device."""

from __future__ import annotations

import pytest

from vocabforge.cli.options.decoding import wrap_for
from vocabforge.core.errors import UsageError


def test_graphs_are_left_out_where_there_is_no_cuda_device() -> None:
    assert wrap_for(False, None, "cpu") is None
    assert wrap_for(False, False, "cpu") is None


@pytest.mark.parametrize(
    ("compiled", "said", "remedy"),
    [(False, "CUDA devices only", "--device cuda"), (True, "either compiled", "")],
)
def test_graphs_that_cannot_be_had_are_refused(compiled: bool, said: str, remedy: str) -> None:
    with pytest.raises(UsageError, match=said) as told:
        wrap_for(compiled, True, "cpu")
    assert remedy in str(told.value)
