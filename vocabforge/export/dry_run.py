"""Start a server with an untrained drafter of a recipe's form, before it is trained."""

from __future__ import annotations

import shlex
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ..core.console import say
from ..core.distributed import Group
from ..core.errors import UsageError, VocabForgeError
from ..core.registry import check_known
from ..decode.request import SamplingParams
from ..evaluate.servers.generator import ServerGenerator
from ..evaluate.servers.process import split_command, started
from ..layouts.interface import Export
from ..layouts.registry import FORMATS, layout_of
from ..models.drafters.registry import new_drafter
from ..models.drafters.revocab import with_stored_rows
from ..models.target.head import load_target_tensors
from ..models.target.load import dtype_of
from ..train.config import TrainConfig
from ..train.setup import read_basis
from .forms import SERVED

OPTION = "--dry-run"
_PROMPT, _NEW_TOKENS = "1, 2, 3, 4, 5, 6, 7, 8,", 16  # a question without chat template may get no answer
_TIMEOUT_S, _SHOWN_LINES = 600.0, 15


def dry_run(config: TrainConfig, command: str) -> dict[str, Any]:
    """Serve an untrained drafter, send the server one prompt, and count its draft tokens.

    Args:
        command: starts the server: ``{port}`` is replaced, and the name of an export format in braces, such
            as ``{sglang-eagle3}``, by the drafter's folder in that format.

    Returns:
        Output of ``--json``.

    Raises:
        UsageError: the command names no format, or no format of this kind of drafter.
        MismatchError: the format cannot express the drafter.
        VocabForgeError: the server does not start, does not answer, or does not draft.
    """
    name = _format_of(command, config.drafter.kind)
    words = split_command(command, OPTION)
    run = config.output.resolve()  # "." has no name
    log = run.with_name(f"{run.name}.dry-run.log")
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / name
        _write_untrained(config, name, made)
        filled = shlex.join(word.replace(f"{{{name}}}", str(made)) for word in words)
        running = partial(started, "the dry run", filled, log, key=None, health_s=_TIMEOUT_S, source=OPTION)
        server = ServerGenerator(
            "of the dry run", running, chat=False, model=None, key=None, timeout=_TIMEOUT_S
        )
        with server.serving(None), server.window(1):
            asked: dict[str, Any] = {"max_new_tokens": _NEW_TOKENS, "stop_ids": ()}
            answer = server.generate(_PROMPT, **asked, sampling=SamplingParams())
            facts, drafts = server.facts.model_dump(), answer.speculation
            if drafts is None or not drafts.drafted:
                last = log.read_text("utf-8", "replace").splitlines()[-_SHOWN_LINES:]
                told = [f"no draft tokens for {answer.new_tokens} tokens; its last lines", *last]
                raise VocabForgeError(
                    "the server answers without drafting",
                    got="\n    ".join(told),
                    expected="counters of draft tokens, as vLLM, SGLang and llama.cpp report them",
                    source=log,
                    remedy="pass the server's options of speculative decoding in the command",
                )
    say(
        f"{facts['kind']} serves the recipe's drafter as {name}: {drafts.drafted} draft tokens for "
        f"{answer.new_tokens} tokens (untrained: hardly any is accepted)"
    )
    counts = {"new_tokens": answer.new_tokens, "drafted": drafts.drafted, "accepted": drafts.accepted}
    return {"format": name, "server": facts, **counts, "log": str(log)}


def _format_of(command: str, kind: str) -> str:
    check_known(kind, SERVED, "kind of drafter for a dry run", source="drafter.kind")
    named = [name for name in FORMATS if f"{{{name}}}" in command]
    if len(named) != 1 or named[0] not in SERVED[kind]:
        raise UsageError(
            "the server's command has no place for the drafter",
            got=" and ".join(f"{{{name}}}" for name in named) or "no export format in braces",
            expected=" or ".join(f"{{{name}}}" for name in SERVED[kind]),
            source=OPTION,
            remedy="write the format in place of the drafter's folder: --plan prints which server reads which",
        )
    return named[0]


def _write_untrained(config: TrainConfig, name: str, path: Path) -> None:
    basis = read_basis(config, Group(0, 1))
    shared = load_target_tensors(config.target)
    ids = None if basis.subset is None else torch.from_numpy(basis.subset.ids)
    torch.manual_seed(config.run.seed)
    tensors = (shared.embedding, shared.head, ids, shared.transform)
    drafter = new_drafter(config.drafter.kind, basis.sizes, *tensors).eval()
    dtype = dtype_of(config.target, "auto", torch.device("cpu"))
    facts = (basis.target, shared, str(config.target), dtype)
    layout_of(name).write(path, Export(with_stored_rows(drafter), *facts, target_path=config.target))
