"""Good answers of servers, a folder a server: a file for each path that is asked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from tests.evaluate.served_fakes import Served
from vocabforge.corpus.prepared.packing import PackedRows
from vocabforge.models.target.fingerprint import target_fingerprint
from vocabforge.models.target.hf import HFTarget

DOCUMENT = (256, 3, 1, 4, 1, 5, 9, 2, 6)
STATES_FILE = "cmpl-0-abcd.safetensors"
LIMIT = 32


def make_answers(folder: Path) -> None:
    """Needs the target ``model`` in the folder."""
    rows = [{"question_id": number, "category": "qa", "turns": [f"Who is {number}?"]} for number in (1, 2)]
    (folder / "asked.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    _server(folder / "server-vllm", Served("vllm"), chat=True)
    _server(folder / "server-raw", Served("vllm"), chat=False)
    _server(folder / "server-sglang", Served("sglang"), chat=True)
    _server(folder / "server-plain", Served("vllm", speculates=False), chat=True)
    _hidden_states(folder / "server-states", folder / "model")


def document_rows() -> PackedRows:
    """One row with one document, which ``server-states`` has states of."""
    ids = np.array([DOCUMENT], dtype=np.int32)
    ones = np.ones_like(ids)
    place = np.arange(len(DOCUMENT), dtype=np.int32)[None]
    return PackedRows(ids, ones.astype(np.bool_), ones, place, len(DOCUMENT))


def _server(folder: Path, served: Served, *, chat: bool) -> None:
    folder.mkdir()
    entry = {"id": "tiny", "object": "model", "owned_by": served.kind, "max_model_len": 512}
    _json(folder / "models.json", {"object": "list", "data": [entry]})
    vllm = served.kind == "vllm"
    _json(
        folder / f"{'version' if vllm else 'server_info'}.json", {"version": "0.32.0" if vllm else "0.5.23"}
    )
    if vllm:
        (folder / "before.metrics").write_text(served.metrics(), "utf-8")
    body: dict[str, Any] = {
        "messages" if chat else "prompt": [{"role": "user", "content": "Who?"}] if chat else "Who?",
        "max_tokens": LIMIT,
        "temperature": 0,
        "return_token_ids": vllm or not chat,
        "return_spec_tokens_details": True,
        "return_output_ids_in_sglext": chat,
    }
    text = "".join(f"data: {json.dumps(event)}\n\n" for event in served.events(body))
    (folder / "answer.events").write_text(text + "data: [DONE]\n\n", "utf-8")
    if vllm:
        (folder / "after.metrics").write_text(served.metrics(), "utf-8")


def _hidden_states(folder: Path, model: Path) -> None:
    """A completion of vLLM with the connector for hidden states, and the file that it names."""
    folder.mkdir()
    _json(folder / "models.json", {"object": "list", "data": [{"id": "tiny"}]})
    reply = {"choices": [], "kv_transfer_params": {"hidden_states_path": f"/elsewhere/{STATES_FILE}"}}
    _json(folder / "reply.json", reply)
    target, ids = HFTarget.load(model), torch.tensor(DOCUMENT)
    layers = [*(layer + 1 for layer in target.aux_layers), target.num_layers]
    with torch.no_grad():
        outputs, _ = target.forward(ids[None], range(target.num_layers))
    states = torch.stack([outputs[layer - 1][0] for layer in layers], 1).contiguous()
    meta = {"target": target_fingerprint(model), "layers": json.dumps(layers)}
    save_file({"hidden_states": states, "token_ids": ids}, folder / STATES_FILE, metadata=meta)


def _json(file: Path, value: Any) -> None:
    file.write_text(json.dumps(value), "utf-8")
