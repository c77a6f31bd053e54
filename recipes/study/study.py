"""Compare draft vocabularies exactly from one decoding of the target.

The target answers the questions once, without drafts. Each method of a decoding recipe (the format of `vocabforge eval
--recipe`) is then replayed along these answers, which gives the accepted lengths that decoding would reach: see
replay.py. A method costs seconds instead of a decoding run. The first method is the baseline.

python recipes/study/study.py --recipe recipes/study/smollm2.yaml --benchmark spec-bench --output runs/study
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from replay import Continuation, Replayed, cycle_offsets, replay, walk

from vocabforge.core.console import markdown_table
from vocabforge.core.errors import UsageError, VocabForgeError
from vocabforge.core.files import atomic_write, atomic_write_json, read_json
from vocabforge.core.progress import ProgressBar
from vocabforge.core.provenance import git_revision, package_versions
from vocabforge.corpus.tokenizer.prompt_format import resolve_format
from vocabforge.decode.build.methods import build_proposer, recipe_models
from vocabforge.decode.build.models import Models, is_draft_model
from vocabforge.decode.build.recipe import DecodingRecipe, read_recipe
from vocabforge.decode.spec import MethodSpec
from vocabforge.decode.text import continue_batches
from vocabforge.decode.trees.shapes import TreeShape, chain, default_shape
from vocabforge.evaluate.benchmarks import Question, load_benchmark
from vocabforge.evaluate.results.intervals import estimate, ratio, ratio_of_ratios
from vocabforge.evaluate.run.prompts import PromptBuilder, system_of
from vocabforge.models.drafters.interface import CachedDrafter
from vocabforge.models.heads.registry import DraftHead, exact_head
from vocabforge.models.lean.model import LeanModel
from vocabforge.models.target.fingerprint import target_fingerprint

TEMPERATURES = (0.0, 1.0)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--recipe", type=Path, required=True, help="decoding recipe: target and methods")
    parser.add_argument("--target", type=Path, help="instead of the recipe's")
    parser.add_argument(
        "--benchmark", action="append", required=True, help="name or file; repeat for several"
    )
    parser.add_argument("--limit", type=int, help="questions of each benchmark, evenly spread over its file")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=16, help="answers decoded side by side")
    parser.add_argument("--levels", type=int, default=4, help="draft tokens of a chain, levels of a tree")
    parser.add_argument("--width", type=int, default=4, help="children of a tree's node")
    parser.add_argument("--nodes", type=int, default=24, help="draft tokens of the tree")
    parser.add_argument("--output", type=Path, required=True)
    asked = parser.parse_args()

    recipe = read_recipe(asked.recipe, asked.target)
    models = recipe_models(recipe)
    model = models.model
    if not isinstance(model, LeanModel):
        raise UsageError(
            "only a target of VocabForge's own implementation can be replayed",
            got=f"target_backend: {recipe.target_backend}",
            expected="an architecture in docs/guides/targets.md, and target_backend: lean",
        )
    questions = [
        (name, question)
        for name in asked.benchmark
        for question in load_benchmark(name, asked.limit).questions
    ]
    methods = draft_heads(models, recipe, asked.levels)
    shapes = {
        f"chain of {asked.levels}": chain(asked.levels),
        f"tree of {asked.nodes}": default_shape(asked.levels, asked.width, asked.nodes + 1),
    }
    first = next(iter(recipe.methods))
    rows: dict[str, Any] = {name: {"temperatures": {}} for name in recipe.methods}
    for temperature in TEMPERATURES:
        answers = answer(models, questions, asked, temperature)
        label = f"Replay, temperature {temperature:g}"
        ranks = replay(model, methods, answers, levels=asked.levels, width=asked.width, label=label)
        for name, row in rows.items():
            own, ends = ranks[name], models.tokenizer.eos_ids
            row["temperatures"][f"{temperature:g}"] = {
                shape: figures(own, ranks[first], answers, questions, form, ends)
                for shape, form in shapes.items()
            }
            if temperature == 0:
                scored = [count for count in own.scored if not np.isnan(count)]
                row["exact_logits"] = float(np.mean(scored)) if scored else None
    results = {
        "recipe": json.loads(recipe.model_dump_json(exclude_defaults=True)),
        "settings": {key: str(value) for key, value in vars(asked).items() if key != "output"},
        "target": target_fingerprint(models.target),
        "questions": len(questions),
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "revision": git_revision(),
        "versions": package_versions(),
        "methods": rows,
    }
    atomic_write_json(asked.output / "results.json", results)
    text = markdown(results)
    atomic_write(asked.output / "table.md", text)
    print(text)


def draft_heads(
    models: Models, recipe: DecodingRecipe, levels: int
) -> dict[str, tuple[CachedDrafter, DraftHead]]:
    """Return the drafter and the draft head of each of the recipe's methods.

    Raises:
        UsageError: a method without a trained EAGLE drafter, which has no draft head to replay.
    """
    heads: dict[str, tuple[CachedDrafter, DraftHead]] = {}
    for name, spec in recipe.methods.items():
        path, drafter = spec.drafter, None
        if path is not None and not is_draft_model(path):
            drafter = models.drafter(path)[0]
        if not isinstance(drafter, CachedDrafter):
            raise UsageError(
                "only methods with a trained EAGLE drafter can be replayed",
                got=f"{name}: {spec.proposer or path}",
                expected="methods.NAME.drafter",
            )
        spec = spec.without("topk", "total_nodes", "tree_file", "confidence", "verifier", "draft_sampling")
        spec = spec.model_copy(update={"tree": "chain", "depth": levels - 1, "control": "fixed"})
        _, built, _ = build_proposer(models, spec, name)
        heads[name] = drafter, exact_head(drafter) if built is None else built.head
    return heads


def answer(
    models: Models, questions: Sequence[tuple[str, Question]], asked: argparse.Namespace, temperature: float
) -> list[Continuation]:
    """Return the target's own answers to the first turns; they are kept in the output folder."""
    form = resolve_format(models.tokenizer, "auto")
    prompts = [
        tuple(PromptBuilder(models.tokenizer, form, system_of(question, None)).ask(question.turns[0]))
        for _, question in questions
    ]
    file = asked.output / f"answers-{temperature:g}.json"
    decides = (str(models.model.dtype), type(models.model).__name__, sorted(models.tokenizer.eos_ids))
    key = [target_fingerprint(models.target), prompts, asked.max_new_tokens, decides]
    key = json.loads(json.dumps(key))
    stored = read_json(file, "answers") if file.is_file() else {}
    if stored.get("key") != key:
        run, _ = continue_batches(
            models,
            MethodSpec(),
            rows=asked.batch_size,
            max_new_tokens=asked.max_new_tokens,
            temperature=temperature,
        )
        # The longest prompts first, so that none is left alone at the end.
        order = sorted(range(len(prompts)), key=lambda number: -len(prompts[number]))
        made: dict[int, list[int]] = {}
        with ProgressBar(f"Answering, temperature {temperature:g}", len(prompts), "answers") as bar:
            for place, ids in run([(list(prompts[number]), number) for number in order]):
                made[order[place]] = ids
                bar.update(1)
        stored = {"key": key, "answers": [made[number] for number in range(len(prompts))]}
        atomic_write_json(file, stored)
    return [Continuation(prompt, tuple(ids)) for prompt, ids in zip(prompts, stored["answers"])]


def figures(
    own: Replayed,
    baseline: Replayed,
    answers: Sequence[Continuation],
    questions: Sequence[tuple[str, Question]],
    shape: TreeShape,
    ends: Collection[int],
) -> dict[str, Any]:
    """Return accepted length and share of the baseline's, each with its 95% interval, of all and by category."""
    offsets = cycle_offsets(answers)
    limited = np.array([answer.tokens[-1] not in ends for answer in answers])  # by the limit or the context
    columns = []
    for replayed in (own, baseline):
        walked = walk(replayed.ranks, offsets, shape, limited=limited)
        columns += [walked.committed, walked.cycles]
    sums = np.stack(columns, -1).astype(np.float64)[:, None]  # (Q, 1, 4)
    categories = np.array([f"{name}: {question.category}" for name, question in questions])
    groups = {"all": np.ones(len(answers), bool)} | {
        name: categories == name for name in np.unique(categories)
    }
    return {
        str(name): {
            "questions": int(mask.sum()),
            "accepted": estimate(sums[mask][..., :2], ratio, pooled=True).model_dump(),
            "share": estimate(sums[mask], ratio_of_ratios, pooled=True).model_dump(),
        }
        for name, mask in groups.items()
    }


def markdown(results: dict[str, Any]) -> str:
    methods = results["methods"]
    first, *others = methods
    greedy = {name: row["temperatures"]["0"] for name, row in methods.items()}
    shapes = list(greedy[first])
    chains = {name: by_shape[shapes[0]] for name, by_shape in greedy.items()}
    head = ["draft vocabulary", "exact logits a step"]
    head += [f"{shape}, T = {t}" for shape in shapes for t in methods[first]["temperatures"]]
    rows = []
    for name, row in methods.items():
        logits = row["exact_logits"]
        cells = [name, "–" if logits is None else f"{logits:,.0f}"]
        cells += [
            cell(by_shape[shape]["all"]["accepted"])
            for shape in shapes
            for by_shape in row["temperatures"].values()
        ]
        rows.append([*cells, cell(chains[name]["all"]["share"], "{:.1%}")])
    lines = markdown_table([*head, f"share, {shapes[0]}"], rows)
    lines += ["", f"Share of the first method by category, {shapes[0]}, greedy:", ""]
    rows = []
    for group, base in chains[first].items():
        shares = [cell(chains[name][group]["share"], "{:.1%}", interval=False) for name in others]
        rows.append([group, str(base["questions"]), cell(base["accepted"]), *shares])
    lines += markdown_table(
        ["category", "questions", f"accepted by {first}", *others], rows[1:]
    )  # all: above
    return "\n".join(lines) + "\n"


def cell(figure: dict[str, Any], form: str = "{:.2f}", *, interval: bool = True) -> str:
    if figure["value"] is None:
        return "–"
    text = form.format(figure["value"])
    if not interval or figure["low"] is None:
        return text
    return f"{text} [{form.format(figure['low'])}–{form.format(figure['high'])}]"


if __name__ == "__main__":
    try:
        main()
    except VocabForgeError as error:
        sys.exit(error.render())
