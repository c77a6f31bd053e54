"""How a model card says to start each reader of a layout."""

from __future__ import annotations

import json
import shlex
from typing import Protocol

# layout -> its readers, as tags of a model card
_READERS = {
    "native": (),
    "sglang-eagle3": ("sglang", "vllm"),
    "speculators-eagle3": ("vllm", "speculators"),
    "fr-spec": ("sglang", "fr-spec"),
}


class DraftFacts(Protocol):
    """What the commands depend on."""

    @property
    def target_dtype(self) -> str | None:
        """Of the target's checkpoint, which a server runs the drafter in, too; None where it is not known."""
        ...

    @property
    def speculative_tokens(self) -> int: ...
    @property
    def rows(self) -> int:
        """Of the draft head."""
        ...


def readers(layout: str, server: str | None) -> tuple[str, ...]:
    """Who reads a folder of this layout."""
    if layout == "eagle":
        return (server or "sglang",)
    return _READERS.get(layout, ())


def commands(layout: str, server: str | None, name: str, target: str, facts: DraftFacts) -> str:
    """A section of Markdown: the decoder of VocabForge, then each server that reads the layout.

    Args:
        name, target: folders or names; quoted for a shell here.
    """
    bare, name, target = name, shlex.quote(name), shlex.quote(target)
    written = [("VocabForge", f'vocabforge generate --target {target} --drafter {name} --prompt "..."')]
    known = readers(layout, server)
    eagle3 = layout in ("sglang-eagle3", "speculators-eagle3")
    if "sglang" in known:
        written.append(("SGLang", _sglang(layout, name, target, facts, "EAGLE3" if eagle3 else "EAGLE")))
    if "vllm" in known:
        written.append(("vLLM", _vllm(bare, target, facts, "eagle3" if eagle3 else "eagle")))
    if "speculators" in known:
        written.append(("vLLM, the target as this folder names it", f"vllm serve {name}"))
    blocks = [f"{title}:\n\n```\n{command}\n```" for title, command in written]
    if layout == "native":
        blocks.append("`vocabforge export` writes it in the layouts of servers.")
    blocks.append("`vocabforge doctor --target TARGET --drafter DIR` checks the folder against the target.")
    return "\n\n".join(blocks)


def _sglang(layout: str, name: str, target: str, facts: DraftFacts, algorithm: str) -> str:
    options = [
        f"--model-path {target}",
        f"--speculative-algorithm {algorithm}",
        f"--speculative-draft-model-path {name}",
        f"--speculative-num-steps {facts.speculative_tokens}",
        "--speculative-eagle-topk 1",
        f"--speculative-num-draft-tokens {facts.speculative_tokens + 1}",
        *([f"--dtype {facts.target_dtype}"] if facts.target_dtype else []),
    ]
    if layout == "fr-spec":
        options.insert(3, f"--speculative-token-map {name}/freq_{facts.rows}.pt")
    return " \\\n  ".join(["python -m sglang.launch_server", *options])


def _vllm(name: str, target: str, facts: DraftFacts, method: str) -> str:
    config = {"method": method, "model": name, "num_speculative_tokens": facts.speculative_tokens}
    dtype = f" --dtype {facts.target_dtype}" if facts.target_dtype else ""
    return f"vllm serve {target}{dtype} \\\n  --speculative-config {shlex.quote(json.dumps(config))}"
