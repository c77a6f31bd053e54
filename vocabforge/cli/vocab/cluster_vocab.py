"""``vocabforge cluster-vocab``: cluster the rows of a target's LM head (DynaSpec)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..app import ResultOptions, print_json
from ..options.groups import one_size

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from ...corpus.tokenizer.tokenizer import TextTokenizer
    from ...models.target.head_rows import HeadRows
    from ...vocab.clusters.clusters import Clusters
    from ...vocab.clusters.kmeans import KMeansOptions


class Init(str, Enum):
    """How k-means starts."""

    plus_plus = "kmeans++"
    sample = "sample"


class BackendName(str, Enum):
    """What finds the nearest centroids."""

    auto = "auto"
    faiss_gpu = "faiss-gpu"
    faiss = "faiss"
    torch = "torch"


@dataclass(frozen=True, kw_only=True)
class KMeansChoice:
    """How the rows are clustered."""

    clusters: Annotated[
        int | None,
        typer.Option(
            "--clusters",
            parser=one_size,
            metavar="M",
            help="Number of clusters [default: 1024; V / 128 below V = 100,000].",
        ),
    ] = None
    iterations: Annotated[
        int,
        typer.Option(
            metavar="N", min=1, help="At most so many iterations; fewer where nothing changes any more."
        ),
    ] = 25
    restarts: Annotated[
        int,
        typer.Option("--restarts", metavar="N", min=1, help="Runs from different starts; the best is kept."),
    ] = 1
    seed: Annotated[
        int, typer.Option(metavar="N", min=0, max=2**31 - 1, help="Start of the random streams.")
    ] = 0
    init: Annotated[Init, typer.Option(help="First centroids: k-means++, or rows drawn at random.")] = (
        Init.plus_plus
    )
    backend: Annotated[
        BackendName,
        typer.Option(
            metavar="NAME",
            help="What finds the nearest centroids: **faiss-gpu**, **faiss** or **torch**; **auto** "
            "takes the first of them that is there. All give the same clusters.",
        ),
    ] = BackendName.auto

    def options(self, vocab_size: int) -> KMeansOptions:
        """The same for a vocabulary.

        Raises:
            UsageError: more clusters than it has ids.
        """
        from ...vocab.clusters.clusters import check_count, default_clusters
        from ...vocab.clusters.kmeans import KMeansOptions

        count = default_clusters(vocab_size) if self.clusters is None else self.clusters
        check_count(count, vocab_size)
        return KMeansOptions(count, self.iterations, self.restarts, self.seed, self.init.value)


@dataclass(frozen=True, kw_only=True)
class RecallOptions:
    """The text on which recall is measured, and how it is read."""

    text: Annotated[
        list[Path] | None,
        typer.Option(
            "--text",
            metavar="PATH",
            help="Text or conversations on which recall is measured; loads the whole target. May be repeated.",
        ),
    ] = None
    contexts: Annotated[
        int, typer.Option(metavar="N", min=1, help="Tokens of --text on which recall is measured.")
    ] = 2048
    tokenizer: Annotated[
        Path | None, typer.Option("--tokenizer", metavar="PATH", help="Tokenizer [default: the target's].")
    ] = None
    dtype: Annotated[
        str, typer.Option("--dtype", help="Of the target for --text: float32, bfloat16 or float16.")
    ] = "float32"
    device: Annotated[
        str | None, typer.Option("--device", help="Of the target for --text: cpu, cuda, cuda:1 …")
    ] = None


_WINDOW = 512  # tokens of --text that the target reads at once


def cluster_vocab(
    target: Annotated[
        Path,
        typer.Option("--target", metavar="DIR", help="Target model folder (config.json, *.safetensors)."),
    ],
    output: Annotated[Path, typer.Option("--output", metavar="DIR", help="Folder of the clusters to write.")],
    kmeans: KMeansChoice,
    on_text: RecallOptions,
    ending: ResultOptions,
) -> None:
    """Cluster the vocabulary by the directions of the target's LM head rows (spherical k-means, DynaSpec).

    The rows are read from the safetensors files block by block; the model itself is loaded only for --text.
    The artefact at --output holds a permutation of the vocabulary in which every cluster is one contiguous
    slab. Padded rows of the head are left out.

    Example: `vocabforge cluster-vocab --target model/ --output clusters/ --text held_out.txt`
    """
    from ...core.artifact import check_output
    from ...core.console import say
    from ...corpus.tokenizer.tokenizer import load_tokenizer
    from ...models.target.head_rows import check_head_fits, open_head
    from ...vocab.clusters.clusters import cluster_figures, examples, save_clusters

    check_output(output, overwrite=ending.overwrite)
    head = open_head(target)
    loaded = load_tokenizer(on_text.tokenizer or target)
    padded = check_head_fits(head, loaded.vocab_size, tokenizer=loaded.source)
    options = kmeans.options(loaded.vocab_size)
    if padded:
        say(f"{padded:,} padded rows of the head are left out")
    hidden = _capture(target, loaded, on_text) if on_text.text else None
    made, run = _cluster(head, loaded, options, kmeans.backend.value)
    recall = None if hidden is None else _recall(hidden, head, made)
    facts: dict[str, Any] = {
        "output": str(output),
        "figures": cluster_figures(made),
        "head": dict(made.head),
        "origin": dict(made.origin),
        "recall": recall,
        "run": run,
    }
    save_clusters(made, output, config=facts, overwrite=ending.overwrite)
    facts["examples"] = examples(made, _shower(loaded))
    _report(facts, as_json=ending.as_json)


def _report(facts: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(facts)
    else:
        from .cluster_tables import print_clusters

        print_clusters(facts)


def _cluster(
    head: HeadRows, tokenizer: TextTokenizer, options: KMeansOptions, backend: str
) -> tuple[Clusters, dict[str, Any]]:
    import time

    from ...core.console import say
    from ...core.provenance import peak_memory
    from ...models.target.head_rows import digest_start
    from ...vocab.clusters.backends import AUTO, choose_backend
    from ...vocab.clusters.clusters import make_clusters
    from ...vocab.clusters.rows import unit_rows

    begun = time.monotonic()
    chosen, reasons = choose_backend(backend)
    if backend == AUTO:
        say(f"k-means backend: {chosen.name}" + (f" ({'; '.join(reasons)})" if reasons else ""))
    digest = digest_start(tokenizer.vocab_size, head.shape[1])
    rows = unit_rows(head, tokenizer.vocab_size, name=head.source, digest=digest)
    if len(rows.zero_ids):
        say(f"{len(rows.zero_ids):,} rows of the head are zero: they share one cluster")
    facts = {
        "digest": digest.hexdigest(),
        "rows": head.shape[0],
        "padded": head.shape[0] - tokenizer.vocab_size,
        "width": head.shape[1],
        "dtype": head.dtype,
        "name": head.name,
        "tied": head.tied,
    }
    made = make_clusters(rows, options, chosen, fingerprint=tokenizer.fingerprint, head=facts)
    return made, {"seconds": round(time.monotonic() - begun, 1), "peak_rss_bytes": peak_memory()}


def _capture(target: Path, tokenizer: TextTokenizer, asked: RecallOptions) -> npt.NDArray[np.float32]:
    """Hidden states (N, d) of the target on a text, before the clustering, so that mistakes show at once."""
    import numpy as np

    from ...core.console import ProgressBar
    from ...core.registry import check_known
    from ...evaluate.acceptance.ceilings import final_states, sample_windows
    from ...models.device import choose_device
    from ...models.lean.model import load_target
    from ...models.target.load import DTYPES

    check_known(asked.dtype, DTYPES, "dtype", source="--dtype")
    place = choose_device(asked.device)
    windows = sample_windows(
        tokenizer, asked.text or [], tokens=asked.contexts, context=min(_WINDOW, asked.contexts)
    )
    model = load_target(target, dtype=DTYPES[asked.dtype], device=place)
    states = []
    with ProgressBar("target's hidden states", sum(map(len, windows)), "tokens") as bar:
        for window in windows:
            states.append(final_states(model, [window]).float().cpu().numpy())
            bar.update(len(window))
    return np.concatenate(states)


def _recall(hidden: npt.NDArray[np.float32], head: HeadRows, made: Clusters) -> dict[str, Any]:
    from ...evaluate.acceptance.cluster_recall import cluster_recall

    return {"contexts": len(hidden), "rows": cluster_recall(hidden, head, made)}


def _shower(tokenizer: TextTokenizer) -> Callable[[int], str]:
    """Token id -> its text on one line."""
    from ...core.errors import DataError
    from ...vocab.overlap.token_bytes import readable, token_bytes

    try:
        forms = token_bytes(tokenizer)
    except DataError:  # a decoder whose bytes are not known: the tokenizer's own spelling will do
        forms = [None] * tokenizer.vocab_size

    def show(token: int) -> str:
        form = forms[token]
        return readable(form if form is not None else tokenizer.backend.id_to_token(token) or f"<{token}>")

    return show
