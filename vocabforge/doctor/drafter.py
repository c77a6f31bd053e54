"""Checks of a drafter, a draft model or a draft vocabulary against its target."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from ..core.artifact import MANIFEST, Artifact, open_artifact
from ..corpus.tokenizer.tokenizer import TextTokenizer, check_fingerprint, load_tokenizer
from ..decode.build.foreign import ForeignWays, Way, choose_proposer, shares_of
from ..decode.engine import Decoder
from ..decode.proposers.registry import Proposer, ProposerParts, make_proposer, tree_proposer
from ..decode.spec import MethodSpec
from ..decode.tree import TreeSettings
from ..evaluate.identity import first_difference
from ..layouts.registry import load_drafter, restrict
from ..models.drafters.interface import Drafter
from ..models.drafters.io import check_target
from ..models.heads.registry import exact_head
from ..models.target.fingerprint import target_fingerprint
from ..models.target.head import TargetTensors
from ..models.target.interface import Target
from ..vocab.subset.subset import VocabSubset, load_subset
from .checks import Finding, Report
from .target import TargetFacts, check_config, check_loads, check_weights, probe_ids

GROUP, VOCAB_GROUP = "drafter", "draft vocabulary"
MADE_FOR = "made for this target"
_TOKENS = 16
_ELSEWHERE = "made elsewhere: no manifest, so nothing can be verified"


def check_drafter(report: Report, path: Path, target: TargetFacts | None) -> Drafter | None:
    """Add the drafter's rows; return the loaded drafter, or None if it cannot be loaded."""
    verified = report.run(GROUP, "artefact", check_artifact, path)
    artifact = verified[0] if verified else None
    if artifact is not None:
        report.run(GROUP, MADE_FOR, check_fingerprints, artifact, target)
        if report.failed(MADE_FOR):  # every other comparison with this target would fail as well
            report.skip(GROUP, "all other checks")
            return None
    drafter = report.run(GROUP, "tensors", check_tensors, path, target, verified)
    report.run(GROUP, "auxiliary layers", check_layers, drafter, target)
    report.run(GROUP, "draft vocabulary", check_map, drafter)
    inside = drafter and drafter.target_ids.tolist()
    report.run(GROUP, "end tokens", check_eos_inside, inside, target and target.tokenizer)
    report.run(GROUP, "drafting", check_drafting, drafter, target)
    return drafter


def check_vocab(report: Report, path: Path, target: TargetFacts | None, drafter: Drafter | None) -> None:
    """Add the rows of a subset artefact; if a drafter is given, also check it restricted to the subset."""
    subset = report.run(VOCAB_GROUP, "artefact", check_subset, path)
    report.run(
        VOCAB_GROUP,
        "made with this tokenizer",
        check_subset_tokenizer,
        subset,
        target and target.tokenizer,
        path,
    )
    inside = subset and subset.ids.tolist()
    report.run(VOCAB_GROUP, "end tokens", check_eos_inside, inside, target and target.tokenizer)
    if drafter is not None:

        def restricted(drafter: Drafter, target: TargetFacts) -> Finding[None]:
            return check_drafting(restrict(drafter, path, None), target)

        report.run(VOCAB_GROUP, "drafting", restricted, drafter, target)


def check_artifact(path: Path) -> Finding[tuple[Artifact | None]]:
    """Verify the artefact. The value is a 1-tuple, because None would mean failure to later checks."""
    if not (path / MANIFEST).is_file() and (path / "config.json").is_file():
        return Finding(
            _ELSEWHERE, "warning", "make sure by other means that it belongs to this target", (None,)
        )
    artifact = open_artifact(path)
    size = sum(entry["bytes"] for entry in artifact.manifest["files"].values())
    count = len(artifact.manifest["files"])
    return Finding(
        f"{artifact.kind}, {count} files of {size / 2**20:.1f} MiB, all as written (content "
        f"{artifact.content_hash[:12]})",
        value=(artifact,),
    )


def check_fingerprints(artifact: Artifact, target: TargetFacts) -> Finding[None]:
    """Compare the recorded target and tokenizer fingerprints with the given ones."""
    recorded, tokenizer = (artifact.meta.get(f"{what}_fingerprint") for what in ("target", "tokenizer"))
    if not recorded:
        return Finding("it does not record its target", "warning", "export it again from the training run")
    if not check_target(artifact, target_fingerprint(target.path), target=target.path):
        return Finding(
            "it was trained for another quantisation of this target",
            "warning",
            "measure its accepted length with vocabforge eval before you serve it",
        )
    if not tokenizer or target.tokenizer is None:
        return Finding("the target's fingerprint agrees; the tokenizer's cannot be compared", "warning")
    check_fingerprint(
        str(tokenizer),
        target.tokenizer.fingerprint,
        expected_from=f"the drafter {artifact.path}",
        got_from=str(target.tokenizer.source),
        remedy="use the tokenizer that the drafter was trained with",
    )
    return Finding("the fingerprints of target and tokenizer agree")


def check_tensors(path: Path, target: TargetFacts, _verified: object) -> Finding[Drafter]:
    """Check that the drafter loads with finite values; the value is the drafter."""
    tensors = TargetTensors(target.model.embedding, target.model.lm_head_weight, target.model.transform)
    drafter, _ = load_drafter(path, tensors, target.path)
    count = sum(p.numel() for p in drafter.parameters())
    head = "its own head" if drafter.has_own_head else "the target's head"
    rows, total = len(drafter.target_ids), drafter.config.vocab_size
    return Finding(
        f"{drafter.label}: {count:,} parameters, {head} of {rows:,} of {total:,} tokens", value=drafter
    )


def check_layers(drafter: Drafter, target: TargetFacts) -> Finding[None]:
    """Check that the auxiliary layers exist in this target."""
    layers, count = drafter.config.aux_layers, target.model.config.num_layers
    if drafter.reads == "hidden":
        return Finding("none: it reads the target's last hidden states")
    summary = f"outputs of layers {list(layers)} (0-based) of {count}"
    if not all(0 <= layer < count for layer in layers):
        return Finding(summary, "failed", "use the target that the drafter was trained for")
    if sorted(set(layers)) != list(layers):
        return Finding(
            f"{summary}, repeated or out of order", "warning", "check drafter.aux_layers of its training"
        )
    return Finding(summary)


def check_map(drafter: Drafter) -> Finding[None]:
    """Check the map from head rows to target ids; consistency of d2t and t2d is checked on loading."""
    ids, total = drafter.target_ids, drafter.config.vocab_size
    rows = drafter.head_rows(0).shape[0]
    if len(ids) != rows or not bool((ids.diff() > 0).all()) or int(ids[0]) < 0 or int(ids[-1]) >= total:
        return Finding(
            f"{rows:,} rows with {len(ids):,} ids from {int(ids.min())} to {int(ids.max())}, not ascending "
            f"within 0 to {total - 1}",
            "failed",
            "export the drafter again",
        )
    if rows == total:
        return Finding(f"the whole vocabulary of {total:,} tokens")
    return Finding(f"{rows:,} of {total:,} tokens ({rows / total:.1%})")


def check_eos_inside(inside: list[int], tokenizer: TextTokenizer) -> Finding[None]:
    """Check that every end token can be drafted."""
    ids = tokenizer.eos_ids
    if not ids:
        return Finding("the tokenizer names no end token", "skipped")
    missing = sorted(set(ids) - set(inside))
    if missing:
        return Finding(
            f"end tokens {missing} can never be drafted: the last tokens of every answer need one pass each",
            "warning",
            "select the draft vocabulary with --target, which forces them in",
        )
    return Finding(f"inside: {list(ids)}")


def check_drafting(drafter: Drafter, target: TargetFacts) -> Finding[None]:
    """Check that speculation gives the same few tokens as plain decoding."""
    head = exact_head(drafter)
    topk = 1 if target.model.config.recurrent else min(4, head.size)
    depth = min(3, (drafter.max_steps or 4) - 1)
    settings = TreeSettings(
        topk=topk, depth=depth, total_nodes=max(depth + 2, min(16, 1 + topk + depth * topk**2))
    )
    return compare_output(target, tree_proposer(target.model, drafter, head, settings))


@torch.inference_mode()
def compare_output(target: TargetFacts, proposer: Proposer) -> Finding[None]:
    """Compare a few tokens decoded with a proposer and by plain decoding."""
    prompt = probe_ids(target.model, target.tokenizer)
    context = min(target.model.config.max_positions, len(prompt) + _TOKENS + 1)
    plain, drafted = (
        Decoder(target.model, way, context=context).generate(prompt, max_new_tokens=_TOKENS, stop_ids=())
        for way in (None, proposer)
    )
    place = first_difference(drafted.token_ids, plain.token_ids)
    if place is not None:
        return Finding(
            f"token {place + 1} differs from plain decoding",
            "failed",
            "speculation must not change the output: report this target and drafter",
        )
    return Finding(
        f"{len(drafted.token_ids)} tokens as plain decoding, in {len(drafted.accept_lengths)} verifications "
        f"(accepted length {drafted.mean_accepted_length:.2f} on one prompt)"
    )


def check_subset(path: Path) -> Finding[VocabSubset]:
    """Check that the artefact is intact; the value is the draft vocabulary."""
    subset = load_subset(path)
    coverage = "" if subset.coverage is None else f", {subset.coverage:.2%} of the counted tokens"
    return Finding(f"{len(subset):,} of {subset.vocab_size:,} tokens{coverage}", value=subset)


def check_subset_tokenizer(subset: VocabSubset, tokenizer: TextTokenizer, path: Path) -> Finding[None]:
    """Check that the subset was made with the target's tokenizer."""
    subset.check_tokenizer(tokenizer.fingerprint, tokenizer.source, source=path)
    return Finding("the fingerprints agree")


def check_draft_model(report: Report, path: Path, target: TargetFacts | None) -> None:
    """Add the rows of a draft model."""
    config = report.run(GROUP, "kind", check_kind, path)
    needed = report.run(GROUP, "weight files", check_weights, path)
    model = report.run(GROUP, "loads", check_loads, path, config, needed, "draft model")
    way = report.run(
        GROUP, "tokenizer", check_vocabularies, path, config, target, target and target.tokenizer
    )
    report.run(GROUP, "end tokens", check_ends, path, way, target and target.tokenizer)
    report.run(GROUP, "proposer", check_proposer, way)
    report.run(GROUP, "drafting", check_model_drafting, model, way, target)


def check_kind(path: Path) -> Finding[Any]:
    """Check that the configuration is a language model's; the value is the text model's configuration."""
    config = check_config(path)
    return Finding(f"a draft model: {config.found}", value=config.value)


def check_vocabularies(
    path: Path, config: Any, target: TargetFacts, tokenizer: TextTokenizer
) -> Finding[Way]:
    """Compare the tokenizers; the value is the way of drafting for a greedy run."""
    ways = ForeignWays(tokenizer, target.model.config.vocab_size, MethodSpec())
    way = ways.of(path, config.vocab_size)
    if way.bridge is not None:
        return Finding(f"different from the target's: {way.facts}", value=way)
    if not (path / "tokenizer.json").is_file():
        return Finding(
            f"no tokenizer.json; assumed to be the target's, which also has {config.vocab_size:,} rows",
            "warning",
            "put its tokenizer.json into its folder",
            way,
        )
    return Finding("the target's: the fingerprints agree", value=way)


def check_ends(path: Path, way: Way, tokenizer: TextTokenizer) -> Finding[None]:
    """Check the pair of end tokens if there are two vocabularies."""
    if way.bridge is None:
        return Finding(f"the target's: {list(tokenizer.eos_ids)}")
    if way.bridge.eos is None:
        return Finding(
            "no pair: target or drafter has no end token that is not text, so the end is never drafted",
            "warning",
            "name a pair: vocabforge compare-vocab TARGET DRAFTER --eos A:B --output DIR, and give --overlap DIR",
        )
    texts = [
        f"{text_tokenizer.backend.id_to_token(token)!r} ({token})"
        for text_tokenizer, token in zip((tokenizer, load_tokenizer(path)), way.bridge.eos, strict=True)
    ]
    return Finding(f"the target's {texts[0]} and the drafter's {texts[1]} stand for each other")


def check_proposer(way: Way) -> Finding[None]:
    """Report the default of ``--proposer`` for greedy decoding and for sampling."""
    if way.bridge is None:
        return Finding(f"{way.names[0]}: one vocabulary")
    summary = f"{way.names[0]}, chosen because {way.reason}"
    sampled, reason = choose_proposer(shares_of(way.bridge), way.bridge.drafter.mean_bytes, True)
    if sampled != way.names[0]:
        summary += f"; above temperature 0: {sampled}, because {reason}"
    return Finding(summary)


def check_model_drafting(model: Target, way: Way, target: TargetFacts) -> Finding[None]:
    """Compare a few tokens of the chosen proposer with plain decoding."""
    parts = ProposerParts(target.model, model, bridge=way.bridge)
    return compare_output(target, make_proposer(way.names[0], parts))
