"""Checks of a draft model, a language model of any vocabulary, against the target that it would draft for."""

from __future__ import annotations

from pathlib import Path

from ...corpus.tokenizer import TextTokenizer, load_tokenizer
from ...decode.build_foreign import ForeignWays, Way, choose_proposer, shares_of
from ...decode.method_spec import MethodSpec
from ...decode.proposers import ProposerParts, make_proposer
from ...models.lean import LeanModel
from ...models.lean_config import LeanConfig
from .checks import Finding, Report
from .drafter import GROUP, compare_output
from .target import TargetFacts, check_config, check_loads, check_weights


def check_draft_model(report: Report, path: Path, target: TargetFacts | None) -> None:
    """Add the rows of a draft model."""
    config = report.run(GROUP, "kind", check_kind, path)
    count = report.run(GROUP, "weight files", check_weights, path)
    model = report.run(GROUP, "loads", check_loads, path, config, count)
    way = report.run(
        GROUP, "tokenizer", check_vocabularies, path, config, target, target and target.tokenizer
    )
    report.run(GROUP, "end tokens", check_ends, path, way, target and target.tokenizer)
    report.run(GROUP, "proposer", check_proposer, way)
    report.run(GROUP, "drafting", check_drafting, model, way, target)


def check_kind(path: Path) -> Finding[LeanConfig]:
    """As for a target's configuration."""
    found = check_config(path)
    return Finding(f"a draft model: {found.found}", value=found.value)


def check_vocabularies(
    path: Path, config: LeanConfig, target: TargetFacts, tokenizer: TextTokenizer
) -> Finding[Way]:
    """Whose tokenizer it has; the value is how it would draft for a greedy run."""
    ways = ForeignWays(tokenizer, target.model.config.vocab_size, MethodSpec())
    way = ways.of(path, config.vocab_size)
    if way.bridge is not None:
        return Finding(f"another one than the target's: {way.facts}", value=way)
    if not (path / "tokenizer.json").is_file():
        return Finding(
            f"no tokenizer.json; taken for the target's, as it has {config.vocab_size:,} rows, too",
            "warning",
            "put its tokenizer.json into its folder",
            way,
        )
    return Finding("the target's: the fingerprints agree", value=way)


def check_ends(path: Path, way: Way, tokenizer: TextTokenizer) -> Finding[None]:
    """The pair of end tokens, where there are two vocabularies."""
    if way.bridge is None:
        return Finding(f"the target's: {list(tokenizer.eos_ids)}")
    if way.bridge.eos is None:
        return Finding(
            "no pair: target or drafter has no end token that is no text, so that the end is never drafted",
            "warning",
            "name a pair: vocabforge compare-vocab TARGET DRAFTER --eos A:B --save DIR, and give --overlap DIR",
        )
    texts = [
        f"{one.backend.id_to_token(token)!r} ({token})"
        for one, token in zip((tokenizer, load_tokenizer(path)), way.bridge.eos, strict=True)
    ]
    return Finding(f"the target's {texts[0]} and the drafter's {texts[1]} stand for each other")


def check_proposer(way: Way) -> Finding[None]:
    """What ``--proposer`` would be without the option, greedy and sampling."""
    if way.bridge is None:
        return Finding(f"{way.names[0]}: one vocabulary")
    found = f"{way.names[0]}, chosen because {way.reason}"
    sampled, reason = choose_proposer(shares_of(way.bridge), way.bridge.drafter.mean_bytes, True)
    if sampled != way.names[0]:
        found += f"; above temperature 0: {sampled}, because {reason}"
    return Finding(found)


def check_drafting(model: LeanModel, way: Way, target: TargetFacts) -> Finding[None]:
    """A few tokens by the proposer chosen, and by plain decoding."""
    parts = ProposerParts(target.model, model, bridge=way.bridge)
    return compare_output(target, make_proposer(way.names[0], parts))
