"""vLLM KV connector that writes the hidden states of prompts, one safetensors file per request.

vLLM loads it through ``kv_connector_module_path`` together with the speculative method
``extract_hidden_states``, on any device. Like the files of speculators, a file holds ``hidden_states`` (T, L,
H) and ``token_ids`` (T,). Its metadata holds ``target`` (the fingerprint) and ``layers`` in vLLM's numbering:
layer i is the input of decoder layer i, and the number of layers means the last layer's output before
the final norm. Files are written under a temporary name and then renamed. With ``states_address`` they are
also served over HTTP (``state_files.py``).
"""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    SupportsHMA,
)
from vllm.distributed.parallel_state import get_tensor_model_parallel_rank
from vllm.logger import init_logger

from ...core.hub import model_folder
from ...models.target.fingerprint import target_fingerprint
from .state_files import StateFiles

_WRITERS = 4
logger = init_logger(__name__)


@dataclass
class FinishedPrompt:
    """Finished request whose states, in cache blocks ``block_ids``, are to be written to ``file``."""

    request_id: str
    file: str
    token_ids: list[int]
    block_ids: list[int]


@dataclass
class FinishedPrompts(KVConnectorMetadata):
    """Metadata sent from the scheduler to the worker at each step."""

    prompts: list[FinishedPrompt] = field(default_factory=list)


class HiddenStatesConnector(KVConnectorBase_V1, SupportsHMA):
    """Connector that writes the states of each finished prompt to ``shared_storage_path``.

    The folder is set in ``kv_connector_extra_config``. The response names the file in
    ``kv_transfer_params.hidden_states_path``; it appears within one engine step. ``states_address``
    (``HOST:PORT``) of the same configuration serves at most ``states_gb`` (8) of files over HTTP. Clients need
    the key in the environment variable ``VLLM_API_KEY``, if it is set.
    """

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        settings = vllm_config.speculative_config
        if settings is None or settings.method != "extract_hidden_states":
            raise ValueError("HiddenStatesConnector needs speculative_config.method extract_hidden_states")
        extra = self._kv_transfer_config.get_from_extra_config
        self._folder, self._address = extra("shared_storage_path", None), extra("states_address", None)
        self._limit = int(float(extra("states_gb", 8)) * 10**9)
        self._service: StateFiles | None = None  # only in the worker
        if self._folder is None:
            raise ValueError("HiddenStatesConnector needs kv_connector_extra_config.shared_storage_path")
        self._group, self._layer = next(
            (number, name)
            for number, group in enumerate(kv_cache_config.kv_cache_groups)
            for name in group.layer_names
            if "cache_only_layers" in name  # the single layer of ExtractHiddenStatesModel
        )
        layers = settings.draft_model_config.hf_config.eagle_aux_hidden_state_layer_ids
        self._meta = {"layers": json.dumps(sorted(layers))}  # order of the forward pass
        self._finished: list[FinishedPrompt] = []
        self._cache: torch.Tensor | None = None  # (blocks, L, block size, H); only in the worker

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: Any) -> str:
        return "LBNHC"

    def get_finished_count(self) -> int:
        """Return 1: only rank 0 writes."""
        return 1

    # Scheduler side

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        return 0, False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        pass

    def build_connector_meta(self, scheduler_output: Any) -> FinishedPrompts:
        finished, self._finished = self._finished, []
        return FinishedPrompts(finished)

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Keep the blocks of a finished request until its states are copied; aborted requests have none."""
        tokens = list(request.prompt_token_ids or ())
        if not tokens or request.num_computed_tokens < len(tokens):
            return False, None
        file = str(Path(self._folder) / f"{request.request_id}.safetensors")
        blocks = list(block_ids[self._group])
        self._finished.append(FinishedPrompt(request.request_id, file, tokens, blocks))
        port = self._address and int(self._address.rpartition(":")[2])
        return True, {"hidden_states_path": file, "hidden_states_port": port}

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        return self.request_finished_all_groups(request, (block_ids,))

    # Worker side

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        self._cache = kv_caches[self._layer]
        self._writes = get_tensor_model_parallel_rank() == 0
        if self._writes:
            os.makedirs(self._folder, exist_ok=True)
            self._writers = ThreadPoolExecutor(_WRITERS)
            if self._address is not None:
                key, folder = os.environ.get("VLLM_API_KEY"), Path(self._folder)
                self._service = StateFiles(self._address, folder, limit_bytes=self._limit, key=key)
            model = self._vllm_config.model_config.model
            self._meta["target"] = target_fingerprint(model_folder(Path(model)))

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        prompts = self._get_connector_metadata().prompts if self._writes else []
        for prompt in prompts:
            assert self._cache is not None
            size = self._cache.shape[2]
            place = torch.arange(len(prompt.token_ids), device=self._cache.device)  # (T,)
            block = torch.tensor(prompt.block_ids, device=self._cache.device)[place // size]
            states = self._cache[block, :, place % size].cpu()  # (T, L, H)
            self._writers.submit(self._write, prompt, states)
        return {prompt.request_id for prompt in prompts} or None, None

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        pass

    def wait_for_layer_load(self, layer_name: str) -> None:
        pass

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        pass

    def wait_for_save(self) -> None:
        pass

    def _write(self, prompt: FinishedPrompt, states: torch.Tensor) -> None:
        tensors = {"hidden_states": states, "token_ids": torch.tensor(prompt.token_ids)}

        def save() -> None:
            save_file(tensors, f"{prompt.file}.partial", metadata=self._meta)
            os.replace(f"{prompt.file}.partial", prompt.file)

        try:
            if self._service is None:
                save()
            else:
                self._service.add(Path(prompt.file), sum(tensor.nbytes for tensor in tensors.values()), save)
        except Exception:
            logger.exception("The hidden states of request %s cannot be written", prompt.request_id)
