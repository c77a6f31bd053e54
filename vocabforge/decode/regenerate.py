"""Answer the prompts of a data set with the target itself, in this process or on servers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ..core.artifact import check_output
from ..core.cluster import Cluster
from ..core.errors import MismatchError, UsageError, VocabForgeError
from ..core.gguf import gguf_source
from ..core.hub import model_name
from ..core.registry import check_known
from ..core.values import yaml_pairs
from ..corpus.regenerate.backends import Backend, RegenerateJob, local_backend, server_backend
from ..corpus.regenerate.local import Continue, LocalTarget, check_answers_end
from ..corpus.regenerate.pool import PoolOptions
from ..corpus.regenerate.request import RegenerateRequest
from ..corpus.regenerate.rows import GenerationSettings
from ..corpus.regenerate.run import regenerate
from ..corpus.regenerate.server import ChatServer, Server, TryAgain, Unusable, api_key, base_url
from ..corpus.sources.document import SourceOptions
from ..corpus.tokenizer.tokenizer import TextTokenizer, load_tokenizer
from ..models.device import choose_device
from ..models.target.fingerprint import same_target, target_fingerprint
from ..models.target.load import decoding_dtype
from .build.models import Models, keep_to_quota
from .spec import MethodSpec
from .text import continue_batches

_PIECE_BATCHES = 2  # of prompts that a worker of a cluster gets at once
_DTYPES = ("auto", "float32", "bfloat16", "float16")


def run_regenerate(asked: RegenerateRequest, *, overwrite: bool = False) -> dict[str, Any]:
    """Answer the prompts and write them as an artefact; an interrupted run resumes.

    Returns:
        the artefact's metadata: numbers of rows and answers, and why rows were left out.

    Raises:
        VocabForgeError: the rows cannot be read, or target and servers do not fit the request.
    """
    check_output(asked.output, overwrite=overwrite)
    reading = SourceOptions(
        text_field=asked.prompt_field, strict=asked.strict, sample=asked.sample, seed=asked.seed
    )
    if asked.ray is not None and (asked.server or asked.device_map is not None):
        raise UsageError(
            f"{'--server' if asked.server else '--device-map'} and --ray exclude each other",
            got=f"--ray {asked.ray}",
            expected="--target with --ray: each worker loads the target on one GPU, or on its CPU threads",
            remedy="leave one of them out; several --server are used together without Ray",
        )
    with contextlib.ExitStack() as stack:
        cluster = None if asked.ray is None else stack.enter_context(Cluster(asked.ray))
        generation, backend, tokenizer = choose_side(asked, cluster)
        task = RegenerateJob(
            list(asked.input),
            reading,
            generation,
            asked.first_turn_only,
            asked.empty == "keep",
            asked.drop_failed,
            tokenizer,
        )
        return regenerate(task, backend, asked.output, overwrite=overwrite, fresh=asked.fresh)


def choose_side(
    asked: RegenerateRequest, cluster: Cluster | None = None
) -> tuple[GenerationSettings, Backend, TextTokenizer | None]:
    """Return settings and backend of servers, or of a target in this process or on a cluster (with its tokenizer)."""
    if (asked.target is None) == (not asked.server):
        raise UsageError(
            "give the target once: as --target, or as --server",
            got="both" if asked.server else "neither",
            expected="one of --target DIR and --server URL",
        )
    names = ("temperature", "top_p", "max_tokens", "seed", "send_reasoning")
    wanted = {
        **{name: getattr(asked, name) for name in names},
        "template_arguments": yaml_pairs(asked.template_arg, "--template-arg"),
        "body": yaml_pairs(asked.body, "--body"),
    }
    if asked.target is not None:
        return _local_side(asked.target, wanted, asked, cluster)
    return (*_server_side(wanted, asked), None)


def _local_side(
    path: Path, wanted: Mapping[str, Any], options: RegenerateRequest, cluster: Cluster | None
) -> tuple[GenerationSettings, Backend, TextTokenizer]:
    check_known(options.dtype, _DTYPES, "dtype", source="--dtype")
    if wanted["body"]:
        raise UsageError(
            "--body is for servers",
            got="--body with --target",
            expected="--body with --server URL",
            remedy="leave --body out, or ask a server",
        )
    tokenizer = load_tokenizer(options.tokenizer or path, options.content_format)
    check_answers_end(tokenizer)  # before loading weights
    device = choose_device(options.device, elsewhere=cluster is not None and cluster.has_gpus)
    dtype = decoding_dtype(path, options.dtype, device)
    # Excludes batch size and drafting: they do not change the answers.
    backend = {
        "kind": "decoder",
        "target": target_fingerprint(path),
        "tokenizer": tokenizer.fingerprint,
        "dtype": dtype,
        "device": device.type,
    }
    if (source := gguf_source(path)) is not None:
        backend["gguf"] = source[1]
    generation = GenerationSettings(backend=backend, model=options.model or model_name(path), **wanted)
    load = partial(_load, path.absolute(), options, generation, str(device), dtype)
    if cluster is None:
        continue_ids, context = load()
        together = options.batch_size
    else:
        on_cpu = device.type == "cpu"
        keep_to_quota()
        threads = torch.get_num_threads()  # they affect the last bits
        begin = partial(_load_in_worker, load, path.absolute(), backend["target"], threads)
        cluster.use(begin, cpus=threads if on_cpu else 1, gpus=0 if on_cpu else 1)
        context = cluster.get(cluster.submit(_context))
        continue_ids = partial(_continue_on, cluster, _PIECE_BATCHES * options.batch_size)
        together = options.batch_size * cluster.ahead
    target = LocalTarget(continue_ids, tokenizer, generation, context)
    return generation, local_backend(target, together), tokenizer


def _load(
    path: Path, options: RegenerateRequest, generation: GenerationSettings, device: str, dtype: str
) -> tuple[Continue, int]:
    return continue_batches(
        Models(path, options.tokenizer, device=device, dtype=dtype, device_map=options.device_map),
        MethodSpec(drafter=options.drafter, proposer=options.proposer),
        rows=options.batch_size,
        max_new_tokens=generation.max_tokens,
        temperature=generation.temperature,
        top_p=generation.top_p,
    )


def _load_in_worker(
    load: Callable[[], tuple[Continue, int]], path: Path, fingerprint: str, threads: int
) -> tuple[Continue, int]:
    same_target(path, fingerprint)
    torch.set_num_threads(threads)
    return load()


def _context(loaded: tuple[Continue, int]) -> int:
    return loaded[1]


def _answer(
    loaded: tuple[Continue, int], asked: Sequence[tuple[list[int], int]]
) -> list[tuple[int, list[int]]]:
    return list(loaded[0](asked))


def _continue_on(
    cluster: Cluster, prompts: int, asked: Sequence[tuple[list[int], int]]
) -> Iterator[tuple[int, list[int]]]:
    starts = range(0, len(asked), prompts)
    pieces = {cluster.submit(_answer, asked[start : start + prompts]): start for start in starts}
    for piece in cluster.as_completed(pieces):
        for number, ids in cluster.get(piece):
            yield pieces[piece] + number, ids


def _server_side(wanted: Mapping[str, Any], options: RegenerateRequest) -> tuple[GenerationSettings, Backend]:
    key, timeout = api_key(options.api_key_env), options.timeout
    addresses = list(dict.fromkeys(base_url(url) for url in options.server or ()))
    listed: dict[str, list[str] | None] = {}
    away: list[str] = []
    for url in addresses:
        server = Server(url, key=key, timeout=min(timeout, 30.0))
        try:
            listed[url] = server.models()
        except (TryAgain, Unusable) as error:
            away.append(f"{url}: {error}")
        finally:
            server.close()
    if not listed:
        raise VocabForgeError(
            "no server can be reached",
            got="; ".join(away),
            remedy="check --server, and --api-key-env if they want a key",
        )
    name = options.model or _only_model(listed)
    for url, names in listed.items():
        if names and name not in names:
            raise MismatchError(
                "a server does not serve this model", got=", ".join(names), expected=name, source=url
            )
    generation = GenerationSettings(backend={"kind": "server"}, model=name, **wanted)
    # An unreachable server may return: leave it to the pool.
    servers = [ChatServer(url, generation, key=key, timeout=timeout) for url in addresses]
    pool = PoolOptions(concurrency=options.concurrency, retries=options.retries)
    return generation, server_backend(servers, pool)


def _only_model(listed: Mapping[str, list[str] | None]) -> str:
    names = {name for models in listed.values() for name in models or ()}
    if len(names) != 1:
        raise UsageError(
            "the servers do not say which model is meant",
            got=", ".join(sorted(names)) or "no list of models",
            expected="--model NAME",
        )
    return names.pop()
