"""``vocabforge cluster-vocab``: cluster the rows of a target's LM head (DynaSpec)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from ...core.config import ModelPath, Positive, ResultOptions, Size, StrictModel, TokenizerPath, option
from ...core.console import say
from ..app import print_json, print_line

if TYPE_CHECKING:
    from ...corpus.tokenizer.tokenizer import TextTokenizer
    from ...models.target.head import StoredHead
    from ...vocab.clusters.clusters import Clusters
    from ...vocab.clusters.kmeans import KMeansOptions

_LARGE = 0.25  # warn if a cluster has this share of the vocabulary: a router can save little


class ClusterRequest(StrictModel):
    """Settings of the clustering of the LM head's rows."""

    target: ModelPath = option(..., "Target: a folder, a GGUF file, or a name of the Hub.", "DIR")
    output: Path = option(..., "Folder of the clusters to write.", "DIR")
    clusters: Size | None = option(
        None, "Number of clusters [default: 1024; V / 128 below V = 100,000].", "M"
    )
    iterations: Positive = option(25, "Maximum number of iterations. Stops early on convergence.", "N")
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = option(0, "Random seed.", "N")
    tokenizer: TokenizerPath | None = option(None, "Tokenizer [default: the target's].", "PATH")


def cluster_vocab(asked: ClusterRequest, ending: ResultOptions) -> None:
    """Cluster the vocabulary by the directions of the target's LM head rows (spherical k-means, DynaSpec).

    Reads the rows from the safetensors files (V x d x 4 bytes of memory); the model is not loaded. The
    artefact contains a permutation of the vocabulary that makes every cluster contiguous. Padded rows of the
    head are left out.

    Example: `vocabforge cluster-vocab --target model/ --output clusters/`
    """
    from ...core.artifact import check_output
    from ...corpus.tokenizer.tokenizer import load_tokenizer
    from ...models.target.head import open_head
    from ...models.target.hf import check_tokenizer_fits
    from ...vocab.clusters.clusters import check_count, cluster_figures, default_clusters, save_clusters
    from ...vocab.clusters.kmeans import KMeansOptions

    check_output(asked.output, overwrite=ending.overwrite)
    head = open_head(asked.target)
    loaded = load_tokenizer(asked.tokenizer or asked.target)
    size, rows = loaded.vocab_size, head.item.shape[0]
    check_tokenizer_fits(size, rows, tokenizer=loaded.source, target=asked.target)
    count = default_clusters(size) if asked.clusters is None else asked.clusters
    check_count(count, size)
    options = KMeansOptions(count, asked.iterations, asked.seed)
    if rows > size:
        say(f"{rows - size:,} padded rows of the head are left out")
    made = _cluster(head, loaded, options)
    facts: dict[str, Any] = {
        "output": str(asked.output),
        "figures": cluster_figures(made),
        "head": dict(made.head),
        "origin": dict(made.origin),
    }
    save_clusters(made, asked.output, config=facts, overwrite=ending.overwrite)
    if ending.as_json:
        print_json(facts)
    else:
        _print(facts)


def _cluster(head: StoredHead, tokenizer: TextTokenizer, options: KMeansOptions) -> Clusters:
    from ...vocab.clusters.clusters import make_clusters
    from ...vocab.clusters.kmeans import unit_rows

    size, item = tokenizer.vocab_size, head.item
    rows = unit_rows(head.rows()[:size], name=item.file)
    if len(rows.zero_ids):
        say(f"{len(rows.zero_ids):,} rows of the head are zero: they share one cluster")
    facts = {
        "digest": head.digest(size),
        "rows": item.shape[0],
        "padded": item.shape[0] - size,
        "width": item.shape[1],
        "dtype": item.dtype,
        "name": item.name,
        "tied": head.tied,
    }
    return make_clusters(rows, options, fingerprint=tokenizer.fingerprint, head=facts)


def _print(facts: Mapping[str, Any]) -> None:
    figures, origin, head = (facts[name] for name in ("figures", "origin", "head"))
    sizes = figures["sizes"]
    print_line(
        f"{figures['clusters']:,} clusters of {figures['vocab_size']:,} ids from {head['name']} "
        f"({head['rows']:,} x {head['width']:,} {head['dtype']}{', tied' if head['tied'] else ''}; "
        f"{head['padded']:,} padded rows left out, {figures['zero_rows']:,} zero rows)"
    )
    print_line(
        f"mean cosine {figures['mean_cosine']:.4f} after {len(origin['history']) - 1} iterations"
        f"{' (converged)' if origin['converged'] else ''}"
    )
    print_line(
        f"sizes {sizes['min']:,.0f} / {sizes['median']:,.0f} / {sizes['max']:,.0f} (least, median, largest); "
        f"balance {figures['balance']:.3f} (1 = all equal); {origin['refilled']:,} dead clusters refilled"
    )
    if quality := figures["quality"]:
        print_line(
            f"silhouette {quality['silhouette']:.3f} (-1 to 1, 0: neighbours overlap), Calinski-Harabasz "
            f"{quality['calinski_harabasz']:.1f}, on {quality['rows']:,} rows"
        )
    if (share := sizes["max"] / figures["vocab_size"]) > _LARGE:
        print_line(
            f"Warning: the largest cluster holds {share:.0%} of the ids. A router that opens it scores most of the "
            "vocabulary and saves little. Try more clusters (--clusters), or another --seed; rows of "
            "an untrained or tiny model may have no clusters to find.",
            style="bold",
        )
    print_line(f"Written to {facts['output']}")
