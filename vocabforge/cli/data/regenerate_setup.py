"""From the options of ``regenerate`` to settings and a backend."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...core.errors import MismatchError, UsageError, VocabForgeError
from ...core.registry import check_known
from ...core.values import yaml_pairs
from ...corpus.regenerate.backends import Backend, local_backend, server_backend
from ...corpus.regenerate.local import LocalTarget
from ...corpus.regenerate.pool import PoolOptions
from ...corpus.regenerate.rows import GenerationSettings
from ...corpus.regenerate.server import ChatServer, TryAgain, Unusable, base_url
from .regenerate_options import AnswererOptions, DrawOptions, LocalOptions, PromptOptions, ServerLoadOptions

_DTYPES = ("auto", "float32", "bfloat16", "float16")


def wanted(draw: DrawOptions, prompt: PromptOptions) -> dict[str, Any]:
    """The settings of a :class:`GenerationSettings` that do not depend on who answers.

    Raises:
        UsageError: a ``KEY=VALUE`` that cannot be read.
    """
    return {
        "temperature": draw.temperature,
        "top_p": draw.top_p,
        "max_tokens": draw.max_tokens,
        "seed": draw.seed,
        "send_reasoning": prompt.send_reasoning,
        "template_arguments": yaml_pairs(prompt.template_arg, "--template-arg"),
        "body": yaml_pairs(prompt.body, "--body"),
    }


def choose_side(
    answerer: AnswererOptions, wanted: Mapping[str, Any], servers: ServerLoadOptions, local: LocalOptions
) -> tuple[GenerationSettings, Backend]:
    """Settings and backend of whoever answers; see :func:`local_side` and :func:`server_side`."""
    if answerer.target is not None:
        return local_side(answerer.target, answerer.model, wanted, local)
    return server_side(answerer.server or [], answerer.model, wanted, servers)


def local_side(
    path: Path, name: str | None, wanted: Mapping[str, Any], options: LocalOptions
) -> tuple[GenerationSettings, Backend]:
    """Settings and backend of a target in this process.

    Args:
        name: of the target in the record; None: that of its folder.

    Raises:
        UsageError: an option that only servers have, or an unknown dtype.
        DataError: target or tokenizer cannot be loaded.
    """
    from ...corpus.tokenizer.tokenizer import load_tokenizer
    from ...models.device import choose_device
    from ...models.target.fingerprint import target_fingerprint

    check_known(options.dtype, _DTYPES, "dtype", source="--dtype")
    if wanted["body"]:
        raise UsageError(
            "--body is for servers",
            got="--body with --target",
            expected="--body with --server URL",
            remedy="leave --body out, or ask a server",
        )
    tokenizer = load_tokenizer(options.tokenizer or path)
    device = str(choose_device(options.device))
    backend = {
        "kind": "huggingface",
        "target": target_fingerprint(path),
        "tokenizer": tokenizer.fingerprint,
        "batch_size": options.batch_size,
        "dtype": options.dtype,
        "device": device.partition(":")[0],  # draws of a GPU's generator are not those of a CPU's
    }
    generation = GenerationSettings(backend=backend, model=name or path.resolve().name, **wanted)
    target = LocalTarget(
        path, tokenizer, generation, device=device, dtype=options.dtype, device_map=options.device_map
    )
    return generation, local_backend(target, options.batch_size)


def server_side(
    urls: Sequence[str], model: str | None, wanted: Mapping[str, Any], options: ServerLoadOptions
) -> tuple[GenerationSettings, Backend]:
    """Settings and backend of servers.

    Raises:
        UsageError: a malformed address, a key's variable that is not set, or no model named where it must be.
        MismatchError: a server does not serve the model.
        VocabForgeError: no server can be reached.
    """
    key, timeout = _key(options.api_key_env), options.timeout
    addresses = list(dict.fromkeys(base_url(url) for url in urls))
    probe = GenerationSettings(backend={"kind": "server"}, model=model or "", **wanted)
    listed: dict[str, list[str] | None] = {}
    away: list[str] = []
    for url in addresses:
        server = ChatServer(url, probe, key=key, timeout=min(timeout, 30.0))
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
    name = model or _only_model(listed)
    for url, names in listed.items():
        if names and name not in names:
            raise MismatchError(
                "a server does not serve this model", got=", ".join(names), expected=name, source=url
            )
    generation = GenerationSettings(backend={"kind": "server"}, model=name, **wanted)
    # One that is away now may be back in a minute: the pool decides.
    servers = [ChatServer(url, generation, key=key, timeout=timeout) for url in addresses]
    pool = PoolOptions(concurrency=options.concurrency, retries=options.retries)
    return generation, server_backend(servers, pool)


def _key(variable: str | None) -> str | None:
    if variable is None:
        return None
    key = os.environ.get(variable, "").strip()
    if not key:
        raise UsageError(
            "the environment variable of --api-key-env is not set",
            got=variable,
            expected="the variable's name, with the key as its value",
        )
    return key


def _only_model(listed: Mapping[str, list[str] | None]) -> str:
    names = {name for found in listed.values() for name in found or ()}
    if len(names) != 1:
        raise UsageError(
            "the servers do not tell which model is meant",
            got=", ".join(sorted(names)) or "no list of models",
            expected="--model NAME",
        )
    return names.pop()
