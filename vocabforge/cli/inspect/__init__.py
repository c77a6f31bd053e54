"""Views of each kind of artefact for ``inspect``."""

from __future__ import annotations

from ...core.registry import ExtensionTable

# kind -> "module:attr", called as view(artifact, request). To add a kind, add a row and a function.
VIEWS = ExtensionTable(
    "vocabforge.views",
    {
        "counts": "vocabforge.cli.inspect.vocabulary:counts_view",
        "subset": "vocabforge.cli.inspect.vocabulary:subset_view",
        "clusters": "vocabforge.cli.inspect.vocabulary:clusters_view",
        "overlap": "vocabforge.cli.inspect.vocabulary:overlap_view",
        "coverage": "vocabforge.cli.inspect.results:coverage_view",
        "responses": "vocabforge.cli.inspect.results:responses_view",
        "prepared-data": "vocabforge.cli.inspect.data:prepared_view",
        "target": "vocabforge.cli.inspect.model:target_view",
        "checkpoint": "vocabforge.cli.inspect.model:checkpoint_view",
        "draft-head": "vocabforge.cli.inspect.model:head_view",
        "capture": "vocabforge.cli.inspect.data:capture_view",
        "drafter": "vocabforge.cli.inspect.model:drafter_view",
        "export-sglang-eagle3": "vocabforge.cli.inspect.model:serving_view",
        "export-vllm": "vocabforge.cli.inspect.model:serving_view",
        "export-speculators-eagle3": "vocabforge.cli.inspect.model:serving_view",
        "export-speculators-block": "vocabforge.cli.inspect.model:serving_view",
        "export-block": "vocabforge.cli.inspect.model:serving_view",
        "export-eagle": "vocabforge.cli.inspect.model:serving_view",
        "export-fr-spec": "vocabforge.cli.inspect.model:serving_view",
        "export-gguf": "vocabforge.cli.inspect.model:gguf_view",
        "export-medusa": "vocabforge.cli.inspect.model:serving_view",
        "export-mtp": "vocabforge.cli.inspect.model:module_view",
        "evaluation": "vocabforge.cli.inspect.results:evaluation_view",
    },
)
