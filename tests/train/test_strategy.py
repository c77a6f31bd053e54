"""Which strategy is used, and the refusals; how a batch is divided."""

from __future__ import annotations

import re

import pytest

from vocabforge.core.distributed import Group, joined
from vocabforge.core.errors import ConfigError, UsageError
from vocabforge.train.config import OptimConfig
from vocabforge.train.data import divide
from vocabforge.train.parallel.strategy import wanted_strategy


@pytest.mark.parametrize(
    ("size", "variable", "expected"),
    [
        (1, None, "single"),
        (2, None, "ddp"),
        (2, "ACCELERATE_USE_FSDP", "fsdp"),
        (2, "ACCELERATE_USE_DEEPSPEED", "deepspeed"),
        (1, "ACCELERATE_USE_DEEPSPEED", "deepspeed"),
    ],
)
def test_the_launcher_decides(monkeypatch, size, variable, expected):
    for name in ("ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED"):
        monkeypatch.delenv(name, raising=False)
    if variable:
        monkeypatch.setenv(variable, "true")
    assert wanted_strategy("auto", Group(0, size)) == expected


@pytest.mark.parametrize(
    ("name", "size", "variable", "word"),
    [
        ("ddp", 1, None, "more than one process"),
        ("fsdp", 1, None, "more than one process"),
        ("single", 2, None, "its own drafter"),
        ("ddp", 2, "ACCELERATE_USE_FSDP", "disagree"),
        ("fsdp", 2, "ACCELERATE_USE_DEEPSPEED", "disagree"),
    ],
)
def test_what_cannot_be_is_refused(monkeypatch, name, size, variable, word):
    if variable:
        monkeypatch.setenv(variable, "true")
    with pytest.raises(UsageError, match=word):
        wanted_strategy(name, Group(0, size))


def test_a_launcher_that_starts_one_process_instead_of_two_is_noticed(monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_CPU", "True")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(UsageError, match="started one"), joined():
        pass


@pytest.mark.parametrize(("batch", "micro", "size"), [(8, None, 1), (8, 2, 2), (6, 1, 3), (8, 16, 4)])
def test_the_parts_are_the_batch_in_order(batch: int, micro: int | None, size: int) -> None:
    config = OptimConfig(steps=1, batch_size=batch, micro_batch_size=micro)
    rows = list(range(100, 100 + batch))
    parts = [divide(config, rank, size).own(rows) for rank in range(size)]
    assert [row for rank in parts for part in rank for row in part] == rows
    assert len({len(rank) for rank in parts}) == 1, "every process makes as many passes"
    assert {len(part) for rank in parts for part in rank} == {min(micro or batch // size, batch // size)}


@pytest.mark.parametrize(
    ("batch", "micro", "size", "remedies"),
    [
        (7, None, 2, {"batch_size": 8}),
        (1, None, 2, {"batch_size": 2}),
        (8, 3, 2, {"batch_size": 12, "micro_batch_size": 2}),
        (15, 4, 1, {"batch_size": 16, "micro_batch_size": 3}),
    ],
)
def test_uneven_divisions_are_refused_and_the_remedies_work(batch, micro, size, remedies):
    config = OptimConfig(steps=1, batch_size=batch, micro_batch_size=micro)
    with pytest.raises(ConfigError, match="shared evenly" if micro is None else "do not fill") as error:
        divide(config, 0, size)
    for key, value in remedies.items():
        assert re.search(rf"remedy:.*optim\.{key}={value}\b", str(error.value))
        divide(config.model_copy(update={key: value}), 0, size)
