"""Supported uses of a target: the last table of ``vocabforge doctor --target``."""

from __future__ import annotations

import torch

from ..decode.proposers.registry import ProposerParts, make_proposer
from ..decode.spec import MethodSpec
from ..export.servers.vllm import knows_target
from ..layouts.registry import FORMATS, layout_of
from ..models.drafters.registry import DRAFTERS, drafter_class, drafter_sizes
from ..models.lean.model import LeanModel
from ..models.target.hf import HFTarget
from ..models.target.load import read_target_config
from .checks import Finding, Report
from .drafter import compare_output
from .target import TargetFacts, probe_ids

GROUP = "what it can do"
_TOLERANCE = 1e-4


def check_abilities(report: Report, target: TargetFacts | None) -> None:
    """Add one row each for training, decoding, evaluating and exporting."""
    report.run(GROUP, "trains", check_trains, target, target and target.trained)
    report.run(GROUP, "decodes", check_decodes, target)
    report.run(GROUP, "evaluates", check_evaluates, target)
    report.run(GROUP, "exports to", check_exports, target)


@torch.inference_mode()
def check_trains(target: TargetFacts, trained: HFTarget) -> Finding[None]:
    """Check that packed documents give the logits of each alone, and that all drafter kinds can be sized."""
    ids = torch.tensor([probe_ids(target.model, target.tokenizer)])
    length = ids.shape[1]
    packed = torch.cat([ids, ids], 1)
    position = torch.arange(length).repeat(2)[None]
    document = torch.tensor([[1] * length + [2] * length])
    logits = trained.logits(trained.capture(packed, position, document).hidden)[0]
    expected = trained.model(input_ids=ids, use_cache=False).logits[0].float().repeat(2, 1)
    if not (difference := float((logits - expected).abs().max())) <= _TOLERANCE * max(
        1.0, float(expected.abs().max())
    ):
        return Finding(
            f"packed documents change logits by {difference:.1e}",
            "failed",
            "report the config.json of this target",
        )
    config = read_target_config(target.path)
    usable = list(DRAFTERS.usable())
    for kind in usable:
        drafter_sizes(kind, config)
    kinds = ", ".join(drafter_class(kind).label for kind in usable)
    return Finding(f"{kinds}; EAGLE-3 over layers {', '.join(map(str, trained.aux_layers))}")


def check_decodes(target: TargetFacts) -> Finding[None]:
    """Report which implementation decodes the target and which draft shapes it supports."""
    by = "the lean decoder" if isinstance(target.model, LeanModel) else "Transformers' own code"
    drafts = "chains only: it has recurrent layers" if target.model.config.recurrent else "trees and chains"
    return Finding(f"by {by}; drafts {drafts}")


def check_evaluates(target: TargetFacts) -> Finding[None]:
    """Check that n-gram drafting gives the same few tokens as plain decoding."""
    return compare_output(
        target, make_proposer("n-gram", ProposerParts(target.model, options=MethodSpec(tree="chain")))
    )


def check_exports(target: TargetFacts) -> Finding[None]:
    """List the export layouts, and check that vLLM supports EAGLE-3 drafters for this target."""
    config = read_target_config(target.path)
    kind, module = str(config.get("model_type")), layout_of("mtp").matches(config)
    layouts = ", ".join(name for name in FORMATS if name != "native" and (name != "mtp" or module))
    if not knows_target(kind):
        return Finding(
            f"{layouts}; vLLM's list of targets for EAGLE-3 does not name {kind}",
            "warning",
            "check whether your version of vLLM supports it; the drafter works in VocabForge",
        )
    return Finding(f"{layouts}; vLLM's list of targets for EAGLE-3 has {kind}")
