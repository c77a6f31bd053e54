"""What answers requests: servers, or a target in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice

from .regenerate_local import LocalTarget, Prompt
from .regenerate_pool import PoolOptions, Server, ServerPool, give_up_when_all_refuse
from .regenerate_rows import Walk
from .regenerate_work import Run, Work

_ALL_REFUSED = 20
_CHUNK_BATCHES = 16

Backend = Callable[[Work, Run], None]
"""Answers every request of the work that the log lacks, and puts the answers there."""


def server_backend(servers: Sequence[Server], options: PoolOptions) -> Backend:
    """Ask servers; see :class:`~vocabforge.corpus.regenerate_pool.ServerPool`."""

    def run(work: Work, run: Run) -> None:
        walks = map(work.walk, work.conversations())
        waiting: dict[str, list[Walk]] = {}  # equal prompts are asked once
        look = give_up_when_all_refuse(_ALL_REFUSED)
        with ServerPool(servers, options) as pool:

            def advance(walk: Walk) -> None:
                while (request := walk.request()) is not None:
                    if (answer := run.log.get(request.key)) is not None:
                        run.settle(walk, answer)
                    elif request.key in waiting:
                        waiting[request.key].append(walk)
                        return
                    else:
                        waiting[request.key] = [walk]
                        pool.submit(request)
                        return

            while True:
                taken = list(islice(walks, max(pool.room, 0)))
                for walk in taken:
                    advance(walk)
                if not pool.under_way:
                    if not taken:
                        break
                    continue  # all of these were answered before: read on
                outcome = pool.next()
                if outcome.answer is not None:
                    run.keep(outcome.request, outcome.answer)
                look(outcome)
                for walk in waiting.pop(outcome.request.key):
                    run.settle(walk, outcome.answer, outcome.reason)
                    if outcome.answer is not None:
                        advance(walk)

    return run


def local_backend(target: LocalTarget, batch_size: int) -> Backend:
    """Answer in this process, turn by turn through chunks of conversations, in batches of like length.

    A batch is a function of the input alone: after a resume, a batch that was kept in part is answered whole
    again, since neighbours in a batch can decide near ties.
    """

    def run(work: Work, run: Run) -> None:
        walks = map(work.walk, work.conversations())
        while chunk := list(islice(walks, _CHUNK_BATCHES * batch_size)):
            while True:
                asked: dict[str, Prompt] = {}
                pending: list[tuple[Walk, str]] = []
                for walk in chunk:
                    if (request := walk.request()) is not None:
                        pending.append((walk, request.key))
                        if request.key not in asked:
                            asked[request.key] = target.prompt(request)
                if not pending:
                    break
                _answer_all(target, list(asked.values()), batch_size, run)
                chunk = []
                for walk, key in pending:
                    answer = run.log.get(key)
                    run.settle(walk, answer, asked[key].reason or "")
                    chunk += [walk] if answer is not None else []

    return run


def _answer_all(target: LocalTarget, prompts: Sequence[Prompt], batch_size: int, run: Run) -> None:
    possible = sorted((p for p in prompts if p.reason is None), key=lambda prompt: len(prompt.ids))
    for start in range(0, len(possible), batch_size):
        batch = possible[start : start + batch_size]
        if all(run.log.get(prompt.request.key) is not None for prompt in batch):
            continue
        for prompt, answer in zip(batch, target.answer(batch), strict=True):
            run.keep(prompt.request, answer)
