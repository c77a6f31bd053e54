"""The decode loop: prefill, then plan, draft, verify, commit, until a stop or a limit.

B requests run in parallel, each at its own length; when a request ends, its row takes the next one. Every
tensor has a fixed shape: trees, their paths and the proposer's rows are padded, and compiled passes read
caches in steps of :data:`~vocabforge.decode.positions.VIEW_STEP` slots.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence

import torch

from ..core.errors import UsageError
from ..core.registry import resolve
from ..models.target.interface import Target
from . import target_side
from .accelerate.graphs import GraphCapture
from .caches import Caches
from .control.control import CONTROLS, Control, CycleFigures
from .cycle import SteppedCycle
from .device_cycle import DeviceCycle, check_window, device_cycle, serves
from .interface import PLAIN_PLAN, Wrap
from .proposers.registry import Proposer
from .request import Generation, Request, SamplingParams
from .sampling import Chance, SeededChance, TokenHistory
from .stops import StopStrings
from .target_side import TargetSide
from .tree import root_trees
from .verify.registry import VERIFIERS, RowVerification, verify
from .work import Work, check_chain, check_layers, check_request

PREFILL = "prefill"


class Clock:
    """Seconds by part, measured between laps and added to every active request.

    Time spent by the consumer of a stream is excluded: call :meth:`resume` after it.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.last = time.perf_counter()  # when the last lap ended
        self.results: Sequence[Generation] = ()

    def resume(self) -> None:
        self.last = time.perf_counter()

    def lap(self, part: str, head_s: float = 0.0, /) -> float:
        """Count the time since the last lap as ``part``, but ``head_s`` seconds as ``head``; return the seconds."""
        # Without synchronisation, a part's time would be counted in the part that first reads its results.
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        now = time.perf_counter()
        passed, self.last = now - self.last, now
        for timings in (result.timings for result in self.results):
            timings[part] = timings.get(part, 0.0) + passed - head_s
            if head_s:
                timings["head"] = timings.get("head", 0.0) + head_s
        return passed


class Decoder:
    """Decoder that continues prompts with a target and, optionally, a proposer.

    Args:
        target: a lean model or a Transformers model.
        proposer: drafts trees; None decodes plainly (trees with only a root).
        context: maximum positions of a request; default: the target's limit. Caches grow up to it.
        rows: number of requests decoded in parallel.
        control: ``fixed`` drafts the proposer's full size in every cycle, ``adaptive`` as much as pays off;
            or a control object.
        verifier: a name in ``VERIFIERS``; None chooses by request and tree.
        wrap: speeds up passes, see ``accelerate/``; compiled passes need caches of the full size from the
            start.
        chance: creates a request's random stream from its seed.

    Raises:
        UsageError: the context exceeds the target's positions, the verifier or control is unknown, trees are
            too deep to capture, or trees are drafted for a target with recurrent layers.
        MismatchError: the proposer reads layers that the target does not have.
    """

    def __init__(
        self,
        target: Target,
        proposer: Proposer | None = None,
        context: int | None = None,
        *,
        rows: int = 1,
        control: str | Control = "fixed",
        verifier: str | None = None,
        wrap: Wrap | None = None,
        chance: Callable[[int], Chance] = SeededChance,
    ) -> None:
        limit = target.config.max_positions
        if context is not None and not 1 < context <= limit:
            raise UsageError("the context does not fit the target", got=context, expected=f"2 to {limit}")
        if rows < 1:
            raise UsageError("a decoder needs at least one row", got=rows, expected="1 or more")
        self.target, self.proposer, self.rows = target, proposer, rows
        self.context = context or limit
        if verifier is not None:
            resolve(VERIFIERS, verifier, "verifier")
        self._verifier, self._chance = verifier, chance
        self.levels = proposer.plan.levels if proposer else 0
        plans = proposer.plans() if proposer else [PLAIN_PLAN]
        self.control: Control = (
            resolve(CONTROLS, control, "control")(plans) if isinstance(control, str) else control
        )
        if target.config.recurrent:
            wrap = None  # recurrent states are rolled back after rejections, so they are not static memory
            check_chain(proposer)
        aux = proposer.aux_layers if proposer else ()
        check_layers(aux, target.config.num_layers)
        self._reads = proposer.reads if proposer else "none"
        if isinstance(wrap, GraphCapture):
            wrap = wrap.own()  # dropped when the caches are reallocated
            check_window(target, self.levels)
        self._capture = wrap if isinstance(wrap, GraphCapture) else None
        self._side = TargetSide(target, aux, rows, wrap)
        if wrap is not None and self._capture is None and proposer is not None:
            proposer.wrap(wrap)
        self._single = root_trees(torch.zeros(1, dtype=torch.int64, device=target.device))
        self._stepped = SteppedCycle(self._side, proposer, verifier)
        # Whole cycles on the device; None if passes are not captured, or not all of them can be.
        self.device_cycle = device_cycle(self._side, proposer, self.control, self._capture, verifier)
        self._cycles: SteppedCycle | DeviceCycle = self._stepped  # runs the active requests
        grow = wrap is None or self._capture is not None  # compiled passes are made for one size
        self._caches = Caches(self._side, proposer, self._capture, self.context, grow=grow)

    def reserve(self, positions: int) -> None:
        """Grow the caches to the next power of two that holds ``positions``, at most the context.

        Caches also grow on demand; reserving in advance keeps this out of measured time.
        """
        self._caches.reserve(positions)

    @property
    def recordings(self) -> int:
        """Number of passes captured so far, each of which takes seconds; 0 without capture."""
        return 0 if self._capture is None else len(self._capture.done)

    @property
    def recording_s(self) -> float:
        """Seconds spent on capturing passes so far."""
        return 0.0 if self._capture is None else self._capture.seconds

    def generate(
        self,
        prompt_ids: Sequence[int],
        *,
        max_new_tokens: int,
        stop_ids: Collection[int],
        temperature: float = 0.0,
        seed: int = 0,
        sampling: SamplingParams | None = None,
        stop: StopStrings | None = None,
    ) -> Generation:
        """Continue a prompt; ``sampling`` replaces ``temperature`` and ``seed``.

        Raises:
            UsageError: the prompt is empty, fills the context, or has a token that the target does not have.
        """
        sampling = sampling or SamplingParams(temperature, seed=seed)
        return self.generate_batch([Request(prompt_ids, max_new_tokens, stop_ids, sampling, stop)])[0]

    def generate_batch(self, requests: Sequence[Request]) -> list[Generation]:
        """Continue prompts in parallel; each result is independent of the other requests."""
        results = [Generation() for _ in requests]
        for _ in self.stream_batch(requests, results):
            pass
        return results

    def stream(self, request: Request, result: Generation) -> Iterator[list[int]]:
        """Yield the tokens of each cycle as they are committed, and fill ``result`` along the way."""
        for _, tokens in self.stream_batch([request], [result]):
            yield tokens

    @torch.inference_mode()
    def stream_batch(
        self, requests: Sequence[Request], results: Sequence[Generation]
    ) -> Iterator[tuple[int, list[int]]]:
        """Yield ``(request number, new tokens)`` as tokens are committed, and fill ``results``.

        Raises:
            UsageError: a prompt is invalid as in :meth:`generate`, the number of results differs from the
                number of requests, or another request started during the stream, on this decoder or on one
                with the same proposer.
        """
        for request in requests:
            check_request(request, self.context, self.target.config.vocab_size)
        if len(results) != len(requests):
            raise UsageError("every request needs a result", got=len(results), expected=len(requests))
        if not requests:
            return
        rooms = [min(request.max_new_tokens, self.context - len(request.prompt_ids)) for request in requests]
        whole = self.device_cycle if serves(requests, self._verifier, self._chance) else None
        self._cycles = whole or self._stepped
        claim = self._caches.claim(
            max(len(request.prompt_ids) + room for request, room in zip(requests, rooms))
        )
        for row in range(self.rows):  # earlier requests may have been abandoned
            self._vacate(row)
        self.control.begin()
        waiting = deque(zip(range(len(requests)), requests, results, rooms))
        work: list[Work | None] = [None] * self.rows
        clock = Clock(self.target.device)
        try:
            while waiting or any(work):
                if waiting and None in work:
                    row = work.index(None)
                    work[row], first = self._start(row, work, clock, *waiting.popleft())
                    fresh = {row: first}
                else:
                    fresh = self._cycle(work, clock)
                for number, tokens in self._deliver(work, fresh, clock):
                    yield number, tokens
                    if not self._caches.holds(claim):
                        raise UsageError(
                            "another request began on this decoder, or with its proposer, while this one was streamed",
                            remedy="use a decoder with a separate proposer for each stream, or stream_batch with "
                            "several rows",
                        )
        except GeneratorExit:  # closed between two cycles
            raise
        except BaseException:
            self._caches.distrust()
            raise

    def _start(
        self,
        row: int,
        work: Sequence[Work | None],
        clock: Clock,
        number: int,
        request: Request,
        result: Generation,
        room: int,
    ) -> tuple[Work, list[int]]:
        clock.results = [active.result for active in work if active is not None]
        clock.lap("other")
        history = TokenHistory(request.prompt_ids, self.target.config.vocab_size)
        judge = RowVerification(request.sampling, self._chance(request.sampling.seed), history)
        ids = torch.tensor(request.prompt_ids, device=self.target.device)
        self._side.set_length(row, 0)
        logits, chunks = self._side.prefill(row, ids, self._reads)
        verdict = verify(self._single, logits[None, None], [judge], 0, self._verifier)
        first = verdict.tokens[0][0]
        if self.proposer is not None:
            self.proposer.begin(row, [*request.prompt_ids, first])
            following = torch.cat([ids[1:], ids.new_tensor([first])])
            for part, states in zip(following.split(target_side.PREFILL_CHUNK), chunks, strict=True):
                self.proposer.prefill(row, part, states)
        else:
            result.accept_lengths.append(1)
            result.verified_lengths.append(1)
        self._cycles.begin(row, first, request.sampling)
        history.add([first])
        result.target_forwards = len(chunks)
        started = Work(number, request, result, room, judge)
        taken = started.take([first])
        result.timings[PREFILL] = clock.lap("other")  # counted as other for the rows that were already active
        return started, taken

    def _cycle(self, work: Sequence[Work | None], clock: Clock) -> dict[int, list[int]]:
        """Draft and verify once; return the committed tokens of each busy row, cut at stops and limits."""
        clock.results = [active.result for active in work if active is not None]
        clock.resume()
        ready = None if self.proposer is None else self.proposer.ready
        plan, began, captured = self.control.plan(ready), clock.last, self.recording_s
        judges = [active.judge if active is not None else None for active in work]
        verdicts, deepest, drafted = self._cycles.run(plan, judges, clock.lap)
        fresh: dict[int, list[int]] = {}
        for row, active in enumerate(work):
            if active is not None and verdicts.accepted[row] >= 0:
                active.result.record(plan.levels, deepest[row], drafted[row], verdicts.accepted[row])
                active.judge.history.add(verdicts.tokens[row])
                fresh[row] = active.take(verdicts.tokens[row])
        clock.lap("other")
        accepted = [count for count in verdicts.accepted if count >= 0]
        recording = self.recording_s - captured  # nonzero only in the first cycle
        self.control.observe(CycleFigures(plan, accepted, clock.last - began - recording))
        return fresh

    def _deliver(
        self, work: list[Work | None], fresh: dict[int, list[int]], clock: Clock
    ) -> Iterator[tuple[int, list[int]]]:
        """Yield new tokens and end the requests that are done."""
        for row, tokens in fresh.items():
            active = work[row]
            assert active is not None
            if active.finish is not None:
                active.result.finish, active.result.done = active.finish, True
                if self.proposer is not None:
                    active.result.counts = self.proposer.counts(row)
                timings = active.result.timings
                active.result.prefill_s = timings.get(PREFILL, 0.0)
                active.result.decode_s = sum(timings.values()) - active.result.prefill_s
                work[row] = None
                self._vacate(row)
            yield active.number, tokens
        clock.resume()

    def _vacate(self, row: int) -> None:
        self._side.set_length(row, 0)
        self._cycles.end(row)
