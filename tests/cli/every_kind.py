"""One small artefact of every kind that the package knows, for tests that walk over all of them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import torch

from tests.capture.capture_support import make_cache, make_job, splits
from tests.cli.cli_support import succeeds
from tests.evaluate.eval_fakes import FakeGenerator, FakeMethod, evaluate_fakes
from tests.export.readers_support import write_tokenizer as write_known_tokenizer
from tests.export.test_eagle_layout import eagle1
from tests.models.mtp_targets import make_target as make_mtp_target
from tests.vocab.family_tokenizers import byte_level, write_tokenizer
from tests.worlds import (
    ROOT,
    byte_tokenizer,
    make_drafter,
    make_target,
    make_vocab,
    tiny_drafter,
    tiny_target,
)
from vocabforge.core.artifact import open_artifact, write_artifact
from vocabforge.corpus.prepared.artifact import write_prepared
from vocabforge.corpus.prepared.options import HeldoutOptions, PrepareOptions
from vocabforge.corpus.regenerate.backends import RegenerateJob, RegenerateRun
from vocabforge.corpus.regenerate.rows import ChatCompletion, GenerationSettings
from vocabforge.corpus.regenerate.run import regenerate
from vocabforge.corpus.sources.sources import SourceOptions
from vocabforge.corpus.tokenizer.special_tokens import SpecialTokens
from vocabforge.corpus.tokenizer.tokenizer import load_tokenizer
from vocabforge.evaluate.reports.coverage_data import measure_coverage
from vocabforge.layouts.registry import FORMATS, layout_of
from vocabforge.models.drafters.io import save_drafter
from vocabforge.models.drafters.registry import drafter_sizes, new_drafter
from vocabforge.models.heads.io import HeadOwner, save_head
from vocabforge.models.heads.scorer import LowRankScorer
from vocabforge.models.target.head import load_target_tensors
from vocabforge.models.target.hf import HFTarget
from vocabforge.models.target.load import read_target_config
from vocabforge.train.checkpoint import RunState, save_checkpoint
from vocabforge.vocab.clusters.clusters import Clusters, save_clusters
from vocabforge.vocab.counts.mixtures import TablePart
from vocabforge.vocab.counts.table import FrequencyTable, Tally, save_counts
from vocabforge.vocab.overlap.overlap import compare, prepare, save_overlap
from vocabforge.vocab.subset.subset import load_subset

EXPORTS = [name for name in FORMATS if name != "native"]


def make_counts(path: Path, tokenizer: Path) -> None:
    """Two domains over the byte tokenizer: ``ab`` and spaces often, a byte of no text once."""
    loaded = load_tokenizer(tokenizer)
    parts = {}
    for name, text in (("letters", "aaaabb"), ("spaces", "    \n")):
        parts[name] = Tally(np.bincount(loaded.encode(text), minlength=loaded.vocab_size), 1, len(text))
    parts["spaces"].counts[loaded.backend.token_to_id("Ģ")] = 1  # byte 0x80
    parts["spaces"].counts[257] = 2  # <|end|>
    whole = parts["letters"] + parts["spaces"]
    table = FrequencyTable(
        whole.counts, 2, whole.bytes, "corpus", loaded.fingerprint, {}, SpecialTokens.of(loaded), parts
    )
    save_counts(table, path)


def make_clusters(path: Path, tokenizer: Path) -> None:
    loaded = load_tokenizer(tokenizer)
    size = loaded.vocab_size
    offsets = np.array([0, 10, 11, size])
    clusters = Clusters(
        permutation=np.arange(size),
        offsets=offsets,
        assignment=np.repeat(np.arange(3), np.diff(offsets)).astype(np.int32),
        centroids=np.eye(3, 4, dtype=np.float32),
        cosine=np.array([0.5, 1.0, 0.25], dtype=np.float32),
        zero_cluster=None,
        fingerprint=loaded.fingerprint,
        head={
            "digest": "ab",
            "rows": size,
            "padded": 0,
            "width": 4,
            "dtype": "F32",
            "name": "h",
            "tied": False,
        },
        origin={"seed": 3, "backend": "numpy", "objective": 0.5},
    )
    save_clusters(clusters, path)


def make_evaluation(path: Path, **more: tuple[int, ...]) -> None:
    """Make an evaluation; ``more``: accepted lengths of further methods."""
    steps = {"plain": (1,), "eagle3": (3, 1, 2), **more}
    evaluate_fakes(path, [FakeMethod(name, FakeGenerator(lengths)) for name, lengths in steps.items()])


def make_coverage(path: Path, folder: Path) -> None:
    counted = TablePart.load("counts", folder / "counts")
    results = measure_coverage(counted, [], {"small": load_subset(folder / "subset")})
    meta = {"fingerprint": results["fingerprint"]}
    with write_artifact(path, "coverage", meta) as inside:
        (inside / "coverage.json").write_text(json.dumps(results), "utf-8")


def make_prepared(path: Path, tokenizer: Path) -> None:
    rows = [{"prompt": "why", "response": "because " * size} for size in (1, 2, 3, 20)]
    file = path.parent / "chats.jsonl"
    file.write_text("\n".join(map(json.dumps, [*rows, {"prompt": 3, "response": "x"}])), "utf-8")
    options = PrepareOptions(64, heldout=HeldoutOptions(documents=1))
    write_prepared(path, load_tokenizer(tokenizer), [file], [], options)


def make_responses(path: Path) -> None:
    """Two questions, answered by nobody in particular."""
    turns = [[{"role": "user", "content": "[bold]who?"}], [{"role": "user", "content": "what? " * 30}]]
    file = path.parent / "questions.jsonl"
    file.write_text("".join(json.dumps({"messages": one}) + "\n" for one in turns), "utf-8")

    def echo(work: RegenerateJob, run: RegenerateRun) -> None:
        for conversation in work.conversations():
            request = work.walk(conversation).request()
            message = {"role": "assistant", "content": "[i]" + str(request.messages[0]["content"])}
            run.log.add(request.key, ChatCompletion(message, "stop", request.seed, completion_tokens=4))

    generation = GenerationSettings(backend={"kind": "server"}, model="tiny")
    regenerate(RegenerateJob([file], SourceOptions(), generation), echo, path)


def make_gguf(path: Path, target: Path) -> None:
    write_known_tokenizer(tiny_target(target, vocab_size=31, num_hidden_layers=8))
    drafter = make_drafter(path.with_name("known-drafter"), target)
    succeeds("export", "--drafter", drafter, "--format", "gguf", "--output", path)


def make_every_kind(folder: Path) -> Path:
    """One artefact of every kind under its kind's name, and the tokenizer ``tokenizer`` of most."""
    tokenizer = byte_tokenizer(folder / "tokenizer")
    make_counts(folder / "counts", tokenizer)
    make_vocab(folder / "subset", tokenizer)
    make_clusters(folder / "clusters", tokenizer)
    sides = (
        prepare(load_tokenizer(write_tokenizer(folder / "other", byte_level()))),
        prepare(load_tokenizer(tokenizer)),
    )
    save_overlap(compare(*sides), folder / "overlap", config={"a": "x", "b": "y"})
    make_coverage(folder / "coverage", folder)
    model = make_target(folder / "model")
    make_drafter(folder / "drafter", model, own_head=32, target_ids=torch.arange(32))
    scorer = LowRankScorer(32, 264, 4)
    owner = HeadOwner("d" * 64, "t" * 64, "k" * 64)
    save_head(folder / "draft-head", "ranker", scorer, owner, {"shortlist": 20, "heldout": {"rows": 5}})
    meta = dict(open_artifact(folder / "drafter").meta)
    shared = load_target_tensors(model)
    save_drafter(folder / "small", eagle1(shared, vocab_size=264), meta)
    heads = new_drafter(
        "medusa", drafter_sizes("medusa", read_target_config(model)), shared.embedding, shared.head
    )
    save_drafter(folder / "medusa", heads, meta)
    wishes = {"num_layers": 1, "block_size": 3, "mask_token_id": 2}
    sizes = drafter_sizes("dflash", read_target_config(model), **wishes)
    save_drafter(folder / "block", new_drafter("dflash", sizes, shared.embedding, shared.head), meta)
    own = byte_tokenizer(make_mtp_target(folder / "own", "glm4_moe", vocab_size=264))
    made = {
        "eagle": "small",
        "fr-spec": "small",
        "medusa": "medusa",
        "mtp": "own",
        "speculators-block": "block",
        "block": "block",
    }
    make_gguf(folder / "export-gguf", folder / "known")  # llama.cpp does not know the others' tokenizer
    for name in EXPORTS:
        if name == "gguf":
            continue
        drafter = made.get(name, "drafter")
        arguments = [
            "--target",
            own if name == "mtp" else model,
            "--format",
            name,
            "--output",
            folder / f"export-{name}",
        ]
        vocab = ["--vocab", folder / "subset"] if name in ("fr-spec", "vllm") else []
        vocab += ["--dynamic", "context"] if name == "vllm" else []
        succeeds("export", "--drafter", folder / drafter, *arguments, *vocab)
    with write_artifact(folder / "target", "target", {"vocab_size": 264, "heldout_loss": 1.5}) as inside:
        for file in ("config.json", "model.safetensors"):
            (inside / file).write_bytes((model / file).read_bytes())
    drafter = tiny_drafter(HFTarget.load(model))
    weights = {name: p.detach().contiguous() for name, p in drafter.named_parameters()}
    state = RunState(weights, {}, {})
    save_checkpoint(folder / "run", 7, state, {"seed": 5, "optim": {"lr": 0.25}}, keep=1)
    (folder / "run" / "step-00000007").rename(folder / "checkpoint")
    make_evaluation(folder / "evaluation")
    make_prepared(folder / "prepared-data", tokenizer)
    make_responses(folder / "responses")
    job = make_job(folder / "capture", HFTarget.load(model), splits())
    make_cache(job, HFTarget.load(model))
    return folder


def kinds_of_the_package() -> set[str]:
    """A kind is a constant named KIND or ..._KIND, a literal given to write_artifact, or a layout's."""
    found = {layout_of(name).KIND for name in FORMATS}
    for file in (ROOT / "vocabforge").rglob("*.py"):
        text = file.read_text("utf-8")
        found |= set(re.findall(r'^(?:[A-Z_]*_)?KIND\b[^=\n]*= "([^"]+)"', text, re.MULTILINE))
        found |= set(re.findall(r'write_artifact\(\s*[^,]+,\s*"([^"]+)"', text))
    return found
