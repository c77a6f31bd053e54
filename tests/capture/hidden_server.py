"""A server in a thread that writes hidden states as ``vocabforge.serve.vllm.hidden_states`` does."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tests.corpus.chat_server import FakeServer, Reply
from vocabforge.models.target.fingerprint import target_fingerprint
from vocabforge.models.target.hf import HFTarget


class HiddenServer(FakeServer):
    """Answers ``fail_after`` completions, and hangs up after that.

    Args:
        layers: as vLLM numbers them.
        meta: replaces entries of the files' metadata.
    """

    def __init__(
        self,
        folder: Path,
        target: HFTarget,
        *,
        layers: Sequence[int] | None = None,
        meta: dict[str, str] | None = None,
        fail_after: int | None = None,
        port: int = 0,
    ) -> None:
        super().__init__(self.complete, port=port)
        folder.mkdir(exist_ok=True)
        self.folder, self.fail_after = folder, fail_after
        self.target = HFTarget.load(Path(str(target.source)))  # hooks of one model suit one thread
        self.layers = list(layers or [*(layer + 1 for layer in target.aux_layers), target.num_layers])
        fingerprint = target_fingerprint(Path(str(target.source)))
        self.meta = {"target": fingerprint, "layers": json.dumps(self.layers), **(meta or {})}
        self.most_bytes = 0  # in the folder, before an answer

    @torch.no_grad()
    def complete(self, body: dict[str, Any]) -> Reply:
        if self.fail_after is not None and len(self.bodies) > self.fail_after:
            return None
        assert (body["max_tokens"], body["temperature"], body["model"]) == (1, 0, "tiny")
        with self.lock:
            ids = torch.tensor(body["prompt"])
            outputs, _ = self.target.forward(ids[None], range(self.target.num_layers))
            states = torch.stack([outputs[layer - 1][0] for layer in self.layers], 1)
            file = self.folder / f"cmpl-{body['request_id']}-0-abcd.safetensors"
            aside = file.with_name(f"{file.name}.partial")
            save_file({"hidden_states": states.contiguous(), "token_ids": ids}, aside, metadata=self.meta)
            aside.rename(file)
            sizes = [one.stat().st_size for one in self.folder.glob("*.safetensors")]
            self.most_bytes = max(self.most_bytes, sum(sizes))
        return 200, {"choices": [], "kv_transfer_params": {"hidden_states_path": f"/elsewhere/{file.name}"}}
