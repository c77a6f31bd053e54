"""Choice between chat template and plain text for prompts."""

from __future__ import annotations

from typing import Literal

from ...core.console import say
from ...core.errors import UsageError
from ...core.registry import check_known
from .tokenizer import TextTokenizer

PromptFormat = Literal["chat", "raw"]
PROMPT_FORMATS = ("auto", "chat", "raw")


def resolve_format(tokenizer: TextTokenizer, wanted: str) -> PromptFormat:
    """Resolve ``auto`` to ``chat`` if the tokenizer has a chat template, else to ``raw``.

    Raises:
        UsageError: an unknown format, or ``chat`` without a template.
        DataError: the template has a syntax error, or omits message contents.
    """
    named = tokenizer.named_templates
    check_known(wanted, PROMPT_FORMATS, "prompt format", source="--prompt-format")
    if wanted == "chat" and tokenizer.chat_template is None:
        raise UsageError(
            "the tokenizer has no chat template",
            got=f"templates named {', '.join(named)}, but no default" if named else tokenizer.source,
            expected="chat_template.jinja or a chat_template in tokenizer_config.json",
            source="--prompt-format chat",
            remedy="add the template of the model, or use --prompt-format raw",
        )
    if wanted == "auto" and tokenizer.chat_template is None and named:
        say(
            f"The tokenizer has chat templates named {', '.join(named)}, but no default: prompts are read as plain "
            "text."
        )
    if wanted == "raw" or tokenizer.chat_template is None:
        return "raw"
    tokenizer.forms()
    return "chat"
