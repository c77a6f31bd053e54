"""A server in a thread that writes and serves hidden states as ``vocabforge.serve.vllm.hidden_states`` does."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tests.corpus.chat_server import FakeServer, Reply
from vocabforge.models.target.fingerprint import target_fingerprint
from vocabforge.models.target.hf import HFTarget
from vocabforge.serve.vllm.state_files import StateFiles


class HiddenServer(FakeServer):
    """Answers ``fail_after`` completions, and hangs up after that."""

    def __init__(
        self,
        folder: Path,
        target: HFTarget,
        *,
        layers: Sequence[int] | None = None,
        meta: dict[str, str] | None = None,
        fail_after: int | None = None,
        port: int = 0,
        share_bytes: int | None = None,
        key: str | None = None,
    ) -> None:
        super().__init__(self.complete, port=port)
        folder.mkdir(exist_ok=True)
        self.folder, self.fail_after = folder, fail_after
        self.target = HFTarget.load(Path(str(target.source)))  # hooks of one model suit one thread
        self.layers = list(layers or [*(layer + 1 for layer in target.aux_layers), target.num_layers])
        fingerprint = target_fingerprint(Path(str(target.source)))
        self.meta = {"target": fingerprint, "layers": json.dumps(self.layers), **(meta or {})}
        self.most_bytes = 0  # in the folder, before an answer
        self.files: StateFiles | None = None
        if share_bytes is not None:
            self.files = StateFiles("127.0.0.1:0", folder, limit_bytes=share_bytes, key=key)

    def __exit__(self, *failure: object) -> None:
        super().__exit__(*failure)
        if self.files is not None:
            self.files.shutdown()
            self.files.server_close()

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
            tensors = {"hidden_states": states.contiguous(), "token_ids": ids}

            def save() -> None:
                aside = file.with_name(f"{file.name}.partial")
                save_file(tensors, aside, metadata=self.meta)
                aside.rename(file)
                held = 0
                for one in self.folder.glob("*.safetensors"):
                    with contextlib.suppress(FileNotFoundError):  # the client has just removed it
                        held += one.stat().st_size
                self.most_bytes = max(self.most_bytes, held)

            if self.files is None:
                save()
            else:
                self.files.add(file, sum(one.nbytes for one in tensors.values()), save)
        port = self.files and self.files.server_address[1]
        facts = {"hidden_states_path": f"/elsewhere/{file.name}", "hidden_states_port": port}
        return 200, {"choices": [], "kv_transfer_params": facts}
