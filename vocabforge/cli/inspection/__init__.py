"""What ``inspect`` shows of each kind of artefact."""

from __future__ import annotations

# kind -> "module:attr", called as view(artifact, request); a new kind is a row and a function.
VIEWS: dict[str, str] = {
    "counts": "vocabforge.cli.inspection.vocabulary:counts_view",
    "subset": "vocabforge.cli.inspection.vocabulary:subset_view",
    "clusters": "vocabforge.cli.inspection.vocabulary:clusters_view",
    "overlap": "vocabforge.cli.inspection.vocabulary:overlap_view",
    "coverage": "vocabforge.cli.inspection.results:coverage_view",
    "responses": "vocabforge.cli.inspection.results:responses_view",
    "prepared-data": "vocabforge.cli.inspection.data:prepared_view",
    "target": "vocabforge.cli.inspection.model:target_view",
    "checkpoint": "vocabforge.cli.inspection.model:checkpoint_view",
    "draft-head": "vocabforge.cli.inspection.model:head_view",
    "capture": "vocabforge.cli.inspection.data:capture_view",
    "drafter": "vocabforge.cli.inspection.model:drafter_view",
    "export-sglang-eagle3": "vocabforge.cli.inspection.model:serving_view",
    "export-speculators-eagle3": "vocabforge.cli.inspection.model:serving_view",
    "export-eagle": "vocabforge.cli.inspection.model:serving_view",
    "export-fr-spec": "vocabforge.cli.inspection.model:serving_view",
    "study-data": "vocabforge.cli.inspection.study:view",
    "study-answers": "vocabforge.cli.inspection.study:view",
    "study-replay": "vocabforge.cli.inspection.study:view",
    "study-report": "vocabforge.cli.inspection.study:report_view",
    "evaluation": "vocabforge.cli.inspection.results:evaluation_view",
}
