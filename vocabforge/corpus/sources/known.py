"""Short names and licences of Hugging Face Hub data sets."""

from __future__ import annotations

from typing import NamedTuple

from ...core.registry import ExtensionTable


class KnownDataset(NamedTuple):
    """Data set of the Hub.

    Attributes:
        source: input name, ``hub:NAME[@REVISION][:CONFIG[:SPLIT]]``; without a revision, the latest is used.
        licence: licence on the data set's card (an SPDX name in lower case), None if the card states none.
        field: field with the text or conversation of a row; None for the usual fields.
    """

    source: str
    licence: str | None
    field: str | None = None


# Names as in SpecForge and speculators. Rows are read by their usual fields (rows.py): messages (ultrachat,
# nemotron), conversations (sharegpt, perfectblend, magpie, openhermes), question and answer, instruction and
# response, text (slimpajama, fineweb-edu).
DATASETS = ExtensionTable(
    "vocabforge.datasets",
    {
        "sharegpt": KnownDataset(
            "hub:Aeala/ShareGPT_Vicuna_unfiltered@8b0048ad6ae8c22f46a78c15559dec98feef5539", "apache-2.0"
        ),
        "ultrachat": KnownDataset(
            "hub:HuggingFaceH4/ultrachat_200k@8049631c405ae6576f93f445c6b8166f76f5505a::train_sft", "mit"
        ),
        "perfectblend": KnownDataset(
            "hub:mlabonne/open-perfectblend@af60f3c18201652a83a93f46fcfee1b646ba3df7", "apache-2.0"
        ),
        "magpie": KnownDataset("hub:Magpie-Align/Magpie-Qwen2.5-Pro-1M-v0.1", None),
        "openhermes": KnownDataset(
            "hub:teknium/OpenHermes-2.5@b82037821055c377bed0d495e72e46de3bc72e84", None
        ),
        "gsm8k": KnownDataset("hub:openai/gsm8k@cc7b047b6e5bb11b4f1af84efc572db110a51b3c:main", "mit"),
        "magicoder": KnownDataset(
            "hub:ise-uiuc/Magicoder-Evol-Instruct-110K@b0079beaa0361d82412520b873715bee59cc7dd4", "apache-2.0"
        ),
        "nemotron": KnownDataset(
            "hub:nvidia/Nemotron-Post-Training-Dataset-v1@74e23eb6f830fef4a9e96a92f6f6262214cbb9a8::chat",
            "cc-by-4.0",
        ),
        "slimpajama": KnownDataset(
            "hub:cerebras/SlimPajama-627B@ad15acfdd8416d7ff4eb51b3a6fcaf8824e70a92", None
        ),
        "fineweb-edu": KnownDataset(
            "hub:HuggingFaceFW/fineweb-edu@87f09149ef4734204d70ed1d046ddc9ca3f2b8f9:sample-10BT", "odc-by"
        ),
        "cnn-dm": KnownDataset(
            "hub:abisee/cnn_dailymail@96df5e686bee6baa90b8bee7c28b81fa3fa6223d:3.0.0", "apache-2.0", "article"
        ),
    },
)
