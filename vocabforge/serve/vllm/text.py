"""Text-only proposers for vLLM's method ``custom_class`` (vLLM 0.32, V1 runner).

The method passes the tokens of every request but no target states. This is enough for n-grams and for draft
models with the target's or another vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from ...core.errors import UsageError
from ...decode.build.grid import check_spec
from ...decode.build.methods import build_proposer, kind_of
from ...decode.build.models import Models
from ...decode.interface import Commit
from ...decode.proposers.registry import part_names
from ...decode.spec import MethodSpec

SETTINGS = "vocabforge"  # key in vLLM's additional_config; holds fields of MethodSpec


class TextProposer:
    """Drafts chains for the rows of a batch; the class named by ``speculative_config.model``.

    vLLM passes only texts and reorders the batch whenever a request ends, so the request of a row is
    identified by its text. If no slot holds a prefix of a row's text, the row is read from the beginning.

    Args:
        vllm_config: vLLM's configuration; ``additional_config["vocabforge"]`` selects the proposer.

    Raises:
        UsageError: the proposer needs more than text.
    """

    def __init__(self, vllm_config: Any) -> None:
        model = vllm_config.model_config
        self._most = int(vllm_config.speculative_config.num_speculative_tokens)
        self._positions = int(model.max_model_len) + self._most
        self._spec = _spec(vllm_config.additional_config, self._most)
        self._device = torch.device(vllm_config.device_config.device)
        self._model = model
        self._texts: list[np.ndarray] = []  # per slot, the text that the proposer has read

    def load_model(self, target_model: Any) -> None:
        """Build the proposer; called by vLLM after its own model is loaded."""
        vocab = int(self._model.get_vocab_size())
        # Text proposers need these attributes of a target but no weights.
        target: Any = SimpleNamespace(
            config=SimpleNamespace(vocab_size=vocab, max_positions=self._positions, recurrent=False),
            device=self._device,
            dtype=self._model.dtype,
            embedding=torch.empty(vocab, 0, device=self._device),
        )
        models = Models(Path(self._model.model), Path(self._model.tokenizer), model=target)
        self._proposer, _, _ = build_proposer(models, self._spec, "vLLM's draft")

    @torch.inference_mode()
    def propose(
        self,
        sampled_token_ids: Sequence[Sequence[int]],
        num_tokens_no_spec: np.ndarray,
        token_ids_cpu: np.ndarray,
        slot_mappings: Any = None,
    ) -> list[list[int]]:
        """Draft up to ``num_speculative_tokens`` tokens per row; none before a row's prompt is processed.

        Args:
            sampled_token_ids: new tokens of each row.
            num_tokens_no_spec: (B,) numbers of text tokens.
            token_ids_cpu: (B, S) texts.
            slot_mappings: unused.
        """
        texts = {
            row: token_ids_cpu[row, : num_tokens_no_spec[row]].copy()
            for row, sampled in enumerate(sampled_token_ids)
            if len(sampled) and num_tokens_no_spec[row] < self._positions - self._most
        }
        drafts: list[list[int]] = [[] for _ in sampled_token_ids]
        if not texts:
            return drafts
        places = self._read(texts)
        roots = torch.tensor([int(text[-1]) for text in self._texts], device=self._device)
        tree = self._proposer.propose(roots, self._proposer.plan, None, lambda part, head_s=0.0: None)
        alive = torch.ones_like(tree.tokens, dtype=torch.bool) if tree.alive is None else tree.alive
        counts = (alive.sum(1) - 1).tolist()
        tokens = tree.tokens[:, 1:].tolist()
        for row, slot in places.items():
            drafts[row] = tokens[slot][: min(counts[slot], self._most)]
        return drafts

    def _read(self, texts: dict[int, np.ndarray]) -> dict[int, int]:
        """Update the slot of every text; return the slots by row."""
        places: dict[int, int] = {}
        for row, text in texts.items():
            free = [slot for slot in range(len(self._texts)) if slot not in places.values()]
            begun = [slot for slot in free if _continues(text, self._texts[slot])]
            if begun:
                places[row] = max(begun, key=lambda slot: len(self._texts[slot]))
        new = {slot: texts[row][len(self._texts[slot]) :].tolist() for row, slot in places.items()}
        self._commit(new)
        free = [slot for slot in range(len(self._texts)) if slot not in places.values()]
        waiting = [row for row in texts if row not in places]
        if len(waiting) > len(free):
            places, waiting = {}, list(texts)
            free = self._grow(len(texts))
        for row, slot in zip(waiting, free):
            self._begin(slot, texts[row])
            places[row] = slot
        for row, slot in places.items():
            self._texts[slot] = texts[row]
        return places

    def _commit(self, new: dict[int, list[int]]) -> None:
        if not new:
            return
        tokens = [new.get(slot, []) for slot in range(len(self._texts))]
        longest = max(map(len, tokens))
        following = torch.tensor([[*ids, *[0] * (longest - len(ids))] for ids in tokens], device=self._device)
        counts = torch.tensor(list(map(len, tokens)), device=self._device)
        self._proposer.commit(Commit(following, None, counts, None, tokens))

    def _grow(self, rows: int) -> list[int]:
        """Double the number of slots, to at least ``rows``; all texts are read again."""
        count = max(rows, 2 * len(self._texts))
        cache: Any = SimpleNamespace(device=self._device)  # text proposers read only its device
        self._proposer.allocate(count, self._positions, cache)
        self._texts = [np.zeros(2, np.int64) for _ in range(count)]
        for slot, text in enumerate(self._texts):  # unused slots are drafted for as well
            self._begin(slot, text)
        return list(range(count))

    def _begin(self, slot: int, text: np.ndarray) -> None:
        self._proposer.begin(slot, text.tolist())
        self._proposer.prefill(slot, torch.from_numpy(text[1:].astype(np.int64)).to(self._device), None)


def _continues(text: np.ndarray, known: np.ndarray) -> bool:
    return len(text) > len(known) and bool((text[: len(known)] == known).all())


def _spec(told: Any, tokens: int) -> MethodSpec:
    settings = told.get(SETTINGS) if isinstance(told, dict) else None
    spec = MethodSpec.model_validate({"tree": "chain", "depth": tokens - 1, **(settings or {})})
    drafts = kind_of(spec.drafter) if spec.drafter is not None else spec.proposer
    if drafts not in ("n-gram", "draft-model") or len(part_names(spec.proposer or drafts)) > 1:
        raise UsageError(
            "vLLM passes this proposer only the text of a request",
            got=settings or f"no {SETTINGS!r} in additional_config",
            expected='{"proposer": "n-gram"} or {"drafter": "DIR of a smaller language model"}',
            source=f"--additional-config '{{\"{SETTINGS}\": ...}}'",
            remedy="serve a trained drafter with method eagle3, eagle or medusa",
        )
    check_spec(spec, None if spec.drafter is None else drafts, sampled=False)
    return spec
