"""Every reader of the package, with the good example that it is tried on."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.fuzz.goods import KEY
from tests.fuzz.reader import Read, Reader, command
from tests.fuzz.readers_drafters import DRAFTERS
from tests.fuzz.readers_servers import SERVERS
from vocabforge.cli.inspect import VIEWS


def _config(module: str, name: str) -> Read:
    def read(path: Path, _: Path) -> Any:
        from vocabforge.core.config import load_config
        from vocabforge.core.registry import load_attribute

        return load_config(load_attribute(f"{module}:{name}"), path)

    return read


def _deepspeed(path: Path, goods: Path) -> Any:
    from vocabforge.core.config import load_config
    from vocabforge.train.config import TrainConfig
    from vocabforge.train.parallel.deepspeed import deepspeed_config

    config = load_config(TrainConfig, goods / "heads.yaml")
    os.environ["ACCELERATE_DEEPSPEED_CONFIG_FILE"] = str(path)
    return deepspeed_config(config, 1)


def _tokenizer(path: Path, _: Path) -> Any:
    from vocabforge.corpus.tokenizer.tokenizer import encode_prompt, load_tokenizer

    loaded = load_tokenizer(path)
    messages = [{"role": "user", "content": "Who?"}]
    return (encode_prompt(loaded, "once"), loaded.decode([0, 1]), encode_prompt(loaded, messages))


def _lean_target(path: Path, _: Path) -> Any:
    from vocabforge.models.lean.model import load_target

    return load_target(path)


def _hf_target(path: Path, _: Path) -> Any:
    from vocabforge.models.target.hf import HFTarget

    return HFTarget.load(path)


def _target_facts(path: Path, _: Path) -> Any:
    from vocabforge.models.target.fingerprint import target_fingerprint
    from vocabforge.models.target.head_rows import open_head

    return target_fingerprint(path), open_head(path).rows(0, 8)


@functools.lru_cache(maxsize=1)
def _shared(model: Path) -> Any:
    from vocabforge.models.drafters.io import load_target_tensors

    return load_target_tensors(model)


def _drafter(path: Path, goods: Path) -> Any:
    from vocabforge.layouts.registry import load_drafter

    return load_drafter(path, _shared(goods / "model"), goods / "model")


def _served(path: Path, goods: Path) -> Any:
    """The folder as servers read it: what they break on is a finding, never an exception."""
    from vocabforge.export.servers.registry import READERS, open_folder, read_as, reader_of
    from vocabforge.export.servers.types import ServedTarget
    from vocabforge.models.target.hf import read_target_config

    shared = _shared(goods / "model")
    side = ServedTarget(read_target_config(goods / "model"), 5, shared.embedding, shared.head)
    folder = open_folder(path)
    return [read_as(name, folder, side) for name in READERS if reader_of(name).matches(folder)]


def _inspect(path: Path, _: Path) -> None:
    command("inspect", path, "--json")
    command("inspect", path)


def _loaded(target: str) -> Read:
    """``module:function`` called with the path."""

    def read(path: Path, _: Path) -> Any:
        from vocabforge.core.registry import load_attribute

        return load_attribute(target)(path)

    return read


def _checkpoint(path: Path, _: Path) -> Any:
    from vocabforge.train.checkpoint import load_latest

    return load_latest(path.parent, {"seed": 5, "optim": {"lr": 0.25}})


def _capture(path: Path, _: Path) -> Any:
    from vocabforge.train.capture.cache import CachedCapture

    cache = CachedCapture(path)
    for shards in cache._shards.values():
        for shard in shards:
            cache._opened(shard)


def _corpus(path: Path, goods: Path) -> Any:
    """Rows are skipped and counted, unless nothing but good ones will do."""
    from vocabforge.corpus.sources.bytes import Problems
    from vocabforge.corpus.sources.sources import SourceOptions, iter_documents

    for _ in iter_documents([path], SourceOptions(), problems=Problems(shown=0)):
        pass
    return list(iter_documents([path], SourceOptions(strict=True)))


def _benchmark(path: Path, _: Path) -> Any:
    from vocabforge.evaluate.benchmarks import rows
    from vocabforge.evaluate.benchmarks.load import load_benchmark

    rows.MAX_BYTES = 8 << 20  # this child's alone: a bomb of 256 MiB takes seconds to unpack
    return load_benchmark(str(path), offline=True)


def _format(name: str) -> Read:
    def read(path: Path, _: Path) -> Any:
        from vocabforge.evaluate.benchmarks.registry import read_format

        return read_format(name, path)

    return read


def _counts_text(path: Path, goods: Path) -> Any:
    from vocabforge.corpus.tokenizer.tokenizer import load_tokenizer
    from vocabforge.vocab.subset.maps import read_counts_text

    return read_counts_text(path, load_tokenizer(goods / "tokenizer"))


def _map(path: Path, goods: Path) -> Any:
    from vocabforge.corpus.tokenizer.tokenizer import load_tokenizer
    from vocabforge.vocab.subset.maps import read_fr_spec, subset_from_list

    return subset_from_list(read_fr_spec(path), load_tokenizer(goods / "tokenizer"), source=path)


def _journal(path: Path, _: Path) -> Any:
    from vocabforge.evaluate.run.journal import EvaluationJournal

    with EvaluationJournal(path, {"a": 1}) as journal:
        return [journal.get(key) for key in list(journal.places)]


def _answers_log(path: Path, _: Path) -> Any:
    from vocabforge.corpus.regenerate.log import AnswerLog

    with AnswerLog(path, {"a": 1}) as answers:
        return answers.get(KEY)


def _speeds(path: Path, _: Path) -> Any:
    from vocabforge.tune.measure import TurnStore

    return TurnStore(path).read(KEY)


def _reply(path: Path, _: Path) -> Any:
    """A server's answer; what is no answer asks it again."""
    from vocabforge.core.errors import DataError
    from vocabforge.corpus.regenerate.server import read_answer

    try:
        value = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:  # as ChatServer.complete
        raise DataError("its answer is not JSON", got=error) from error
    return read_answer(value, 3)


def _compare(path: Path, goods: Path) -> None:
    command("report", path, goods / "eval-b")


def _training(path: Path, _: Path) -> None:
    command("report-training", path)


_HF = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")
_WEIGHTS = ("*.safetensors", "*.index.json")

READERS: dict[str, Reader] = {
    "recipe of train-drafter": Reader("heads.yaml", _config("vocabforge.train.config", "TrainConfig")),
    "recipe of train-router": Reader(
        "router.yaml", _config("vocabforge.train.heads.router_config", "RouterTrainConfig")
    ),
    "recipe of decoding": Reader("decoding.yaml", _loaded("vocabforge.decode.build.recipe:read_recipe")),
    "DeepSpeed configuration": Reader("deepspeed.json", _deepspeed),
    "tokenizer": Reader("model", _tokenizer, _HF),
    "lean target": Reader("model", _lean_target, ("config.json", *_WEIGHTS)),
    "target in shards": Reader("sharded", _lean_target, ("config.json", *_WEIGHTS)),
    "Hugging Face target": Reader("model", _hf_target, ("config.json", *_WEIGHTS)),
    "facts of a target": Reader("sharded", _target_facts, ("config.json", *_WEIGHTS)),
    "facts of one file": Reader("model", _target_facts, ("config.json", *_WEIGHTS)),
    "drafter native": Reader("drafter", _drafter, ("*.json", "*.safetensors"), sealed=True),
    **{
        f"drafter {name}": Reader(name, _drafter, ("config.json", "*.safetensors", "*.pt"))
        for name in ("sglang-eagle3", "speculators-eagle3", "eagle", "fr-spec")
    },
    **{
        f"{name} as servers": Reader(name, _served, ("config.json", "*.safetensors", "*.pt"))
        for name in ("sglang-eagle3", "speculators-eagle3", "eagle", "fr-spec")
    },
    **{f"inspect {kind}": Reader(kind, _inspect, ("*",), sealed=True) for kind in VIEWS},
    "counts": Reader("counts", _loaded("vocabforge.vocab.counts.table:load_counts"), ("*",), sealed=True),
    "subset": Reader("subset", _loaded("vocabforge.vocab.subset.subset:load_subset"), ("*",), sealed=True),
    "clusters": Reader(
        "clusters", _loaded("vocabforge.vocab.clusters.clusters:load_clusters"), ("*",), sealed=True
    ),
    "overlap": Reader(
        "overlap", _loaded("vocabforge.vocab.overlap.overlap:load_overlap"), ("*",), sealed=True
    ),
    "draft head": Reader("draft-head", _loaded("vocabforge.models.heads.io:load_head"), ("*",), sealed=True),
    "prepared data": Reader(
        "prepared-data", _loaded("vocabforge.corpus.prepared.artifact:load_prepared"), ("*",), sealed=True
    ),
    "checkpoint": Reader("step-00000007", _checkpoint, ("*",), sealed=True),
    "captured states": Reader("capture", _capture, ("*",), sealed=True),
    "manifest": Reader("subset", _loaded("vocabforge.core.artifact:open_artifact"), ("manifest.json",)),
    "conversations": Reader("chats.jsonl", _corpus),
    "conversations in a list": Reader("chats.json", _corpus),
    "texts": Reader("text.txt", _corpus),
    "packed rows .gz": Reader("questions.jsonl.gz", _benchmark),
    "packed rows .xz": Reader("questions.jsonl.xz", _benchmark),
    "packed rows .zst": Reader("questions.jsonl.zst", _benchmark),
    "Parquet": Reader("chats.parquet", _corpus),
    "questions spec-bench": Reader("questions.jsonl", _format("spec-bench")),
    "questions human-eval": Reader("tasks.jsonl", _format("human-eval")),
    "questions gsm8k": Reader("sums.json", _format("gsm8k")),
    "questions chat": Reader("chats.json", _format("chat")),
    "questions in Parquet": Reader("sums.parquet", _benchmark),
    "questions of a format to be told": Reader("questions.jsonl", _benchmark),
    "FR-Spec list": Reader("map.pt", _map),
    "counts as text": Reader("counts.txt", _counts_text),
    "tree": Reader("tree.json", _loaded("vocabforge.decode.trees.shapes:read_shape")),
    "results": Reader(
        "eval-a", _loaded("vocabforge.evaluate.results.schema:read_results"), ("results.json",)
    ),
    "comparison of evaluations": Reader("eval-a", _compare, ("*.json", "*/*.jsonl"), sealed=True),
    "training run": Reader("training", _training, ("*",)),
    "journal": Reader("journal", _journal, ("*",)),
    "answers of regenerate": Reader("answers-log", _answers_log, ("*",)),
    "measured speeds": Reader("speeds", _speeds, ("*",)),
    "reply of a server": Reader("reply.json", _reply),
    **DRAFTERS,
    **SERVERS,
}

FORMS: Mapping[str, str] = {
    ".json": "json", ".jsonl": "jsonl", ".yaml": "yaml", ".safetensors": "safetensors", ".gguf": "gguf",
    ".events": "events", ".metrics": "metrics",
}  # fmt: skip


def form_of(file: Path) -> str:
    """How a file is spoilt."""
    return FORMS.get(file.suffix, "bytes")


def files_of(reader: Reader, path: Path) -> list[Path]:
    """The files of a copy that may be spoilt, in a fixed order."""
    if not reader.files:
        return [path]
    found = {file for pattern in reader.files for file in path.glob(pattern) if file.is_file()}
    return sorted(file for file in found if file.suffix != ".html")
