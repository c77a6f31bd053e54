"""The disk cache: the bits of online capture, and no damage that goes unnoticed."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from safetensors.torch import save

from tests.capture.capture_support import key_of, make_cache, make_job, packed, splits
from vocabforge.core.errors import ArtifactError, DataError, MismatchError, UsageError
from vocabforge.models.target.hf import HFTarget
from vocabforge.train.capture import writer
from vocabforge.train.capture.cache import CachedCapture, open_cache
from vocabforge.train.capture.online import CapturedBatch, OnlineCapture, RowBatch, to_tensors
from vocabforge.train.capture.writer import check_disk, finish, finished_shards, prepare_folder, write_shards

CPU = torch.device("cpu")


@pytest.fixture
def cache(target: HFTarget, tmp_path: Path) -> Path:
    make_cache(make_job(tmp_path / "c", target, splits()), target)
    return tmp_path / "c"


def ask(source: object, split: str, rows: list[int]) -> CapturedBatch:
    batch = to_tensors(splits()[split], rows, CPU)
    return source(batch, [(split, row) for row in rows])  # type: ignore[operator]


def test_the_cache_gives_the_bits_of_online_capture(cache: Path, target: HFTarget) -> None:
    cached, online = CachedCapture(cache), OnlineCapture(target, 0)
    assert len(list(cache.glob("*.safetensors"))) > 3, "the test needs several shards"
    for split, rows in (("train", [4, 0, 3]), ("heldout", [1]), ("train", [1, 2, 5])):
        one, other = ask(cached, split, rows), ask(online, split, rows)
        assert torch.equal(one.features, other.features)
        assert torch.equal(one.hidden, other.hidden)
        assert bool(one.features.abs().sum() > 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_facts_of_the_stored_states_are_kept(target, tmp_path, dtype):
    job = make_job(tmp_path / "c", target, splits())
    make_cache(dataclasses.replace(job, key=key_of(target, splits(), dtype)), target)
    batch = ask(CachedCapture(tmp_path / "c"), "train", [4, 0])
    assert batch.facts is not None
    logits = target.logits(batch.hidden.float())
    real = batch.document != 0
    assert torch.equal(batch.facts.best[real], logits.argmax(-1)[real])
    torch.testing.assert_close(batch.facts.log_sum[real], logits.logsumexp(-1)[real])
    assert not batch.facts.log_sum[~real].any()


def test_caches_without_facts_are_read(target, tmp_path, monkeypatch):
    """As earlier versions wrote them, and a cache that this version finished."""
    job = make_job(tmp_path / "c", target, splits())
    prepare_folder(job, overwrite=False)

    def without(tensors: dict[str, torch.Tensor]) -> bytes:
        return save({name: t for name, t in tensors.items() if name not in ("best", "log_sum")})

    with monkeypatch.context() as patch:
        patch.setattr(writer, "save", without)
        write_shards(job, job.shards[:1], OnlineCapture(target, 0), target)
    make_cache(job, target)
    cached, online = CachedCapture(tmp_path / "c"), OnlineCapture(target, 0)
    last = len(splits()["train"].input_ids) - 1
    for rows, kept in (([0], False), ([last, 0], False), ([last], True)):
        batch = ask(cached, "train", rows)
        assert (batch.facts is not None) is kept
        assert torch.equal(batch.hidden, ask(online, "train", rows).hidden)


def test_a_kept_run_goes_on_from_its_shards(target: HFTarget, tmp_path: Path) -> None:
    job = make_job(tmp_path / "c", target, splits())
    prepare_folder(job, overwrite=False)
    write_shards(job, job.shards[:2], OnlineCapture(target, 0), target)
    assert not finish(job, {}, {}, overwrite=False)
    with pytest.raises(ArtifactError, match="not finished"):
        open_cache(tmp_path / "c")
    stamp = (job.partial / job.shards[0].file).stat().st_mtime_ns
    assert finished_shards(job) == job.shards[:2]
    made = make_cache(job, target)
    assert made == [shard.file for shard in job.shards[2:]]
    assert (tmp_path / "c" / job.shards[0].file).stat().st_mtime_ns == stamp
    assert not job.partial.exists()
    assert torch.equal(
        ask(CachedCapture(tmp_path / "c"), "train", [0]).hidden,
        ask(OnlineCapture(target, 0), "train", [0]).hidden,
    )


def test_an_unfinished_capture_of_other_data_is_not_continued(target: HFTarget, tmp_path: Path) -> None:
    prepare_folder(make_job(tmp_path / "c", target, splits()), overwrite=False)
    other = {**splits(), "train": packed([7, 20, 9], 32, seed=5)}
    with pytest.raises(UsageError, match="other settings or inputs"):
        prepare_folder(make_job(tmp_path / "c", target, other), overwrite=False)


@pytest.mark.parametrize("damage", ["truncated", "flipped", "gone"])
def test_damaged_shards_are_named_with_what_to_run(cache: Path, target: HFTarget, damage: str) -> None:
    file = cache / "shard-00001.safetensors"
    data = file.read_bytes()
    file.unlink()
    if damage == "truncated":
        file.write_bytes(data[:-100])
    elif damage == "flipped":
        file.write_bytes(data[:-100] + bytes([data[-100] ^ 1]) + data[-99:])
    rows = list(range(5))
    with pytest.raises(ArtifactError) as error:
        ask(CachedCapture(cache), "train", rows)
    assert "shard-00001.safetensors" in str(error.value)
    if damage != "gone":
        assert "vocabforge capture" in str(error.value)
    make_cache(make_job(cache, target, splits()), target, overwrite=True)
    assert torch.equal(
        ask(CachedCapture(cache), "train", rows).hidden, ask(OnlineCapture(target, 0), "train", rows).hidden
    )


def test_a_flipped_shard_is_only_found_when_it_is_used(cache: Path) -> None:
    file = sorted(cache.glob("*.safetensors"))[-1]
    data = file.read_bytes()
    file.unlink()
    file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    cached = CachedCapture(cache)
    ask(cached, "train", [0])
    with pytest.raises(ArtifactError, match="damaged"):
        ask(cached, "heldout", [1, 0])


def test_caches_of_something_else_are_refused(cache: Path, target: HFTarget, tmp_path: Path) -> None:
    cached = CachedCapture(cache)
    key = key_of(target, splits())
    cached.check(key)
    for change, words in (
        ({"target": "0" * 64}, "target fingerprint"),
        ({"aux_layers": (0, 2, 3)}, r"auxiliary layers \[1, 2, 3\]"),
        ({"rows": {**key.rows, "train": "1" * 64}}, "digest of the train rows"),
    ):
        with pytest.raises(MismatchError, match=words):
            cached.check(dataclasses.replace(key, **change))


def test_rows_are_compared_with_what_is_stored(cache: Path) -> None:
    cached = CachedCapture(cache)
    batch = to_tensors(splits()["train"], [0], CPU)
    other = RowBatch(batch.input_ids.clone(), batch.loss_mask, batch.document, batch.position)
    other.input_ids[0, 3] += 1
    with pytest.raises(MismatchError, match="token ids differ"):
        cached(other, [("train", 0)])
    moved = RowBatch(batch.input_ids, batch.loss_mask, batch.document * 2, batch.position)
    with pytest.raises(MismatchError, match="documents differ"):
        cached(moved, [("train", 0)])
    with pytest.raises(MismatchError, match="no such row"):
        cached(batch, [("train", 99)])
    with pytest.raises(MismatchError, match="no such row"):
        cached(batch, [("test", 0)])


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["features", "hidden"])
def test_states_that_are_not_finite_are_refused_with_their_row(target, tmp_path, bad, name):
    online = OnlineCapture(target, 0)

    def source(rows: RowBatch, keys: list[tuple[str, int]]) -> CapturedBatch:
        batch = online(rows, keys)
        if ("train", 3) in keys:
            getattr(batch, name)[keys.index(("train", 3)), 2, 5] = bad
        return batch

    with pytest.raises(DataError, match="train row 3, token 2"):
        make_cache(make_job(tmp_path / "c", target, splits()), target, source)


def test_a_dtype_that_overflows_is_refused(target: HFTarget, tmp_path: Path) -> None:
    online = OnlineCapture(target, 0)

    def source(rows: RowBatch, keys: list[tuple[str, int]]) -> CapturedBatch:
        batch = online(rows, keys)
        batch.features[0, 0, 0] = 1e5
        return batch

    rows = splits()
    job = make_job(tmp_path / "c", target, rows)
    half = dataclasses.replace(job, key=key_of(target, rows, torch.float16))
    with pytest.raises(DataError, match="not finite") as error:
        make_cache(half, target, source)
    assert "float16 overflows" in str(error.value)


def test_disk_use_is_known_beforehand(target: HFTarget, tmp_path: Path) -> None:
    job = make_job(tmp_path / "not" / "yet" / "c", target, splits())
    make_cache(job, target)
    size = sum(file.stat().st_size for file in job.output.glob("*.safetensors"))
    assert job.bytes() <= size <= job.bytes() + 1000 * len(job.shards)
    with pytest.raises(UsageError, match="do not fit"):
        check_disk(10**18, job.output)
    check_disk(job.bytes(), job.output)
